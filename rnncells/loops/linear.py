"""The loop of cells that are linear in their carry: all steps of a chunk at once."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from chex import ArrayTree
from jax import Array

from rnncells.cells.carry import Carry, cast_like
from rnncells.cells.linear import LinearRNNCellBase, check_coefficients
from rnncells.cells.matrix import MatrixRNNCellBase
from rnncells.loops.request import (
    Loop,
    Obstacle,
    StepRequest,
    any_value,
    one_of,
)
from rnncells.recurrence import linear_recurrence, masks, matrix_state, memory
from rnncells.recurrence.chunks import scan_chunks
from rnncells.recurrence.pytrees import inexact
from rnncells.recurrence.schedule import StepInputs

# The cell's carry, and its carry after the last valid step (see `schedule.scan`).
LoopCarry = tuple[ArrayTree, ArrayTree]


class ParallelLoop(Loop):
    """Base of the loops that take many steps at once."""

    options = {
        "implementation": one_of("auto", "associative"),
        "memory": any_value,
        "projection": any_value,
    }

    def check(self, request: StepRequest) -> None:
        name = request.cell_name
        if hasattr(type(request.cell), "deterministic"):
            raise Obstacle(
                f"needs a cell without the field `deterministic`; {name} has it."
            )
        if not isinstance(request.steps, int):
            raise Obstacle(f"needs a known number of steps; got {request.steps}.")
        if request.effects.updates:
            raise request.writes_obstacle(request.effects.updates)
        if request.effects.has_effects:
            raise Obstacle(
                f"needs a step without side effects; {name} has some, such as "
                "`jax.debug.print`."
            )


class LinearLoop(ParallelLoop):
    """The loop of cells that are linear in their carry, see docs/parallel.md."""

    name = "loop of linear cells"
    cells = (LinearRNNCellBase, MatrixRNNCellBase)

    def run(self, request: StepRequest) -> tuple[LoopCarry, tuple]:
        cell, variables, _ = request.unbound_cell
        is_matrix = isinstance(cell, MatrixRNNCellBase)
        method = _update if is_matrix else _coefficients
        chunk_steps = _matrix_steps if is_matrix else _element_steps
        xs = request.xs

        def apply(method: Callable, *args: Any) -> Any:
            """Applies a method to all steps of a chunk."""
            return cell.apply(variables, *args, method=method)

        coefficients = partial(apply, method, request.carry[0])
        z = jax.eval_shape(jax.vmap(coefficients), xs.inputs)
        options = request.option("memory"), request.option("projection"), is_matrix
        operands = memory.OperandStructs(inexact(variables), request.carry, xs.inputs)
        segments, saving = memory.linear_plan(request.steps, z, *options, operands)
        steps = partial(chunk_steps, request, apply)

        def chunk(carry: LoopCarry, start: Any, length: int, xs: StepInputs) -> tuple:
            return saving(steps)(carry, xs)

        xs_of_segments = [
            jax.tree.map(
                lambda leaf, s=s: leaf[s.start : s.start + s.chunks * s.steps].reshape(
                    s.chunks, s.steps, *leaf.shape[1:]
                ),
                xs,
            )
            for s in segments
        ]
        carry, results = scan_chunks(chunk, request.carry, segments, xs_of_segments)
        ys = jax.tree.map(lambda leaf: jax.lax.collapse(leaf, 0, 2), results)
        return carry, jax.tree.map(lambda *parts: jnp.concatenate(parts), *ys)


def _element_steps(
    request: StepRequest, apply: Callable, carry: LoopCarry, xs: StepInputs
) -> tuple[LoopCarry, tuple[ArrayTree, ArrayTree]]:
    """Takes the steps of a chunk, element by element."""
    state, final = carry

    def coefficients(x: ArrayTree) -> tuple[Array, Array]:
        return apply(_coefficients, state, x)

    projected, (a, b) = jax.vmap(coefficients)(xs.inputs)
    is_associative = request.option("implementation") == "associative"
    c = linear_recurrence.solve_linear(
        *(a, b, state),
        reset=xs.reset,
        update=xs.update,
        reset_carry=request.reset_carry,
        solver="associative" if is_associative else "auto",
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
    return (state, final), (history if request.body.keep_all else None, outputs)


def _coefficients(cell: LinearRNNCellBase, carry: Carry, x: ArrayTree) -> tuple:
    cell._check_carry(carry, x)
    projected = cell._with_inferred_width(carry).project(x)
    return projected, check_coefficients(cell, cell.coefficients(projected), carry)


def _output(cell: LinearRNNCellBase, carry: Carry, projected: Any) -> Any:
    return cell._with_inferred_width(carry).output(carry, projected)


def last_step(tree: ArrayTree) -> ArrayTree:
    """Returns the last step of a pytree of `(time, ...)`."""
    return jax.tree.map(lambda leaf: leaf[-1], tree)


def _matrix_steps(
    request: StepRequest, apply: Callable, carry: LoopCarry, xs: StepInputs
) -> tuple[LoopCarry, tuple[ArrayTree, ArrayTree]]:
    """Takes the steps of a chunk, by products of matrices."""
    state, final = carry
    projected, updates = jax.vmap(lambda x: apply(_update, state, x))(xs.inputs)

    def to_state(carry: ArrayTree) -> matrix_state.MatrixState:
        return apply(lambda cell: cell.to_state(carry))

    def to_carry(matrices: ArrayTree) -> ArrayTree:
        return cast_like(apply(lambda cell: cell.to_carry(matrices)), state)

    chunk = matrix_state.MatrixChunk(
        to_state(state),
        updates,
        reset=xs.reset,
        update=xs.update,
        reset_state=None if xs.reset is None else to_state(request.reset_carry),
    )
    outputs = jax.vmap(partial(apply, _read_output))(*chunk.reads(), projected)
    history, last = None, chunk.last()
    if request.body.keep_all:
        history = jax.vmap(to_carry)(chunk.states())
    if xs.final is not None:
        valid_step = masks.last_valid(xs.final, 0)
        if history is not None:
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
