"""PeepholeLSTMCell as it starts, and the product that peepholes are."""

import jax
import jax.numpy as jnp
import pytest
from cases import assert_close, assert_equal, random_like

import rnncells
from rnncells.cells.parameters import ElementwiseAffine


@pytest.mark.parametrize("features", [4, None])
def test_peephole_lstm_starts_as_an_lstm(features, rng, key):
    cell, lstm = rnncells.PeepholeLSTMCell(features), rnncells.LSTMCell(4)
    x = jax.random.normal(key, (2, 3))
    carry = random_like(rng, lstm.initialize_carry(key, x))
    params = cell.init(key, carry, x)

    actual = cell.apply(params, carry, x)

    for name in ("pi", "pf", "po"):
        assert_equal(params["params"].pop(name), {"kernel": jnp.zeros(4)})
    assert_equal(params, lstm.init(key, carry, x))
    assert_close(actual, lstm.apply(params, carry, x))


@pytest.mark.parametrize("axes", [0, 1, 2, 3])
def test_diagonal_has_a_weight_for_each_element_of_its_trailing_axes(axes, rng, key):
    inputs = jax.random.normal(key, (5, 2, 3, 4))
    layer = ElementwiseAffine(num_feature_dims=axes, use_bias=True)
    params = random_like(rng, jax.eval_shape(layer.init, key, inputs))
    shape = inputs.shape[4 - axes :]
    assert jax.tree.map(jnp.shape, params["params"]) == {"kernel": shape, "bias": shape}
    kernel, bias = params["params"]["kernel"], params["params"]["bias"]
    assert_close(layer.apply(params, inputs), inputs * kernel + bias)


def test_gradient_of_diagonal_is_summed_in_the_dtype_of_its_weights(key):
    """There is no 1001 in bfloat16."""
    rows = jnp.ones((1001, 3), jnp.bfloat16)
    layer = ElementwiseAffine(use_bias=True, dtype=jnp.bfloat16)
    params = layer.init(key, rows)
    outputs, pull = jax.vjp(lambda p: layer.apply(p, rows), params)
    (gradient,) = pull(jnp.ones_like(outputs))
    assert outputs.dtype == jnp.bfloat16
    assert_equal(gradient, jax.tree.map(lambda w: jnp.full(3, 1001.0), params))
