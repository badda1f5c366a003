"""Users' own cells on the shim: as they were, as they are to be, and as told."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from programs import assert_same

import rnncells
from rnncells import legacy

KEY = jax.random.PRNGKey(0)
X = jnp.sin(jnp.arange(30.0)).reshape(2, 5, 3)


@pytest.mark.parametrize("name", ["LSTMCell", "SimpleCell"])
@pytest.mark.parametrize("time_major", [False, True])
def test_carries_of_derived_cells_are_of_a_shape_as_in_flax(name, time_major):
    def results(module):
        class Cell(getattr(module, name)):
            def initialize_carry(self, rng, input_shape):
                carry = jax.random.normal(rng, (*input_shape[:-1], self.features))
                return (carry, -carry) if name == "LSTMCell" else carry

        rnn = module.RNN(Cell(4), time_major=time_major, return_carry=True)
        return rnn.init_with_output(KEY, X, init_key=jax.random.key(1))

    assert_same(results(legacy), results(nn))


def test_carries_of_cells_of_the_library_are_of_a_sample():
    class Cell(rnncells.LSTMCell):
        def initialize_carry(self, key, sample_input):
            return super().initialize_carry(key, sample_input.shape)

    assert_same(
        legacy.RNN(Cell(4)).init_with_output(KEY, X),
        legacy.RNN(rnncells.LSTMCell(4)).init_with_output(KEY, X),
    )
