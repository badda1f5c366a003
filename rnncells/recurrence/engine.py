"""A recurrence over time that computes weight gradients after its backward loop.

Time is cut into chunks. The forward pass projects the inputs of a chunk at once, then
loops over its steps. The backward loop computes only the cotangents of the projected
inputs and of each product with recurrent weights (see step_vjp.py). After the loop, one
product for each weight and chunk gives the gradient of that weight.

Every array that is differentiated comes in as an argument. Time is the first axis.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from rnncells.recurrence import products
from rnncells.recurrence.chunks import Segment, over_chunks, slice_time, write_time
from rnncells.recurrence.fusion_barrier import scan_with_barriers
from rnncells.recurrence.linear_map import linear_map
from rnncells.recurrence.memory import Plan
from rnncells.recurrence.products import Product
from rnncells.recurrence.pytrees import (
    StructTree,
    add,
    combine,
    inexact,
    is_inexact,
    partition,
    structs,
    upcast,
    zeros,
)
from rnncells.recurrence.residuals import (
    ResidualBuffer,
    Residuals,
    Written,
    select_leaves,
)
from rnncells.recurrence.step import Step, Weights
from rnncells.recurrence.step_vjp import StepVJP


class Recurrence(NamedTuple):
    """What runs over time.

    Attributes:
      step: the step.
      plan: how time is taken.
      unroll: steps in one iteration of the loop over steps.
    """

    step: Step
    plan: Plan
    unroll: int


class Operands(NamedTuple):
    """What a recurrence runs on, or the cotangents.

    Attributes:
      weights: what depends on the parameters alone.
      carry: before the first step.
      inputs: pytree of `(time, ...)`.
    """

    weights: Weights
    carry: chex.ArrayTree
    inputs: chex.ArrayTree


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def run(
    recurrence: Recurrence, operands: Operands
) -> tuple[chex.ArrayTree, chex.ArrayTree]:
    """Runs a recurrence; returns the last carry, and the outputs, `(time, ...)`."""
    buffer = _buffer(recurrence.step, operands)
    segments = recurrence.plan.for_inference
    result, _ = _forward(recurrence, operands, segments, buffer)
    return result


@run.defjvp
def _run_jvp(recurrence, primals, tangents):
    (operands,), (tangents,) = primals, tangents
    segments, policy, _ = recurrence.plan
    buffer = _buffer(recurrence.step, operands)
    vjp = StepVJP(recurrence.step, operands.weights, buffer.residuals)
    buffer = buffer._replace(saved=policy.saved(vjp.reads, recurrence.step.chosen))
    result, saved = _forward(
        recurrence, operands, segments, buffer, policy.saves_chunk_carries
    )

    def transpose(residuals, cotangents):
        return _backward(recurrence, vjp, buffer, *residuals, *cotangents)

    varied = jax.tree.map(
        lambda primal, tangent: tangent if is_inexact(primal) else None,
        operands,
        tangents,
    )
    smooth, others = partition(result)
    moved = linear_map(transpose, (operands, saved), varied, structs(smooth))
    still = jax.tree.map(lambda leaf: np.zeros(leaf.shape, jax.dtypes.float0), others)
    return result, combine(moved, still)


def saved_by_full(step: Step, operands: Operands) -> Residuals:
    """Returns shapes and dtypes of what memory='full' saves of a step."""
    residuals = _buffer(step, operands).residuals
    reads = StepVJP(step, operands.weights, residuals).reads
    return select_leaves(residuals, reads)


def projected_structs(
    step: Step, weights: Weights, inputs: chex.ArrayTree
) -> StructTree:
    """Returns shapes and dtypes of the projection of a sequence."""
    return jax.eval_shape(partial(_project, step), weights, inputs)


def _project(step, weights, inputs):
    take = products.as_written(weights.projections)
    return step.project(weights.others, inputs, take)[0]


def _buffer(step: Step, operands: Operands) -> ResidualBuffer:
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
    operands: Operands,
    segments: tuple[Segment, ...],
    buffer: ResidualBuffer,
    saves_carries: bool = False,
) -> tuple[
    tuple[chex.ArrayTree, chex.ArrayTree], tuple[Residuals, list[chex.ArrayTree]]
]:
    """Returns `(last carry, outputs)`, and `(residuals, carries before chunks)`."""
    weights = operands.weights
    loop = _steps(recurrence, weights, buffer)

    def chunk(so_far, start, steps, _):
        carry, written = so_far
        inputs = slice_time(operands.inputs, start, steps)
        z = _project(recurrence.step, weights, inputs)
        before = carry if saves_carries else None
        return loop(carry, z, written, start, steps), before

    time = sum(segment.chunks * segment.steps for segment in segments)
    so_far = operands.carry, buffer.blank(operands.carry, time)
    (carry, written), carries = over_chunks(chunk, so_far, segments)
    return (carry, buffer.read_outputs(written)), (written.residuals, carries)


def _steps(
    recurrence: Recurrence, weights: Weights, buffer: ResidualBuffer
) -> Callable[..., tuple[chex.ArrayTree, Written]]:
    """Returns the loop over the steps of a chunk.

    `(carry, z, written, start, steps) -> (carry, written)`, where `start` is the place
    of the chunk's first step in the buffer.
    """
    take = products.in_loop(weights.products)

    def one(so_far, now):
        carry, written = so_far
        z, i = now
        (new, outputs), taken = recurrence.step.recur(weights.others, carry, z, take)
        after = Residuals(new, z, taken.values)
        return (new, buffer.write(written, i, outputs, after)), None

    def steps(carry, z, written, start, count):
        places = start + jnp.arange(count)
        return scan_with_barriers(one, (carry, written), z, places, recurrence.unroll)

    return steps


@dataclass(frozen=True)
class ChunkContext:
    """The steps of a chunk of time in the backward pass.

    Attributes:
      recurrence: what runs over time.
      operands: of the whole sequence.
      buffer: what a step writes.
      reads: for each leaf of the residuals, whether the gradient reads it.
      residuals: what the forward pass saved of the whole sequence.
      carry: before the chunk; None if it is not saved.
      start: the first step.
      steps: number of steps.
    """

    recurrence: Recurrence
    operands: Operands
    buffer: ResidualBuffer
    reads: Residuals
    residuals: Residuals
    carry: chex.ArrayTree | None
    start: jax.Array | int
    steps: int

    @property
    def inputs(self) -> chex.ArrayTree:
        """The inputs of the steps."""
        return slice_time(self.operands.inputs, self.start, self.steps)

    def saved(self) -> Residuals:
        """Returns what the forward pass saved, `(steps, ...)`."""
        return slice_time(self.residuals, self.start, self.steps)

    def project(self) -> chex.ArrayTree:
        """Returns the projected inputs, `(steps, ...)`."""
        return _project(self.recurrence.step, self.operands.weights, self.inputs)

    def completed(self, residuals: Residuals) -> Residuals:
        """Returns residuals; forms values that are None again, of all steps at once."""
        _, found, others = self.operands.weights

        def of_step(carry, z, values):
            take = products.known(values, products.as_written(found))
            return self.recurrence.step.recur(others, carry, z, take)[1].values

        return residuals._replace(values=jax.vmap(of_step)(*residuals))

    def run_again(self) -> Residuals:
        """Returns the residuals from the carry before the chunk, by a loop over it."""
        buffer = self.buffer._replace(saved=self.reads)
        loop = _steps(self.recurrence, self.operands.weights, buffer)
        blank = buffer.blank(self.carry, self.steps)
        _, written = loop(self.carry, self.project(), blank, 0, self.steps)
        return slice_time(written.residuals, 0, self.steps)


def _backward(
    recurrence: Recurrence,
    vjp: StepVJP,
    buffer: ResidualBuffer,
    operands: Operands,
    saved: tuple[Residuals, list[chex.ArrayTree]],
    d_carry: chex.ArrayTree,
    d_outputs: chex.ArrayTree,
) -> Operands:
    """Returns the cotangents of the operands."""
    residuals, carries = saved
    weights = operands.weights
    formed = vjp.formed(weights)

    def chunk(so_far, start, steps, carry):
        d_carry, sums, d_inputs = so_far
        given = recurrence, operands, buffer, vjp.reads, residuals
        now = ChunkContext(*given, carry, start, steps)
        found = recurrence.plan.policy.residuals(now)
        d_ys = slice_time(d_outputs, start, steps)
        d_carry, of_steps, d_others = vjp.over_time(
            formed, found, d_ys, d_carry, steps, recurrence.unroll
        )
        d_products = map(
            Product.vjp_weights, weights.products, of_steps.lhs, of_steps.d_values
        )
        d_projections, d_projected, d_xs = _project_vjp(
            recurrence.step, weights, now.inputs, of_steps.d_z
        )
        terms = Weights(d_projections, list(d_products), add(d_others, d_projected))
        return (d_carry, add(sums, terms), write_time(d_inputs, d_xs, start)), None

    smooth = inexact((weights, operands.inputs))
    sums, d_inputs = zeros(structs(smooth))
    so_far = d_carry, upcast(sums), d_inputs
    so_far, _ = over_chunks(chunk, so_far, recurrence.plan.segments, carries, True)
    d_carry, sums, d_inputs = so_far
    sums = jax.tree.map(lambda total, w: total.astype(w.dtype), sums, smooth[0])
    return Operands(sums, d_carry, d_inputs)


def _project_vjp(
    step: Step, weights: Weights, inputs: chex.ArrayTree, d_z: chex.ArrayTree
) -> tuple[list[Product], list[jax.Array | None], chex.ArrayTree]:
    """Returns the cotangents of products, of other weights, and of inputs of a chunk.

    None for weights that the projection does not read.
    """
    read = select_leaves(weights.others, step.read_by_projection)
    varied, rest = partition((read, inputs))

    def at(varied, taps):
        others, inputs = combine(varied, rest)
        take = products.differentiated(weights.projections, taps, None)
        z, taken = step.project(others, inputs, take)
        return inexact(z), taken.lhs

    steps = jax.tree.leaves(inputs)[0].shape[0]
    results = [product.result for product in weights.projections]
    taps = [jnp.zeros((steps, *r.shape), r.dtype) for r in results]
    _, vjp, lhs = jax.vjp(at, varied, taps, has_aux=True)
    (d_others, d_inputs), d_values = vjp(d_z)
    d_products = map(Product.vjp_weights, weights.projections, lhs, d_values)
    return list(d_products), d_others, d_inputs
