"""Cells, classes of cells and sizes that are attributes of classes."""

import pytest
from programs import assert_marked

from rnncells.migrate.migration import migrate

HEAD = "import flax.linen as nn\n\n\n"
# How a class holds a class of cells, and how code refers to it.
HELD = {
    "an assignment": "Cell = nn.GRUCell",
    "a field": "Cell: type = nn.GRUCell",
    "unpacked from a tuple": "Other, Cell = nn.LSTMCell, nn.GRUCell",
    "an import": "from flax.linen import GRUCell as Cell",
    "a nested class": "class Cell(nn.GRUCell):\n        pass",
}
REACHED = {
    "its name": "def f(h, x):\n    c = Of.Cell{}\n    return Of.Cell()(h, x)",
    "another name": "O = Of\nc = O.Cell{}\ny = O.Cell()(h, x)",
    "self": "    def f(self, h, x):\n        c = self.Cell{}\n"
    "        return self.Cell()(h, x)",
    "cls": "    @classmethod\n    def f(cls, h, x):\n        c = cls.Cell{}\n"
    "        return cls.Cell()(h, x)",
    "type": "    def f(self, h, x):\n        c = type(self).Cell{}\n"
    "        return type(self).Cell()(h, x)",
    "a derived class": "class More(Of):\n    def f(self, h, x):\n"
    "        c = self.Cell{}\n        return self.Cell()(h, x)",
}
CARRY = ".initialize_carry(k, (2,), {})"
# Code that stays, and the rules of its marks.
MARKED = {
    "classes in a list": (
        "class Of(nn.Module):\n    cells = [nn.GRUCell]\n\n    def f(self):\n"
        f"        for cell in self.cells:\n            c = cell{CARRY.format(4)}\n"
        f"        return self.cells[0]{CARRY.format(4)}",
        ["RC02", "RC02"],
    ),
    "an attribute that is set from outside the class": (
        "class config:\n    pass\n\n\nconfig.cell = make()\n"
        f"c = config.cell{CARRY.format(4)}",
        ["RC03"],
    ),
    "an attribute of a parameter, which may be a class": (
        f"def f(Config):\n    return Config.cell{CARRY.format(4)}\n\n\n"
        f"def g(cls):\n    return cls.cell{CARRY.format(4)}",
        ["RC03", "RC03"],
    ),
    "a cell of another size": (
        "class Of:\n    cell = nn.GRUCell()\n\n    def f(self):\n"
        f"        return self.cell{CARRY.format(4)}",
        ["RC01", "RC03"],
    ),
    "a size that a method changes": (
        "class Of(nn.Module):\n    size = 4\n\n    def grow(self):\n"
        "        self.size = 5\n\n    def f(self):\n        cell = nn.GRUCell()\n"
        f"        self.grow()\n        return cell{CARRY.format('self.size')}",
        ["RC01", "RC03"],
    ),
}
SETUP = "    def setup(self):\n        self.cell = nn.GRUCell({})\n\n    def f(self):\n"
REWRITTEN = {
    "a size of a class": (
        f"class Of(nn.Module):\n    size = 4\n\n{SETUP.format('')}"
        "        return self.cell.initialize_carry(k, (2,), self.size)",
        f"class Of(nn.Module):\n    size = 4\n\n{SETUP.format('self.size')}"
        "        return self.cell.initialize_carry(k, (2, self.size))",
    ),
    "a size that is None at first": (
        "class Of:\n    size = None\n\n    def __init__(self):\n"
        "        self.size = 4\n        self.cell = nn.GRUCell()\n"
        "        self.c = self.cell.initialize_carry(k, (2,), self.size)",
        "class Of:\n    size = None\n\n    def __init__(self):\n"
        "        self.size = 4\n        self.cell = nn.GRUCell(self.size)\n"
        "        self.c = self.cell.initialize_carry(k, (2, self.size))",
    ),
    "a cell held by a parameter": (
        "def f(agent):\n    return agent.cell.initialize_carry(k, (2,), 4)",
        "def f(agent):\n    return agent.cell.initialize_carry(k, (2, 4))",
    ),
}


@pytest.mark.parametrize("reached", REACHED.values(), ids=REACHED)
@pytest.mark.parametrize("held", HELD.values(), ids=HELD)
def test_cell_classes_held_by_classes_are_marked(held, reached):
    """A derived class may hold another class of cells."""
    use = reached.format(CARRY.format(4))
    code = f"{HEAD}class Of(nn.Module):\n    {held}\n\n{use}"
    assert_marked(code, ["RC02", "RC01"])


@pytest.mark.parametrize("code, rules", MARKED.values(), ids=MARKED)
def test_ambiguous_attributes_are_marked(code, rules):
    assert_marked(HEAD + code, rules)


@pytest.mark.parametrize("old, new", REWRITTEN.values(), ids=REWRITTEN)
def test_unambiguous_attributes_are_resolved(old, new):
    once = migrate((HEAD + old).encode())
    assert once.data.decode() == HEAD + new
    assert migrate(once.data).data is once.data
