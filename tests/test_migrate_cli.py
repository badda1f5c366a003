"""The command line: output, files written, errors, and exit status."""

import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from programs import PROGRAMS

import rnncells
from rnncells.migrate.cli import main
from rnncells.migrate.file_results import FEW
from rnncells.migrate.files import not_in_git
from rnncells.migrate.migration import migrate


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("scan_class", "setup", "cell_classes"):
        (tmp_path / f"{name}.py").write_text(PROGRAMS[name])
    (tmp_path / "venv").mkdir()
    (tmp_path / "venv" / "other.py").write_text(PROGRAMS["setup"])
    (tmp_path / "new.py").write_text("x = 1\n")
    return tmp_path


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_without_options_a_diff_is_printed_and_no_file_changes(project, capsys):
    before = contents(project)
    assert main(["migrate", "."]) == 0
    output = capsys.readouterr()
    assert contents(project) == before
    assert "--- a/setup.py\n+++ b/setup.py\n" in output.out
    assert "+        self.cell = nn.LSTMCell(self.hidden_size)\n" in output.out
    assert "venv" not in output.out and "new.py" not in output.out
    assert "3 of 4 files would change" in output.err
    assert (
        "cell_classes.py:18: RC01 `self.cell_cls` may be one of several classes"
        in output.err
    )
    assert "RC01      4 rewritten,     2 marked" in output.err


def test_check_lists_files_write_changes_them_and_backup_keeps_the_old(project, capsys):
    assert main(["migrate", ".", "--check"]) == 1
    output = capsys.readouterr()
    assert output.out == ""
    named = re.findall(r"(.*): would change\n", output.err)
    assert named == ["cell_classes.py", "scan_class.py", "setup.py"]
    assert main(["migrate", ".", "--write", "--backup"]) == 0
    assert "3 of 4 files changed" in capsys.readouterr().err
    assert (project / "setup.py.orig").read_text() == PROGRAMS["setup"]
    # An earlier backup stays, once for the same contents.
    for text in ("setup", "scan_class", "setup"):
        (project / "setup.py").write_text(PROGRAMS[text])
        assert main(["migrate", "setup.py", "--write", "--backup"]) == 0
    kept = {path.name: path.read_text() for path in project.glob("setup.py.orig*")}
    assert kept == {
        "setup.py.orig": PROGRAMS["setup"],
        "setup.py.orig1": PROGRAMS["scan_class"],
    }
    assert "nn.LSTMCell(self.hidden_size)" in (project / "setup.py").read_text()
    assert main(["migrate", ".", "--check"]) == 0


def test_select_and_ignore_choose_the_rules(project, capsys):
    assert main(["migrate", "setup.py", "--select", "RC01"]) == 0
    selected = capsys.readouterr().out
    assert "nn.LSTMCell(self.hidden_size)" in selected and "parent=None" not in selected
    assert main(["migrate", "scan_class.py", "--ignore", "rc01,RC04"]) == 0
    ignored = capsys.readouterr().out
    assert "+" in ignored and ")()(carry, x)" not in ignored


def git(*words, **options):
    who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "core.autocrlf=false"]
    return subprocess.run(
        ["git", *who, *words], check=True, capture_output=True, **options
    )


@pytest.fixture
def tree(project):
    """A git repository in which the project is committed."""
    git("init")
    git("add", ".")
    git("commit", "-m", "old")
    return project


NO_PATCH = pytest.mark.skipif(
    shutil.which("patch") is None,
    reason="the program `patch` is not installed; `git apply` tests the same diffs",
)


@pytest.mark.parametrize("tool", ["git", pytest.param("patch", marks=NO_PATCH)])
def test_git_and_patch_apply_the_diff(tool, tmp_path, monkeypatch, capsysbinary):
    monkeypatch.chdir(tmp_path)
    program = PROGRAMS["setup"].encode()
    sources = {
        "plain.py": program,
        "a folder/of mine.py": program,
        "crlf.py": program.replace(b"\n", b"\r\n"),
        "latin.py": "# -*- coding: latin-1 -*-\n# é\n".encode("latin-1") + program,
        "no_end.py": program + b"cell = nn.LSTMCell()(carry, x)",
        # Characters that end lines for Python's `str`, and for no other tool.
        "separators.py": program.replace(
            b"\nclass", b"\nx = '\x1c\xe2\x80\xa8'  # a\rb = 1\n\x0c\nclass", 1
        ),
        "[x]*.py": program,
    }
    for name, data in sources.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
    expected = {name: migrate(data).data for name, data in sources.items()}
    assert all(expected[name] != sources[name] for name in sources)

    def check_applies(words, *command, cwd="."):
        assert main(["migrate", *map(str, words)]) == 0
        patch = capsysbinary.readouterr().out
        subprocess.run(command, check=True, input=patch, cwd=cwd, capture_output=True)
        done = {name: (tmp_path / name).read_bytes() for name in sources}
        assert done == expected
        for name, data in sources.items():
            (tmp_path / name).write_bytes(data)

    command = ["git", "apply"]
    if tool != "git":
        command = [tool, "-p1", "--binary", "--force"]
    check_applies(["."], *command)
    # Inside a repository, `git apply` reads paths from its top.
    git("init")
    check_applies(["."], *command)
    check_applies([tmp_path], *command)
    (tmp_path / "below").mkdir()
    monkeypatch.chdir("below")
    check_applies([".."], *command, cwd="/")
    monkeypatch.chdir("../a folder")
    assert main(["migrate", "of mine.py"]) == 0
    git("apply", input=capsysbinary.readouterr().out)
    assert Path("of mine.py").read_bytes() == expected["a folder/of mine.py"]


def test_the_summary_follows_the_diff(project):
    command = "from rnncells.migrate.cli import main; main(['migrate', 'setup.py'])"
    root = str(Path(__file__).parent.parent)
    env = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
    both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    done = subprocess.run(
        [sys.executable, "-c", command],
        env=env | {"PYTHONPATH": root},
        check=True,
        **both,
    )
    lines = done.stdout.splitlines()
    assert lines[0] == "--- a/setup.py"
    assert "1 of 1 files would change" in lines[1:]


def test_files_with_uncommitted_changes_are_not_written(tree, capsys):
    before = contents(tree)
    (tree / "setup.py").write_text(PROGRAMS["setup"] + "x = 1\n")
    dirty = contents(tree)
    assert main(["migrate", ".", "--write"]) == 2
    error = capsys.readouterr().err
    assert "git could not restore the present contents of setup.py. Commit" in error
    assert contents(tree) == dirty
    # Staged changes are not committed.
    git("add", "setup.py")
    assert main(["migrate", ".", "--write"]) == 2
    # Other files can be written, and again after our own changes.
    assert main(["migrate", "scan_class.py", "--write"]) == 0
    assert main(["migrate", "scan_class.py", "--write"]) == 0
    assert (tree / "scan_class.py").read_bytes() != before[tree / "scan_class.py"]
    assert main(["migrate", ".", "--write", "--allow-dirty"]) == 0
    assert main(["migrate", ".", "--check"]) == 0


@pytest.mark.parametrize("is_ignored", [False, True])
def test_untracked_files_are_not_written(is_ignored, tree, capsys):
    (tree / ".gitignore").write_text("local\n" if is_ignored else "")
    (tree / "local").mkdir()
    (tree / "local" / "[x] é*.py").write_text(PROGRAMS["setup"])
    assert main(["migrate", ".", "--write"]) == 2
    assert "restore the present contents of local/[x] é*.py." in capsys.readouterr().err
    assert main(["migrate", "setup.py", "--write"]) == 0


def test_read_only_files_are_not_written(project, capsys):
    """Read-only targets of links are not written. Unchanged files may be read-only."""
    (project / "link.py").symlink_to("setup.py")
    (project / "new.py").chmod(0o444)
    before = contents(project)
    (project / "setup.py").chmod(0o444)
    for given, name in ((".", "setup.py"), ("link.py", "link.py")):
        assert main(["migrate", given, "--write", "--allow-dirty"]) == 2
        error = f"error: no file was written: read-only files: {name}.\n"
        assert capsys.readouterr().err == error
        assert contents(project) == before
    (project / "setup.py").chmod(0o640)
    assert main(["migrate", ".", "--write"]) == 0
    assert stat.S_IMODE((project / "setup.py").stat().st_mode) == 0o640


def test_file_names_can_be_any_bytes(tree, capsysbinary):
    name = os.fsdecode(b"\xff.py")
    (tree / name).write_text(PROGRAMS["setup"])
    assert main(["migrate", name]) == 0
    assert b"\n+++ b/\xff.py\n" in capsysbinary.readouterr().out
    assert not_in_git([Path(name), Path("setup.py")]) == [Path(name)]


def test_unchanged_files_can_have_uncommitted_changes(tree):
    (tree / "new.py").write_text("x = 2\n")
    (tree / "notes.txt").write_text("not tracked\n")
    assert main(["migrate", ".", "--write"]) == 0


def test_git_is_asked_in_the_repository_of_each_file(
    tree, tmp_path_factory, monkeypatch, capsys
):
    """The repositories of the working folder, a link and a git hook do not count."""
    (tree / "setup.py").write_text(PROGRAMS["setup"] + "x = 1\n")
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    monkeypatch.chdir(elsewhere)
    (elsewhere / "link.py").symlink_to(tree / "setup.py")
    monkeypatch.setenv("GIT_DIR", str(elsewhere / "none"))
    assert main(["migrate", "link.py", "--write"]) == 2
    assert "contents of link.py." in capsys.readouterr().err
    (elsewhere / "free.py").write_text(PROGRAMS["setup"])
    assert main(["migrate", "free.py", "--write"]) == 0


def test_an_error_of_git_is_reported(tree, capsys):
    (tree / ".git" / "config").write_text("[core\n")
    assert main(["migrate", ".", "--write"]) == 2
    assert "bad config" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words, message",
    [
        (["nowhere"], "no such file or folder: nowhere"),
        ([".", "--jobs", "0"], "`--jobs` must be at least 1, got 0."),
        ([".", "--select", "RC99"], "unknown rules: RC99; the rules are RC01, "),
        ([".", "--write", "--check"], "not allowed with argument"),
    ],
)
def test_wrong_arguments_are_reported_in_one_line(words, message, project, capsys):
    try:
        status = main(["migrate", *words])
    except SystemExit as stop:
        status = stop.code
    assert status == 2 and message in capsys.readouterr().err


MARK_ALONE = "import flax.linen as nn\ncell = nn.LSTMCell()\n"
STATUSES = {
    "nothing to change": ({"a.py": "x = 1\n"}, [0, 0, 0]),
    "files to change": ({"a.py": PROGRAMS["setup"]}, [0, 1, 0]),
    "lines to mark": ({"a.py": MARK_ALONE}, [0, 1, 0]),
    "not Python": ({"a.py": "print 'flax LSTMCell'"}, [2, 2, 2]),
    "one of two files is not Python": (
        {"a.py": "print 'flax LSTMCell'", "b.py": PROGRAMS["setup"]},
        [2, 2, 2],
    ),
    "not Python, without cells": ({"a.py": "print 'flax'"}, [0, 0, 0]),
    "`flax.nn`": ({"a.py": "from flax import nn\n"}, [0, 0, 0]),
}


@pytest.mark.parametrize("sources, statuses", STATUSES.values(), ids=STATUSES)
def test_exit_status(sources, statuses, tmp_path):
    for name, text in sources.items():
        (tmp_path / name).write_text(text)
    ways = ([], ["--check"], ["--write"])
    assert [main(["migrate", str(tmp_path), *way]) for way in ways] == statuses
    # The other files are done.
    left = [migrate(p.read_bytes()) for p in tmp_path.glob("b.py")]
    assert not any(one.notes for one in left)


def test_files_that_are_not_python_are_named_and_not_rewritten(project, capsys):
    (project / "old.py").write_text("print 'flax LSTMCell'")
    (project / "odd.py").write_bytes(
        b"# -*- coding: utf-8 -*-\nx = '\xff' # flax LSTMCell"
    )
    assert main(["migrate", ".", "--write"]) == 2
    errors = capsys.readouterr().err
    assert "old.py: not rewritten: not Python: Missing parentheses" in errors
    assert "odd.py: not rewritten: not Python: not utf-8" in errors
    assert "line None" not in errors


@pytest.mark.parametrize("jobs", [1, 2])
def test_warnings_about_user_code_are_not_shown(jobs, tmp_path, capfd):
    code = "text = '\\d'\n" + PROGRAMS["setup"]
    for k in range(FEW if jobs > 1 else 1):
        (tmp_path / f"m{k}.py").write_text(code)
    assert main(["migrate", str(tmp_path), "--check", "--jobs", str(jobs)]) == 1
    assert "invalid escape" not in capfd.readouterr().err


@pytest.mark.parametrize(
    "source, is_older",
    [
        ("from flax import nn", True),
        ("from flax import (\n    optim,\n    nn,\n)", True),
        ("import flax\n\nclass A(flax.nn.Module): pass", True),
        ("import flax.nn as fnn", True),
        ("from flax.nn import recurrent", True),
        ("from flax.deprecated import nn", True),
        ("import flax.deprecated.nn as nn", True),
        ("from flax import linen as nn", False),
        ("from flax import struct\nimport torch.nn as nn", False),
        ('"""Not flax.nn."""\nimport flax.nnx as nn', False),
    ],
)
def test_files_that_use_flax_nn_are_named(source, is_older, tmp_path, capsys):
    path = tmp_path / "old.py"
    path.write_text(source + "\n")
    assert main(["migrate", str(path)]) == 0
    line = f"{path}: `flax.nn`, which is older than `flax.linen`, is not supported"
    assert (line in capsys.readouterr().err) == is_older


def test_version_option_prints_the_version(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"rnncells {rnncells.__version__}\n"


def test_help_lists_defaults_and_exit_statuses(capsys):
    with pytest.raises(SystemExit):
        main(["migrate", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    for default in ("flax", "all", "none", os.cpu_count() or 1):
        assert f"(default: {default})" in text
    guide = Path(__file__).parent.parent.joinpath("docs", "migration.md").read_text()
    statuses = re.findall(r"^\| (\d) \| (.*?) \|$", guide, re.MULTILINE)
    assert [number for number, _ in statuses] == ["0", "1", "2"]
    for number, what in statuses:
        assert f" {number} {what.replace('`', '')} " in f"{text} "


def test_several_processes_rewrite_many_files(tmp_path, capsys):
    for k in range(70):
        (tmp_path / f"m{k}.py").write_text(PROGRAMS["setup"])
    assert main(["migrate", str(tmp_path), "--write", "--jobs", "2"]) == 0
    assert "70 of 70 files changed" in capsys.readouterr().err
    new = {path.read_text() for path in tmp_path.glob("*.py")}
    assert new == {migrate(PROGRAMS["setup"].encode()).data.decode()}


def test_usage_names_the_command(capsys):
    words = [sys.executable, "-m", "rnncells", "src/"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("usage: python -m rnncells [-h]")
    with pytest.raises(SystemExit):
        main(["src/"])
    assert capsys.readouterr().err.startswith("usage: rnncells [-h]")


def test_user_code_is_never_run(tmp_path):
    path = tmp_path / "setup.py"
    path.write_text("raise SystemExit('run!')\n" + PROGRAMS["setup"])
    done = subprocess.run(
        [sys.executable, "-m", "rnncells", "migrate", str(path)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and "run!" not in done.stderr


@pytest.mark.parametrize(
    "option, hint",
    [
        ("--inplace", "pass --write to change the files"),
        ("-i", "pass --write to change the files"),
        ("--in-place=yes", "pass --write to change the files"),
        ("--dry-run", "without --write and --check, the command only prints a diff"),
    ],
)
def test_options_of_other_tools_are_explained(option, hint, project, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["migrate", "setup.py", option])
    assert stop.value.code == 2
    assert f"unknown option {option}: {hint}\n" in capsys.readouterr().err
