"""A recurrence whose gradient is carried forward in time.

The values are those of any loop. For the gradient, the sequence runs once more from its
first step, with the influence of the parameters beside the carry, so nothing is saved
but the operands. The gradient of an input is that of the outputs of its own step, or of
its own block (see blocks.py).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp

from rnncells.recurrence.chunks import Segment, slice_time, write_time
from rnncells.recurrence.forward.rows import Rest, RowStep, add_flat
from rnncells.recurrence.pytrees import (
    combine,
    inexact,
    partition,
    structs,
    sum_dtype,
    zeros,
)


class Operands(NamedTuple):
    """What a recurrence runs on and is differentiated by, or the cotangents.

    Attributes:
      shared: real leaves of what is the same for all rows and steps.
      own: real leaves of what is the same for all steps, `(rows, ...)`.
      s: the carry before the first step, `(rows, n)`.
      x: what differs from step to step, `(time, rows, ...)`; None for other dtypes.
    """

    shared: list[jax.Array]
    own: list[jax.Array]
    s: jax.Array
    x: chex.ArrayTree


class Others(NamedTuple):
    """The leaves that are neither floating nor complex; None for the rest.

    Attributes:
      shared: of what is the same for all rows and steps.
      own: of what is the same for all steps, `(rows, ...)`.
      carry: of the carry before the first step, `(rows, ...)`.
      now: of what differs from step to step, `(time, rows, ...)`.
    """

    shared: chex.ArrayTree
    own: chex.ArrayTree
    carry: chex.ArrayTree
    now: chex.ArrayTree


def run(
    values: Callable,
    step: RowStep,
    method_of: Callable[[RowStep], Any],
    segments: tuple[Segment, ...],
    operands: Operands,
    others: Others,
    keys: tuple[jax.Array, ...] = (),
) -> tuple[chex.ArrayTree, chex.ArrayTree]:
    """Returns `values(operands, others)`, the last carry and the outputs.

    Args:
      values: runs the recurrence; both results have a leading axis of rows, the outputs
        after that of time.
      step: the step of a row.
      method_of: returns what carries the influence of a row: an `Influence`, a `Uoro`
        or `Blocks`. It is called only for a gradient.
      segments: how time is cut: into single steps, or into the blocks of `Blocks`.
      operands: what is differentiated.
      others: what is not.
      keys: raw random keys, `(rows, ...)`, of a method that needs them.
    """

    @jax.custom_vjp
    def recurrence(operands, others, keys):
        return values(operands, others)

    def forward(*args):
        return recurrence(*args), args

    def backward(args, results):
        d_results = jax.tree.map(_without_float0, results)
        found = _cotangents(step, method_of(step), segments, *args, *d_results)
        return found, None, None

    recurrence.defvjp(forward, backward)
    return recurrence(operands, others, keys)


def _without_float0(cotangent):
    return None if cotangent.dtype == jax.dtypes.float0 else cotangent


def _cotangents(
    step: RowStep,
    method: Any,
    segments: tuple[Segment, ...],
    operands: Operands,
    others: Others,
    keys: tuple[jax.Array, ...],
    d_carry: chex.ArrayTree,
    d_outputs: chex.ArrayTree,
) -> Operands:
    shared, own, s, x = operands
    influence = jax.vmap(method.initial)(s, *keys)
    now = combine(x, others.now)
    totals = jax.tree.map(_zeros_to_sum, (shared, own, s))

    def block(so_far, steps):
        start, state, totals, d_x = so_far
        now_, d_ys = slice_time((now, d_outputs), start, steps)
        state, (d_theta, d_s, d_now) = advance_rows(
            step, method, operands, others, *state, now_, d_ys
        )
        totals = jax.tree.map(jnp.add, totals, (*_split(d_theta, operands), d_s))
        return start + steps, state, totals, write_time(d_x, d_now, start)

    so_far = jnp.array(0), (s, others.carry, influence), totals, zeros(structs(x))
    for _, blocks, steps in segments:
        # A counter in the carry: numbers of steps as an operand would grow with time.
        so_far, _ = jax.lax.scan(
            lambda so_far, _, n=steps: (block(so_far, n), None),  # type: ignore
            so_far,
            length=blocks,
        )
    _, (s, rest, influence), totals, d_x = so_far
    d_theta, d_s = last_cotangents(step, method, s, rest, influence, d_carry)
    totals = jax.tree.map(jnp.add, totals, (*_split(d_theta, operands), d_s))
    totals = jax.tree.map(
        lambda total, like: total.astype(like.dtype), totals, (shared, own, s)
    )
    d_shared, d_own, d_s = totals
    return Operands(d_shared, d_own, d_s, d_x)


def advance_rows(
    step: RowStep,
    method: Any,
    operands: Operands,
    others: Others,
    s: jax.Array,
    rest: chex.ArrayTree,
    influence: chex.ArrayTree,
    now: chex.ArrayTree,
    d_outputs: chex.ArrayTree,
) -> tuple[tuple, tuple]:
    """Takes some steps of all rows.

    Args:
      step: the step of a row.
      method: see `run`.
      operands: the parameters are read.
      others: as `operands`.
      s: carry before the steps, `(rows, n)`.
      rest: its other leaves, `(rows, ...)`.
      influence: of each row, before the steps.
      now: `(steps, rows, ...)`.
      d_outputs: cotangents of the outputs, `(steps, rows, ...)`.

    Returns:
      `(s, rest, influence)` after the steps, and the cotangents of θ, a list of `(rows,
      ...)`, of the initial carry, and of `now`, from these outputs.
    """

    def of_row(own, other, s, rest, influence, now, d_outputs):
        theta, given = [*operands.shared, *own], (others.shared, other)
        args = influence, theta, s, Rest(given, rest), now, d_outputs
        if hasattr(method, "advance"):
            (s, rest, influence), found = method.advance(*args)
        else:
            (s, rest, influence), found = _one_step(step, method, *args)
        d_theta, d_s, d_x = found
        return (s, rest.carry, influence), (d_theta, d_s), d_x

    axes = (0, 0, 0, 0, 0, 1, 1)
    state, sums, d_x = jax.vmap(of_row, axes, (0, 0, 1))(
        operands.own, others.own, s, rest, influence, now, d_outputs
    )
    return state, (*sums, d_x)


def _one_step(step, method, influence, theta, s, rest, now, d_outputs):
    """Takes one step of a row; time is a leading axis of size 1."""
    now, d_output = jax.tree.map(lambda leaf: leaf[0], (now, d_outputs))
    x, others = partition(now)

    def output(theta, s, tap, x):
        return inexact(method.output(theta, s, tap, rest, combine(x, others)))

    _, vjp = jax.vjp(output, theta, s, jnp.zeros_like(s), x)
    d_theta, d_s, d_after, d_x = vjp(d_output)
    through = method.cotangents(influence, d_s)
    influence = method.after(influence, theta, s, rest, now)
    if method.reads_after:
        after = method.cotangents(influence, d_after)
        through = [a + b for a, b in zip(through, after, strict=True)]
        # The inputs of the step reach its output through the carry after it, too.
        _, vjp = jax.vjp(lambda x: step(theta, s, rest, combine(x, others))[0], x)
        d_x = jax.tree.map(jnp.add, d_x, *vjp(d_after))
    *through, d_initial = through
    d_initial = d_initial.astype(s.dtype)
    d_theta = add_flat(d_theta, through)
    s, rest, _ = step(theta, s, rest, now)
    d_x = jax.tree.map(lambda leaf: leaf[None], d_x)
    return (s, rest, influence), (d_theta, d_initial, d_x)


def last_cotangents(
    step: RowStep,
    method: Any,
    s: jax.Array,
    rest: chex.ArrayTree,
    influence: chex.ArrayTree,
    d_carry: chex.ArrayTree,
) -> tuple[list[jax.Array], jax.Array]:
    """Returns the cotangents of θ and of the initial carry from those of the last."""

    def of_row(s, rest, influence, d_carry):
        _, vjp = jax.vjp(lambda s: inexact(step.carry(s, Rest(None, rest))), s)
        (d_s,) = vjp(d_carry)
        *of_theta, initial = method.cotangents(influence, d_s)
        pairs = zip(of_theta, step.theta, strict=True)
        flat = [d.reshape(leaf.shape).astype(leaf.dtype) for d, leaf in pairs]
        return flat, initial.astype(s.dtype)

    return jax.vmap(of_row)(s, rest, influence, d_carry)


def _split(d_theta, operands):
    """Returns cotangents of what is shared, summed over rows, and of the rest."""
    count = len(operands.shared)
    shared = [d.sum(0, dtype=sum_dtype(d.dtype)) for d in d_theta[:count]]
    return shared, d_theta[count:]


def _zeros_to_sum(leaf):
    return jnp.zeros(leaf.shape, sum_dtype(leaf.dtype))
