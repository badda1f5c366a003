"""GRUCell against numbers of Keras, and its parameters."""

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
import pytest

import rnncells


def constant_gru(key, features, x, reset_after=True, **biases):
    """Returns a GRU with kernels 0.01, recurrent 0.02 and biases 0.03, and its RNN."""
    constant = nn.initializers.constant
    cell = rnncells.GRUCell(
        features,
        kernel_init=constant(0.01),
        recurrent_kernel_init=constant(0.02),
        bias_init=constant(0.03),
        reset_after=reset_after,
    )
    rnn = rnncells.RNN(cell)
    params = rnn.init(key, x)
    if reset_after:
        # Keras has two biases; those of r and z add up in one of Flax's.
        for gate in ("ir", "iz"):
            params["params"]["cell"][gate]["bias"] = jnp.full(features, 0.06)
    return rnn, params


@pytest.mark.parametrize(
    "reset_after, reverse, expected",
    [
        (True, False, (0.5217289, 0.6371659, 0.39384964)),
        (True, True, (0.24406259, 0.611516, 0.3928808)),
        (False, False, (0.51447755, 0.6426879, 0.40208298)),
    ],
)
def test_gru_gives_the_numbers_of_keras(reset_after, reverse, expected, key):
    x = jnp.arange(72.0).reshape(3, 6, 4)
    rnn, params = constant_gru(key, 3, x, reset_after)

    y = rnn.apply(params, x, reverse=reverse)

    np.testing.assert_allclose(y[:, -1], np.tile(expected, (3, 1)).T, atol=1e-5)


def test_masked_gru_gives_the_numbers_of_keras(key):
    x = jnp.arange(24.0).reshape(2, 4, 3)
    mask = np.array([[1, 1, 0, 1], [1, 0, 0, 1]], bool)
    rnn, params = constant_gru(key, 2, x)
    first = (0.03606692, 0.09497581, None, 0.19393763)
    for padded_outputs, masked in (("hold", 0.09497581), ("zero", 0.0)):
        layer = rnncells.RNN(rnn.cell, padded_outputs=padded_outputs)
        y = layer.apply(params, x, mask=mask)
        row = [masked if value is None else value for value in first]
        np.testing.assert_allclose(y[0, :, 0], row, atol=1e-5)
        np.testing.assert_allclose(y[1, -1], 0.30818558, atol=1e-5)


def test_reset_before_the_product_has_no_recurrent_bias(key):
    cell, x = rnncells.GRUCell(4, reset_after=False), jnp.ones((2, 3))
    params = cell.init(key, cell.initialize_carry(key, x), x)
    assert set(params["params"]["hn"]) == {"kernel"}
