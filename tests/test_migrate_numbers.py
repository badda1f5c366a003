"""The first argument of a cell: a gate function in old code, or a number."""

import pytest
from programs import MARK, assert_same, run, with_imports_of

from rnncells.migrate.migration import migrate

HEAD = "import flax.linen as nn\n\n\n"
PROGRAM = """\
class cfg:
    hidden = nn.relu
    size = 8


def f(self, carry, x, hidden_act, acts, sizes, q=4):
    h = nn.LSTMCell.initialize_carry(k, (2,), 4)
    return nn.LSTMCell({})(carry, x)
"""
FUNCTIONS = [
    *("cfg.hidden", "hidden_act", "config.hidden_act", "self.hidden_nonlinearity"),
    *("self.unit_activation", "dim_fn", "hidden_func", "hiddenAct", "UNIT_ACT"),
    *("config['hidden_act']", "sizes['act']", "self.unitactivation"),
]
UNKNOWN = [
    *("acts['hidden']", "config['hidden']", "self.net['unit']", "acts['hidden_size']"),
    *("config.acts['hidden']", "hidden_acts[0]", "gate_size", "num_gates", "n_act"),
    *("d", "config.z", "acts[0]", "self.size_gate", "n_hidden_fn"),
]
NUMBERS = [
    *("q", "cfg.size", "hidden", "config.hidden_size", "config['hidden_size']"),
    *("num_actions", "action_dim", "actor_size", "self.factor_size", "x.shape[-1]"),
]


def line(argument, program=PROGRAM):
    """Returns the last line of a rewritten program, and the line above."""
    once = migrate((HEAD + program.format(argument)).encode()).data
    assert migrate(once).data is once
    return once.decode().splitlines()[:-3:-1]


@pytest.mark.parametrize("argument", FUNCTIONS)
def test_gate_functions_move_after_features(argument):
    made = line(argument)[0]
    assert (
        made.strip() == f"return nn.LSTMCell(carry[1].shape[-1], {argument})(carry, x)"
    )


@pytest.mark.parametrize("argument", UNKNOWN)
def test_arguments_that_may_be_functions_are_marked(argument):
    made, mark = line(argument)
    assert made.strip() == f"return nn.LSTMCell({argument})(carry, x)"
    assert mark.strip().startswith(f"{MARK}RC01: `")


@pytest.mark.parametrize("argument", NUMBERS)
def test_numbers_stay(argument):
    made, above = line(argument)
    assert made.strip() == f"return nn.LSTMCell({argument})(carry, x)"
    assert MARK not in above


# Places where an expression must be a number.
PLACES = {
    "an old carry": "nn.GRUCell.initialize_carry(k, (2,), {})",
    "an old carry of any object": "self.net.initialize_carry(k, (2,), size={})",
    "a carry": "nn.GRUCell(4).initialize_carry(k, (2, {}))",
    "a carry by a keyword": "self.cell.initialize_carry(k, input_shape=(2, {}))",
    "a batch": "nn.GRUCell.initialize_carry(k, batch_dims=({},), size=4)",
    "a layer": "nn.RNN(nn.GRUCell({}))",
    "a layer by a keyword": "nn.RNN(cell=nn.GRUCell({}), time_major=True)",
    "a layer with time_major by position": "nn.RNN(nn.GRUCell({}), True)",
    "a layer of a cell in a variable": "(c := nn.GRUCell({}), nn.RNN(c))",
    "a size of a layer": "nn.RNN(self.cell, cell_size={})",
}
# Places where it may be anything.
OTHERS = {
    "another method": "self.net.start(k, (2,), {})",
    "a method that is not a cell's": "self.initialize_carry(2, 4, {})",
    "a layer with its size": "nn.RNN(nn.GRUCell({}), 4)",
    "a layer with unpacked arguments": "nn.RNN(nn.GRUCell({}), **options)",
    "an argument of another call": "other(d={})",
}
BESIDE = """\
class Holder(nn.Module):
    @staticmethod
    def initialize_carry(batch, size, kind):
        return kind(batch, size)

    def f(self, carry, x, d, config, i):
        old = {}, nn.GRUCell.initialize_carry(k, (2,), 4)
        return nn.LSTMCell({})(carry, x)
"""
NAMELESS = ["d", "config.z", "config['z']", "self.z", "config.zs[i]", "d or config.z"]


@pytest.mark.parametrize("size", NAMELESS)
@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_an_expression_used_as_a_size_elsewhere_is_a_number(place, size):
    made, above = line("", BESIDE.format(place.format(size), size))
    assert made.strip() == f"return nn.LSTMCell({size})(carry, x)"
    assert MARK not in above


@pytest.mark.parametrize("size", NAMELESS)
@pytest.mark.parametrize("place", OTHERS.values(), ids=OTHERS)
def test_other_uses_of_an_expression_do_not_make_it_a_number(place, size):
    _, mark = line("", BESIDE.format(place.format(size), size))
    assert mark.strip().startswith(f"{MARK}RC01: `")


SCOPES = {
    "d": "def f(d):\n    return {}\n\n\ndef g(d, h, x):\n    return {}",
    "self.d": "class A:\n    def f(self):\n        return {}\n\n\n"
    "class B:\n    def g(self, h, x):\n        return {}",
}


@pytest.mark.parametrize("size", SCOPES)
def test_equal_names_in_other_scopes_are_not_numbers(size):
    carry = f"nn.GRUCell(4).initialize_carry(k, (2, {size}))"
    old = "a = nn.GRUCell.initialize_carry(k, (), 4)\n\n\n"
    cell = f"nn.GRUCell({size})(h, x)"
    _, mark = line("", old + SCOPES[size].format(carry, cell))
    assert mark.strip().startswith(f"{MARK}RC01: `")


@pytest.mark.parametrize("to", ["flax", "rnncells"])
def test_programs_with_functions_named_like_sizes_give_the_same_results(to):
    old = (
        f"{HEAD}import jax\n\nkey = jax.random.PRNGKey(0)\n\n\nclass cfg:\n"
        "    hidden_act = nn.hard_sigmoid\n\n\ndef run():\n"
        "    h = nn.GRUCell.initialize_carry(key, (2,), 4)\n"
        "    cell = nn.GRUCell(cfg.hidden_act)\n"
        "    return cell.init_with_output(key, h, 3 * jax.numpy.ones((2, 3)))\n"
    )
    new = migrate(old.encode(), to).data.decode()
    assert_same(run("new", new), run("old", with_imports_of("old_linen", old)))
