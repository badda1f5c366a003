"""The loop of a layer whose carries are solved for at once, by Newton's method."""

import math
from collections.abc import Callable
from typing import Any

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp

from rnncells.cells.any_cell import feature_dims
from rnncells.layers.forward_loop import require_pure_step
from rnncells.layers.independent_rows import check_independent_rows
from rnncells.layers.loops import PureStep, plain_loop
from rnncells.layers.rng_streams import set_counters
from rnncells.layers.rows import Batch, row_problem
from rnncells.recurrence import newton
from rnncells.recurrence.forward.rows import NondiffLeaves, real_leaves
from rnncells.recurrence.newton import Certificate, Newton
from rnncells.recurrence.pytrees import partition


def newton_loop(rnn: nn.Module, axis: int, step: Callable) -> Callable:
    """Returns a loop that solves for all carries at once.

    In addition to the results of other loops, it returns a `Certificate`.

    Args:
      rnn: the layer, bound.
      axis: position of the time axis.
      step: `(cell, carry, inputs) -> (carry, output)`, see `apply_step`.
    """
    plain = plain_loop(rnn, axis, step)
    if rnn.is_initializing():
        return plain
    options = rnn.implementation
    options = options if isinstance(options, Newton) else Newton()

    def loop(body: Callable, reset_carry: Any, carry: tuple, xs: Any) -> tuple:
        by_time = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, axis, 0), xs)
        (first, *_) = jax.tree.leaves(by_time)
        sizes = first.shape[1 : first.ndim - feature_dims(rnn.cell)]
        if not first.shape[0] * sum(map(jnp.size, jax.tree.leaves(carry))):
            # There is nothing to solve for.
            carry, ys = plain(body, reset_carry, carry, xs)
            none = jnp.zeros(sizes)
            return carry, (*ys, Certificate(none, none, jnp.array(0), none == 0))
        method = "implementation='newton'", "implementation='auto'"
        pure = require_pure_step(rnn, method, carry, by_time, body, reset_carry, step)
        set_counters(pure.counters, rnn.cell.scope.rng_counters)
        batch = Batch(sizes)
        check_independent_rows(type(rnn.cell).__name__, batch, pure, carry)
        _check_real(rnn, carry)
        carry, (ys, _), certificate = _solve(options, batch, pure, carry)
        history, outputs = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, axis), ys)
        return carry, (history, outputs, certificate)

    return loop


def _solve(options: Newton, batch: Batch, pure: PureStep, carry: tuple) -> tuple:
    """Returns the last carry, the outputs, `(time, *batch, ...)`, and a certificate."""
    rows = row_problem(batch, pure, carry)
    sizes = [math.prod(leaf.shape) // batch.count for leaf in real_leaves(carry)]
    problem = newton.problem(rows.step, options, sizes)
    solved, certificate = newton.solve_newton(problem, rows.operands, rows.constants)
    outputs = newton.outputs(problem, rows.operands, rows.constants, solved)
    rest = NondiffLeaves(None, rows.constants.carry)
    last = jax.vmap(rows.step.carry)(solved[-1], rest)
    error, residual, iterations, converged = certificate
    error, residual, converged = (
        leaf.reshape(batch.sizes) for leaf in (error, residual, converged)
    )
    certificate = Certificate(error, residual, iterations, converged)
    return batch.from_rows(last), batch.from_rows(outputs, 1), certificate


def _check_real(rnn: nn.Module, carry: chex.ArrayTree) -> None:
    """Raises ValueError if the carry has parts that are no numbers to solve for."""
    other_leaves = jax.tree.leaves(partition(carry)[1])
    if other_leaves:
        raise ValueError(
            "implementation='newton' of RNN needs a carry of floating or complex "
            f"numbers, got {jax.tree.map(jnp.shape, carry)} of "
            f"{type(rnn.cell).__name__}. Use implementation='auto'."
        )
