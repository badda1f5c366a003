"""LSTMCell against numbers that Keras publishes, and the LSTM that a coupled one is."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import ALL_CELLS, assert_close, assert_equal, random_setting

import rnncells


@pytest.mark.parametrize(
    "forget_bias, expected",
    [
        (0.03, (0.57019705, 0.8661914, 0.9459622)),
        (1.0, (0.6288687, 0.86899155, 0.9460773)),
    ],
)
def test_lstm_gives_the_numbers_of_keras(forget_bias, expected, key):
    """Keras's own test: kernels 0.01, recurrent 0.02, biases 0.03, inputs 0..71."""
    constant = nn.initializers.constant
    cell = rnncells.LSTMCell(
        features=3,
        kernel_init=constant(0.01),
        recurrent_kernel_init=constant(0.02),
        bias_init=constant(0.03),
    )
    x = jnp.arange(72.0).reshape(3, 6, 4)
    rnn = rnncells.RNN(cell)
    params = rnn.init(key, x)
    params["params"]["cell"]["hf"]["bias"] = jnp.full(3, forget_bias)

    y = rnn.apply(params, x)

    np.testing.assert_allclose(y[:, -1], np.tile(expected, (3, 1)).T, atol=1e-5)


@pytest.mark.parametrize("name", ["LSTMCell", "GRUCell", "MGUCell", "SimpleCell"])
def test_features_none_takes_the_width_of_the_carry(name, key):
    cell, x = getattr(rnncells, name)(None), jnp.ones((2, 3))
    named = getattr(rnncells, name)(4)
    carry = named.initialize_carry(key, x)

    params = cell.init(key, carry, x)
    assert_equal(params, named.init(key, carry, x))
    rnn = rnncells.RNN(cell)
    in_rnn = rnn.init(key, x[:, None], initial_carry=carry)
    assert jax.tree.map(jnp.shape, in_rnn["params"]["cell"]) == jax.tree.map(
        jnp.shape, params["params"]
    )
    with pytest.raises(ValueError, match="`features` of .* is None"):
        rnn.init(key, x[:, None])


def test_coupled_lstm_equals_lstm_with_negated_forget_gate(rng, float64):
    cell, params, carry, x = random_setting(ALL_CELLS["CoupledLSTMCell"], rng, 2)
    p = params["params"]
    opposite = {f"{k}f": jax.tree.map(lambda w: -w, p[f"{k}i"]) for k in "ih"}
    lstm = rnncells.LSTMCell(4, param_dtype=float)
    expected = lstm.apply({"params": p | opposite}, carry, x)
    assert_close(cell.apply(params, carry, x), expected, rtol=1e-12, atol=1e-12)


def test_cell_state_stays_in_its_bounds(rng, key):
    """What is forgotten is what is replaced: no state leaves [-1, 1]."""
    rnn = rnncells.RNN(rnncells.CoupledLSTMCell(4), return_carry=True)
    x = 9 * jax.random.normal(key, (2, 50, 3))
    (c, _), _ = rnn.apply(rnn.init(key, x), x)
    assert abs(c).max() <= 1
