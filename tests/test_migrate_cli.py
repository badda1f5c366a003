"""The command line: what it prints, writes and refuses, and its exit status."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from flax import serialization
from programs import PROGRAMS

from rnncells.migrate.cli import main
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


def test_command_prints_a_diff_and_changes_nothing(project, capsys):
    before = contents(project)
    assert main(["migrate", "."]) == 0
    output = capsys.readouterr()
    assert contents(project) == before
    assert "--- a/setup.py\n+++ b/setup.py\n" in output.out
    assert "+        self.cell = nn.LSTMCell(self.hidden_size)\n" in output.out
    assert "venv" not in output.out and "new.py" not in output.out
    assert "3 of 4 files would change" in output.err
    assert "cell_classes.py:18: RC01 which class it is, is not known" in output.err
    assert "RC01      4 rewritten,     2 to look at" in output.err


def test_command_writes_checks_and_keeps_what_was(project, capsys):
    assert main(["migrate", ".", "--check"]) == 1
    assert capsys.readouterr().out == ""
    assert main(["migrate", ".", "--write", "--backup"]) == 0
    assert "3 of 4 files changed" in capsys.readouterr().err
    assert (project / "setup.py.orig").read_text() == PROGRAMS["setup"]
    assert "nn.LSTMCell(self.hidden_size)" in (project / "setup.py").read_text()
    assert main(["migrate", ".", "--check"]) == 0


def test_command_applies_the_rules_chosen(project, capsys):
    assert main(["migrate", "setup.py", "--select", "RC01"]) == 0
    selected = capsys.readouterr().out
    assert "nn.LSTMCell(self.hidden_size)" in selected and "parent=None" not in selected
    assert main(["migrate", "setup.py", "--ignore", "rc01,RC02"]) == 0
    ignored = capsys.readouterr().out
    assert "nn.LSTMCell(self.hidden_size)" not in ignored and "+" in ignored


def test_dirty_trees_are_refused(project, capsys):
    def git(*words):
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", *who, *words], check=True, capture_output=True)

    git("init")
    git("add", ".")
    before = contents(project)
    assert main(["migrate", ".", "--write"]) == 2
    assert "has changes that are not committed" in capsys.readouterr().err
    after = contents(project)
    assert {path: after[path] for path in before if ".git" not in str(path)} == {
        path: data for path, data in before.items() if ".git" not in str(path)
    }
    git("commit", "-m", "old")
    assert main(["migrate", ".", "--write"]) == 0
    assert main(["migrate", ".", "--write", "--allow-dirty"]) == 0


@pytest.mark.parametrize(
    "words, message",
    [
        (["nowhere"], "no such file or folder: nowhere"),
        ([".", "--jobs", "0"], "`--jobs` must be at least 1, got 0."),
        ([".", "--select", "RC99"], "unknown rules RC99; there are RC01, "),
        ([".", "--write", "--check"], "not allowed with argument"),
    ],
)
def test_mistakes_are_one_line(words, message, project, capsys):
    try:
        status = main(["migrate", *words])
    except SystemExit as stop:
        status = stop.code
    assert status == 2 and message in capsys.readouterr().err


def test_files_that_are_not_python_are_named_and_left(project, capsys):
    (project / "old.py").write_text("print 'flax LSTMCell'")
    (project / "odd.py").write_bytes(
        b"# -*- coding: utf-8 -*-\nx = '\xff' # flax LSTMCell"
    )
    assert main(["migrate", ".", "--write"]) == 0
    errors = capsys.readouterr().err
    assert "old.py: left as it is, not Python" in errors
    assert "odd.py: left as it is, not Python: not utf-8" in errors


def test_many_files_are_looked_at_by_several_processes(tmp_path, capsys):
    for k in range(70):
        (tmp_path / f"m{k}.py").write_text(PROGRAMS["setup"])
    assert main(["migrate", str(tmp_path), "--write", "--jobs", "2"]) == 0
    assert "70 of 70 files changed" in capsys.readouterr().err
    new = {path.read_text() for path in tmp_path.glob("*.py")}
    assert new == {migrate(PROGRAMS["setup"].encode()).data.decode()}


def test_user_code_is_never_run(tmp_path):
    path = tmp_path / "setup.py"
    path.write_text("raise SystemExit('run!')\n" + PROGRAMS["setup"])
    done = subprocess.run(
        [sys.executable, "-m", "rnncells.migrate", "migrate", str(path)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and "run!" not in done.stderr


def saved(path, **modules):
    params = {
        name: {"kernel": np.arange(6.0).reshape(shape)}
        for name, shape in modules.items()
    }
    # As `flax.training.checkpoints` wrote a state before Orbax.
    opt_state = {"0": {"count": np.int32(5), "trace": params}, "1": {}}
    state = {"step": 5, "params": params, "opt_state": opt_state}
    path.write_bytes(serialization.to_bytes(state))
    return state


@pytest.fixture
def checkpoints(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "noise.npz").write_bytes(b"\xc1 no")
    (tmp_path / "list").write_bytes(serialization.msgpack_serialize([1, 2]))
    (tmp_path / "orbax").mkdir()
    saved(tmp_path / "wide", b=(3, 2))
    saved(tmp_path / "two", a=(2, 3), b=(2, 3))
    saved(tmp_path / "like", head=(2, 3))
    return saved(tmp_path / "checkpoint_10", a=(2, 3))


@pytest.mark.parametrize("name", ["checkpoint_0", "checkpoint_0.5", "x.msgpack"])
def test_checkpoints_are_read_and_written_by_any_name(name, checkpoints, capsys):
    words = ["migrate-params", "checkpoint_10", "--like", "like"]
    assert main(words) == 0
    moves = "opt_state/0/trace/a -> opt_state/0/trace/head\nparams/a -> params/head\n"
    assert capsys.readouterr().out == moves
    assert main([*words, "--write", name]) == 0
    params = {"head": checkpoints["params"]["a"]}
    opt_state = {"0": {"count": np.int32(5), "trace": params}, "1": {}}
    expected = {"step": 5, "params": params, "opt_state": opt_state}
    written = serialization.msgpack_restore(Path(name).read_bytes())
    np.testing.assert_equal(written, expected)


def test_files_that_are_there_are_replaced_by_force_alone(checkpoints, capsys):
    words = ["migrate-params", "checkpoint_10", "--like", "like", "--write"]
    for name in ("checkpoint_10", "like", "./noise.npz"):
        before = Path(name).read_bytes()
        assert main([*words, name]) == 2
        error = capsys.readouterr().err
        assert error == f"error: {Path(name)} is there: give --force to replace it.\n"
        assert Path(name).read_bytes() == before
    assert main([*words, "checkpoint_10", "--force"]) == 0
    assert main([*words[:-1]]) == 0
    assert capsys.readouterr().out.endswith("all names stay\n")
    assert not [path for path in Path().iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize(
    "words, message",
    [
        ("none --like none", "No such file or directory: 'none'"),
        ("noise.npz --like like", "noise.npz is no file of Flax's bytes"),
        ("list --like like", "list is no file of Flax's bytes, as"),
        ("orbax --like like", "orbax is a folder: give a file in it; what Orbax"),
        ("like --like like --name b", "`--name` must be OLD=NEW, got 'b'"),
        ("like --like like --name b=c", "got 'b'; there are params/head."),
        (
            "like --like like --write x.safetensors",
            "x.safetensors: safetensors keep arrays alone, and ",
        ),
        (
            "wide --like like",
            "params/b has kernel (3, 2), and params/head of `like` kernel (2, 3)",
        ),
        ("two --like like", "as `--name params/a=params/head`"),
    ],
)
def test_mistakes_with_parameters_say_what_came(words, message, checkpoints, capsys):
    before = contents(Path())
    assert main(["migrate-params", *words.split()]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and message in error
    assert contents(Path()) == before
