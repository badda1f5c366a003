"""Lengths, masks, resets and reversal as boolean arrays over `(*batch, time)`.

`axis` is the position of time. Inputs and carries have feature axes on the right.
"""

import jax
import jax.numpy as jnp
from chex import ArrayTree
from jax import Array


def expand_right(mask: Array, ndim: int) -> Array:
    return jax.lax.expand_dims(mask, range(mask.ndim, ndim))


def select(
    mask: Array, where_true: ArrayTree, where_false: ArrayTree, name: str = "the carry"
) -> ArrayTree:
    """Selects one of two pytrees of `(*batch, ...)` for each row of the batch.

    Raises ValueError if a leaf does not begin with the axes of the mask, `(*batch,)`.
    """

    def choose(a: Array, b: Array) -> Array:
        if jnp.shape(a)[: mask.ndim] != mask.shape:
            raise ValueError(
                "With lengths, masks, resets or TruncatedBptt, every array of "
                f"{name} must begin with the axes {mask.shape} of the inputs, got the "
                f"shape {jnp.shape(a)}. A cell must return arrays of (*batch, ...)."
            )
        return jnp.where(expand_right(mask, jnp.ndim(a)), a, b)

    return jax.tree.map(choose, where_true, where_false)


def before_end(seq_lengths: Array, steps: int, axis: int) -> Array:
    """Returns true at the steps before each row's length: `(*batch, time)`."""
    lengths = jnp.expand_dims(seq_lengths, axis)
    shape = _with_time(lengths, steps, axis)
    return jax.lax.broadcasted_iota(jnp.int32, shape, axis) < lengths


def both(first: Array | None, second: Array | None) -> Array | None:
    """Returns where two masks are true; None is true throughout."""
    if first is None or second is None:
        return second if first is None else first
    return first & second


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


def last_valid(valid: Array, axis: int) -> Array:
    """Returns the index of the last valid step so far, -1 before the first."""
    index = jax.lax.broadcasted_iota(jnp.int32, valid.shape, axis)
    return jax.lax.cummax(jnp.where(valid, index, -1), axis)


def up_to_valid(valid: Array, history: ArrayTree, before: ArrayTree) -> ArrayTree:
    """Returns at each step the carry after the last valid step so far, or `before`."""
    last = last_valid(valid, 0)
    valid_carry = gather_time(history, jnp.maximum(last, 0), 0)
    before = jax.tree.map(lambda b, h: jnp.broadcast_to(b, h.shape), before, history)
    return select(last >= 0, valid_carry, before)


def gather_time(tree: ArrayTree, index: Array, axis: int) -> ArrayTree:
    def gather(leaf: Array) -> Array:
        return jnp.take_along_axis(leaf, expand_right(index, leaf.ndim), axis)

    return jax.tree.map(gather, tree)


def flip(tree: ArrayTree, seq_lengths: Array | None, axis: int) -> ArrayTree:
    """Reverses time; with lengths, reverses the valid part and leaves padding last."""
    if seq_lengths is None:
        return jax.tree.map(lambda leaf: jnp.flip(leaf, axis), tree)
    leaves = jax.tree.leaves(tree)
    if not leaves or leaves[0].shape[axis] == 0:
        return tree
    steps = leaves[0].shape[axis]
    lengths = jnp.expand_dims(seq_lengths, axis)
    index = jax.lax.broadcasted_iota(jnp.int32, _with_time(lengths, steps, axis), axis)
    return gather_time(tree, (lengths - 1 - index) % steps, axis)


def boundaries_reversed(resets: Array, axis: int) -> Array:
    """Returns where a pass from right to left enters a sequence: at its last step."""
    last = jax.lax.broadcasted_iota(jnp.int32, resets.shape, axis) == (
        resets.shape[axis] - 1
    )
    return jnp.roll(resets, -1, axis) & ~last


def clear_padding(tree: ArrayTree, valid: Array, everything: bool) -> ArrayTree:
    """Replaces inputs of invalid steps by 0; without `everything`, NaN and infinity.

    Although the cotangent of an invalid step is 0, a NaN in its input would reach the
    gradients of the weights, because `0 * nan` is NaN.
    """

    def clear(leaf: Array) -> Array:
        keep = expand_right(valid, leaf.ndim)
        if not everything:
            if not jnp.issubdtype(leaf.dtype, jnp.inexact):
                return leaf
            keep = keep | jnp.isfinite(leaf)
        return jnp.where(keep, leaf, jnp.zeros_like(leaf))

    return jax.tree.map(clear, tree)


def _with_time(array: Array, steps: int, axis: int) -> tuple[int, ...]:
    return (*array.shape[:axis], steps, *array.shape[axis + 1 :])
