"""The command line: files, notebooks, standard input, and exit statuses."""

import io
import json
import subprocess
import sys

import pytest
from rnncells_migrate.cli import main

HEAD = "import flax.linen as nn\n"
OLD = f"{HEAD}c = nn.GRUCell.initialize_carry(k, (2,), 4)\n"
NEW = f"{HEAD}c = nn.GRUCell(4, parent=None).initialize_carry(k, (2, 4))\n"
MARKED = f"{HEAD}cell = nn.GRUCell()\n"


@pytest.fixture
def project(tmp_path, monkeypatch):
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "old.py").write_text(OLD)
    (tmp_path / "src" / "new.py").write_text(NEW)
    (tmp_path / "src" / "build").mkdir()
    (tmp_path / "src" / "build" / "copy.py").write_text(OLD)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "src"


def test_a_diff_is_printed_and_no_file_changes(project, capsys):
    assert main(["src"]) == 0 and main(["src", "--diff"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("--- a/src/old.py\n+++ b/src/old.py\n@@ -1,2 +1,2 @@\n")
    assert "1 of 2 files would change" in err and "RC02      1 rewritten" in err
    assert (project / "old.py").read_text() == OLD


def test_the_diff_can_be_applied(project, capsys):
    (project / "old.py").write_text(OLD.rstrip())
    assert main(["src"]) == 0
    patch = capsys.readouterr().out
    words = ["git", "apply", "-"]
    subprocess.run(words, input=patch, text=True, check=True, cwd=project.parent)
    assert (project / "old.py").read_text() == NEW.rstrip()


def test_check_lists_the_files_and_write_changes_them(project, capsys):
    assert main(["src", "--check"]) == 1
    assert "src/old.py: would change" in capsys.readouterr().err
    (project / "old.py").chmod(0o640)
    assert main(["src", "--write"]) == 0
    assert (project / "old.py").read_text() == NEW
    assert (project / "old.py").stat().st_mode & 0o777 == 0o640
    assert main(["src", "--check"]) == 0
    assert sorted(path.name for path in project.iterdir()) == [
        *("build", "new.py", "old.py"),
    ]


def test_a_backup_replaces_no_file(project):
    for text in (OLD, OLD + "# again\n"):
        (project / "old.py").write_text(text)
        assert main(["src/old.py", "--write", "--backup"]) == 0
    assert (project / "old.py.orig").read_text() == OLD
    assert (project / "old.py.orig1").read_text() == OLD + "# again\n"


BROKEN = {
    "not Python: ": f"{HEAD}nn.LSTMCell((\n".encode(),
    "not UTF-8": f"{HEAD}# \xe9 LSTMCell\n".encode("latin-1"),
}


@pytest.mark.parametrize("message, data", BROKEN.items(), ids=BROKEN)
def test_files_that_cannot_be_read_stay(message, data, project, capsys):
    (project / "broken.py").write_bytes(data)
    assert main(["src", "--write"]) == 2
    assert f"src/broken.py: not rewritten: {message}" in capsys.readouterr().err
    assert (project / "broken.py").read_bytes() == data
    assert (project / "old.py").read_text() == NEW


def test_marks_are_listed_with_their_lines(project, capsys):
    (project / "old.py").write_text(MARKED)
    assert main(["src", "--write"]) == 0
    assert "src/old.py:2: RC01: the width" in capsys.readouterr().err
    assert main(["src", "--check", "--fail-on-marks"]) == 1


def test_notes_have_the_lines_of_the_new_file(project, capsys):
    (project / "old.py").write_text(f"{MARKED}S = nn.scan(nn.GRUCell, length=2)\n")
    assert main(["src"]) == 0
    assert "src/old.py:4: RC14: " in capsys.readouterr().err


def test_other_bytes_of_a_file_stay(project):
    data = b"\xef\xbb\xbf" + OLD.replace("\n", "\r\n").encode() + b"\x0c\r\nx = 1 ;"
    (project / "old.py").write_bytes(data)
    assert main(["src", "--write"]) == 0
    new = NEW.replace("\n", "\r\n").encode()
    assert (project / "old.py").read_bytes() == (
        b"\xef\xbb\xbf" + new + b"\x0c\r\nx = 1 ;"
    )


def test_wrong_arguments(project, capsys):
    assert main(["missing"]) == 2 and main(["-", "src"]) == 2
    assert "no such file or folder: missing" in capsys.readouterr().err


def test_files_for_flax_nn_are_named(project, capsys):
    (project / "older.py").write_text("from flax import nn\n")
    assert main(["src"]) == 0
    assert "src/older.py: `flax.nn`" in capsys.readouterr().err


def cell(*source: str) -> dict:
    return {
        "cell_type": "code",
        "execution_count": 3,
        "metadata": {"a": True},
        "outputs": [{"text": ["<é>"], "data": None}],
        "source": list(source),
    }


CELLS = [
    {"cell_type": "markdown", "metadata": {}, "source": ["nn.GRUCell()"]},
    cell("%matplotlib inline\n", "!pip install \\\n", "  flax\n", HEAD, "nn?"),
    cell("%%time\n", "if a:\n", "    !ls\n", *OLD.splitlines(True)[1:], "x = 'é'"),
    cell("%%bash\n", "nn.GRUCell()"),
    cell("def (: nn.GRUCell()"),
]
NOTEBOOK = {
    "cells": CELLS,
    "metadata": {"language_info": {"name": "python"}},
    "nbformat": 4,
    "nbformat_minor": 5,
}
LAYOUTS = {
    "of Jupyter": {"indent": 1, "ensure_ascii": False},
    "of Colab": {"indent": 2},
    "of one line": {},
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_only_the_changed_lines_of_a_notebook_change(layout, project, capsys):
    path = project / "old.ipynb"
    # Colab writes some letters as escapes.
    path.write_text(json.dumps(NOTEBOOK, **layout).replace("<", "\\u003c"))
    expected = path.read_text().replace(*(json.dumps(s)[1:-1] for s in (OLD, NEW)))
    old, new = (json.dumps(code.splitlines()[1])[1:-1] for code in (OLD, NEW))
    expected = path.read_text().replace(old, new)
    assert main(["src/old.ipynb", "--write"]) == 0
    assert path.read_text() == expected and new in expected
    assert "code cell 4, line 1: not Python" in capsys.readouterr().err
    assert main(["src/old.ipynb", "--check"]) == 0


def test_marks_in_notebooks_have_the_number_of_the_cell(project, capsys):
    cells = [cell(HEAD), cell("x = 1\n", "cell = nn.GRUCell()")]
    (project / "old.ipynb").write_text(json.dumps({**NOTEBOOK, "cells": cells}))
    assert main(["src/old.ipynb"]) == 0
    assert "code cell 2, line 2: RC01: " in capsys.readouterr().err


@pytest.mark.parametrize("text", ["{", "[]", '{"cells": []}', '{"nbformat": 3}'])
def test_other_files_are_no_notebooks(text, project, capsys):
    (project / "old.ipynb").write_text(text)
    assert main(["src/old.ipynb", "--write"]) == 2
    assert "not a notebook of nbformat 4" in capsys.readouterr().err
    assert (project / "old.ipynb").read_text() == text


@pytest.mark.parametrize(
    "data, options, status, output",
    [
        (OLD, [], 0, NEW),
        (NEW, ["--check"], 0, ""),
        (OLD, ["--check"], 1, ""),
        (
            json.dumps(NOTEBOOK),
            [],
            0,
            json.dumps(NOTEBOOK).replace(OLD[24:-1], NEW[24:-1]),
        ),
        ("LSTMCell flax", [], 2, "LSTMCell flax"),
    ],
)
def test_standard_input_is_rewritten(
    data, options, status, output, monkeypatch, capsys
):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data.encode())))
    assert main(["-", *options]) == status
    assert capsys.readouterr().out == output


def test_the_command_is_installed_without_jax():
    code = "import rnncells_migrate.cli, sys; print({'jax', 'flax'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "set()\n"
