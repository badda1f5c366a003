"""A recurrence over time, with lengths, masks, resets and reversal.

What happens at each step is written here, once, as the body of a loop. Which loop runs
it is the caller's choice: that of JAX, or that of engine.py.
"""

from collections.abc import Callable
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from rnncells.recurrence import masks

PADDED_OUTPUTS = ("run", "hold", "zero")


class Schedule(NamedTuple):
    """What happens at each step, in the order of processing.

    The arrays are booleans over batch and time, None where they are true (`restarts`:
    false) throughout.

    Attributes:
      axis: position of the time axis.
      padded_outputs: outputs at padded and masked steps, see `arrange`.
      counts: true at valid steps.
      moves: true at the steps that update the state; other steps hold it.
      restarts: true at the steps before which the carry is reset.
    """

    axis: int
    padded_outputs: str
    counts: jax.Array | None
    moves: jax.Array | None
    restarts: jax.Array | None


def arrange(
    inputs: chex.ArrayTree,
    axis: int,
    *,
    seq_lengths: jax.Array | None = None,
    mask: jax.Array | None = None,
    resets: jax.Array | None = None,
    reverse: bool = False,
    padded_outputs: str = "run",
) -> tuple[chex.ArrayTree, Schedule]:
    """Returns the inputs in the order of processing, and the schedule of their steps.

    Args:
      inputs: pytree of `(*batch, time, ...)`, `axis` being the position of time.
      axis: position of the time axis.
      seq_lengths: integers `(*batch,)` in `[0, time]`.
      mask: booleans `(*batch, time)`, false at steps to skip.
      resets: booleans `(*batch, time)`, true at the first step of each sequence.
      reverse: whether time goes from right to left.
      padded_outputs: `'run'`: at padded and masked steps the cell sees the inputs, with
        NaN and infinity replaced by 0, and past a row's end the state runs on.
        `'hold'`, `'zero'`: the cell sees zeros, and outputs are overwritten.
    """
    runs_on = padded_outputs == "run"
    unpadded = None
    if seq_lengths is not None:
        steps = jax.tree.leaves(inputs)[0].shape[axis]
        unpadded = masks.before_end(seq_lengths, steps, axis)
        resets = None if resets is None else resets & unpadded
    if reverse:
        if resets is not None:
            resets = masks.boundaries_reversed(resets, axis)
        inputs, mask, resets = masks.flip((inputs, mask, resets), seq_lengths, axis)
    counts = mask
    if unpadded is not None:
        # Padding stays at the end when the valid part is reversed.
        counts = unpadded if mask is None else mask & unpadded
    if counts is not None:
        inputs = masks.clear_padding(inputs, counts, everything=not runs_on)
    if resets is not None:
        resets = masks.restarts(resets, counts, axis)
    moves = mask if runs_on else counts
    return inputs, Schedule(axis, padded_outputs, counts, moves, resets)


def scan(
    loop: Callable,
    fresh: chex.ArrayTree,
    carry: chex.ArrayTree,
    inputs: chex.ArrayTree,
    schedule: Schedule,
    *,
    keep_final: bool = True,
    keep_all: bool = False,
) -> tuple[chex.ArrayTree, chex.ArrayTree, chex.ArrayTree]:
    """Runs a step function over time.

    Args:
      loop: `loop(body, fresh, carry, xs)` runs `body(step, fresh, carry, x)` over the
        time axis of `xs` as `jax.lax.scan` does, with `step(carry, x) -> (carry,
        output)`.
      fresh: carry at restarts, pytree of `(*batch, ...)`; None without.
      carry: carry before the first step, the same.
      inputs: as returned by `arrange`.
      schedule: as returned by `arrange`.
      keep_final: whether the final carry is wanted.
      keep_all: whether the carry after every step is wanted.

    Returns:
      The carry after the last valid step, the carries after every step (or None), and
      the outputs, in the order of processing.
    """
    # Where the state runs on past the end of a row, what is returned is kept apart.
    apart = schedule.counts is not schedule.moves and (keep_final or keep_all)

    def body(step, fresh, carry, now):
        state, final = carry
        x, restart, moves, counts = now
        if restart is not None:
            state = masks.select(restart, fresh, state)
        new, output = step(state, x)
        if moves is not None:
            new = masks.select(moves, new, state)
        if apart:
            final = masks.select(counts, new, final)
        history = (final if apart else new) if keep_all else None
        return (new, final), (history, output)

    counts = schedule.counts if apart else None
    (state, final), (history, outputs) = loop(
        body,
        fresh,
        (carry, carry if apart else None),
        (inputs, schedule.restarts, schedule.moves, counts),
    )
    return final if apart else state, history, _pad(outputs, schedule)


def _pad(outputs: chex.ArrayTree, schedule: Schedule) -> chex.ArrayTree:
    """Replaces outputs of padded steps by zeros or by the last valid output."""
    counts = schedule.counts
    if counts is None or schedule.padded_outputs == "run":
        return outputs
    if schedule.padded_outputs == "hold":
        last = masks.last_valid(counts, schedule.axis)
        outputs = masks.gather_time(outputs, jnp.maximum(last, 0), schedule.axis)
        counts = last >= 0
    return masks.select(counts, outputs, jax.tree.map(jnp.zeros_like, outputs))
