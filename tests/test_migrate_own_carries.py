"""The `initialize_carry` of users' own cells: old, current, or ambiguous."""

import pytest
from programs import CALL, HEAD, assert_same, run, with_imports_of

from rnncells.migrate.migration import migrate

END = """

key = jax.random.PRNGKey(0)


def run():
    carry = Own.initialize_carry(key, BATCH, 4)
    return Own().init_with_output(key, carry, jnp.sin(jnp.arange(6.0)).reshape(2, 3))
"""
FUNCTION = "def ones(rng, dims, size):\n    return jnp.ones(dims + (size,))\n\n\n"


def of_body(*lines, batch="batch_dims", decorator="    @staticmethod\n"):
    head = f"    def initialize_carry(rng, {batch}, size):\n"
    body = "".join(f"        {line}\n" for line in lines)
    return f"class Own(nn.RNNCellBase):\n{decorator}{head}{body}"


def of_value(value, name="initialize_carry"):
    return f"class Own(nn.RNNCellBase):\n    {name} = {value}\n"


REWRITTEN = {
    "unpacked": of_body("return jnp.ones((*batch_dims, size))"),
    "unpacked in a list": of_body("return jnp.ones([*batch_dims, size])"),
    "a sum": of_body("return jnp.ones(batch_dims + (size,))"),
    "a list made from the batch": of_body("return jnp.ones(list(batch_dims) + [size])"),
    "an element of the batch": of_body("return jnp.ones((batch_dims[0], size))"),
    "a cell of Flax": of_body(
        "return nn.GRUCell.initialize_carry(rng, batch_dims, size)"
    ),
    "a cell of Flax, by a keyword": of_body(
        "return nn.GRUCell.initialize_carry(rng, size=size, batch_dims=batch_dims)"
    ),
    "an annotation": of_body(
        "return jnp.ones(sum((batch_dims, (size,)), ()))",
        batch="batch_dims: tuple[int, ...]",
    ),
}


@pytest.mark.parametrize("to", ["flax", "rnncells"])
@pytest.mark.parametrize("own", REWRITTEN.values(), ids=REWRITTEN)
def test_carries_with_tuple_batches_stay_the_same(own, to):
    old = f"{HEAD}{own}{CALL}{END.replace('BATCH', '(2,)')}"
    migration = migrate(old.encode(), to)
    assert not [note for note in migration.notes if note.why]
    assert b"self, rng, input_shape" in migration.data
    assert migrate(migration.data, to).data is migration.data
    expected = run("old", with_imports_of("old_linen", old))
    assert_same(run("new", migration.data.decode()), expected)


BATCH = "its batch may be a number or a list: annotate it as a `tuple`"
SIGNATURE = (
    "it is not a plain `@staticmethod` (rng, batch_dims, size, init_fn): rewrite it"
)
ITSELF = "the class calls it, on an instance of any size: rewrite it by hand"
SUM = "return jnp.ones(batch_dims + (size,))"
PLAIN = of_body(SUM)
# The class, the text of its mark, and the batch of the call.
MARKED = {
    "a number": (of_body("return jnp.ones((batch_dims, size))"), BATCH, "2"),
    "a number of another name": (
        of_body("return jnp.ones((n, size))", batch="n"),
        BATCH,
        "2",
    ),
    "a number or a tuple, unknown": (
        of_body("return jnp.ones(sum((batch_dims, (size,)), ()))"),
        BATCH,
        "(2,)",
    ),
    "a number or a tuple": (
        of_body("if batch_dims == 2:", "    batch_dims = (batch_dims,)", SUM),
        BATCH,
        "2",
    ),
    "a number or a tuple, in a branch that returns": (
        of_body("if batch_dims == 2:", "    return jnp.ones((2, size))", SUM),
        BATCH,
        "2",
    ),
    "a number that is replaced by a tuple": (
        of_body("batch_dims = (2,)", SUM),
        BATCH,
        "2",
    ),
    "a batch that is not used": (of_body("return jnp.ones((2, size))"), BATCH, "2"),
    "a list": (of_body("return jnp.ones(batch_dims + [size])"), BATCH, "[2]"),
    "a slice of a list": (
        of_body("return jnp.ones(batch_dims[:] + [size])"),
        BATCH,
        "[2]",
    ),
    "a union": (
        of_body("return jnp.ones((2, size))", batch="batch_dims: tuple | int"),
        BATCH,
        "2",
    ),
    "a batch as the key of another call": (
        of_body("return nn.GRUCell().init(batch_dims, jnp.ones((2, size)), rng)"),
        BATCH,
        None,
    ),
    "a function": (FUNCTION + of_value("staticmethod(ones)"), SIGNATURE, "(2,)"),
    "a function without staticmethod": (FUNCTION + of_value("ones"), SIGNATURE, "(2,)"),
    "a function by another name": (
        f"{FUNCTION}more = ones\n{of_value('staticmethod(more)')}",
        SIGNATURE,
        "(2,)",
    ),
    "a function with an annotation": (
        FUNCTION + of_value("staticmethod(ones)", "initialize_carry: object"),
        SIGNATURE,
        None,
    ),
    "a function of another file": (of_value("staticmethod(ones)"), SIGNATURE, None),
    "a lambda": (
        of_value("staticmethod(lambda k, b, n: jnp.ones(b + (n,)))"),
        SIGNATURE,
        "(2,)",
    ),
    "a lambda without staticmethod": (
        of_value("lambda k, b, n: jnp.ones(b + (n,))"),
        SIGNATURE,
        "(2,)",
    ),
    "no decorator": (of_body(SUM, decorator=""), SIGNATURE, "(2,)"),
    "staticmethod in a second statement": (
        f"{of_body(SUM, decorator='')}"
        "    initialize_carry = staticmethod(initialize_carry)\n",
        "the class has several `initialize_carry`: keep one",
        "(2,)",
    ),
    "within a condition": (
        PLAIN.replace("    ", "        ").replace(
            "        @static", "    if True:\n        @static"
        ),
        SIGNATURE,
        "(2,)",
    ),
    "a call of itself through `getattr`": (
        f"{PLAIN}    def f(self):\n        return getattr(self, 'initialize_carry')\n",
        ITSELF,
        "(2,)",
    ),
    "a call of itself through another name than `self`": (
        f"{PLAIN}    def f(my):\n        return my.initialize_carry(key, (2,), 4)\n",
        ITSELF,
        "(2,)",
    ),
}


def unmarked(data):
    lines = data.decode().splitlines(keepends=True)
    return "".join(line for line in lines if "TODO(rnncells)" not in line)


@pytest.mark.parametrize("own, why, batch", MARKED.values(), ids=MARKED)
def test_ambiguous_carries_are_marked_and_stay(own, why, batch):
    old = f"{HEAD}{own}{CALL}{END.replace('BATCH', batch or '(2,)')}"
    migration = migrate(old.encode())
    marked = [note.why for note in migration.notes if note.rule == "RC06"]
    assert marked == [why] and unmarked(migration.data) == old
    assert migrate(migration.data).data is migration.data
    there = migrate(old.encode(), "rnncells").data
    assert migrate(there, "rnncells").data is there
    if batch is not None:
        expected = run("old", with_imports_of("old_linen", old))
        assert_same(run("new", migration.data.decode()), expected)


@pytest.mark.parametrize("base", ["GRUCell", "LSTMCell"])
@pytest.mark.parametrize("value", ["staticmethod(ones)", "lambda k, b, n: None"])
def test_a_carry_assigned_in_a_class_replaces_that_of_its_base(value, base):
    own = of_value(value).replace("RNNCellBase", base)
    old = f"{HEAD}{FUNCTION}{own}\n\ncarry = Own.initialize_carry(key, (2,), 4)\n"
    old += "cell = Own()\nrnn = nn.RNN(Own(), 4)\n"
    migration = migrate(old.encode())
    rules = [note.rule for note in migration.notes if note.why]
    assert sorted(rules) == ["RC01", "RC01", "RC02", "RC04", "RC06"]
    assert unmarked(migration.data) == old
    assert migrate(migration.data).data is migration.data


TODAY = {
    "static": of_body("return 0", batch="").replace("rng, , size", "rng, input_shape"),
    "a lambda": of_value("staticmethod(lambda rng, input_shape: 0)"),
    "of the instance": of_value("nn.nowrap(lambda self, rng, input_shape: 0)"),
    "a function": "def make(self, rng, input_shape):\n    return 0\n\n\n"
    + of_value("make"),
    "a field": "class Own(nn.RNNCellBase):\n    initialize_carry: object\n",
}


@pytest.mark.parametrize("own", TODAY.values(), ids=TODAY)
def test_current_carries_stay(own):
    old = f"{HEAD}{own}".encode()
    assert migrate(old).notes == () and migrate(old).data is old
