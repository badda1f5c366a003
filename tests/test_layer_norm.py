"""Layer normalization in cells: its scale, dtypes and gradients."""

from functools import partial

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import ALL_CELLS, assert_close, random_setting

from rnncells.cells.layer_norm import standardize


@pytest.mark.parametrize("dtype", [float, complex])
def test_standardize_equals_layer_norm_of_flax(dtype, rng, float64):
    x = jnp.asarray(rng.standard_normal((3, 7)) + 5, dtype)
    x = x + 2j * rng.standard_normal((3, 7)) if dtype is complex else x
    layer = nn.LayerNorm(
        epsilon=0.03, use_bias=False, use_scale=False, use_fast_variance=False
    )
    expected = layer.apply({}, x)
    assert_close(standardize(x, 0.03), expected, rtol=1e-12, atol=1e-12)


def test_half_precision_is_normalized_in_float32(rng):
    x = jnp.asarray(rng.standard_normal((2, 2000)) + 8, jnp.bfloat16)
    expected = standardize(x.astype(jnp.float32), 1e-5)
    actual = standardize(x, 1e-5)
    assert actual.dtype == jnp.bfloat16
    assert_close(actual, expected.astype(jnp.bfloat16), rtol=0, atol=0)


@pytest.mark.parametrize("name", ["LayerNormLSTMCell", "LayerNormGRUCell"])
def test_outputs_do_not_depend_on_the_scale_of_kernels(name, rng, float64):
    """All gates of one norm are scaled together; without epsilon it is exact."""
    cell, params, carry, x = random_setting(ALL_CELLS[name], rng, 2)
    apply = jax.jit(cell.clone(epsilon=0.0).apply)
    expected = apply(params, carry, x)
    larger = {
        gate: jax.tree.map(lambda w: 3 * w, leaves) if len(gate) == 2 else leaves
        for gate, leaves in params["params"].items()
    }
    actual = apply({"params": larger}, carry, x)
    assert_close(actual, expected, rtol=1e-12, atol=1e-12)
    gate = "hf" if "hf" in larger else "hr"
    other = apply({"params": params["params"] | {gate: larger[gate]}}, carry, x)
    assert abs(other[1] - expected[1]).max() > 1e-3


@pytest.mark.parametrize(
    "name, of_bias_init",
    [
        ("LayerNormLSTMCell", {"norm_x"}),
        ("LayerNormGRUCell", {"norm_x", "norm_xn", "norm_hn"}),
    ],
)
def test_scales_start_at_one_and_shifts_at_zero(name, of_bias_init, key):
    x = jnp.ones((2, 3))
    for options in ({}, {"bias_init": nn.initializers.constant(5.0)}):
        cell = ALL_CELLS[name].make(**options)
        params = cell.init(key, cell.initialize_carry(key, x), x)["params"]
        norms = {k: v for k, v in params.items() if k.startswith("norm")}
        for norm_name, leaves in norms.items():
            assert (leaves["kernel"] == 1).all()
            is_given = options and norm_name in of_bias_init
            assert (leaves["bias"] == (5 if is_given else 0)).all()
        gates = [leaves for k, leaves in params.items() if k not in norms]
        assert all(set(leaves) == {"kernel"} for leaves in gates)


@pytest.mark.parametrize("name", ["LayerNormLSTMCell", "LayerNormGRUCell"])
def test_gradients_are_finite_where_the_variance_is_zero(name, rng):
    """The carry before the first step is, and so may be the inputs."""
    cell, params, carry, x = random_setting(ALL_CELLS[name], rng, 2)
    zeros = jax.tree.map(np.zeros_like, (carry, x))

    @jax.jit
    @partial(jax.grad, argnums=(0, 1))
    def gradient(params, carry_and_x):
        return cell.apply(params, *carry_and_x)[1].sum()

    chex.assert_tree_all_finite(gradient(params, zeros))
