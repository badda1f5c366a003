"""A recurrence over time, with lengths, masks, resets and reversal.

What happens at each step is the body of a loop, which the caller chooses.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from chex import ArrayTree
from jax import Array

from rnncells.recurrence import masks

PaddedOutputs = Literal["run", "hold", "zero"]


class Schedule(NamedTuple):
    """Masks of all steps, in the order of processing, see `prepare`.

    The masks are booleans over batch and time; None: true throughout (`reset`: false).
    """

    axis: int  # position of time
    padded_outputs: str
    valid: Array | None
    update: Array | None  # false at the steps that hold the state
    reset: Array | None  # true at the steps before which the carry is reset
    stops_gradient: Array | None = None  # of the carry before the step


class StepInputs(NamedTuple):
    """Inputs and masks of one step, or with a time axis, of all, see `Schedule`."""

    inputs: ArrayTree
    reset: Array | None = None
    update: Array | None = None
    final: Array | None = None  # see `scan`
    stops_gradient: Array | None = None
    reset_carry: ArrayTree = None  # if it differs from step to step


def prepare(
    inputs: ArrayTree,
    axis: int,
    *,
    seq_lengths: Array | None = None,
    mask: Array | None = None,
    resets: Array | None = None,
    reverse: bool = False,
    padded_outputs: str = "run",
    cuts: Array | None = None,
) -> tuple[ArrayTree, Schedule]:
    """Returns the inputs in the order of processing, and the schedule of their steps.

    `axis` is that of time; the other arguments are those of `RNN`, and `cuts` in the
    order of processing. With `padded_outputs='run'`, the cell sees the inputs of padded
    and masked steps, with NaN and infinity replaced by 0, and past a row's end the
    state runs on. Otherwise it sees zeros, and outputs are overwritten.
    """
    unpadded = None
    if seq_lengths is not None:
        steps = jax.tree.leaves(inputs)[0].shape[axis]
        unpadded = masks.before_end(seq_lengths, steps, axis)
        resets = None if resets is None else resets & unpadded
    if reverse:
        if resets is not None:
            resets = masks.boundaries_reversed(resets, axis)
        inputs, mask, resets = masks.flip((inputs, mask, resets), seq_lengths, axis)
    runs_on = padded_outputs == "run"
    valid = masks.both(mask, unpadded)
    if valid is not None:
        inputs = masks.clear_padding(inputs, valid, everything=not runs_on)
    update = mask if runs_on else valid
    stops_gradient = None if cuts is None else masks.effective_cuts(cuts, update, axis)
    return inputs, Schedule(axis, padded_outputs, valid, update, resets, stops_gradient)


class ScanResult(NamedTuple):
    carry: ArrayTree  # after the last valid step
    carries: ArrayTree  # after every step, or None
    outputs: ArrayTree
    certificate: Any = None  # of a loop that has one


def scan(
    loop: Callable,
    reset_carry: ArrayTree,
    carry: ArrayTree,
    inputs: ArrayTree,
    schedule: Schedule,
    *,
    keep_final: bool = True,
    keep_all: bool = False,
) -> ScanResult:
    """Runs a step function over time; `keep_all` keeps the carry after every step.

    `loop(body, reset_carry, carry, xs)` runs `body(step, reset_carry, carry, x)` over
    the first axis of `xs` as `jax.lax.scan` does, with `step(carry, x) -> (carry,
    output)`. Its outputs can be followed by a certificate.
    """
    valid, update = schedule.valid, schedule.update
    # Where the state runs on past the end of a row, the carry after the last `final`
    # step is kept apart.
    has_final = valid is not update and (keep_final or keep_all)
    carry = carry, carry if has_final else None
    is_final = valid
    if valid is not None and schedule.reset is not None:
        is_final = valid | schedule.reset  # a masked step can have a reset
    is_final = is_final if has_final else None
    xs = StepInputs(inputs, schedule.reset, update, is_final, schedule.stops_gradient)
    xs = _move_axis(xs, schedule.axis, 0)
    (state, final), ys = loop(Body(keep_all), reset_carry, carry, xs)
    history, outputs, *certificate = ys
    history, outputs = _move_axis((history, outputs), 0, schedule.axis)
    last = final if has_final else state
    return ScanResult(last, history, _pad(outputs, schedule), *certificate)


def _move_axis(tree: Any, source: int, target: int) -> Any:
    if source == target:
        return tree
    return jax.tree.map(lambda leaf: jnp.moveaxis(leaf, source, target), tree)


class Body(NamedTuple):
    keep_all: bool

    def __call__(
        self,
        step: Callable,
        reset_carry: Any,
        carry: tuple[Any, Any],
        step_inputs: StepInputs,
    ) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
        state, final = carry
        x, reset, update, is_final, stops_gradient, reset_to = step_inputs
        if stops_gradient is not None:
            state = masks.select(stops_gradient, jax.lax.stop_gradient(state), state)
        if reset is not None:
            reset_to = reset_carry if reset_to is None else reset_to
            state = masks.select(reset, reset_to, state)
        new, output = step(state, x)
        if update is not None:
            new = masks.select(update, new, state)
        if is_final is not None:
            final = masks.select(is_final, new, final)
        returned = new if is_final is None else final
        return (new, final), (returned if self.keep_all else None, output)


def _pad(outputs: ArrayTree, schedule: Schedule) -> ArrayTree:
    """Replaces outputs of padded steps by zeros or by the last valid output."""
    valid = schedule.valid
    if valid is None or schedule.padded_outputs == "run":
        return outputs
    if schedule.padded_outputs == "hold":
        last = masks.last_valid(valid, schedule.axis)
        outputs = masks.gather_time(outputs, jnp.maximum(last, 0), schedule.axis)
        valid = last >= 0
    zeros = jax.tree.map(jnp.zeros_like, outputs)
    return masks.select(valid, outputs, zeros, "the outputs")
