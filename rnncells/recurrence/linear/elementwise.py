"""Linear recurrences, element by element: the carries of all steps at once.

    c_t = a_t ⊙ c_{t-1} + b_t

A step is an affine map of the carry, and the composition of such maps is associative:

    (a', b') ∘ (a, b) = (a' ⊙ a, a' ⊙ b + b')

so a prefix scan has all carries in log2(time) rounds (Blelloch, 1990; Martin and Cundy,
2018). XLA on CPU compiles a loop over this one line to a function that is faster than
the scan, so the loop is the default there.

The carries solve a linear system, L c = b, whose matrix has ones on the diagonal and -a
below. `jax.lax.custom_linear_solve` takes its derivatives: tangents solve the same
system, and cotangents its transpose, which runs backward in time. A gradient saves only
a and c. Both directions divide by nothing, so a can be 0, and products can underflow.
"""

from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
from chex import ArrayTree
from jax import Array

from rnncells.recurrence import masks

# `auto`: a loop where the program is lowered for CPU, an associative scan elsewhere.
Solver = Literal["auto", "associative"]


def solve_linear(
    a: ArrayTree,
    b: ArrayTree,
    carry: ArrayTree,
    *,
    reset: Array | None = None,
    update: Array | None = None,
    reset_carry: ArrayTree = None,
    solver: Solver = "auto",
) -> ArrayTree:
    """Returns the carry after each step, `(time, *batch, ...)`, in the promoted dtype.

    `a` and `b` are `(time, ...)`, to be broadcast to the carry. The masks are `(time,
    *batch)`: `reset` is true at the steps before which the carry is `reset_carry`, and
    `update` false at those that hold it.
    """

    def of_leaf(a: Array, b: Array, carry: Array, reset_carry: Array) -> Array:
        ndim, dtype = 1 + carry.ndim, jnp.result_type(a, b, carry)
        a, b = (_aligned(leaf, ndim).astype(dtype) for leaf in (a, b))
        if update is not None:
            is_updated = masks.expand_right(update, ndim)
            a, b = jnp.where(is_updated, a, 1), jnp.where(is_updated, b, 0)
        starts = None
        if reset is not None:
            # What comes before a reset is not read, also where it is infinite.
            starts = masks.expand_right(reset, ndim)
            b = jnp.where(starts, a * reset_carry[None] + b, b)
        b = jnp.broadcast_to(b, (b.shape[0], *carry.shape))
        first = a[0] * carry + b[0]
        if starts is not None:
            first = jnp.where(starts[0], b[0], first)
        return solve_steps(a, b.at[0].set(first), starts, solver)

    resets = carry if reset_carry is None else reset_carry
    return jax.tree.map(of_leaf, a, b, carry, resets)


def carries_seen_by_output(
    a: ArrayTree, b: ArrayTree, after: ArrayTree, update: Array
) -> ArrayTree:
    """Returns carries after all steps, as if no step held its carry."""

    def of_leaf(a: Array, b: Array, after: Array) -> Array:
        a, b = (_aligned(leaf, after.ndim) for leaf in (a, b))
        return jnp.where(masks.expand_right(update, after.ndim), after, a * after + b)

    return jax.tree.map(of_leaf, a, b, after)


def _aligned(leaf: Array, ndim: int) -> Array:
    """Returns `(time, 1, ..., *features)` with `ndim` axes."""
    return jax.lax.expand_dims(leaf, range(1, 1 + ndim - leaf.ndim))


def solve_steps(
    a: Array, b: Array, starts: Array | None, solver: Solver, is_matrix: bool = False
) -> Array:
    """Returns c with c_0 = b_0, and c_t = b_t where a sequence starts.

    `a[0]` is not read. For matrices, `solver` must be `associative`.
    """
    multiply = _matrix_vector if is_matrix else jnp.multiply

    def matvec(c: Array) -> Array:
        before = c[:-1]
        if starts is not None:
            before = jnp.where(starts[1:], 0, before)
        return c.at[1:].add(-multiply(a[1:], before))

    def run(a: Array, b: Array, starts: Array | None, reverse: bool) -> Array:
        def by_associative_scan(*operands: Any) -> Array:
            compose = partial(_compose, is_matrix)
            return jax.lax.associative_scan(compose, operands, reverse=reverse)[1]

        if solver == "associative":
            return by_associative_scan(a, b, starts)
        by_loop = partial(_by_loop, reverse)
        return jax.lax.platform_dependent(
            *(a, b, starts), cpu=by_loop, default=by_associative_scan
        )

    def solve(_: Any, b: Array) -> Array:
        return run(a, b, starts, reverse=False)

    def transpose_solve(_: Any, b: Array) -> Array:
        after = jnp.concatenate([a[1:], jnp.zeros_like(a[:1])])
        after = after.mT if is_matrix else after
        ends = starts
        if starts is not None:
            ends = jnp.concatenate([starts[1:], jnp.ones_like(starts[:1])])
        return run(after, b, ends, reverse=True)

    return jax.lax.custom_linear_solve(matvec, b, solve, transpose_solve)


def _by_loop(reverse: bool, a: Array, b: Array, starts: Array | None) -> Array:
    def step(c: Array, x: tuple) -> tuple[Array, Array]:
        a, b, start = x
        c = a * c + b
        c = c if start is None else jnp.where(start, b, c)
        return c, c

    # The first step reads no carry, also where `a` is infinite.
    a = a.at[-1 if reverse else 0].set(0)
    return jax.lax.scan(step, jnp.zeros_like(b[0]), (a, b, starts), reverse=reverse)[1]


def _compose(is_matrix: bool, first: tuple, second: tuple) -> tuple:
    """Returns the composition of two affine maps; a start does not read its carry."""
    (a, b, was_start), (a_next, b_next, start) = first, second
    c = (_matrix_vector(a_next, b) if is_matrix else a_next * b) + b_next
    a = a_next @ a if is_matrix else a_next * a
    if start is None:
        return a, c, None
    return a, jnp.where(start, b_next, c), was_start | start


def _matrix_vector(a: Array, c: Array) -> Array:
    return jnp.einsum("...ij,...j->...i", a, c)
