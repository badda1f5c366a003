"""Twice is once: for all code of these tests, and beside old code that stays."""

import ast
import importlib
import re
from pathlib import Path

import pytest
from programs import PROGRAMS

from rnncells.migrate.migration import migrate

TABLES = sorted(
    path.stem
    for path in Path(__file__).parent.glob("test_migrate*.py")
    if path != Path(__file__)
)
HEAD = "import flax.linen as nn\nfrom mine import act, cfg, d\n"
# In a new file, what is not known is a number.
OLD = "\nold = make(nn.LSTMCell())\n"
FOUR = r"\b4\b"
# Some say by no more than where they stand that they are numbers.
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


def codes(name):
    """Yields the code in the tables of a file of tests."""
    module = importlib.import_module(name)
    for table in [v for n, v in vars(module).items() if n.isupper()]:
        yield from strings(table)


@pytest.mark.parametrize("to", ["flax", "rnncells"])
@pytest.mark.parametrize("behind", ["", OLD], ids=["alone", "beside"])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", [*TABLES, "programs"])
def test_rewriting_twice_is_once(name, size, behind, to):
    found = PROGRAMS.values() if name == "programs" else codes(name)
    for code in dict.fromkeys(found):
        sized = f"{HEAD}{re.sub(FOUR, size, code)}{behind}"
        if is_python(sized) and (size == "4" or re.search(FOUR, code)):
            once = migrate(sized.encode(), to).data
            assert migrate(once, to).data.decode() == once.decode()
