"""A cell's equations against the cell: a step in NumPy, a sequence in plain JAX.

The equations are a function `(np, params, carry, x) -> (carry, output)`, in which `np`
is NumPy or `jax.numpy`.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from cases import assert_close, random_setting, under_cell
from equations import arrays

import rnncells

BATCH, TIME = 2, 6


def activations(np, case):
    """Returns the functions of gates and of candidates that the case has.

    Those that are not the default are `soft_gate` of cases.py and soft sign.
    """
    if "gate_fn" in case.options:
        return lambda x: (1 + x / (1 + abs(x))) / 2, lambda x: x / (1 + abs(x))
    return lambda x: 1 / (1 + np.exp(-x)), np.tanh


def loop(equations, params, carry, inputs):
    """Returns the last carry and the outputs of the inputs, `(time, ...)`."""
    return jax.lax.scan(partial(equations, jnp, params["params"]), carry, inputs)


def value_and_gradients(run, *at):
    """Returns what `run` returns, and the gradients of a mixture of it."""

    def mixed(*at):
        outcome = run(*at)
        leaves = jax.tree.leaves(outcome)
        terms = [jnp.sum(jnp.sin((k + 1) * y)) for k, y in enumerate(leaves)]
        return sum(term.real + term.imag for term in terms), outcome

    positions = tuple(range(len(at)))
    gradient = jax.value_and_grad(mixed, positions, has_aux=True)
    (_, outcome), gradients = jax.jit(gradient)(*at)
    return outcome, gradients


def assert_step_follows(case, equations, rng):
    cell, params, carry, x = random_setting(case, rng, BATCH)
    actual = jax.jit(cell.apply)(params, carry, x)
    expected = equations(np, *map(arrays, (params, carry, x)))
    assert_close(actual, expected, rtol=1e-12, atol=1e-12)


def assert_sequence_follows(case, equations, rng):
    """Values, and gradients by parameters, carry and inputs."""
    cell, params, carry, _ = random_setting(case, rng, BATCH)
    inputs = case.inputs(rng, TIME, BATCH)
    rnn = rnncells.RNN(cell, return_carry=True, time_major=True)

    def run(params, carry, inputs):
        return rnn.apply(under_cell(params), inputs, initial_carry=carry)

    at = params, carry, inputs
    expected = value_and_gradients(partial(loop, equations), *at)
    assert_close(value_and_gradients(run, *at), expected, rtol=1e-12, atol=1e-12)
