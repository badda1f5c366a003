"""RC13: cells for their carry alone, which take the name of the next cell."""

import pytest
from programs import MARK, run

from rnncells.migrate.migration import migrate

HEAD = """\
import flax.linen as nn
import jax
import jax.numpy as jnp

KEY = jax.random.key(0)


"""
MODEL = """\
class Model(nn.Module):
    @nn.compact
    def __call__(self, x):
{}
        return {}(carry, x)
"""
RUN = """

def run():
    variables = jax.eval_shape(Model().init, KEY, jnp.ones((2, 3)))
    return sorted(variables["params"])
"""
GRU = "nn.GRUCell(features=4)"


def model(carry, cell=GRU, rest=""):
    """Returns a module that calls a cell with a carry, and more of its class."""
    return MODEL.format(f"        carry = {carry}", cell) + rest


def method(decorator, *lines, name="zeros", first=""):
    above = f"    @{decorator}\n" if decorator else ""
    body = "".join(f"        {line}\n" for line in lines)
    return f"\n{above}    def {name}({first}):\n{body}"


CARRY = "nn.GRUCell(features=4).initialize_carry(KEY, (2, 4))"
ZEROS = f"return {CARRY}"
NAMED = ("cell = nn.GRUCell(features=4)", "return cell.initialize_carry(KEY, (2, 4))")
FUNCTION = f"def zeros():\n    {ZEROS}\n\n\n"
SCANNED = "nn.jit(nn.GRUCell)(4)"
# The first cell only makes a carry, and the second has parameters.
MARKED = {
    "at once": model("nn.GRUCell(4).initialize_carry(KEY, x.shape)"),
    "by a name": MODEL.format(
        "        cell = nn.GRUCell(4)\n"
        "        carry = cell.initialize_carry(KEY, x.shape)",
        GRU,
    ),
    "in a static method": model("self.zeros()", rest=method("staticmethod", ZEROS)),
    "in a static method, by a name": model(
        "Model.zeros()", rest=method("staticmethod", *NAMED)
    ),
    "in a method": model("self.zeros()", rest=method("", ZEROS, first="self")),
    "in a function": FUNCTION + model("zeros()"),
    "in a function that a method calls": FUNCTION
    + model(
        "self.start()", rest=method("", "return zeros()", name="start", first="my")
    ),
    "in a static method of another class": (
        f"class Zeros:\n{method('staticmethod', ZEROS)}\n\n{model('Zeros.zeros()')}"
    ),
    "of a lifted class": model(f"{SCANNED}.initialize_carry(KEY, x.shape)", SCANNED),
    "in a lambda called at once": model(f"(lambda: {CARRY})()"),
    "in a lambda with a name": MODEL.format(
        f"        zeros = lambda: {CARRY}\n        carry = zeros()", GRU
    ),
    "in a lambda passed to a function": model(
        "jax.vmap(lambda k: nn.GRUCell(4).initialize_carry(k, (4,)))"
        "(jax.random.split(KEY))"
    ),
    "in a function passed to a function": FUNCTION + model("jax.jit(zeros)()"),
    "in a method passed to a function": model(
        "jax.jit(self.zeros)()", rest=method("staticmethod", ZEROS)
    ),
    "in a property": model("self.zeros", rest=method("property", ZEROS, first="self")),
    "a bound method in a variable": MODEL.format(
        "        zeros = nn.GRUCell(4).initialize_carry\n"
        "        carry = zeros(KEY, (2, 4))",
        GRU,
    ),
    "a bound method passed to a function": model(
        "jax.vmap(nn.GRUCell(4).initialize_carry, (0, None))"
        "(jax.random.split(KEY), (4,))"
    ),
    "before cells in a loop": MODEL.format(
        "        for k in range(2):\n"
        "            y, _ = nn.GRUCell(4)(jnp.ones((2, 4)), x) if k else (x, x)\n"
        "            carry = nn.GRUCell(4).initialize_carry(KEY, (2, 4))",
        "nn.GRUCell(4, name='last')",
    ),
}
NOT_MARKED = {
    "a next cell of another class": model(
        "nn.GRUCell(4).initialize_carry(KEY, (2, 4))", "nn.SimpleCell(4)"
    ),
    "a next cell that is lifted": model(
        "nn.GRUCell(4).initialize_carry(KEY, (2, 4))", SCANNED
    ),
    "a next cell with a name": model(
        "nn.GRUCell(4).initialize_carry(KEY, (2, 4))", "nn.GRUCell(4, name='a')"
    ),
    "a next cell of a class derived from it": "class Gru(nn.GRUCell):\n    pass\n\n\n"
    + model("nn.GRUCell(4).initialize_carry(KEY, (2, 4))", "Gru(4)"),
    "a cell that comes before": MODEL.format(
        "        y, _ = nn.GRUCell(4)(jnp.ones((2, 4)), x)\n"
        "        carry = nn.GRUCell(4).initialize_carry(KEY, (2, 4))",
        "nn.GRUCell(4, name='last')",
    ),
    "no parent": model("nn.GRUCell(4, parent=None).initialize_carry(KEY, (2, 4))"),
    "a function that no module calls": FUNCTION + model("jnp.ones((2, 4))"),
    "a lambda that is not called": MODEL.format(
        f"        zeros = lambda: {CARRY}\n        carry = jnp.ones((2, 4))", GRU
    ),
    "a property that is not used": model(
        "jnp.ones((2, 4))", rest=method("property", ZEROS, first="self")
    ),
    "a method that is not called": model(
        "(self.zeros, jnp.ones((2, 4)))[1]", rest=method("staticmethod", ZEROS)
    ),
    "a method of another module": (
        f"class Zeros(nn.Module):{method('nn.compact', *NAMED, first='self')}\n\n"
        + model("Zeros().zeros()")
    ),
}


def rules(code):
    once = migrate((HEAD + code).encode()).data.decode()
    return [line.split(MARK)[1][:4] for line in once.splitlines() if MARK in line]


@pytest.mark.parametrize("code", MARKED.values(), ids=MARKED)
def test_a_cell_that_shifts_the_number_of_another_is_marked(code):
    assert rules(code) == ["RC13"]


@pytest.mark.parametrize("code", NOT_MARKED.values(), ids=NOT_MARKED)
def test_a_cell_that_shifts_no_number_is_not_marked(code):
    assert rules(code) == []


@pytest.mark.parametrize("name", [*MARKED, *NOT_MARKED])
def test_flax_numbers_cells_as_the_marks_say(name):
    """Flax names a cell `..._1` without a `..._0` where a carry took that number."""
    names = run("numbered", HEAD + {**MARKED, **NOT_MARKED}[name] + RUN)
    numbered = [full for full in names if full.endswith("_1")]
    shifted = [full for full in numbered if f"{full[:-1]}0" not in names]
    assert bool(shifted) == (name in MARKED), names
