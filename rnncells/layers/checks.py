"""Checks of what callers pass to layers over sequences."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

PyTree = Any


def check_bools(layer: str, **flags: Any) -> None:
    """Raises TypeError unless every flag is a bool."""
    for name, value in flags.items():
        if not isinstance(value, bool | np.bool_):
            hint = ""
            if name == "time_major":
                hint = (
                    " (The second argument was `cell_size` up to Flax 0.6.11; the size "
                    "belongs to the cell now: RNN(LSTMCell(features)).)"
                )
            raise TypeError(f"`{name}` of {layer} must be a bool, got {value!r}.{hint}")


def check_layout(
    inputs: PyTree, feature_dims: int, time_major: bool
) -> tuple[int, tuple[int, ...]]:
    """Returns the position of the time axis, and the batch and time axes' sizes.

    Args:
      inputs: pytree of arrays, `(*batch, time, *features)` or time first; the first
        leaf has `feature_dims` feature axes, the others any number.
      feature_dims: of the cell.
      time_major: whether time is the first axis.
    """
    leaves = jax.tree.leaves(inputs)
    if not leaves:
        raise ValueError("`inputs` must have at least one array, got none.")
    count = leaves[0].ndim - feature_dims
    if count < 1:
        raise ValueError(
            f"`inputs` must have a time axis and {feature_dims} feature axes, got the "
            f"shape {leaves[0].shape}."
        )
    sizes = leaves[0].shape[:count]
    for leaf in leaves:
        if leaf.shape[:count] != sizes:
            raise ValueError(
                f"all `inputs` must have the same batch and time axes {sizes}, got the "
                f"shape {leaf.shape}."
            )
    return (0 if time_major else count - 1), sizes


def check_steps(name: str, steps: Any, sizes: tuple[int, ...]) -> jax.Array | None:
    """Returns a mask over batch and time as an array, once it is seen to be one."""
    if steps is None:
        return None
    steps = jnp.asarray(steps)
    if steps.dtype != jnp.bool_:
        raise TypeError(f"`{name}` must be boolean, got {steps.dtype}.")
    if steps.shape != sizes:
        raise ValueError(
            f"`{name}` must have the batch and time axes of the inputs, {sizes}, got "
            f"the shape {steps.shape}."
        )
    return steps


def check_lengths(
    seq_lengths: Any, batch: tuple[int, ...], steps: int
) -> jax.Array | None:
    """Returns lengths as an array in `[0, steps]`.

    Values are checked where they are known; under a transformation such as `jit` they
    are not, and a length outside the range is clipped to it.
    """
    if seq_lengths is None:
        return None
    lengths = jnp.asarray(seq_lengths)
    if not jnp.issubdtype(lengths.dtype, jnp.integer):
        raise TypeError(f"`seq_lengths` must be integers, got {lengths.dtype}.")
    if lengths.shape != batch:
        raise ValueError(
            f"`seq_lengths` must have the batch axes of the inputs, {batch}, got the "
            f"shape {lengths.shape}."
        )
    if not isinstance(lengths, jax.core.Tracer):
        values = np.asarray(lengths)
        wrong = np.argwhere((values < 0) | (values > steps))
        if len(wrong):
            index = tuple(wrong[0].tolist())
            raise ValueError(
                f"`seq_lengths` must be in [0, {steps}] (the time axis), got "
                f"{values[index]} at index {index}."
            )
    return jnp.clip(lengths, 0, steps)


def check_kept(cell: str, new: PyTree, old: PyTree) -> None:
    """Raises unless a step kept its carry: structure, shapes, and real or complex."""

    def describe(carry):
        return jax.tree.map(
            lambda leaf: (
                f"{'complex' if jnp.iscomplexobj(leaf) else 'real'}{jnp.shape(leaf)}"
            ),
            carry,
        )

    if describe(old) != describe(new):
        raise ValueError(
            f"`initial_carry` does not fit the inputs: {cell} takes "
            f"{describe(old)} and returns {describe(new)}, but a carry must keep its "
            "structure and shapes."
        )
