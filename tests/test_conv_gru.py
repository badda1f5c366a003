"""ConvGRUCell against its equations, and against GRUCell on images of one pixel."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy
import pytest
from by_hand import activations, assert_sequence_follows, assert_step_follows
from cases import ALL_CELLS, CELLS, assert_close, each_cell, random_setting
from convolutions import convolve, convolve_in_jax

import rnncells

CASES = [name for name in ALL_CELLS if name.startswith("ConvGRUCell")]


def equations_of(case):
    options = case.options
    strides, pads = options.get("strides"), options.get("padding", "SAME")

    def equations(np, p, h, x):
        gate, squash = activations(np, case)
        conv = convolve if np is numpy else convolve_in_jax
        xz, xr, xn = np.split(conv(x, p["ih"], strides, pads), 3, axis=-1)
        hz, hr = np.split(conv(h, p["hh"]), 2, axis=-1)
        z = gate(xz + hz)
        r = gate(xr + hr)
        if options.get("reset_after"):
            n = squash(xn + r * conv(h, p["hn"]))
        else:
            n = squash(xn + conv(r * h, p["hn"]))
        h = (1 - z) * h + z * n
        return h, h

    return equations


@pytest.mark.parametrize("name", CASES)
def test_step_follows_the_equations(name, rng, float64):
    assert_step_follows(ALL_CELLS[name], equations_of(ALL_CELLS[name]), rng)


@each_cell(CASES, always=CELLS)
def test_sequence_follows_the_equations(name, rng, float64):
    assert_sequence_follows(ALL_CELLS[name], equations_of(ALL_CELLS[name]), rng)


@pytest.mark.parametrize("reset_after", [False, True])
def test_conv_gru_on_one_pixel_equals_gru(reset_after, rng, float64):
    """But for the roles of z and 1 - z, which a change of sign exchanges."""
    case = ALL_CELLS["GRUCell" if reset_after else "GRUCell-reset-before"]
    gru, params, h, x = random_setting(case, rng, 2)
    p = params["params"]
    cell = rnncells.ConvGRUCell(4, (1,), reset_after=reset_after, param_dtype=float)

    def side_by_side(part, z, *others):
        return jnp.concatenate([-z[part], *(gate[part] for gate in others)], axis=-1)

    of_input, of_state = (p["iz"], p["ir"], p["in"]), (p["hz"], p["hr"])
    as_conv = {
        "ih": {
            "kernel": side_by_side("kernel", *of_input)[None],
            "bias": side_by_side("bias", *of_input),
        },
        "hh": {"kernel": side_by_side("kernel", *of_state)[None]},
        "hn": {**p["hn"], "kernel": p["hn"]["kernel"][None]},
    }
    _, expected = gru.apply(params, h, x)
    _, y = cell.apply({"params": as_conv}, h[:, None], x[:, None])
    assert_close(y[:, 0], expected, rtol=1e-12, atol=1e-12)


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


@pytest.mark.parametrize("make", [rnncells.ConvGRUCell, rnncells.ConvLSTMCell])
def test_errors_name_the_class_and_the_rule(make):
    with pytest.raises(TypeError, match=f"`features` of {make.__name__} must be"):
        make(None, (3, 2))
    with pytest.raises(TypeError, match="one size for each spatial axis"):
        make(4, 3)
