"""Lines of other files that use a rewritten cell are in the summary."""

import re

import pytest

from rnncells.migrate.cli import main

CELL = """\
import flax.linen as nn
import jax.numpy as jnp


class {0}(nn.RNNCellBase):
    @staticmethod
    def initialize_carry(rng, batch_dims, size):
        return jnp.zeros(batch_dims + (size,))


carry = {0}.initialize_carry(key, (2,), 4)
named = {{"{0}": {0}}}
"""
# Lines that end with `# !` use the cell `Own` of another file.
USES = {
    "models.py": """\
from cells import (
    Own,
)
import flax.linen as nn

__all__ = ["Own"]


class Model(nn.Module):
    @nn.compact
    def __call__(self, x):
        # Own, in a comment
        cell = nn.LSTMCell(**options)
        other = nn.LSTMCell()
        carry = Own.initialize_carry(key, (2,), 4), Own  # !
        another = nn.LSTMCell(**options)
        return f(
            Own(),  # !
        )


class Of(Own):  # !
    '''An Own.'''
""",
    "main.py": """\
import cells
from models import Own as Cell, Model
carry = cells.Own.initialize_carry(key, (2,), 4)  # !
cell = Cell()  # !
cell = getattr(cells, "Own")()  # !
skipped = Cell()  # rnncells: skip
""",
    "stars.py": "from cells import *\ncell = Own()  # !\n",
    "ways.py": """\
try:
    from cells import Own
except ImportError:
    from .cells import Own
cell = Own()  # !
""",
    "others.py": """\
import flax.linen as nn
import their.cells
from their.cells import Own as Theirs
from flax.linen import Own as Cell
class Own:
    pass
def f(Own):
    return Own
made = Own(), nn.Own(), Cell(), OwnMore, Their.Owner, their.cells.Own(), Theirs()
made = agent.Own(), "Own", {"Own": 1}, getattr(agent, "Own"), getattr(*pair)
""",
    "unrelated.py": "print('hello')\n",
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cells.py").write_text(CELL.format("Own"))
    for name, text in USES.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def named(error):
    """Returns the RC06 notes of a run: file, line, text."""
    return sorted(re.findall(r"^(.*\.py):(\d+): RC06 (.*)$", error, re.MULTILINE))


@pytest.mark.parametrize("way", [[], ["--check"], ["--write"]])
def test_uses_in_other_files_are_named(way, folder, capsys):
    main(["migrate", ".", *way])
    error = capsys.readouterr().err
    # With --write, the line numbers are those of the written file.
    expected = [
        (name, str(number))
        for name in USES
        for number, line in enumerate((folder / name).read_text().split("\n"), 1)
        if line.endswith("# !")
    ]
    assert [(name, number) for name, number, _ in named(error)] == sorted(expected)
    assert {why for _, _, why in named(error)} == {
        "`Own` of cells.py now has `features`, and an instance makes its carry: see "
        "RC01, RC02"
    }
    assert f"RC06      1 rewritten, {len(expected):5} marked" in error
    lines = re.findall(r"^models\.py:(\d+): ", error, re.MULTILINE)
    assert lines == sorted(lines, key=int) and len(lines) == 6


def test_uses_are_named_when_the_cell_is_rewritten(folder, capsys):
    main(["migrate", ".", "--ignore", "RC06"])
    main(["migrate", "main.py", "models.py"])
    assert not named(capsys.readouterr().err)
    main(["migrate", ".", "--write"])
    assert named(capsys.readouterr().err)
    main(["migrate", ".", "--write"])
    assert not named(capsys.readouterr().err)


def test_cells_of_one_name_are_told_apart_by_imports(folder, capsys):
    (folder / "more.py").write_text(CELL.format("Own"))
    (folder / "of_more.py").write_text("from more import Own\ncell = Own()\n")
    main(["migrate", "cells.py", "more.py", "stars.py", "of_more.py"])
    found = named(capsys.readouterr().err)
    assert [use[:2] for use in found] == [("of_more.py", "2"), ("stars.py", "2")]
    assert (
        "`Own` of more.py now" in found[0][2] and "`Own` of cells.py now" in found[1][2]
    )


def test_cells_are_followed_through_packages(tmp_path, monkeypatch, capsys):
    """Relative imports, a package's `__init__`, and `import as` are followed."""
    monkeypatch.chdir(tmp_path)
    files = {
        "src/pkg/__init__.py": "from .cells import Own as Public\n",
        "src/pkg/cells.py": CELL.format("Own"),
        "src/pkg/sub/__init__.py": "",
        "src/pkg/sub/model.py": "from .. import cells\nfrom ..cells import Own\n"
        "made = cells.Own(), Own()\n",
        "src/main.py": "import pkg\nfrom pkg import Public\nmade = Public()\n"
        "made = pkg.cells.Own()\n",
        "src/cells/__init__.py": "class Own:\n    pass\n",
        "src/near.py": "from .cells import Own\nmade = Own()\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    main(["migrate", "src"])
    assert [use[:2] for use in named(capsys.readouterr().err)] == [
        ("src/main.py", "3"),
        ("src/main.py", "4"),
        ("src/pkg/sub/model.py", "3"),
    ]


def test_names_of_flax_are_not_taken_for_cells_of_other_files(folder, capsys):
    (folder / "cells.py").write_text(CELL.format("RNN"))
    text = "import flax.linen as nn\nlayer = nn.RNN(nn.GRUCell(4))\n"
    (folder / "layers.py").write_text(text)
    main(["migrate", ".", "--write"])
    error = capsys.readouterr().err
    assert "RC06      1 rewritten," in error and not named(error)


def test_files_that_are_not_python_may_use_a_cell(folder, capsys):
    (folder / "old.py").write_text("from cells import Own\nprint 'Own'\n")
    main(["migrate", ".", "--write"])
    error = capsys.readouterr().err
    assert "old.py: whether it uses `Own` is not known, SyntaxError: " in error
    assert named(error)
