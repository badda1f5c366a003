"""Users' own cells on the shim, and what its warnings suggest."""

import warnings

import flax.linen as nn
import jax
import jax.numpy as jnp
import old_linen
import pytest
from levels import by_level
from programs import CALL, assert_same

import rnncells
from rnncells import legacy

KEY = jax.random.PRNGKey(0)
X = jnp.sin(jnp.arange(30.0)).reshape(2, 5, 3)
IMAGES = jnp.sin(jnp.arange(120.0)).reshape(2, 5, 4, 3)
quiet = pytest.mark.filterwarnings("ignore:.*removed after Flax 0.6:DeprecationWarning")

STATIC = f"""
class Cell(nn.RNNCellBase):
    rate: float = 0.5

{CALL}
    @staticmethod
    def initialize_carry(rng, batch_dims, size):
        return jax.random.normal(rng, (*batch_dims, size))
"""
WITH_INITIALISER = f"""
class Cell(nn.RNNCellBase):
{CALL}
    @staticmethod
    def initialize_carry(
        key, batch_dims, size, init_fn=nn.initializers.normal(), scale=2
    ):
        return scale * init_fn(key, (*batch_dims, size))
"""
OF_INSTANCE = f"""
class Cell(nn.RNNCellBase):
    start: float = 0.0

{CALL}
    def initialize_carry(self, rng, batch_dims, size):
        return self.start + jax.random.normal(rng, (*batch_dims, size))
"""
WITH_FEATURES = """
class Cell(nn.RNNCellBase):
    features: int = 6

    @nn.compact
    def __call__(self, carry, x):
        carry = nn.tanh(nn.Dense(carry.shape[-1])(x) + carry)
        return carry, nn.Dense(self.features)(carry)

    def initialize_carry(self, rng, batch_dims, size):
        return jax.random.normal(rng, (*batch_dims, size))
"""
OF_IMAGES = f"""
class Cell(nn.RNNCellBase):
{CALL}
    @staticmethod
    def initialize_carry(rng, batch_dims, size):
        return jax.random.normal(rng, (*batch_dims, *size))
"""
DERIVED = """
class Cell(nn.LSTMCell):
    @staticmethod
    def initialize_carry(rng, batch_dims, size):
        carry = jax.random.normal(rng, (*batch_dims, size))
        return carry, -carry
"""
AROUND = """
class Cell(nn.RNNCellBase):
    cell: nn.Module

    def __call__(self, carry, x):
        carry, y = self.cell(carry, x)
        return carry, y + x.mean(-1, keepdims=True)

    def initialize_carry(self, key, batch_dims, size):
        return self.cell.initialize_carry(key, batch_dims, size)
"""

# Cells for Flax <= 0.6.11, how they are made, by further fields too, and their size.
CELLS = {
    "static": (STATIC, "Cell(rate=0.25, {})", 4),
    "with an initializer": (WITH_INITIALISER, "Cell({})", 4),
    "of the instance": (OF_INSTANCE, "Cell(start=2.0, {})", 4),
    "with features that are others": (WITH_FEATURES, "Cell({})", 4),
    "with features that are the size": (WITH_FEATURES, "Cell({})", 6),
    "of images": (OF_IMAGES, "Cell({})", (4, 3)),
    "derived": (DERIVED, "Cell({})", 4),
    "around another": (AROUND, "Cell(nn.GRUCell(), {})", 4),
}


def program(source, cell):
    return f"{source}\ncell = {cell}\nrnn = nn.RNN(cell, cell_size)\n"


def results(module, code, size):
    """Returns what the `rnn` of a program gives."""
    names = {"nn": module, "jax": jax, "jnp": jnp, "size": size, "cell_size": size}
    exec(compile(code, "program.py", "exec"), names)
    rnn = names["rnn"].copy(return_carry=True)
    x = IMAGES if isinstance(size, tuple) else X
    return rnn.init_with_output(KEY, x, init_key=jax.random.key(1))


@quiet
@pytest.mark.parametrize("source, cell, size", by_level(CELLS.values(), 4), ids=CELLS)
def test_own_cells_give_the_results_of_old_flax(source, cell, size):
    code = program(source, cell.format(""))
    assert_same(results(legacy, code, size), results(old_linen, code, size))


@pytest.mark.parametrize("source, cell, size", by_level(CELLS.values(), 4), ids=CELLS)
def test_warning_says_what_own_cells_need(source, cell, size):
    """The example in docs/migration.md runs in test_old_programs.py."""
    code = program(source, cell.format(""))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        results(legacy, code, size)
    texts = {str(warning.message) for warning in caught}
    (text,) = (text for text in texts if text.startswith("`RNN("))
    assert "`RNN(cell)`, and construct the cell with `features=cell_size`." in text
    assert "Cell needs a field `features`, a property `num_feature_axes`" in text
    assert "an instance method `initialize_carry(self, key, input_shape)`" in text


@pytest.mark.parametrize("name", by_level(["LSTMCell", "SimpleCell"], 1))
@pytest.mark.parametrize("time_major", by_level([False, True], 1))
def test_derived_cells_get_the_shape_of_a_step_as_in_flax(name, time_major):
    def results(module):
        class Cell(getattr(module, name)):
            def initialize_carry(self, rng, input_shape):
                carry = jax.random.normal(rng, (*input_shape[:-1], self.features))
                return (carry, -carry) if name == "LSTMCell" else carry

        rnn = module.RNN(Cell(4), time_major=time_major, return_carry=True)
        return rnn.init_with_output(KEY, X, init_key=jax.random.key(1))

    assert_same(results(legacy), results(nn))


def test_cells_of_rnncells_get_a_sample_of_a_step():
    class Cell(rnncells.LSTMCell):
        def initialize_carry(self, key, sample_input):
            return super().initialize_carry(key, sample_input.shape)

    assert_same(
        legacy.RNN(Cell(4)).init_with_output(KEY, X),
        legacy.RNN(rnncells.LSTMCell(4)).init_with_output(KEY, X),
    )
