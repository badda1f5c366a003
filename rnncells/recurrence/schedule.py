"""The way of sequences to a loop over time, and of its results back.

`prepare` turns lengths, masks, resets and reversal into boolean arrays, and moves time
to the front. `Schedule.results` reverses all of this. The caller chooses the loop.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from chex import ArrayTree
from jax import Array

from rnncells.recurrence import masks
from rnncells.recurrence.pytrees import StructTree

PaddedOutputs = Literal["run", "hold", "zero"]


class Call(NamedTuple):
    """The arguments of a call of `RNN`, `RNN.step` or `RNN.decode`, checked.

    The input of one step has a time axis of size 1 in front.
    """

    inputs: ArrayTree
    sizes: tuple[int, ...] = ()  # of the batch and time axes
    axis: int = 0  # position of time
    batch: tuple[int, ...] = ()
    sample: StructTree = None  # one step of input, as shapes and dtypes
    seq_lengths: Array | None = None  # of `batch`
    mask: Array | None = None  # of `sizes`, as `resets`
    resets: Array | None = None
    reverse: bool = False
    keep_order: bool = False
    padded_outputs: PaddedOutputs = "run"
    return_carry: bool = True
    return_all_carries: bool = False
    return_certificate: bool = False
    deterministic: bool | None = None


class LoopCarry(NamedTuple):
    """The carry of a loop: the cell's, and the one that is returned, if they differ.

    Where the state runs on past the end of a row, `final` is the carry after the last
    step that counts; otherwise None.
    """

    state: ArrayTree
    final: ArrayTree | None = None


class StepInputs(NamedTuple):
    """Inputs of one step and its masks, or with a time axis, of all steps.

    The masks are booleans over the batch; None: true throughout (`reset`: false).
    """

    inputs: ArrayTree
    reset: Array | None = None  # true where the carry is reset before the step
    update: Array | None = None  # false where the step holds the carry
    final: Array | None = None  # true where `LoopCarry.final` is updated
    stops_gradient: Array | None = None  # of the carry before the step
    reset_carry: ArrayTree = None  # if it differs from step to step


class Results(NamedTuple):
    """The results of a loop, as its caller gets them."""

    carry: ArrayTree  # after the last valid step
    carries: ArrayTree  # after every step, or None
    outputs: ArrayTree
    certificate: Any = None  # of a loop that has one


class Schedule(NamedTuple):
    """The operands of a loop, with time first; see `prepare`."""

    call: Call
    carry: LoopCarry
    xs: StepInputs
    body: "Body"
    valid: Array | None  # in the order of processing, as in `Call.mask`

    def results(self, last: tuple[Any, Any], ys: tuple) -> Results:
        """Returns the results of a loop with time at its place.

        `ys` is `(history, outputs)`, time first, and can be followed by a certificate.
        """
        call, (history, outputs, *certificate) = self.call, ys
        history, outputs = move_axis((history, outputs), 0, call.axis)
        if self.valid is not None and call.padded_outputs != "run":
            outputs = _pad(outputs, self.valid, call)
        if call.reverse and call.keep_order:
            history, outputs = flip((history, outputs), call.seq_lengths, call.axis)
        state, final = last
        carry = state if self.carry.final is None else final
        return Results(carry, history, outputs, *certificate)


def prepare(call: Call, carry: ArrayTree, cuts: Array | None = None) -> Schedule:
    """Returns the operands of a loop, from a call and the carry before its first step.

    With `padded_outputs='run'`, the cell sees the inputs of padded and masked steps,
    with NaN and infinity replaced by 0, and past a row's end the state runs on.
    Otherwise it sees zeros, and outputs are overwritten. `cuts`, in the order of
    processing, are true at the steps before which the gradient is cut.
    """
    inputs, mask, resets, axis = call.inputs, call.mask, call.resets, call.axis
    unpadded = None
    if call.seq_lengths is not None:
        unpadded = before_end(call.seq_lengths, call.sizes, axis)
        resets = None if resets is None else resets & unpadded
    if call.reverse:
        if resets is not None:
            resets = boundaries_reversed(resets, axis)
        inputs, mask, resets = flip((inputs, mask, resets), call.seq_lengths, axis)
    runs_on = call.padded_outputs == "run"
    valid = both(mask, unpadded)
    if valid is not None:
        inputs = clear_padding(inputs, valid, everything=not runs_on)
    update = mask if runs_on else valid
    stops_gradient = None if cuts is None else effective_cuts(cuts, update, axis)
    final, keeps_carries = None, call.return_carry or call.return_all_carries
    if valid is not None and valid is not update and keeps_carries:
        # A masked step can have a reset.
        final = valid if resets is None else valid | resets
    xs = StepInputs(inputs, resets, update, final, stops_gradient)
    loop_carry = LoopCarry(carry, None if final is None else carry)
    body = Body(call.return_all_carries)
    return Schedule(call, loop_carry, move_axis(xs, axis, 0), body, valid)


class Body(NamedTuple):
    """The body of a loop over time: reset, step, hold.

    `step` is `(carry, inputs) -> (carry, output)`. Returns the carry after the step,
    and `(carry or None, output)` for the history of all steps.
    """

    keep_all: bool

    def __call__(
        self,
        step: Callable,
        reset_carry: ArrayTree,
        carry: tuple[Any, Any],
        step_inputs: StepInputs,
    ) -> tuple[LoopCarry, tuple[Any, Any]]:
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
        return LoopCarry(new, final), (returned if self.keep_all else None, output)


def move_axis(tree: Any, source: int, target: int) -> Any:
    """Moves an axis of every leaf."""
    if source == target:
        return tree
    return jax.tree.map(partial(jnp.moveaxis, source=source, destination=target), tree)


def before_end(seq_lengths: Array, sizes: tuple[int, ...], axis: int) -> Array:
    """Returns true at the steps before each row's length; time is `axis` of `sizes`."""
    steps = jax.lax.broadcasted_iota(jnp.int32, sizes, axis)
    return steps < jnp.expand_dims(seq_lengths, axis)


def both(first: Array | None, second: Array | None) -> Array | None:
    """Returns where two masks are true; None is true throughout."""
    if first is None or second is None:
        return second if first is None else first
    return first & second


def clear_padding(tree: ArrayTree, valid: Array, everything: bool) -> ArrayTree:
    """Replaces inputs of invalid steps by 0; without `everything`, NaN and infinity.

    Although the cotangent of an invalid step is 0, a NaN in its input would reach the
    gradients of the weights, because `0 * nan` is NaN.
    """

    def clear(leaf: Array) -> Array:
        keep = masks.expand_right(valid, leaf.ndim)
        if not everything:
            if not jnp.issubdtype(leaf.dtype, jnp.inexact):
                return leaf
            keep = keep | jnp.isfinite(leaf)
        return jnp.where(keep, leaf, jnp.zeros_like(leaf))

    return jax.tree.map(clear, tree)


def flip(tree: ArrayTree, seq_lengths: Array | None, axis: int) -> ArrayTree:
    """Reverses time; with lengths, reverses the valid part and leaves padding last."""
    if seq_lengths is None:
        return jax.tree.map(lambda leaf: jnp.flip(leaf, axis), tree)
    leaves = jax.tree.leaves(tree)
    if not leaves or leaves[0].shape[axis] == 0:
        return tree
    steps, lengths = leaves[0].shape[axis], jnp.expand_dims(seq_lengths, axis)
    sizes = (*seq_lengths.shape[:axis], steps, *seq_lengths.shape[axis:])
    index = jax.lax.broadcasted_iota(jnp.int32, sizes, axis)
    return masks.gather_time(tree, (lengths - 1 - index) % steps, axis)


def boundaries_reversed(resets: Array, axis: int) -> Array:
    """Returns where a pass from right to left enters a sequence: at its last step."""
    step = jax.lax.broadcasted_iota(jnp.int32, resets.shape, axis)
    return jnp.roll(resets, -1, axis) & (step < resets.shape[axis] - 1)


def effective_cuts(cuts: Array, update: Array | None, axis: int) -> Array:
    """Moves cuts at steps that hold the carry to the row's next step that updates it.

    So the gradient of a final carry that is held to the end is not cut.
    """
    if update is None:
        return cuts
    seen = jnp.cumsum(cuts, axis, dtype=jnp.int32)
    served = jax.lax.cummax(jnp.where(update, seen, 0), axis)
    served_before = jnp.roll(served, 1, axis)
    first = jax.lax.broadcasted_iota(jnp.int32, seen.shape, axis) == 0
    return update & (seen > jnp.where(first, 0, served_before))


def _pad(outputs: ArrayTree, valid: Array, call: Call) -> ArrayTree:
    """Replaces outputs of padded steps by zeros or by the last valid output."""
    if call.padded_outputs == "hold":
        last = masks.last_valid(valid, call.axis)
        outputs = masks.gather_time(outputs, jnp.maximum(last, 0), call.axis)
        valid = last >= 0
    zeros = jax.tree.map(jnp.zeros_like, outputs)
    return masks.select(valid, outputs, zeros, "the outputs")
