"""Notebooks are rewritten in place: code cells alone, and no other byte."""

import io
import json
import sys

import pytest

from rnncells.migrate.cli import main
from rnncells.migrate.file_results import migrate_file
from rnncells.migrate.notebooks import Notebook, place

CELLS = [
    ("markdown", "# `nn.LSTMCell()` is explained here — é"),
    ("code", "%matplotlib inline\n!pip install \\\n    'flax\nimport flax.linen as nn"),
    ("code", "%%bash\necho nn.LSTMCell() 'it"),
    ("code", "pip install jax\nbatch, size = 2, 4\nfiles = !ls\nnn.LSTMCell?"),
    (
        "code",
        "%%time\nif batch:\n    %cd .\n    # é\n"
        "    carry = nn.LSTMCell.initialize_carry(key, (batch,), size)  # é\n"
        "x = (batch\n     % size)",
    ),
    ("code", ""),
    ("code", "cell = nn.LSTMCell(**options)"),
]
OLD = "nn.LSTMCell.initialize_carry(key, (batch,), size)"
NEW = "nn.LSTMCell(size, parent=None).initialize_carry(key, (batch, size))"


def notebook(cells=CELLS, kernel="python", nbformat=4, **layout):
    """Returns the bytes of a notebook; by default as Jupyter writes it."""
    made = [
        {
            "cell_type": kind,
            "metadata": {},
            "outputs": [{"text": [OLD, '"\\', "\x07"]}],
            "source": text.splitlines(keepends=True),
        }
        for kind, text in cells
    ]
    metadata = {"kernelspec": {"language": kernel}, "z": 1e-07, "a": []}
    content = {"cells": made, "metadata": metadata, "nbformat": nbformat}
    layout = {"indent": 1, "ensure_ascii": False} | layout
    return json.dumps(content, **layout).encode() + b"\n"


LAYOUTS = {
    "as Jupyter": {},
    "escaped": {"ensure_ascii": True},
    "one line": {"indent": None},
    "tabs": {"indent": "\t"},
}


@pytest.fixture
def rewritten(tmp_path):
    def rewritten(data):
        path = tmp_path / "model.ipynb"
        path.write_bytes(data)
        assert main(["migrate", str(path), "--write"]) == 0
        return path.read_bytes()

    return rewritten


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_only_the_changed_lines_of_code_cells_change(layout, rewritten):
    after = rewritten(notebook(**layout))
    mark = json.loads(after)["cells"][6]["source"][0]
    assert mark.startswith("# TODO(rnncells): RC01: ") and mark.endswith("\n")
    expected = [(kind, text.replace(OLD, NEW)) for kind, text in CELLS[:-1]]
    expected.append(("code", mark + CELLS[-1][1]))
    assert after == notebook(expected, **layout)


def test_unchanged_lines_keep_their_escapes(rewritten):
    """Some cells have one string as source, others an unusual layout."""
    old = r"""{"nbformat":4, "metadata": {} , "cells":[
      {"cell_type":"code", "source":"import flax.linen as nn\nf(nn.LSTMCell())"},
      {"cell_type":"code", "source":["a = '\/\u0041\u00e9'\n" ,  "carry = OLD"]}]}"""
    after = rewritten(old.replace("OLD", OLD).encode()).decode()
    mark = json.loads(after)["cells"][0]["source"].split("\n")[1]
    assert mark.startswith("# TODO(rnncells): RC01: ")
    assert after == old.replace("OLD", NEW).replace("nn\\nf", f"nn\\n{mark}\\nf")


def test_running_twice_equals_running_once(rewritten):
    once = rewritten(notebook())
    assert rewritten(once) == once


def test_marked_lines_are_named_by_cell(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.ipynb").write_bytes(notebook())
    assert main(["migrate", ".", "--check"]) == 1
    assert "model.ipynb: code cell 6, line 1: RC01 " in capsys.readouterr().err
    assert main(["migrate", ".", "--write"]) == 0
    assert "model.ipynb: code cell 6, line 2: RC01 " in capsys.readouterr().err


def test_lines_of_the_module_are_places_in_cells():
    code = Notebook(notebook()).code
    line = code.decode().split("\n").index("     % size)") + 1
    assert place(code, line) == "code cell 4, line 7"


OTHERS = {
    "another language": notebook(kernel="Julia"),
    "no cells of Flax": notebook([("code", "x = 1"), ("code", "not Python")]),
    "no code": notebook(CELLS[:1]),
    "no notebook": b"[",
}


@pytest.mark.parametrize("data", OTHERS.values(), ids=OTHERS)
def test_other_notebooks_do_not_change(data, rewritten):
    assert rewritten(data) == data


def test_cells_that_are_not_python_are_named_and_stay(tmp_path, capsys):
    """Such cells cannot run, so the other cells do not depend on them."""
    path = tmp_path / "model.ipynb"
    broken = [
        ("code", "\n\nnn.LSTMCell a"),
        ("code", "x = (\n%d"),
        ("code", "def step(carry, x):\n    # Your code here.\ny = x  # Which shape?"),
    ]
    path.write_bytes(notebook([*broken, *CELLS[:5]]))
    assert main(["migrate", str(path), "--write"]) == 0
    messages = (
        "code cell 1 is not Python, line 3: invalid syntax; "
        "code cell 2 is not Python, line 1: '(' was never closed; "
        "code cell 3 is not Python, line 3: expected an indented block after function "
        "definition on line 1"
    )
    assert f"model.ipynb: {messages}\n" in capsys.readouterr().err
    expected = [(kind, text.replace(OLD, NEW)) for kind, text in CELLS[:5]]
    assert path.read_bytes() == notebook([*broken, *expected])


IMPORT = "import flax.linen as nn"


def edited(old, new):
    """Returns the bytes of a notebook with one code cell and an edit of its JSON."""
    text = notebook([("code", IMPORT)], indent=None).decode()
    assert old in text
    return text.replace(old, new).encode()


ERRORS = {
    "not a notebook: the notebook has no `nbformat`": b'{"flax": []}',
    "not a notebook: the notebook must be an object": b'["flax"]',
    "not a notebook: not JSON: Expecting value: line 1": b"[flax",
    "not a notebook: not JSON: 'utf-8' codec": b'{"flax": "\xff"}',
    "not a notebook: `nbformat` of the notebook must be a whole number, got a string": (
        notebook(nbformat="4")
    ),
    "not a notebook: the notebook has no `cells`": edited('"cells"', '"sheets"'),
    "not a notebook: `cells` of the notebook must be a list, got true": (
        b'{"nbformat": 4, "metadata": {}, "cells": true, "flax": 1}'
    ),
    "not a notebook: the notebook has no `metadata`": (
        b'{"nbformat": 4, "cells": [], "flax": 1}'
    ),
    "not a notebook: cell 1 must be an object": (
        b'{"nbformat": 4, "metadata": {}, "cells": ["flax"]}'
    ),
    "not a notebook: cell 1 has no `source`": edited('"source"', '"text"'),
    "not a notebook: cell 1 has no `cell_type`": edited('"cell_type"', '"type"'),
    "not a notebook: `source` of cell 1 must be a string or a list, got null": edited(
        f"[{json.dumps(IMPORT)}]", 'null, "flax": 1'
    ),
    "not a notebook: `source` of cell 1 must contain only strings": edited(
        f"[{json.dumps(IMPORT)}]", f"[{json.dumps(IMPORT)}, 1]"
    ),
    "not a notebook: `language_info` of `metadata` must be an object, got null": edited(
        '"kernelspec": {"language": "python"}', '"language_info": null'
    ),
    "not a notebook: `language` of `kernelspec` must be a string, got null": edited(
        '"python"', "null"
    ),
    "nbformat 3 is too old: convert the notebook first": notebook(nbformat=3),
}


@pytest.mark.parametrize("message, data", ERRORS.items(), ids=ERRORS)
def test_unreadable_notebooks_are_named(message, data, tmp_path):
    path = tmp_path / "model.ipynb"
    path.write_bytes(data)
    result = migrate_file(path, "flax", None)
    assert result.migration is None and message in result.error
    assert main(["migrate", str(path), "--write"]) == 2
    assert path.read_bytes() == data


def test_a_notebook_on_standard_input_is_rewritten(rewritten, monkeypatch, capsys):
    data = notebook()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    assert main(["migrate", "-"]) == 0
    captured = capsys.readouterr()
    assert captured.out.encode() == rewritten(data) != data
    assert "-: code cell 6, line 1: RC01 " in captured.err


def test_an_old_notebook_on_standard_input_is_an_error(monkeypatch, capsys):
    data = b'{"nbformat": 3, "worksheets": ["flax"]}'
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    assert main(["migrate", "-"]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and "-: not rewritten: " in captured.err
    assert "nbformat 3 is too old" in captured.err
