"""A second run changes nothing: for all code of these tests, and beside old code."""

import ast
import importlib
import re
from pathlib import Path

import pytest
from covering import exhaustive_but
from programs import PROGRAMS

from rnncells.migrate.migration import migrate

TABLES = sorted(
    path.stem
    for path in Path(__file__).parent.glob("test_migrate*.py")
    if path != Path(__file__)
)
HEAD = "import flax.linen as nn\nfrom mine import act, cfg, d\n"
# In a file without old code, an argument of unknown kind is a number.
OLD = "\nold = make(nn.LSTMCell())\n"
FOUR = r"\b4\b"
# Sizes whose names do not say that they are numbers.
SIZES = ["4", "d", "cfg.z", "act"]


def is_python(code):
    try:
        ast.parse(code)
    except (SyntaxError, ValueError):
        return False
    return True


def strings(table):
    """Yields the strings in dictionaries, lists and tuples."""
    if isinstance(table, str):
        yield table
    elif isinstance(table, dict | list | tuple):
        for part in table.values() if isinstance(table, dict) else table:
            yield from strings(part)


def codes():
    """Returns all code in the tables of tests, with each size where it has one."""
    found = [*PROGRAMS.values()]
    for name in TABLES:
        module = importlib.import_module(name)
        for table in [v for n, v in vars(module).items() if n.isupper()]:
            found += strings(table)
    sized = (
        f"{HEAD}{re.sub(FOUR, size, code)}"
        for code in dict.fromkeys(found)
        if re.search(r"Cell|RNN|ConvLSTM|initialize_carry", code)
        for size in SIZES
    )
    return [code for code in dict.fromkeys(sized) if is_python(code)]


CODES = codes()
# Each case runs every eighth of them.
PARTS = [CODES[k::8] for k in range(8)]


def assert_twice_is_once(code, to):
    once = migrate(code.encode(), to).data
    assert migrate(once, to).data.decode() == once.decode()


def test_there_is_code_of_every_table():
    assert len(CODES) > 1500 and all(PARTS)
    for size in SIZES:
        assert sum(re.search(rf"\b{size}\b", code) is not None for code in CODES) > 200


EACH = [(part,) for part in range(len(PARTS))]


@pytest.mark.parametrize("part", exhaustive_but(EACH, EACH[::2]))
def test_rewriting_twice_is_rewriting_once(part):
    """`--to rnncells` makes the edits of `--to flax`, and moves imports after them."""
    for code in PARTS[part]:
        assert_twice_is_once(code, "rnncells")


@pytest.mark.parametrize("part", exhaustive_but(EACH, EACH[1::4]))
def test_rewriting_twice_is_rewriting_once_beside_old_code(part):
    for code in PARTS[part]:
        assert_twice_is_once(code + OLD, "flax")


OWN_CELL_ON_THE_SHIM = """\
from rnncells import legacy as nn
from rnncells.legacy.initializers import zeros
from rnncells.legacy.recurrent import RNNCellBase


class Cell(RNNCellBase):
    @staticmethod
    def initialize_carry(rng, batch_dims, size, init_fn=zeros):
        return init_fn(rng, batch_dims + (size,))


cell = Cell()
step = lambda cell, h, x: cell(h, x)
"""


@pytest.mark.parametrize("to", ["flax", "rnncells"])
def test_the_shim_stays_while_marks_of_old_forms_do(to):
    """After the first run, one mark says why the imports of the shim stay."""
    once = migrate(OWN_CELL_ON_THE_SHIM.encode(), to).data
    assert once.count(b"RC01") == once.count(b"RC09") == 1
    assert b"self, rng, input_shape" in once
    assert migrate(once, to).data is once
    lines = once.decode().splitlines(keepends=True)
    solved = "".join(line for line in lines if "TODO(rnncells)" not in line)
    done = migrate(solved.encode(), to).data
    assert b"legacy" not in done and b"from flax import linen as nn" in done


def test_the_shim_stays_with_a_keyword_that_only_it_has():
    old = "import rnncells.legacy as nn\nrnn = nn.RNN(nn.GRUCell(4))\n"
    assert b"legacy" not in migrate(old.encode()).data
    masked = f"{old}y = rnn.apply(v, x, segmentation_mask=m)\n".encode()
    mark, _, rest = migrate(masked).data.partition(b"\n")
    assert rest == masked and b"write `seq_lengths=mask.sum(-1)`" in mark
