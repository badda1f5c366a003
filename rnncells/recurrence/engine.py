"""A recurrence over time that computes weight gradients after its backward loop.

Time is cut into chunks. The forward pass projects the inputs of a chunk at once, then
loops over its steps. The backward loop computes only the cotangents of the projected
inputs and of each product with recurrent weights (see products.py). After the loop, one
product for each weight and chunk gives the gradient of that weight.

Every array that is differentiated comes in as an argument. Time is the first axis.
"""

from collections.abc import Callable
from functools import partial

import chex
import jax
import jax.numpy as jnp

from rnncells.recurrence import products
from rnncells.recurrence.batched_together import batched_together
from rnncells.recurrence.chunks import Segment, over_chunks
from rnncells.recurrence.gradient import StepGradient, Stretch, project
from rnncells.recurrence.parts import Arrays, Moment, Recurrence
from rnncells.recurrence.reverse_only import naming_the_option, reverse_only
from rnncells.recurrence.settling import scan_settled
from rnncells.recurrence.step import Weights
from rnncells.recurrence.tape import Tape, slice_time, write_time
from rnncells.recurrence.trees import (
    StructTree,
    add,
    join,
    rest,
    smooth,
    structs,
    wide,
    zeros,
)


def run(
    recurrence: Recurrence,
    weights: Weights,
    shared: chex.ArrayTree,
    carry: chex.ArrayTree,
    inputs: chex.ArrayTree,
    flags: chex.ArrayTree,
) -> tuple[chex.ArrayTree, chex.ArrayTree]:
    """Runs a recurrence.

    Args:
      recurrence: what runs.
      weights: what depends on the parameters alone.
      shared: pytree of arrays that every step gets.
      carry: carry before the first step.
      inputs: pytree of `(time, ...)`.
      flags: pytree of booleans, `(time, ...)`.

    Returns:
      The last carry, and the outputs, `(time, ...)`.
    """
    products = weights.projections, weights.products
    arrays = Arrays(weights.others, *products, shared, carry, inputs)
    with naming_the_option():
        return _run(recurrence, reverse_only(smooth(arrays)), rest(arrays), flags)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _run(recurrence, arrays, others, flags):
    full, alone = join(arrays, others), recurrence.plan.alone
    result, _ = _forward(recurrence, full, flags, alone, keeps="nothing")
    return batched_together(result, (full, flags))


def _run_forward(recurrence, arrays, others, flags):
    full = join(arrays, others)
    segments, keeps, _ = recurrence.plan
    result, kept = _forward(recurrence, full, flags, segments, keeps)
    return batched_together(result, (full, flags)), (arrays, others, flags, kept)


def _run_backward(recurrence, residuals, gradients):
    arrays, others, flags, kept = residuals
    full = join(arrays, others)
    return _backward(recurrence, full, flags, kept, *gradients), None, None


_run.defvjp(_run_forward, _run_backward)


def projected(
    recurrence: Recurrence, weights: Weights, inputs: chex.ArrayTree
) -> StructTree:
    """Returns shapes and dtypes of the projection of a sequence."""
    arrays = Arrays(weights.others, weights.projections, weights.products, None)
    return jax.eval_shape(partial(project, recurrence), arrays, inputs)


def _forward(
    recurrence: Recurrence,
    arrays: Arrays,
    flags: chex.ArrayTree,
    segments: tuple[Segment, ...],
    keeps: str,
) -> tuple[tuple[chex.ArrayTree, chex.ArrayTree], tuple[Moment, list[chex.ArrayTree]]]:
    """Returns `(last carry, outputs)`, and what is kept: moments, carries at starts."""
    step = StepGradient(recurrence, arrays, flags)
    tape = step.tape(keeps)
    loop = _steps(recurrence, arrays, tape)

    def chunk(so_far, t, steps):
        carry, written = so_far
        inputs, now = slice_time((arrays.inputs, flags), t, steps)
        z = project(recurrence, arrays, inputs)
        new, written = loop(carry, z, now, written, t)
        return (new, written), carry if keeps == "starts" else None

    time = sum(segment.chunks * segment.steps for segment in segments)
    so_far = arrays.carry, tape.blank(arrays.carry, time)
    starts = []
    for segment in segments:
        so_far, carries = over_chunks(chunk, so_far, segment)
        starts.append(carries)
    carry, written = so_far
    return (carry, tape.read_outputs(written)), (written.moments, starts)


def _steps(recurrence: Recurrence, arrays: Arrays, tape: Tape) -> Callable:
    """Returns the loop over the steps of a chunk.

    `(carry, z, flags, written, place) -> (carry, written)`, `place` being that of the
    chunk's first step on the tape.
    """
    take = products.formed_by([products.loop_form(p) for p in arrays.products])

    def one(so_far, now):
        carry, written = so_far
        z, (flags, i) = now
        (new, outputs), taken = recurrence.step(
            arrays.others, arrays.shared, carry, z, flags, take
        )
        after = Moment(new, z, taken.values)
        return (new, tape.write(written, i, outputs, after)), None

    def steps(carry, z, flags, written, place):
        places = place + jnp.arange(jax.tree.leaves(z)[0].shape[0])
        so_far = carry, written
        return scan_settled(one, so_far, z, (flags, places), recurrence.unroll)

    return steps


def _backward(
    recurrence: Recurrence,
    arrays: Arrays,
    flags: chex.ArrayTree,
    kept: tuple[Moment, list[chex.ArrayTree]],
    d_carry: chex.ArrayTree,
    d_outputs: chex.ArrayTree,
) -> Arrays:
    """Returns the gradients by all arrays."""
    moments, starts = kept
    step = StepGradient(recurrence, arrays, flags)
    moments_of = _moments_of(step, moments)

    def chunk(so_far, t, steps, start=None):
        d_carry, sums, d_inputs = so_far
        inputs, now = slice_time((arrays.inputs, flags), t, steps)
        stretch = Stretch(inputs, now, *moments_of(t, inputs, now, start))
        d_ys = slice_time(d_outputs, t, steps)
        d_carry, terms, d_xs = step.pull_chunk(stretch, d_carry, d_ys)
        return (d_carry, add(sums, terms), write_time(d_inputs, d_xs, t)), None

    d_carry, d_outputs, d_inputs = smooth((d_carry, d_outputs, arrays.inputs))
    summed = smooth(arrays._replace(carry=None, inputs=None))
    so_far = d_carry, wide(zeros(structs(summed))), zeros(structs(d_inputs))
    for segment, carries in zip(
        reversed(recurrence.plan.segments), reversed(starts), strict=True
    ):
        so_far, _ = over_chunks(chunk, so_far, segment, carries, reverse=True)
    d_carry, sums, d_inputs = so_far
    sums = jax.tree.map(lambda total, array: total.astype(array.dtype), sums, summed)
    return sums._replace(carry=d_carry, inputs=d_inputs)


def _moments_of(step: StepGradient, moments: Moment) -> Callable:
    """Returns `(t, inputs, flags, start) -> (moments, place)` of a chunk."""
    recurrence, arrays = step.recurrence, step.arrays

    def from_values(t, inputs, flags, start):
        return moments, t

    def from_carries(t, inputs, flags, start):
        z = project(recurrence, arrays, inputs)
        steps = jax.tree.leaves(inputs)[0].shape[0]
        carries = slice_time(moments.carry, t, steps)
        return Moment(carries, z, step.values(carries, z, flags)), 0

    def from_starts(t, inputs, flags, start):
        z = project(recurrence, arrays, inputs)
        tape = step.tape("values")
        steps = jax.tree.leaves(inputs)[0].shape[0]
        _, written = _steps(recurrence, arrays, tape)(
            start, z, flags, tape.blank(start, steps), 0
        )
        return written.moments, 0

    ways = {"values": from_values, "carries": from_carries, "starts": from_starts}
    return ways[recurrence.plan.keeps]
