"""Loops that take many steps at once: of linear cells, and of causal convolutions."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from chex import ArrayTree
from jax import Array

from rnncells.cells.causal_conv import CausalConvCell
from rnncells.cells.contract.carry import Carry, cast_like
from rnncells.cells.contract.linear import LinearRNNCellBase, check_coefficients
from rnncells.cells.contract.matrix import MatrixRNNCellBase
from rnncells.flax_internals import with_width_of
from rnncells.loops.request import Loop, Obstacle, StepRequest
from rnncells.recurrence import masks
from rnncells.recurrence.chunks import scan_chunks
from rnncells.recurrence.engine import memory
from rnncells.recurrence.linear import elementwise as linear_recurrence
from rnncells.recurrence.linear import matrix_state
from rnncells.recurrence.pytrees import inexact
from rnncells.recurrence.schedule import LoopCarry, StepInputs


class ParallelLoop(Loop):
    """Base of the loops that take many steps at once."""

    options = {
        "implementation": ("auto", "associative"),
        "memory": ("full", "less"),
        "projection": ("auto", "chosen"),
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
    carries = history if request.body.keep_all else None
    return LoopCarry(state, final), (carries, outputs)


def _coefficients(cell: LinearRNNCellBase, carry: Carry, x: ArrayTree) -> tuple:
    cell._check_carry(carry, x)
    projected = with_width_of(cell, carry).project(x)
    return projected, check_coefficients(cell, cell.coefficients(projected), carry)


def _output(cell: LinearRNNCellBase, carry: Carry, projected: Any) -> Any:
    return with_width_of(cell, carry).output(carry, projected)


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
    history, last = None, chunk.state_after()
    if request.body.keep_all:
        history = jax.vmap(to_carry)(chunk.states())
    if xs.final is not None:
        valid_step = masks.last_valid(xs.final, 0)
        if history is not None:
            history = masks.up_to_valid(xs.final, history, final)
        last_valid = to_carry(chunk.state_after(jnp.maximum(valid_step[-1], 0)))
        final = masks.select(valid_step[-1] >= 0, last_valid, final)
    return LoopCarry(to_carry(last), final), (history, outputs)


def _update(cell: MatrixRNNCellBase, carry: Carry, x: Any) -> tuple:
    cell._check_carry(carry, x)
    projected = cell.project(x)
    return projected, cell.update(projected)


def _read_output(cell: MatrixRNNCellBase, read: Any, m: Any, projected: Any) -> Any:
    return cell.output(read, m, projected)


class CausalConvLoop(ParallelLoop):
    """The loop of `CausalConvCell`: the windows of all steps at once."""

    name = "loop of causal convolutions"
    cells = (CausalConvCell,)

    def run(self, request: StepRequest) -> tuple[tuple, tuple]:
        cell, variables, _ = request.unbound_cell

        def run(carry: tuple, xs: StepInputs) -> tuple:
            state, final = carry
            before = _windows(state, request.reset_carry, xs)
            after, outputs = jax.vmap(partial(cell.apply, variables))(before, xs.inputs)
            history = after = cast_like(after, before)
            if xs.update is not None:
                history = after = masks.select(xs.update, after, before)
            if xs.final is not None:
                history = masks.up_to_valid(xs.final, after, final)
                final = last_step(history)
            carries = history if request.body.keep_all else None
            return LoopCarry(last_step(after), final), (carries, outputs)

        if request.option("memory") != "full":
            # The residuals are the inputs alone, without the windows.
            run = jax.checkpoint(run, prevent_cse=False)
        return run(request.carry, request.xs)


def _windows(window: Array, reset_window: Any, xs: StepInputs) -> Array:
    """Returns the carry before each step, `(time, *batch, size, features)`.

    The carries before the first step and after a reset are `(*batch, size, features)`.
    A sequence is one of these, followed by its inputs: after `count` inputs, slot j of
    the window is entry j + `count` of the sequence.
    """
    x, size = xs.inputs.astype(window.dtype), window.shape[-2]
    steps = x.shape[0]
    if xs.update is None and xs.reset is None:
        entries = jnp.concatenate([jnp.moveaxis(window, -2, 0), x])
        return jnp.stack([entries[j : j + steps] for j in range(size)], -2)
    time = jax.lax.broadcasted_iota(jnp.int32, x.shape[:-1], 0)
    # The last step before each step that is an input.
    count, last_input = time, time - 1
    if xs.update is not None:
        counted = xs.update.astype(jnp.int32)
        count = jnp.cumsum(counted, 0) - counted
        last_input = jnp.roll(masks.last_valid(xs.update, 0), 1, 0).at[0].set(-1)
    start = jnp.broadcast_to(window, (steps, *window.shape))
    if xs.reset is not None:
        first = jax.lax.cummax(jnp.where(xs.reset, time, -1), 0)
        has_reset = first >= 0
        before_first = masks.gather_time(count, jnp.maximum(first, 0), 0)
        count = count - jnp.where(has_reset, before_first, 0)
        start = masks.select(
            has_reset, jnp.broadcast_to(reset_window, start.shape), start
        )
    slots, step = [], time
    for j in reversed(range(size)):
        entry = j + count
        step = masks.gather_time(last_input, jnp.maximum(step, 0), 0)
        from_inputs = masks.gather_time(x, jnp.maximum(step, 0), 0)
        index = jnp.minimum(entry, size - 1)[..., None, None]
        from_start = jnp.take_along_axis(start, index, -2)[..., 0, :]
        slots.append(masks.select(entry >= size, from_inputs, from_start))
    return jnp.stack(slots[::-1], -2)
