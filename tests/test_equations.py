"""Cells against their equations: a step in NumPy, a sequence and gradients in JAX."""

from functools import partial

import equations
import jax
from cases import (
    ALL_CELLS,
    BATCH,
    PUBLIC_CELLS,
    assert_close,
    each_cell,
    random_setting,
    under_cell,
    values_and_gradients,
)
from equations.parts import arrays
from equations.table import EQUATIONS

import rnncells

TIME = 6


def test_every_cell_has_equations():
    assert set(EQUATIONS) == set(PUBLIC_CELLS), equations.__doc__


@each_cell(ALL_CELLS, default=ALL_CELLS)
def test_step_follows_the_equations(name, rng, float64):
    case = ALL_CELLS[name]
    cell, params, carry, x = random_setting(case, rng, BATCH)
    actual = jax.jit(cell.apply)(params, carry, x)
    expected = case.equations(*map(arrays, (params, carry, x)))
    assert_close(actual, expected, rtol=1e-12, atol=1e-12)


# Cells of Flax are compared with those of Flax, too.
@each_cell(ALL_CELLS)
def test_sequence_and_gradients_follow_the_equations(name, rng, float64):
    """By parameters, carry and inputs; a truncated gradient as in the equations."""
    case = ALL_CELLS[name]
    cell, params, carry, _ = random_setting(case, rng, BATCH)
    inputs = case.inputs(rng, TIME, BATCH)
    rnn = rnncells.RNN(cell, return_carry=True, time_major=True)

    def run(params, carry, inputs):
        return rnn.apply(under_cell(params), inputs, initial_carry=carry)

    def loop(params, carry, inputs):
        return jax.lax.scan(partial(case.equations, params["params"]), carry, inputs)

    at = params, carry, inputs
    expected = values_and_gradients(loop, *at)
    assert_close(values_and_gradients(run, *at), expected, rtol=1e-12, atol=1e-12)
