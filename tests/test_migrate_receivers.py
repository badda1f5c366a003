"""Objects whose `initialize_carry` is called: `self`, bases, parameters, `getattr`."""

import pytest

from rnncells.migrate.migration import migrate

HEAD = "import flax.linen as nn\nimport jax.numpy as jnp\n\n\n"
OWN = """\
class Own(nn.RNNCellBase):
    @staticmethod
    def initialize_carry(rng, batch_dims, size):
        return jnp.ones(batch_dims + (size,))
"""
HOLDER = """\
class Holder({}):
    @staticmethod
    def initialize_carry(batch, size, kind):
        return make(batch, size, kind)
"""
CARRY = "{}.initialize_carry(key, (2,), 4)"


def method(receiver, first, decorator=""):
    above = f"    @{decorator}\n" if decorator else ""
    return (
        f"\n{above}    def reset({first}):\n        return {CARRY.format(receiver)}\n"
    )


# How a method refers to its class, an instance of it, or a base.
FORMS = {
    "self": method("self", "self"),
    "another name": method("this", "this, n"),
    "cls": method("cls", "cls", "classmethod"),
    "klass": method("klass", "klass", "classmethod"),
    "type": method("type(self)", "self"),
    "__class__": method("self.__class__", "self"),
    "super": method("super()", "self"),
    "super of a class": method("super(Of, self)", "self"),
    "super in a class method": method("super()", "cls", "classmethod"),
    "a nested function": "\n    def reset(self):\n        def make():\n"
    f"            return {CARRY.format('self')}\n        return make()\n",
}
# Code before `class Of(...)`, and its bases.
OF_CELLS = {
    "a cell of Flax": ("", "nn.LSTMCell"),
    "a class of a cell of Flax": ("class A(nn.LSTMCell):\n    pass\n\n\n", "A"),
    "an own cell that changes": (f"{OWN}\n\n", "Own"),
    "an own cell by another name": (f"{OWN}\n\nB = Own\n\n\n", "B"),
    "a class of an own cell": (f"{OWN}\n\nclass A(Own):\n    pass\n\n\n", "A"),
    "the base class of cells": ("", "nn.RNNCellBase"),
    "a class of another file": ("from mine import Core\n\n\n", "Core"),
    "a cell before a module": (
        f"{HOLDER.format('nn.Module')}\n\n",
        "nn.GRUCell, Holder",
    ),
    "a class derived from itself": ("", "Of"),
}
OF_OTHERS = {
    "a module that holds cells": (f"{HOLDER.format('nn.Module')}\n\n", "Holder"),
    "another class": (f"{HOLDER.format('Base')}\n\n", "Holder"),
    "a class of a module": (
        f"{HOLDER.format('nn.Module')}\n\nclass A(Holder):\n    pass\n\n\n",
        "A",
    ),
    "a module without a carry": ("", "nn.Module"),
    "a module by its name": ("from flax.linen import Module as M\n\n\n", "M"),
    "a module before a cell": (f"{HOLDER.format('Base')}\n\n", "Holder, nn.GRUCell"),
    "an own cell that stays": (
        OWN.replace("(size,)", "[size]") + "\n\n",
        "Own",
    ),
    "a field": ("class A:\n    initialize_carry: object\n\n\n", "A"),
}


def marks(data):
    return [line.split()[2] for line in data.decode().splitlines() if "TODO" in line]


def left(old, to="flax"):
    """Returns the rules of the marks, and the code without marks."""
    once = migrate(old.encode(), to).data
    assert migrate(once, to).data is once
    lines = once.decode().splitlines(keepends=True)
    return marks(once), "".join(line for line in lines if "# TODO" not in line)


@pytest.mark.parametrize("to", ["flax", "rnncells"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("above, bases", OF_CELLS.values(), ids=OF_CELLS)
def test_carries_that_may_belong_to_cells_are_marked(above, bases, form, to):
    old = f"{HEAD}{above}class Of({bases}):\n    n = 1\n{FORMS[form]}"
    found, kept = left(old, to)
    assert found == ["RC03:"] and kept.endswith(FORMS[form])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("above, bases", OF_OTHERS.values(), ids=OF_OTHERS)
def test_carries_of_modules_that_hold_cells_stay(above, bases, form):
    of_other = f"class Of({bases}):\n    n = 1\n{FORMS[form]}"
    found, kept = left(f"{HEAD}{above}{of_other}")
    assert found == ["RC06:"] * above.count("class Own")
    assert kept == f"{HEAD}{above}{of_other}"


def test_a_carry_of_a_class_with_its_own_method_stays():
    for name, form in FORMS.items():
        old = f"{HEAD}{HOLDER.format('nn.Module')}{form.replace('Of', 'Holder')}"
        assert left(old) == ([], old), name


COMES_IN = {
    "a function": f"def f(cls, n):\n    return {CARRY.format('cls')}\n",
    "self, of a function": f"def f(self):\n    return {CARRY.format('self')}\n",
    "a method": f"class A:\n{HOLDER[18:]}{method('cls', 'self, cls')}",
    "a static method": f"class A:\n{HOLDER[18:]}{method('cls', 'cls', 'staticmethod')}",
    "a class method of no carry": f"class A:{method('cls', 'cls', 'classmethod')}",
    "a lambda": f"f = lambda cls: {CARRY.format('cls')}\n",
    "a name that changes": "class A:\n"
    + HOLDER[18:]
    + method("self", "self").replace("return", "self = self.cell\n        return"),
}


@pytest.mark.parametrize("code", COMES_IN.values(), ids=COMES_IN)
def test_parameters_named_like_classes_are_marked(code):
    assert left(f"{HEAD}{code}") == (["RC03:"], f"{HEAD}{code}")


def test_callers_of_a_rewritten_own_class_are_marked():
    calls = f"def f(cls):\n    return {CARRY.format('cls')}\n\n\ncarry = f(Own)\n"
    found, kept = left(f"{HEAD}{OWN}\n\n{calls}")
    assert "self, rng, input_shape" in kept and kept.endswith(calls)
    assert found == ["RC03:"]


@pytest.mark.parametrize(
    "receiver, rules",
    [
        ("nn.LSTMCell", ["RC02:"]),
        ("Own", ["RC02:"]),
        ("nn.GRUCell()", ["RC01:", "RC03:"]),
        ("nn.GRUCell(4)", []),
        ("nn", []),
    ],
)
@pytest.mark.parametrize(
    "code",
    [
        "carry = getattr({}, 'initialize_carry')(key, (2,), 4)\n",
        "make = getattr({}, 'initialize_carry', None)\n",
        "other.initialize_carry(getattr({}, 'initialize_carry'))\n",
    ],
)
def test_carries_by_getattr_are_marked(receiver, rules, code):
    old = code.format(receiver)
    found, kept = left(f"{HEAD}{OWN}\n\n{old}")
    assert found == rules and kept.endswith(old)


def test_other_attributes_by_getattr_stay():
    lines = ["getattr(nn.LSTMCell, name)", "getattr(nn.LSTMCell, 'initialize_carry_')"]
    lines += ["hasattr(nn.LSTMCell, 'initialize_carry')", "getattr()"]
    old = HEAD + "\n".join(lines)
    assert left(old) == ([], old)


# Arguments of an object named like a cell: unlike the old ones, or like them.
OF_OTHER_METHODS = [
    *("2, 4, key", "2, n, rng", "(2,), 4, key", "key, rngs, init"),
    *("key, batch_size, 4", "key, x.shape[0], 4", "key, len(x), 4", "key, 2 * n, 4"),
    *("key, count, 4", "key, dims, keys[0]", "key, dims, jax.random.split(key)[0]"),
    *("key, dims, self.make_rng('carry')", "key, batch_dims=2, size=4"),
]
OF_CELLS_FOR_SURE = [
    *("key, dims, 4", "rng, (2,), n", "rng, x.shape[:-1], n", "key, dims + (2,), n"),
    *("key, batch_dims=dims, size=n", "rng, (batch_size,), key_size"),
]
BY_NAME = """\
class Agent:
    def __init__(self):
        self.core = make_core()

    def zero(self, x, key, dims, n, count: int):
        return self.core.initialize_carry({})
"""


@pytest.mark.parametrize("arguments", OF_OTHER_METHODS)
def test_arguments_unlike_the_old_ones_are_marked(arguments):
    code = f"import jax\n{HEAD}{BY_NAME.format(arguments)}"
    assert left(code) == (["RC03:"], code)


@pytest.mark.parametrize("arguments", OF_OTHER_METHODS)
def test_a_size_among_other_arguments_is_not_a_width(arguments):
    carry = BY_NAME.replace("return", "carry =").format(arguments)
    code = f"import jax\n{HEAD}{carry}        return nn.GRUCell(), carry\n"
    assert left(code) == (["RC03:", "RC01:"], code)


@pytest.mark.parametrize("arguments", OF_CELLS_FOR_SURE)
def test_old_arguments_are_rewritten(arguments):
    found, kept = left(f"{HEAD}{BY_NAME.format(arguments)}")
    assert not found and arguments not in kept
