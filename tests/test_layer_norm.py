"""Cells with layer normalization against their equations."""

from functools import partial

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from by_hand import activations, assert_sequence_follows, assert_step_follows
from cases import (
    ALL_CELLS,
    CELLS,
    assert_close,
    each_cell,
    random_setting,
)
from equations import affine

from rnncells.cells.layer_norm import standardize

LSTMS = [name for name in ALL_CELLS if name.startswith("LayerNormLSTMCell")]
GRUS = [name for name in ALL_CELLS if name.startswith("LayerNormGRUCell")]


def norm(np, z, params, epsilon):
    sd = np.sqrt(np.var(z, axis=-1, keepdims=True) + epsilon)
    return affine((z - np.mean(z, axis=-1, keepdims=True)) / sd, as_matrix(np, params))


def as_matrix(np, params):
    return {**params, "kernel": np.diag(params["kernel"])}


def side_by_side(np, x, p, *names):
    return np.concatenate([affine(x, p[name]) for name in names], axis=-1)


def equations_of(case):
    of_cell = lstm if case.name == "LayerNormLSTMCell" else gru
    epsilon = case.options.get("epsilon", 1e-5)

    def equations(np, p, carry, x):
        return of_cell(np, p, carry, x, *activations(np, case), epsilon)

    return equations


def lstm(np, p, carry, x, gate, squash, epsilon):
    c, h = carry
    of_h = side_by_side(np, h, p, "hi", "hf", "hg", "ho")
    of_x = side_by_side(np, x, p, "ii", "if", "ig", "io")
    a = norm(np, of_h, p["norm_h"], epsilon) + norm(np, of_x, p["norm_x"], epsilon)
    i, f, g, o = np.split(a, 4, axis=-1)
    c = gate(f) * c + gate(i) * squash(g)
    h = gate(o) * squash(norm(np, c, p["norm_c"], epsilon))
    return (c, h), h


def gru(np, p, h, x, gate, squash, epsilon):
    of_h = side_by_side(np, h, p, "hr", "hz")
    of_x = side_by_side(np, x, p, "ir", "iz")
    a = norm(np, of_h, p["norm_h"], epsilon) + norm(np, of_x, p["norm_x"], epsilon)
    r, z = np.split(a, 2, axis=-1)
    xn = norm(np, affine(x, p["in"]), p["norm_xn"], epsilon)
    hn = norm(np, affine(h, p["hn"]), p["norm_hn"], epsilon)
    n = squash(xn + gate(r) * hn)
    h = (1 - gate(z)) * h + gate(z) * n
    return h, h


@pytest.mark.parametrize("name", LSTMS + GRUS)
def test_step_follows_the_equations(name, rng, float64):
    assert_step_follows(ALL_CELLS[name], equations_of(ALL_CELLS[name]), rng)


@each_cell(LSTMS + GRUS, always=CELLS)
def test_sequence_follows_the_equations(name, rng, float64):
    assert_sequence_follows(ALL_CELLS[name], equations_of(ALL_CELLS[name]), rng)


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
