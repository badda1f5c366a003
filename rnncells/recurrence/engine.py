"""A recurrence over time whose gradient forms no weight's gradient inside its loop.

Time is cut into chunks. Going forward, the inputs of a chunk are projected at once, and
a loop over its steps takes the recurrence. Going back, the loop over steps yields only
the gradients by the projected inputs and by each product with recurrent weights (see
products.py); from those, one product for each weight and chunk gives its gradient.

Every array that is differentiated comes in as an argument. Time is the first axis.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from rnncells.recurrence import gradient, products
from rnncells.recurrence.chunks import join_segments, take_segment
from rnncells.recurrence.parts import Arrays, Moment, Recurrence
from rnncells.recurrence.trees import (
    add,
    join,
    pick,
    rest,
    smooth,
    structs,
    wide,
    zeros,
)

PyTree = Any


def run(
    recurrence: Recurrence,
    params: PyTree,
    shared: PyTree,
    carry: PyTree,
    inputs: PyTree,
    flags: PyTree,
) -> tuple[PyTree, PyTree]:
    """Runs a recurrence.

    Args:
      recurrence: what runs.
      params: pytree of arrays.
      shared: pytree of arrays that every step gets.
      carry: carry before the first step.
      inputs: pytree of `(time, ...)`.
      flags: pytree of booleans, `(time, ...)`.

    Returns:
      The last carry, and the outputs, `(time, ...)`.
    """
    first, now = structs((inputs, flags), drop_axis=True)
    z, now = zeros((jax.eval_shape(recurrence.project, params, first), now))
    found = products.find(lambda: recurrence.step(params, shared, carry, z, now))
    arrays = Arrays(params, found, shared, carry, inputs)
    return _run(recurrence, smooth(arrays), rest(arrays), flags)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _run(recurrence, arrays, others, flags):
    return _forward(recurrence, join(arrays, others), flags, keeps="nothing")[0]


def _run_forward(recurrence, arrays, others, flags):
    full = join(arrays, others)
    result, kept = _forward(recurrence, full, flags, recurrence.keeps)
    return result, (arrays, others, flags, kept)


def _run_backward(recurrence, residuals, gradients):
    arrays, others, flags, kept = residuals
    full = join(arrays, others)
    return _backward(recurrence, full, flags, kept, *gradients), None, None


_run.defvjp(_run_forward, _run_backward)


def _forward(
    recurrence: Recurrence, arrays: Arrays, flags: PyTree, keeps: str
) -> tuple[tuple[PyTree, PyTree], list[PyTree]]:
    """Returns the last carry and the outputs, and what is kept of each segment."""
    wanted = None
    if keeps == "values":
        wanted = gradient.moments_read(recurrence, arrays, flags)
    take_steps = _steps(recurrence, arrays, keeps, wanted)

    def chunk(start, now):
        inputs, flags = now
        z = recurrence.project(arrays.params, inputs)
        carry, (outputs, moments) = take_steps(start, z, flags)
        return carry, (outputs, start if keeps == "starts" else moments)

    carry, outputs, kept = arrays.carry, [], []
    for segment in recurrence.segments:
        xs = take_segment((arrays.inputs, flags), segment)
        carry, (ys, moments) = _loop(chunk, carry, xs)
        outputs.append(ys)
        kept.append(moments)
    return (carry, join_segments(outputs)), kept


def _steps(
    recurrence: Recurrence, arrays: Arrays, keeps: str, wanted: Moment | None = None
) -> Callable:
    """Returns the loop over the steps of a chunk.

    `(carry, z, flags) -> (carry, (outputs, moments))`, where of each moment `keeps`
    and, for `'values'`, `wanted` say what is in it.
    """
    forms = [products.loop_form(product) for product in arrays.products]

    def one(carry, now):
        z, flags = products.settled(now)
        (new, outputs), values = products.formed_by(
            forms,
            lambda: recurrence.step(arrays.params, arrays.shared, carry, z, flags),
        )
        kept = None
        if keeps == "values":
            kept = pick(Moment(carry, z, values), wanted)
        elif keeps == "carries":
            kept = Moment(carry, None, None)
        return new, (outputs, kept)

    def loop(carry, z, flags):
        return jax.lax.scan(one, carry, (z, flags), unroll=recurrence.unroll)

    return loop


def _backward(
    recurrence: Recurrence,
    arrays: Arrays,
    flags: PyTree,
    kept: list[PyTree],
    d_carry: PyTree,
    d_outputs: PyTree,
) -> Arrays:
    """Returns the gradients by all arrays."""
    restore = _restoring(recurrence, arrays, flags)
    pull_chunk = gradient.pulling(recurrence, arrays, flags)

    def chunk(gradients, now):
        d_carry, sums = gradients
        inputs, flags, kept, d_outputs = now
        moments = restore(inputs, flags, kept)
        d_carry, terms, d_inputs = pull_chunk(
            inputs, flags, moments, d_carry, d_outputs
        )
        return (d_carry, add(sums, terms)), d_inputs

    d_carry, d_outputs = smooth((d_carry, d_outputs))
    summed = smooth((arrays.params, arrays.products, arrays.shared))
    sums = wide(zeros(structs(summed)))
    all_d_inputs = []
    for segment, moments in zip(
        reversed(recurrence.segments), reversed(kept), strict=True
    ):
        inputs, now, d_ys = take_segment((arrays.inputs, flags, d_outputs), segment)
        (d_carry, sums), d_inputs = _loop(
            chunk, (d_carry, sums), (inputs, now, moments, d_ys), reverse=True
        )
        all_d_inputs.insert(0, d_inputs)
    d_params, d_products, d_shared = jax.tree.map(
        lambda total, array: total.astype(array.dtype),
        sums,
        summed,
    )
    d_inputs = join_segments(all_d_inputs)
    return Arrays(d_params, d_products, d_shared, d_carry, d_inputs)


def _restoring(recurrence: Recurrence, arrays: Arrays, flags: PyTree) -> Callable:
    """Returns `(inputs, flags, kept) -> moments` of a chunk."""
    moment = gradient.moment_of(recurrence, arrays, flags)

    def from_values(inputs, flags, kept):
        # What the gradient does not read need not be known.
        steps = jax.tree.leaves(inputs)[0].shape[0]
        unknown = jax.tree.map(
            lambda leaf: jnp.zeros((steps, *leaf.shape), leaf.dtype), moment
        )
        return join(kept, unknown)

    def from_carries(inputs, flags, kept):
        z = recurrence.project(arrays.params, inputs)
        return gradient.form_values(recurrence, arrays, kept.carry, z, flags)

    def from_starts(inputs, flags, start):
        wanted = gradient.moments_read(recurrence, arrays, flags)
        z = recurrence.project(arrays.params, inputs)
        take_steps = _steps(recurrence, arrays, "values", wanted)
        _, (_, moments) = take_steps(start, z, flags)
        return from_values(inputs, flags, moments)

    ways = {"values": from_values, "carries": from_carries, "starts": from_starts}
    return ways[recurrence.keeps]


def _loop(
    chunk: Callable, carry: PyTree, xs: PyTree, reverse: bool = False
) -> tuple[PyTree, PyTree]:
    """Runs over chunks as `jax.lax.scan` does; of one chunk it makes no loop."""
    if jax.tree.leaves(xs)[0].shape[0] > 1:
        return jax.lax.scan(chunk, carry, xs, reverse=reverse)
    carry, ys = chunk(carry, jax.tree.map(lambda leaf: leaf[0], xs))
    return carry, jax.tree.map(lambda leaf: leaf[None], ys)
