"""The loop of a causal convolution: its carries are inputs, known before it runs."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from rnncells.cells.carry import cast_like
from rnncells.cells.causal_conv import CausalConvCell
from rnncells.loops.linear import ParallelLoop, last_step
from rnncells.loops.request import StepRequest
from rnncells.recurrence import masks
from rnncells.recurrence.schedule import StepInputs


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
            return (last_step(after), final), (carries, outputs)

        if request.option("memory") != "full":
            # The residuals are the inputs alone, without the windows.
            run = jax.checkpoint(run, prevent_cse=False)
        return run(request.carry, request.xs)


def _windows(window: Array, reset_window: Any, xs: StepInputs) -> Array:
    """Returns the carry before each step, `(time, *batch, size, features)`.

    The carries before the first step and after a reset are `(*batch, size, features)`.
    """
    x, size = xs.inputs.astype(window.dtype), window.shape[-2]
    steps = x.shape[0]
    if xs.update is None and xs.reset is None:
        padded = jnp.concatenate([jnp.moveaxis(window, -2, 0), x])
        return jnp.stack([padded[j : j + steps] for j in range(size)], -2)
    time = jax.lax.broadcasted_iota(jnp.int32, x.shape[:-1], 0)
    # Of each step: the number of inputs since the start of its sequence, and the last
    # step before it that is an input.
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
    lags, step = [], time
    for lag in range(1, size + 1):
        step = masks.gather_time(last_input, jnp.maximum(step, 0), 0)
        from_inputs = masks.gather_time(x, jnp.maximum(step, 0), 0)
        index = jnp.clip(size - lag + count, 0, size - 1)
        from_start = jnp.take_along_axis(start, index[..., None, None], -2)[..., 0, :]
        lags.append(masks.select(lag <= count, from_inputs, from_start))
    return jnp.stack(lags[::-1], -2)
