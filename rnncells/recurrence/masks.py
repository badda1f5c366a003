"""Selection of rows and steps by boolean masks over the batch and time axes.

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
    """Selects one of two pytrees of `(*batch, ...)` for each row of the batch."""

    def choose(a: Array, b: Array) -> Array:
        if jnp.shape(a)[: mask.ndim] != mask.shape:
            raise ValueError(
                "With lengths, masks, resets or TruncatedBptt, every array of "
                f"{name} must begin with the axes {mask.shape} of the inputs, got the "
                f"shape {jnp.shape(a)}. A cell must return arrays of (*batch, ...)."
            )
        return jnp.where(expand_right(mask, jnp.ndim(a)), a, b)

    return jax.tree.map(choose, where_true, where_false)


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
