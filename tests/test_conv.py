"""Cells of images, and convolutions against each other."""

from functools import partial

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import assert_close, random_like, random_params
from levels import by_level

import rnncells
from rnncells.recurrence.engine.convolution import (
    convolve_by_patches,
    convolve_by_transposed,
)


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


@pytest.mark.parametrize("form", [convolve_by_patches, convolve_by_transposed])
@pytest.mark.parametrize(
    "options",
    by_level(
        [
            {"strides": (2, 1), "padding": "SAME"},
            {"strides": (1, 3), "padding": "VALID", "kernel_dilation": (2, 1)},
            {"padding": [(2, 0), (1, 3)], "input_dilation": (3, 2)},
            {"padding": "CIRCULAR", "use_bias": False},
        ],
        1,
    ),
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


def test_initializers_apply_to_the_kernels_and_biases_they_name(key):
    constant = nn.initializers.constant
    x = jnp.ones((2, 6, 7, 3))
    for reset_after in (False, True):
        cell = rnncells.ConvGRUCell(
            *(4, (3, 2)),
            kernel_init=constant(1),
            recurrent_kernel_init=constant(2),
            bias_init=constant(3),
            reset_after=reset_after,
        )
        params = cell.init(key, cell.initialize_carry(key, x), x)["params"]
        expected = {
            "ih": {"bias": ((12,), 3), "kernel": ((3, 2, 3, 12), 1)},
            "hh": {"kernel": ((3, 2, 4, 8), 2)},
            "hn": {"kernel": ((3, 2, 4, 4), 2)},
        }
        if reset_after:
            expected["hn"]["bias"] = ((4,), 3)
        found = jax.tree.map(lambda leaf: (leaf.shape, leaf.max()), params)
        assert found == expected
