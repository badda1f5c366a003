"""The fast loop equals the plain loop for random cells, run in random ways."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import random_like
from generated_cells import FEATURES_IN, ROWS, has_single, some_cell, some_options

import rnncells

# One on one device and one on several. They take derivatives of `vmap`; every run takes
# second derivatives in test_engine.py.
IN_EVERY_RUN, IN_ALL, GROUPS = (0, 5), 3000, 60
DERIVATIVES = ("first", "first", "second", "vmap params", "vmap inputs", "vmap carry")


def total(tree):
    leaves = [leaf for leaf in jax.tree.leaves(tree) if leaf.dtype.kind == "f"]
    return sum(jnp.sum(jnp.sin(leaf + 1)) for leaf in leaves)


def derivative(kind, of, at):
    """Returns the value and the gradients of `of(*at)`, or of what is made of it."""
    if kind == "first":
        return jax.value_and_grad(of, (0, 1, 2), allow_int=True)(*at)
    if kind == "second":

        def norm(*at):
            return sum(
                jnp.sum(leaf**2) for leaf in jax.tree.leaves(jax.grad(of, (0, 1))(*at))
            )

        return jax.value_and_grad(norm, (0, 1))(*at)
    which = ("params", "inputs", "carry").index(kind.removeprefix("vmap "))
    axes = [0 if k == which else None for k in range(3)]
    at = list(at)
    at[which] = jax.tree.map(lambda leaf: jnp.stack([leaf, 2 * leaf]), at[which])

    def of_both(*at):
        return jax.vmap(of, axes)(*at).sum()

    return jax.value_and_grad(of_both, (0, 1, 2), allow_int=True)(*at)


def assert_near(actual, expected, tolerance, seed):
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for a, b in zip(*map(jax.tree.leaves, (actual, expected)), strict=True):
        if a.dtype == jax.dtypes.float0:
            continue
        assert a.dtype == b.dtype and np.isfinite(b).all()
        np.testing.assert_allclose(
            *(a, b),
            rtol=0,
            atol=tolerance * max(1, np.abs(b).max(initial=0)),
            err_msg=f"seed {seed}",
        )


def groups():
    """Yields groups of seeds; every other cell runs on several devices."""
    for seed in IN_EVERY_RUN:
        marks = [pytest.mark.several_devices] * (seed % 2)
        yield pytest.param([seed], marks=marks, id=f"{seed}")
    for first in range(GROUPS):
        marks = [pytest.mark.several_devices] * (first % 2) + [pytest.mark.exhaustive]
        yield pytest.param(
            range(first, IN_ALL, GROUPS), marks=marks, id=f"from-{first}"
        )


@pytest.mark.parametrize("seeds", [*groups()])
def test_random_cell_equals_the_plain_loop(seeds, float64):
    for seed in seeds:
        assert_equals_the_plain_loop(seed)


def assert_equals_the_plain_loop(seed):
    rng = np.random.default_rng(seed)
    cell, steps = some_cell(rng), int(rng.integers(1, 6))
    fields, arguments = some_options(rng, steps)
    kind = DERIVATIVES[rng.integers(len(DERIVATIVES))]
    inputs = jnp.asarray(rng.standard_normal((ROWS, steps, FEATURES_IN)))
    fast = rnncells.RNN(cell, **fields)
    options = {"implementation": "scan", "memory": "full", "projection": "auto"}
    plain = fast.clone(**options)
    params = random_like(rng, jax.eval_shape(plain.init, jax.random.key(0), inputs))
    carry = cell.initialize_carry(jax.random.key(0), inputs[:, 0])
    carry = random_like(rng, carry)

    def of(rnn, params, inputs, carry):
        return total(rnn.apply(params, inputs, initial_carry=carry, **arguments))

    actual, expected = (
        jax.jit(partial(derivative, kind, partial(of, rnn)))((params, inputs, carry))
        for rnn in (fast, plain)
    )

    assert_near(actual, expected, 1e-5 if has_single(cell) else 1e-10, seed)
