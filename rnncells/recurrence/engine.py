"""A recurrence over time that computes weight gradients after its backward loop.

Time is cut into chunks. The forward pass projects the inputs of a chunk at once, then
loops over its steps. The backward loop computes only the cotangents of the projected
inputs and of each product with recurrent weights (see step_vjp.py). After the loop, one
product for each weight and chunk gives the gradient of that weight.

Every array that is differentiated comes in as an argument. Time is the first axis.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from chex import ArrayTree
from jax import Array

from rnncells.recurrence import products
from rnncells.recurrence.chunks import Segment, scan_chunks, slice_time, write_time
from rnncells.recurrence.fusion_barrier import scan_with_barriers
from rnncells.recurrence.linear_map import linear_map
from rnncells.recurrence.memory import Plan, ResidualBuffer, Residuals, saved_leaves
from rnncells.recurrence.products import Product
from rnncells.recurrence.pytrees import (
    StructTree,
    add,
    combine,
    inexact,
    is_inexact,
    partition,
    select_leaves,
    structs,
    upcast,
    zero_tangents,
    zeros,
)
from rnncells.recurrence.split_step import SplitStep, StepWeights
from rnncells.recurrence.step_vjp import StepVJP


class Recurrence(NamedTuple):
    step: SplitStep
    plan: Plan
    unroll: int  # steps in one iteration of the loop over steps


class EngineOperands(NamedTuple):
    weights: StepWeights
    carry: ArrayTree  # before the first step
    inputs: ArrayTree  # `(time, ...)`


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def run(
    recurrence: Recurrence, operands: EngineOperands
) -> tuple[ArrayTree, ArrayTree]:
    """Runs a recurrence; returns the last carry, and the outputs, `(time, ...)`."""
    buffer = _buffer(recurrence.step, operands)
    segments = recurrence.plan.for_inference
    result, _ = _forward(recurrence, operands, segments, buffer)
    return result


@run.defjvp
def _run_jvp(
    recurrence: Recurrence,
    primals: tuple[EngineOperands],
    tangents: tuple[EngineOperands],
) -> tuple[ArrayTree, ArrayTree]:
    (operands,), (tangents,) = primals, tangents
    step, (segments, saves, _) = recurrence.step, recurrence.plan
    buffer = _buffer(step, operands)
    vjp = StepVJP(step, operands.weights, buffer.residuals)
    buffer = buffer._replace(saved=saved_leaves(saves, vjp.reads, step.chosen))
    result, saved = _forward(
        recurrence, operands, segments, buffer, saves == "chunk starts"
    )

    def transpose(residuals: tuple, cotangents: tuple) -> EngineOperands:
        return _backward(recurrence, vjp, buffer, *residuals, *cotangents)

    diff_tangents = select_leaves(tangents, jax.tree.map(is_inexact, operands))
    diff, nondiff = partition(result)
    tangents_out = linear_map(
        transpose, (operands, saved), diff_tangents, structs(diff)
    )
    return result, combine(tangents_out, zero_tangents(nondiff))


def saved_by_full(step: SplitStep, operands: EngineOperands) -> Residuals:
    """Returns shapes and dtypes of what memory='full' saves of a step."""
    residuals = _buffer(step, operands).residuals
    reads = StepVJP(step, operands.weights, residuals).reads
    return select_leaves(residuals, reads)


def projected_structs(
    step: SplitStep, weights: StepWeights, inputs: ArrayTree
) -> StructTree:
    return jax.eval_shape(partial(_project, step), weights, inputs)


def _project(step: SplitStep, weights: StepWeights, inputs: ArrayTree) -> ArrayTree:
    evaluator = products.direct_evaluator(weights.projections)
    return step.project(weights.invariants, inputs, evaluator)[0]


def _buffer(step: SplitStep, operands: EngineOperands) -> ResidualBuffer:
    """Returns a buffer that saves nothing for a gradient."""
    z = projected_structs(step, operands.weights, operands.inputs)
    values = [product.result for product in operands.weights.products]
    carry, z = structs(operands.carry), structs(z, drop_axis=0)
    residuals = Residuals(carry, z, values)
    nothing = jax.tree.map(lambda leaf: False, residuals)
    outputs = step.result[1]
    return ResidualBuffer(residuals, outputs, nothing, step.outputs_in_carry)


def _forward(
    recurrence: Recurrence,
    operands: EngineOperands,
    segments: tuple[Segment, ...],
    buffer: ResidualBuffer,
    saves_carries: bool = False,
) -> tuple[tuple[ArrayTree, ArrayTree], tuple[Residuals, list[ArrayTree]]]:
    """Returns `(last carry, outputs)`, and `(residuals, carries before chunks)`."""
    weights = operands.weights
    loop = _steps(recurrence, weights, buffer)

    def chunk(
        state: tuple, start: Array | int, steps: int, _: None
    ) -> tuple[tuple, ArrayTree]:
        inputs = slice_time(operands.inputs, start, steps)
        z = _project(recurrence.step, weights, inputs)
        before = state[0] if saves_carries else None
        return loop(state, z, start, steps), before

    time = sum(segment.chunks * segment.steps for segment in segments)
    state = operands.carry, buffer.empty(operands.carry, time)
    (carry, buffers), carries = scan_chunks(chunk, state, segments)
    return (carry, buffer.read_outputs(buffers)), (buffers.residuals, carries)


def _steps(
    recurrence: Recurrence, weights: StepWeights, buffer: ResidualBuffer
) -> Callable:
    """Returns the loop over the steps of a chunk, as a function.

    `((carry, buffers), z, start, steps) -> (carry, buffers)`; the chunk is written to
    the buffers from `start` on.
    """
    evaluator = products.loop_evaluator(weights.products)

    def one(state: tuple, x: tuple) -> tuple[tuple, None]:
        carry, buffers = state
        z, i = x
        (new, outputs), evaluated = recurrence.step.recur(
            weights.invariants, carry, z, evaluator
        )
        after = Residuals(new, z, evaluated.values)
        return (new, buffer.write(buffers, i, outputs, after)), None

    def steps(state: tuple, z: ArrayTree, start: Array | int, count: int) -> tuple:
        indices = start + jnp.arange(count)
        return scan_with_barriers(one, state, z, indices, recurrence.unroll)

    return steps


def _recomputed(
    step: SplitStep, weights: StepWeights, residuals: Residuals
) -> Residuals:
    """Returns residuals; forms values that are None again, of all steps at once."""
    fallback = products.direct_evaluator(weights.products)

    def recompute(carry: ArrayTree, z: ArrayTree, values: list) -> list[Array]:
        def evaluator(k: int, lhs: Array, addend: Array | None) -> Array:
            return fallback(k, lhs, addend) if values[k] is None else values[k]

        return step.recur(weights.invariants, carry, z, evaluator)[1].values

    return residuals._replace(values=jax.vmap(recompute)(*residuals))


def _chunk_residuals(
    recurrence: Recurrence,
    weights: StepWeights,
    buffer: ResidualBuffer,
    saved: Residuals,
    carry: ArrayTree,
    inputs: ArrayTree,
    steps: int,
) -> Residuals:
    """Returns the residuals of a chunk of time, recomputed from what was saved of it.

    `buffer` saves what the VJP reads; `carry` is before the chunk, or None.
    """
    if recurrence.plan.saves == "all":
        return saved
    z = _project(recurrence.step, weights, inputs)
    if recurrence.plan.saves == "carries":
        return _recomputed(recurrence.step, weights, saved._replace(z=z))
    loop = _steps(recurrence, weights, buffer)
    _, buffers = loop((carry, buffer.empty(carry, steps)), z, 0, steps)
    return slice_time(buffers.residuals, 0, steps)


def _backward(
    recurrence: Recurrence,
    vjp: StepVJP,
    buffer: ResidualBuffer,
    operands: EngineOperands,
    saved: tuple[Residuals, list[ArrayTree]],
    d_carry: ArrayTree,
    d_outputs: ArrayTree,
) -> EngineOperands:
    """Returns the cotangents of the operands."""
    (residuals, carries), weights = saved, operands.weights
    vjp_invariants = vjp.evaluate_invariants(weights)

    def chunk(
        state: tuple, start: Array | int, steps: int, carry: ArrayTree
    ) -> tuple[tuple, None]:
        d_carry, sums, d_inputs = state
        inputs = slice_time(operands.inputs, start, steps)
        chunk_residuals = _chunk_residuals(
            recurrence,
            weights,
            buffer._replace(saved=vjp.reads),
            slice_time(residuals, start, steps),
            carry,
            inputs,
            steps,
        )
        d_ys = slice_time(d_outputs, start, steps)
        d_carry, cotangents, d_invariants = vjp.over_time(
            vjp_invariants, chunk_residuals, d_ys, d_carry, steps, recurrence.unroll
        )
        d_products = map(
            Product.vjp_weights, weights.products, cotangents.lhs, cotangents.d_values
        )
        d_projections, d_projected, d_xs = _project_vjp(
            recurrence.step, weights, inputs, cotangents.d_z
        )
        terms = StepWeights(
            d_projections, list(d_products), add(d_invariants, d_projected)
        )
        return (d_carry, add(sums, terms), write_time(d_inputs, d_xs, start)), None

    diff = inexact((weights, operands.inputs))
    sums, d_inputs = zeros(structs(diff))
    state = d_carry, upcast(sums), d_inputs
    state, _ = scan_chunks(chunk, state, recurrence.plan.segments, carries, True)
    d_carry, sums, d_inputs = state
    sums = jax.tree.map(lambda total, w: total.astype(w.dtype), sums, diff[0])
    return EngineOperands(sums, d_carry, d_inputs)


def _project_vjp(
    step: SplitStep, weights: StepWeights, inputs: ArrayTree, d_z: ArrayTree
) -> tuple[list[Product], list[Array | None], ArrayTree]:
    """Returns the cotangents of products, of other weights read, and of the inputs."""
    read = select_leaves(weights.invariants, step.read_by_projection)
    diff, nondiff = partition((read, inputs))

    def project(diff: ArrayTree, taps: list[Array]) -> tuple[ArrayTree, list[Array]]:
        invariants, inputs = combine(diff, nondiff)
        evaluator = products.vjp_evaluator(weights.projections, taps, None)
        z, evaluated = step.project(invariants, inputs, evaluator)
        return inexact(z), evaluated.lhs

    steps = jax.tree.leaves(inputs)[0].shape[0]
    results = [product.result for product in weights.projections]
    taps = [jnp.zeros((steps, *r.shape), r.dtype) for r in results]
    _, vjp, lhs = jax.vjp(project, diff, taps, has_aux=True)
    (d_invariants, d_inputs), d_values = vjp(d_z)
    d_products = map(Product.vjp_weights, weights.projections, lhs, d_values)
    return list(d_products), d_invariants, d_inputs
