"""A recurrence whose gradient is carried forward in time.

For the gradient, the sequence runs once more from its first step, with the influence of
the parameters beside the carry, so nothing is saved but the operands. The gradient of
an input is that of the outputs of its own step or block.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from chex import ArrayTree
from jax import Array

from rnncells.recurrence import pytrees
from rnncells.recurrence.chunks import Segment, slice_time, write_time
from rnncells.recurrence.rows import RowOperands, RowStep, add_flat


class DiffOperands(NamedTuple):
    """Real leaves of the operands of a recurrence, or their cotangents."""

    shared: list[Array]  # by all rows and steps
    per_row: list[Array]  # the same for all steps, `(rows, ...)`
    s: Array  # the carry before the first step, `(rows, n)`
    x: ArrayTree  # `(time, rows, ...)`; None for other dtypes


class NondiffOperands(NamedTuple):
    """The leaves of `DiffOperands` that are not differentiated; None for the rest."""

    shared: ArrayTree
    per_row: ArrayTree
    carry: ArrayTree
    x: ArrayTree


class ForwardRecurrence(NamedTuple):
    """A recurrence, and how its gradient is formed."""

    values: Callable  # `(operands, nondiff)` to the last carry and outputs
    step: RowStep
    method_of: Callable[[RowStep], Any]  # called for a gradient; see `Influence`
    segments: tuple[Segment, ...]  # single steps, or the blocks of a `BlockInfluence`


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def run(
    recurrence: ForwardRecurrence,
    operands: DiffOperands,
    nondiff: NondiffOperands,
    keys: tuple[Array, ...],
) -> tuple[ArrayTree, ArrayTree]:
    """Returns the last carry, `(rows, ...)`, and the outputs, `(time, rows, ...)`.

    `keys` are raw random keys, `(rows, ...)`, of a method that needs them.
    """
    return recurrence.values(operands, nondiff)


def _run_forward(
    recurrence: ForwardRecurrence,
    operands: DiffOperands,
    nondiff: NondiffOperands,
    keys: tuple[Array, ...],
) -> tuple[tuple, tuple]:
    return recurrence.values(operands, nondiff), (operands, nondiff, keys)


def _run_backward(
    recurrence: ForwardRecurrence,
    residuals: tuple[DiffOperands, NondiffOperands, tuple],
    d_results: tuple[ArrayTree, ArrayTree],
) -> tuple[DiffOperands, None, None]:
    operands, nondiff, keys = residuals
    step, method = recurrence.step, recurrence.method_of(recurrence.step)
    d_carry, d_outputs = jax.tree.map(
        lambda d: None if d.dtype == jax.dtypes.float0 else d, d_results
    )
    *diff, diff_xs = operands
    xs = pytrees.combine(diff_xs, nondiff.x)

    def block(steps: int, loop_state: tuple, _: None) -> tuple[tuple, None]:
        start, state, totals, d_xs = loop_state
        x, d_ys = slice_time((xs, d_outputs), start, steps)
        state, (*terms, d_x) = advance_rows(
            step, method, operands, nondiff, state, x, d_ys
        )
        d_xs = write_time(d_xs, d_x, start)
        return (start + steps, state, _add(totals, *terms), d_xs), None

    influence = jax.vmap(method.initial)(operands.s, *keys)
    state = operands.s, nondiff.carry, influence
    totals = pytrees.upcast(pytrees.zeros(tuple(diff)))
    # A counter in the carry: numbers of steps as an operand would grow with time.
    loop_state = jnp.array(0), state, totals, pytrees.zeros(pytrees.structs(diff_xs))
    for _, blocks, steps in recurrence.segments:
        body: Any = partial(block, steps)
        loop_state, _ = jax.lax.scan(body, loop_state, length=blocks)
    _, state, totals, d_xs = loop_state
    totals = _add(totals, *_last_cotangents(step, method, state, d_carry))
    d_shared, d_per_row, d_s = jax.tree.map(
        lambda d, x: d.astype(x.dtype), totals, tuple(diff)
    )
    return DiffOperands(d_shared, d_per_row, d_s, d_xs), None, None


run.defvjp(_run_forward, _run_backward)


def _add(totals: tuple, d_theta: list[Array], d_s: Array) -> tuple:
    """Adds cotangents of each row; those that all rows share are summed."""
    count = len(totals[0])
    d_shared = [
        d.sum(0, dtype=pytrees.full_precision(d.dtype)) for d in d_theta[:count]
    ]
    return jax.tree.map(jnp.add, totals, (d_shared, d_theta[count:], d_s))


def advance_rows(
    step: RowStep,
    method: Any,
    operands: DiffOperands,
    nondiff: NondiffOperands,
    state: tuple,
    x: ArrayTree,
    d_outputs: ArrayTree,
) -> tuple[tuple, tuple]:
    """Takes some steps of all rows; `x` and `d_outputs` are `(steps, rows, ...)`.

    The state is the carry `(rows, n)`, its other leaves, `(rows, ...)`, and the
    influence of each row. Returns the state after the steps, and cotangents from their
    outputs: of θ, a list of `(rows, ...)`, of the initial carry, and of `x`.
    """

    def of_row(
        consts: tuple, state: tuple, x: ArrayTree, d_outputs: ArrayTree
    ) -> tuple[tuple, tuple, ArrayTree]:
        per_row, nondiff_row = consts
        s, nondiff_carry, influence = state
        theta = [*operands.shared, *per_row]
        row = RowOperands(theta, s, x, (nondiff.shared, nondiff_row), nondiff_carry)
        advance = getattr(method, "advance", partial(_one_step, step, method))
        state, (*sums, d_x) = advance(influence, row, d_outputs)
        return state, tuple(sums), d_x

    state, sums, d_x = jax.vmap(of_row, (0, 0, 1, 1), (0, 0, 1))(
        (operands.per_row, nondiff.per_row), state, x, d_outputs
    )
    return state, (*sums, d_x)


def _one_step(
    step: RowStep,
    method: Any,
    influence: ArrayTree,
    row: RowOperands,
    d_outputs: ArrayTree,
) -> tuple[tuple, tuple]:
    """Takes one step of a row; time is a leading axis of size 1."""
    x, d_output = jax.tree.map(lambda leaf: leaf[0], (row.x, d_outputs))
    row = row._replace(x=x)
    diff_x, nondiff_x = pytrees.partition(x)

    def output(
        theta: list[Array], s: Array, tap: Array, diff_x: ArrayTree
    ) -> ArrayTree:
        x = pytrees.combine(diff_x, nondiff_x)
        return pytrees.inexact(method.output(row._replace(theta=theta, s=s, x=x), tap))

    _, vjp = jax.vjp(output, row.theta, row.s, jnp.zeros_like(row.s), diff_x)
    d_theta, d_s, d_after, d_x = vjp(d_output)
    through = method.cotangents(influence, d_s)
    influence = method.after(influence, row)
    if method.reads_after:
        after = method.cotangents(influence, d_after)
        through = [a + b for a, b in zip(through, after, strict=True)]

        # The inputs of the step reach its output through the carry after it, too.
        def after_step(diff_x: ArrayTree) -> Array:
            return step(row._replace(x=pytrees.combine(diff_x, nondiff_x)))[0]

        _, vjp = jax.vjp(after_step, diff_x)
        d_x = jax.tree.map(jnp.add, d_x, *vjp(d_after))
    *through, d_initial = through
    d_initial = d_initial.astype(row.s.dtype)
    d_theta = add_flat(d_theta, through)
    s, nondiff_carry, _ = step(row)
    d_x = jax.tree.map(lambda leaf: leaf[None], d_x)
    return (s, nondiff_carry, influence), (d_theta, d_initial, d_x)


def _last_cotangents(
    step: RowStep, method: Any, state: tuple, d_carry: ArrayTree
) -> tuple[list[Array], Array]:
    """Returns the cotangents of θ and of the initial carry from those of the last."""

    def of_row(state: tuple, d_carry: ArrayTree) -> tuple[list[Array], Array]:
        s, nondiff_carry, influence = state
        _, vjp = jax.vjp(lambda s: pytrees.inexact(step.carry(s, nondiff_carry)), s)
        (d_s,) = vjp(d_carry)
        *of_theta, initial = method.cotangents(influence, d_s)
        pairs = zip(of_theta, step.theta, strict=True)
        flat = [d.reshape(leaf.shape).astype(leaf.dtype) for d, leaf in pairs]
        return flat, initial.astype(s.dtype)

    return jax.vmap(of_row)(state, d_carry)
