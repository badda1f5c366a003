"""The loop of cells that are linear in their carry: all steps of a chunk at once."""

from collections.abc import Callable
from functools import partial
from typing import Any

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.errors import FlaxError

from rnncells.cells.base import RNNCellBase
from rnncells.cells.carry import Carry, cast_like
from rnncells.cells.linear import LinearRNNCellBase, check_coefficients
from rnncells.cells.matrix import MatrixRNNCellBase
from rnncells.gradients import Bptt
from rnncells.layers.constants import changed, writable
from rnncells.layers.loops import fast_loop, why_not_pure
from rnncells.layers.unbinding import UnboundCell, unbound
from rnncells.recurrence import linear_recurrence, masks, matrix_state, memory
from rnncells.recurrence.chunks import scan_chunks
from rnncells.recurrence.pytrees import inexact, structs
from rnncells.recurrence.schedule import Body, StepInputs
from rnncells.recurrence.vmap_limits import has_side_effects

# The cell's carry, and its carry after the last valid step (see `schedule.scan`).
LoopCarry = tuple[chex.ArrayTree, chex.ArrayTree]


def is_linear(cell: nn.Module) -> bool:
    """Says whether a cell is linear in its carry, and known to be."""
    bases = LinearRNNCellBase, MatrixRNNCellBase
    return isinstance(cell, bases) and type(cell).__call__ is RNNCellBase.__call__


def linear_loop(rnn: nn.Module, axis: int, step: Callable) -> Callable:
    """Returns the loop of linear cells; where it cannot run, the fast loop.

    Args:
      rnn: the layer, bound; its cell is linear.
      axis: position of the time axis.
      step: `(cell, carry, inputs) -> (carry, output)`, see `apply_step`.
    """
    return parallel_loop(rnn, axis, step, _make_run)


def parallel_loop(rnn: nn.Module, axis: int, step: Callable, run: Callable) -> Callable:
    """Returns a loop that takes many steps at once; where it cannot, the fast loop.

    Args:
      rnn: the layer, bound.
      axis: position of the time axis.
      step: `(cell, carry, inputs) -> (carry, output)`, see `apply_step`.
      run: `run(rnn, cell, variables, body, reset_carry)` returns a function `(carry,
        xs) -> (carry, (history, outputs))` of pytrees with time first.
    """
    fallback = fast_loop(rnn, axis, step)

    def loop(body: Body, reset_carry: Any, carry: tuple, xs: Any) -> tuple:
        by_time = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, axis, 0), xs)
        if rnn.is_initializing() or jax.tree.leaves(by_time)[0].shape[0] == 0:
            return fallback(body, reset_carry, carry, xs)
        cell = unbound(rnn.cell)
        reason = _find_obstacle(rnn, cell, carry[0], by_time)
        if reason is not None:
            check_not_associative(rnn, f"which {reason}")
            return fallback(body, reset_carry, carry, xs)
        steps = run(rnn, cell.module, cell.variables, body, reset_carry)
        carry, ys = steps(carry, by_time)
        return carry, jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, axis), ys)

    return loop


def check_not_associative(rnn: nn.Module, why: str) -> None:
    """Raises ValueError if `implementation` asks for the associative scan."""
    if rnn.implementation == "associative":
        raise ValueError(
            "implementation='associative' of RNN needs all steps at once, "
            f"{why} Use implementation='auto'."
        )


def _find_obstacle(
    rnn: nn.Module, cell: UnboundCell, carry: chex.ArrayTree, xs: StepInputs
) -> str | None:
    """Returns the reason why steps cannot run at once, or None if they can."""
    name = type(rnn.cell).__name__
    if reason := why_not_pure(rnn, cell.variables, carry, xs.inputs):
        return reason
    if rnn.gradient != Bptt():
        return f"needs gradient=Bptt() without a hook; got {rnn.gradient}."
    if hasattr(type(rnn.cell), "deterministic"):
        return f"needs a cell without the field `deterministic`; {name} has it."
    steps = jax.tree.leaves(xs)[0].shape[0]
    if not isinstance(steps, int):
        return f"needs a known number of steps; got {steps}."

    def step(carry: chex.ArrayTree, x: chex.ArrayTree) -> dict:
        options: dict[str, Any] = {"mutable": writable(rnn.cell)}
        _, updates = cell.module.apply(cell.variables, carry, x, **options)
        return changed(cell.variables, updates)

    try:
        x_t = structs(xs.inputs, drop_axis=0)
        jaxpr, updates = jax.make_jaxpr(step, return_shape=True)(carry, x_t)
    except FlaxError as error:
        return f"needs a cell that uses only its own variables: {error}"
    if updates:
        return (
            f"needs a cell that writes to no collection; {name} writes to {[*updates]}."
        )
    if has_side_effects(jaxpr):
        return (
            f"needs a step without side effects; {name} has some, such as "
            "`jax.debug.print`."
        )
    return None


def _make_run(
    rnn: nn.Module, cell: RNNCellBase, variables: Any, body: Body, reset_carry: Any
) -> Callable:
    """Returns `(carry, xs) -> (carry, (history, outputs))`, with time first."""
    is_matrix = isinstance(cell, MatrixRNNCellBase)
    chunk_steps = _matrix_steps if is_matrix else _element_steps

    def apply(method: Callable, *args: Any) -> Any:
        """Applies a method to all steps of a chunk."""
        return cell.apply(variables, *args, method=method)

    solver: linear_recurrence.Solver
    solver = "associative" if rnn.implementation == "associative" else "auto"
    steps = partial(chunk_steps, apply, body.keep_all, reset_carry, solver)

    def run(carry: LoopCarry, xs: StepInputs) -> tuple:
        count = jax.tree.leaves(xs)[0].shape[0]
        method = _update if is_matrix else _coefficients
        z = jax.eval_shape(jax.vmap(partial(apply, method, carry[0])), xs.inputs)
        options = rnn.memory, rnn.projection, is_matrix
        operands = memory.OperandStructs(inexact(variables), carry, xs.inputs)
        plan = memory.linear_plan(count, z, *options, operands)

        def chunk(carry: LoopCarry, start: Any, length: int, xs: StepInputs) -> tuple:
            return plan.recomputing(steps)(carry, xs)

        segments = [
            jax.tree.map(
                lambda leaf, s=s: leaf[s.start : s.start + s.chunks * s.steps].reshape(
                    s.chunks, s.steps, *leaf.shape[1:]
                ),
                xs,
            )
            for s in plan.segments
        ]
        carry, results = scan_chunks(chunk, carry, plan.segments, segments)
        ys = [jax.tree.map(_merge_chunks, part) for part in results]
        return carry, jax.tree.map(lambda *parts: jnp.concatenate(parts), *ys)

    return run


def _merge_chunks(leaf: jax.Array) -> jax.Array:
    """Returns `(time, ...)` of `(chunks, steps, ...)`."""
    return leaf.reshape(leaf.shape[0] * leaf.shape[1], *leaf.shape[2:])


def _element_steps(
    apply: Callable,
    keep_all: bool,
    reset_carry: chex.ArrayTree,
    solver: linear_recurrence.Solver,
    carry: LoopCarry,
    xs: StepInputs,
) -> tuple[LoopCarry, tuple[chex.ArrayTree, chex.ArrayTree]]:
    """Takes the steps of a chunk, element by element."""
    state, final = carry

    def coefficients(x: chex.ArrayTree) -> tuple[jax.Array, jax.Array]:
        return apply(_coefficients, state, x)

    projected, (a, b) = jax.vmap(coefficients)(xs.inputs)
    c = linear_recurrence.solve_linear(
        *(a, b, state),
        reset=xs.reset,
        update=xs.update,
        reset_carry=reset_carry,
        solver=solver,
    )
    carries_seen = c
    if xs.update is not None:
        # A step that holds the carry shows the carry it would have had.
        carries_seen = linear_recurrence.carries_seen_by_output(a, b, c, xs.update)
    outputs = jax.vmap(partial(apply, _output))(carries_seen, projected)
    c = jax.vmap(cast_like, (0, None))(c, state)
    state, history = last_step(c), c
    if xs.final is not None:
        history = masks.up_to_valid(xs.final, c, final)
        final = last_step(history)
    return (state, final), (history if keep_all else None, outputs)


def _coefficients(cell: LinearRNNCellBase, carry: Carry, x: chex.ArrayTree) -> tuple:
    cell._check_carry(carry, x)
    projected = cell._with_inferred_width(carry).project(x)
    return projected, check_coefficients(cell, cell.coefficients(projected), carry)


def _output(cell: LinearRNNCellBase, carry: Carry, projected: Any) -> Any:
    return cell._with_inferred_width(carry).output(carry, projected)


def last_step(tree: chex.ArrayTree) -> chex.ArrayTree:
    """Returns the last step of a pytree of `(time, ...)`."""
    return jax.tree.map(lambda leaf: leaf[-1], tree)


def _matrix_steps(
    apply: Callable,
    keep_all: bool,
    reset_carry: chex.ArrayTree,
    _: linear_recurrence.Solver,
    carry: LoopCarry,
    xs: StepInputs,
) -> tuple[LoopCarry, tuple[chex.ArrayTree, chex.ArrayTree]]:
    """Takes the steps of a chunk, by products of matrices."""
    state, final = carry
    projected, updates = jax.vmap(lambda x: apply(_update, state, x))(xs.inputs)

    def to_state(carry: chex.ArrayTree) -> matrix_state.MatrixState:
        return apply(lambda cell: cell.to_state(carry))

    def to_carry(matrices: chex.ArrayTree) -> chex.ArrayTree:
        return cast_like(apply(lambda cell: cell.to_carry(matrices)), state)

    chunk = matrix_state.MatrixChunk(
        to_state(state),
        updates,
        reset=xs.reset,
        update=xs.update,
        reset_state=None if xs.reset is None else to_state(reset_carry),
    )
    outputs = jax.vmap(partial(apply, _read_output))(*chunk.reads(), projected)
    history, last = None, chunk.last()
    if keep_all:
        history = jax.vmap(to_carry)(chunk.states())
    if xs.final is not None:
        valid_step = masks.last_valid(xs.final, 0)
        if keep_all:
            history = masks.up_to_valid(xs.final, history, final)
        last_valid = to_carry(chunk.state_after(jnp.maximum(valid_step[-1], 0)))
        final = masks.select(valid_step[-1] >= 0, last_valid, final)
    return (to_carry(last), final), (history, outputs)


def _update(cell: MatrixRNNCellBase, carry: Carry, x: Any) -> tuple:
    cell._check_carry(carry, x)
    projected = cell.project(x)
    return projected, cell.update(projected)


def _read_output(cell: MatrixRNNCellBase, read: Any, m: Any, projected: Any) -> Any:
    return cell.output(read, m, projected)
