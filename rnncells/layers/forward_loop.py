"""The loop of a layer whose gradient is carried forward in time."""

from collections.abc import Callable
from typing import Any

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp

from rnncells.cells.any_cell import feature_dims
from rnncells.cells.carry import Carry
from rnncells.layers.independent_rows import check_independent_rows
from rnncells.layers.loops import (
    PureStep,
    plain_loop,
    pure_step,
    run_fast,
)
from rnncells.layers.rng_streams import set_counters
from rnncells.layers.rows import Batch, row_problem
from rnncells.recurrence.chunks import Segment, split_time
from rnncells.recurrence.forward import run as forward
from rnncells.recurrence.forward.rows import NondiffLeaves, join, mark_carry
from rnncells.recurrence.pytrees import combine, structs


def forward_loop(rnn: nn.Module, axis: int, step: Callable) -> Callable:
    """Returns a loop over time whose gradient is that of the layer's forward method.

    Args:
      rnn: the layer, bound.
      axis: position of the time axis.
      step: `(cell, carry, inputs) -> (carry, output)`, see `apply_step`.
    """
    plain = plain_loop(rnn, axis, step)
    if rnn.is_initializing():
        return plain

    def loop(body: Callable, reset_carry: Any, carry: tuple, xs: Any) -> tuple:
        by_time = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, axis, 0), xs)
        (first, *_) = jax.tree.leaves(by_time)
        if not first.shape[0] * sum(map(jnp.size, jax.tree.leaves(carry))):
            # There is no influence to carry.
            return plain(body, reset_carry, carry, xs)
        pure = require_pure_step(
            rnn, gradient_option(rnn), carry, by_time, body, reset_carry, marked(step)
        )
        set_counters(pure.counters, rnn.cell.scope.rng_counters)
        rows = Batch(first.shape[1 : first.ndim - feature_dims(rnn.cell)])
        check_independent_rows(type(rnn.cell).__name__, rows, pure, carry)
        carry, (ys, _) = _run_forward(rnn, rows, pure, carry)
        return carry, jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, axis), ys)

    return loop


def gradient_option(rnn: nn.Module) -> tuple[str, str]:
    """Returns the option of a layer that needs a pure step, and what to use instead."""
    return f"gradient={rnn.gradient}", "gradient=Bptt()"


def require_pure_step(
    rnn: nn.Module, option: tuple[str, str], carry: tuple, xs: tuple, *args: Any
) -> PureStep:
    """Returns the step of a layer's cell, or raises an error; see `pure_step`.

    Args:
      rnn: the layer, bound.
      option: the option that needs the step, and its replacement.
      carry: as for `pure_step`.
      xs: as for `pure_step`.
      *args: as for `pure_step`.
    """
    pure, reason = pure_step(rnn, carry, xs, *args)
    needs, instead = option
    names = ("random_bits", "threefry2x32", "rng_bit_generator", "rng_uniform")
    draws = reason is not None and reason.startswith("needs each random stream")
    if pure is not None:
        equations = pure.step.jaxpr.eqns
        draws = any(e.primitive.name in names for e in equations)
    if draws:
        raise ValueError(
            f"{needs} of RNN needs a step that draws no random numbers, got "
            f"{type(rnn.cell).__name__}. Pass deterministic=True, or use {instead}."
        )
    if pure is None:
        raise ValueError(
            f"{needs} of RNN needs the step as a pure function, which {reason} Use "
            f"{instead} for this cell."
        )
    traced = [c for c in pure.step.captured_arrays if isinstance(c, jax.core.Tracer)]
    if traced:
        raise ValueError(
            f"{needs} of RNN needs a step that reads only parameters, its carry and "
            f"its inputs, got {type(rnn.cell).__name__}, which closes over a traced "
            f"array of shape {traced[0].shape}, such as an argument of a function in "
            "`jax.jit` or `jax.grad`. Make the array a parameter or an input of the "
            f"cell, or use {instead}."
        )
    return pure


def marked(step: Callable) -> Callable:
    """Returns a step that marks the carry after it."""

    def call(cell: nn.Module, carry: Carry, inputs: chex.ArrayTree) -> tuple:
        carry, output = step(cell, carry, inputs)
        return mark_carry(carry), output

    return call


def random_keys(rnn: nn.Module, batch: Batch) -> tuple[jax.Array, ...]:
    """Returns a raw random key for each row, if the layer's method draws numbers.

    Values need no key, so a missing one is an error of the gradient alone.
    """
    stream = rnn.gradient.rng_stream
    if stream is None or not rnn.has_rng(stream):
        return ()
    return (jax.random.bits(rnn.make_rng(stream), (batch.count, 2), jnp.uint32),)


def _run_forward(
    rnn: nn.Module, batch: Batch, pure: PureStep, carry: chex.ArrayTree
) -> tuple[chex.ArrayTree, chex.ArrayTree]:
    """Returns the last carry and the outputs, `(time, *batch, ...)`."""
    step, operands, constants = row_problem(batch, pure, carry)
    shapes = structs((pure.consts[0], batch.to_rows(pure.consts[1])))
    steps, block = jax.tree.leaves(pure.xs)[0].shape[0], rnn.gradient.block()
    # JAX keeps `values`: arrays of this trace would leak.
    without_arrays, (layer, _) = pure._replace(consts=None, xs=None), rnn.unbind()

    def values(
        operands: forward.DiffOperands, constants: forward.NondiffOperands
    ) -> tuple[chex.ArrayTree, chex.ArrayTree]:
        shared = join(operands.shared, shapes[0], constants.shared)
        reset_rows = join(operands.per_row, shapes[1], constants.per_row)
        consts = shared, batch.from_rows(reset_rows)
        rest = NondiffLeaves(None, constants.carry)
        carry = batch.from_rows(jax.vmap(step.carry)(operands.s, rest))
        inputs, keys = combine(operands.x, constants.x)
        keys = jax.tree.map(lambda leaf: leaf[:, 0], keys)
        xs = batch.from_rows(inputs, 1), keys
        pure = without_arrays._replace(consts=consts, xs=xs)
        last, outputs = run_fast(layer, pure, carry)
        return batch.to_rows(last), batch.to_rows(outputs, 1)

    last, outputs = forward.run(
        values,
        step,
        rnn.gradient.method,
        split_time(steps, block) if block > 1 else (Segment(0, steps, 1),),
        operands,
        constants,
        random_keys(rnn, batch),
    )
    return batch.from_rows(last), batch.from_rows(outputs, 1)
