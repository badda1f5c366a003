"""ConvLSTMCell against its equations in NumPy, and convolutions against each other."""

from functools import partial

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from by_hand import assert_sequence_follows
from cases import (
    ALL_CELLS,
    CELLS,
    assert_close,
    each_cell,
    random_like,
    random_params,
    random_setting,
)
from convolutions import convolve, convolve_in_jax
from equations import arrays, sigmoid

import rnncells
from rnncells.recurrence.convolution import (
    convolve_by_patches,
    convolve_by_transposed,
)

CASES = [name for name in ALL_CELLS if name.startswith("ConvLSTMCell")]
# As numbers of zeros before and after, on each axis.
PADS = {"CAUSAL": ((2, 0),)}


@pytest.mark.parametrize("name", CASES)
def test_conv_lstm_cell_follows_its_equations(name, rng, float64):
    case = ALL_CELLS[name]
    cell, params, carry, x = random_setting(case, rng, 2)

    (c, h), y = jax.jit(cell.apply)(params, carry, x)

    p, (c_, h_), x = arrays(params), arrays(carry), arrays(x)
    strides = case.options.get("strides")
    pads = case.options.get("padding", "SAME")
    pads = PADS.get(pads, pads)
    # Only where it changes the size of images is the padding not that of the state.
    changes_size = strides or name in ("ConvLSTMCell-valid", "ConvLSTMCell-pairs")
    state_pads = "SAME" if changes_size else pads
    gates = convolve(x, p["ih"], strides, pads)
    gates += convolve(h_, p["hh"], pads=state_pads)
    i, g, f, o = np.split(gates, 4, axis=-1)
    w_ci, w_cf, w_co = (p[n]["kernel"] if n in p else 0 for n in ("ci", "cf", "co"))
    i, f = i + w_ci * c_, f + w_cf * c_
    expected_c = sigmoid(f + 1) * c_ + sigmoid(i) * np.tanh(g)
    np.testing.assert_allclose(c, expected_c, rtol=1e-11, atol=1e-12)
    expected_h = sigmoid(o + w_co * expected_c) * np.tanh(expected_c)
    np.testing.assert_allclose(h, expected_h, rtol=1e-11, atol=1e-12)
    np.testing.assert_array_equal(y, h)


def in_jax(case):
    def equations(np, p, carry, x):
        c, h = carry
        gates = convolve_in_jax(x, p["ih"], case.options.get("strides"))
        gates += convolve_in_jax(h, p["hh"])
        i, g, f, o = np.split(gates, 4, axis=-1)
        w_ci, w_cf, w_co = (p[name]["kernel"] for name in ("ci", "cf", "co"))
        i = 1 / (1 + np.exp(-i - w_ci * c))
        f = 1 / (1 + np.exp(-f - w_cf * c - 1))
        c = f * c + i * np.tanh(g)
        o = 1 / (1 + np.exp(-o - w_co * c))
        h = o * np.tanh(c)
        return (c, h), h

    return equations


@each_cell([name for name in CASES if "peepholes" in name], always=CELLS)
def test_sequence_with_peepholes_follows_the_equations(name, rng, float64):
    case = ALL_CELLS[name]
    assert_sequence_follows(case, in_jax(case), rng)


def test_peepholes_have_the_size_of_images_and_start_at_zero(key):
    cell = rnncells.ConvLSTMCell(4, (3, 2), strides=(2, 3), peepholes=True)
    plain = rnncells.ConvLSTMCell(4, (3, 2), strides=(2, 3))
    x = jax.random.normal(key, (2, 6, 7, 3))
    carry = random_like(np.random.default_rng(7), cell.initialize_carry(key, x))
    params = cell.init(key, carry, x)
    for name in ("ci", "cf", "co"):
        peephole = params["params"].pop(name)
        assert jax.tree.map(jnp.shape, peephole) == {"kernel": (3, 3, 4)}
        assert not peephole["kernel"].any()
    assert_close(params, plain.init(key, carry, x), rtol=0, atol=0)
    whole = cell.init(key, carry, x)
    assert_close(cell.apply(whole, carry, x), plain.apply(params, carry, x))


def test_strides_and_padding_change_only_the_shape_of_the_carry(key):
    x = jnp.ones((2, 9, 8, 3))
    trees = []
    for options, spatial in (
        ({}, (9, 8)),
        ({"strides": (2, 3)}, (5, 3)),
        ({"padding": "VALID"}, (7, 7)),
        ({"strides": (2, 3), "padding": "VALID"}, (4, 3)),
    ):
        cell = rnncells.ConvLSTMCell(4, (3, 2), **options)
        carry = cell.initialize_carry(key, x.shape)
        assert len(carry) == 2
        chex.assert_shape(carry, (2, *spatial, 4))
        trees.append(jax.eval_shape(cell.init, key, carry, x))
    assert all(tree == trees[0] for tree in trees)


def test_too_few_axes_raise(key):
    cell = rnncells.ConvLSTMCell(4, (3, 2))
    with pytest.raises(ValueError, match="at least 3 axes: .* got the shape"):
        cell.initialize_carry(key, (2,))
    with pytest.raises(TypeError, match="one size for each spatial axis"):
        rnncells.ConvLSTMCell(4, 3)
    with pytest.raises(ValueError, match="`strides` must have one number for each"):
        rnncells.ConvLSTMCell(4, (3, 3), strides=(2,))


@pytest.mark.parametrize("form", [convolve_by_patches, convolve_by_transposed])
@pytest.mark.parametrize(
    "options",
    [
        {"strides": (2, 1), "padding": "SAME"},
        {"strides": (1, 3), "padding": "VALID", "kernel_dilation": (2, 1)},
        {"padding": [(2, 0), (1, 3)], "input_dilation": (3, 2)},
        {"padding": "CIRCULAR", "use_bias": False},
    ],
)
def test_convolution_by_patches_or_transposed_equals_lax(form, options, rng, float64):
    layer = nn.Conv(4, (3, 2), param_dtype=jnp.float64, **options)
    inputs = jnp.asarray(rng.standard_normal((2, 7, 5, 3)))
    params = random_params(rng, layer, inputs)
    equations = jax.make_jaxpr(layer.apply)(params, inputs).eqns
    (conv,) = (e for e in equations if e.primitive.name == "conv_general_dilated")
    at = [random_like(rng, operand.aval) for operand in conv.invars]
    expected, pull = jax.vjp(partial(conv.primitive.bind, **conv.params), *at)
    actual, other_pull = jax.vjp(partial(form, **conv.params), *at)
    assert_close(actual, expected, rtol=1e-12, atol=1e-12)
    gradient = random_like(rng, expected)
    assert_close(other_pull(gradient), pull(gradient), rtol=1e-12, atol=1e-12)


def test_paddings_have_names_in_either_case():
    """As in `flax.linen.Conv`."""
    shapes = [
        jax.eval_shape(
            rnncells.RNN(rnncells.ConvLSTMCell(2, (3, 3), padding=padding)).init,
            jax.random.key(0),
            jnp.ones((1, 2, 5, 4, 1)),
        )
        for padding in ("valid", "VALID")
    ]
    assert shapes[0] == shapes[1]
