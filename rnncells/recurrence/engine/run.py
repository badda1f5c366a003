"""A recurrence over time that computes weight gradients after its backward loop.

Time is cut into chunks. The forward pass projects the inputs of a chunk at once, then
loops over its steps. The backward loop computes only the cotangents of the projected
inputs and of each product with recurrent weights (see step_vjp.py). After the loop, one
product for each weight and chunk gives the gradient of that weight.

Time is the first axis.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from chex import ArrayTree
from jax import Array

from rnncells.recurrence import pytrees
from rnncells.recurrence.chunks import Segment, scan_chunks, slice_time, write_time
from rnncells.recurrence.engine import products
from rnncells.recurrence.engine.fusion_barrier import scan_with_barriers
from rnncells.recurrence.engine.linear_map import linear_map, mapped_together
from rnncells.recurrence.engine.memory import (
    Plan,
    ResidualBuffer,
    Residuals,
    saved_leaves,
)
from rnncells.recurrence.engine.products import Product
from rnncells.recurrence.engine.split_step import SplitStep, StepWeights
from rnncells.recurrence.engine.step_vjp import StepVJP
from rnncells.recurrence.pytrees import StructTree, combine, inexact, structs


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
    buffer = _buffer(recurrence.step, operands, recurrence.plan.z)
    segments = recurrence.plan.for_inference
    result, _ = _Run(recurrence, operands, buffer).forward(segments)
    return mapped_together(result, operands)


@run.defjvp
def _run_jvp(
    recurrence: Recurrence,
    primals: tuple[EngineOperands],
    tangents: tuple[EngineOperands],
) -> tuple[ArrayTree, ArrayTree]:
    (operands,), (tangents,) = primals, tangents
    step, (segments, saves, _, z) = recurrence.step, recurrence.plan
    buffer = _buffer(step, operands, z)
    vjp = StepVJP(step, operands.weights, buffer.residuals)
    saved_buffer = buffer._replace(saved=saved_leaves(saves, vjp.reads, step.chosen))
    forward = _Run(recurrence, operands, saved_buffer).forward
    result, saved = forward(segments, saves_carries=saves == "chunk starts")

    def transpose(residuals: tuple, cotangents: tuple) -> EngineOperands:
        operands, saved = residuals
        read_buffer = buffer._replace(saved=vjp.reads)
        backward = _Run(recurrence, operands, read_buffer).backward
        return backward(vjp, *saved, *cotangents)

    is_diff = jax.tree.map(pytrees.is_inexact, operands)
    diff_tangents = pytrees.select_leaves(tangents, is_diff)
    diff, nondiff = pytrees.partition(result)
    residuals = operands, saved
    tangents_out = linear_map(transpose, residuals, diff_tangents, structs(diff))
    return result, combine(tangents_out, pytrees.zero_tangents(nondiff))


def saved_by_full(step: SplitStep, operands: EngineOperands) -> Residuals:
    """Returns shapes and dtypes of what memory='full' saves of a step."""
    z = projected_structs(step, operands.weights, operands.inputs)
    residuals = _buffer(step, operands, structs(z, drop_axis=0)).residuals
    reads = StepVJP(step, operands.weights, residuals).reads
    return pytrees.select_leaves(residuals, reads)


def projected_structs(
    step: SplitStep, weights: StepWeights, inputs: ArrayTree
) -> StructTree:
    return jax.eval_shape(partial(_project, step), weights, inputs)


def _project(step: SplitStep, weights: StepWeights, inputs: ArrayTree) -> ArrayTree:
    evaluator = products.direct_evaluator(weights.projections)
    return step.project(weights.invariants, inputs, evaluator)[0]


def _buffer(step: SplitStep, operands: EngineOperands, z: StructTree) -> ResidualBuffer:
    """Returns a buffer that saves nothing for a gradient."""
    values = [product.result for product in operands.weights.products]
    residuals = Residuals(structs(operands.carry), z, values)
    nothing = jax.tree.map(lambda leaf: False, residuals)
    outputs = step.result[1]
    return ResidualBuffer(residuals, outputs, nothing, step.outputs_in_carry)


class _Run(NamedTuple):
    """A recurrence with its operands, and the buffer that its loop writes to."""

    recurrence: Recurrence
    operands: EngineOperands
    buffer: ResidualBuffer

    def forward(
        self, segments: tuple[Segment, ...], saves_carries: bool = False
    ) -> tuple[tuple[ArrayTree, ArrayTree], tuple[Residuals, list[ArrayTree]]]:
        """Returns `(last carry, outputs)`, and `(residuals, carries before chunks)`."""

        def chunk(
            state: tuple, start: Array | int, steps: int, _: None
        ) -> tuple[tuple, ArrayTree]:
            inputs = slice_time(self.operands.inputs, start, steps)
            z = _project(self.recurrence.step, self.operands.weights, inputs)
            before = state[0] if saves_carries else None
            return loop(state, z, start, steps), before

        loop = self._loop()
        time = sum(segment.chunks * segment.steps for segment in segments)
        carry = self.operands.carry
        state = carry, self.buffer.empty(carry, time)
        (carry, buffers), carries = scan_chunks(chunk, state, segments)
        outputs = self.buffer.read_outputs(buffers)
        return (carry, outputs), (buffers.residuals, carries)

    def _loop(self) -> Callable:
        """Returns a loop over a chunk, which is written to the buffers from `start` on.

        It is `((carry, buffers), z, start, steps) -> (carry, buffers)`.
        """
        weights, recur = self.operands.weights, self.recurrence.step.recur
        evaluator = products.loop_evaluator(weights.products)

        def step(state: tuple, z: ArrayTree) -> tuple:
            carry, buffers, i = state
            result, evaluated = recur(weights.invariants, carry, z, evaluator)
            carry, outputs = result
            written = self.buffer.write(buffers, i, outputs, carry, evaluated.values)
            return carry, written, i + 1

        def loop(state: tuple, z: ArrayTree, start: Array | int, steps: int) -> tuple:
            # Carried, the number of the step needs no array of all numbers.
            state = *state, jnp.asarray(start)
            unroll = self.recurrence.unroll
            carry, buffers, _ = scan_with_barriers(step, state, z, steps, unroll)
            return carry, self.buffer.write_projected(buffers, z, start)

        return loop

    def _residuals(
        self, saved: Residuals, carry: ArrayTree, inputs: ArrayTree, steps: int
    ) -> Residuals:
        """Returns the residuals of a chunk from what was saved of it."""
        saves = self.recurrence.plan.saves
        if saves == "all":
            return saved
        z = _project(self.recurrence.step, self.operands.weights, inputs)
        if saves == "carries":
            return self._recomputed(saved._replace(z=z))
        state = carry, self.buffer.empty(carry, steps)
        _, buffers = self._loop()(state, z, 0, steps)
        return slice_time(buffers.residuals, 0, steps)

    def _recomputed(self, residuals: Residuals) -> Residuals:
        """Returns residuals; forms values that are None again, of all steps at once."""
        weights, recur = self.operands.weights, self.recurrence.step.recur
        fallback = products.direct_evaluator(weights.products)

        def recompute(carry: ArrayTree, z: ArrayTree, values: list) -> list[Array]:
            def evaluator(k: int, lhs: Array, addend: Array | None) -> Array:
                return fallback(k, lhs, addend) if values[k] is None else values[k]

            return recur(weights.invariants, carry, z, evaluator)[1].values

        return residuals._replace(values=jax.vmap(recompute)(*residuals))

    def backward(
        self,
        vjp: StepVJP,
        saved: Residuals,
        carries: list[ArrayTree],
        d_carry: ArrayTree,
        d_outputs: ArrayTree,
    ) -> EngineOperands:
        """Returns the cotangents of the operands; the buffer saves what `vjp` reads."""
        weights, unroll = self.operands.weights, self.recurrence.unroll
        vjp_invariants = vjp.evaluate_invariants(weights)

        def chunk(
            state: tuple, start: Array | int, steps: int, carry: ArrayTree
        ) -> tuple[tuple, None]:
            d_carry, sums, d_inputs = state
            inputs = slice_time(self.operands.inputs, start, steps)
            saved_of_chunk = slice_time(saved, start, steps)
            residuals = self._residuals(saved_of_chunk, carry, inputs, steps)
            d_ys = slice_time(d_outputs, start, steps)
            d_carry, cotangents, d_invariants = vjp.over_time(
                vjp_invariants, residuals, d_ys, d_carry, steps, unroll
            )
            d_values, lhs = cotangents.d_values, cotangents.lhs
            d_products = map(Product.vjp_weights, weights.products, lhs, d_values)
            d_projections, d_projected, d_xs = _project_vjp(
                self.recurrence.step, weights, inputs, cotangents.d_z
            )
            d_invariants = pytrees.add(d_invariants, d_projected)
            terms = StepWeights(d_projections, list(d_products), d_invariants)
            d_inputs = write_time(d_inputs, d_xs, start)
            return (d_carry, pytrees.add(sums, terms), d_inputs), None

        diff = inexact((weights, self.operands.inputs))
        sums, d_inputs = pytrees.zeros(structs(diff))
        state = d_carry, pytrees.upcast(sums), d_inputs
        segments = self.recurrence.plan.segments
        state, _ = scan_chunks(chunk, state, segments, carries, reverse=True)
        d_carry, sums, d_inputs = state
        sums = jax.tree.map(lambda total, w: total.astype(w.dtype), sums, diff[0])
        return EngineOperands(sums, d_carry, d_inputs)


def _project_vjp(
    step: SplitStep, weights: StepWeights, inputs: ArrayTree, d_z: ArrayTree
) -> tuple[list[Product], list[Array | None], ArrayTree]:
    """Returns the cotangents of products, of other weights read, and of the inputs."""
    read = pytrees.select_leaves(weights.invariants, step.read_by_projection)
    diff, nondiff = pytrees.partition((read, inputs))

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
