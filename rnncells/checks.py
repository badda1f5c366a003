"""Checks of what those who write and use cells pass and return."""

import operator
from typing import Any

import jax
import jax.numpy as jnp

from rnncells.carry import Carry, PyTree


def check_features(name: str, features: Any) -> None:
    """Raises unless the field `features` of a cell is a count, or None."""
    if features is None:
        return
    try:
        is_count = not isinstance(features, bool) and operator.index(features) > 0
    except TypeError as error:
        hint = ""
        if callable(features):
            hint = (
                " (Up to Flax 0.6.11 the first argument of a cell was `gate_fn`: write "
                f"{name}(features, gate_fn=...).)"
            )
        raise TypeError(
            f"`features` of {name} must be an int, or None to take the width of the "
            f"carry, got {features!r}.{hint}"
        ) from error
    if not is_count:
        raise ValueError(f"`features` of {name} must be at least 1, got {features!r}.")


def check_names(method: str, names: tuple[Any, ...]) -> None:
    """Raises unless a method of a cell was given names."""
    if not all(isinstance(name, str) for name in names):
        raise TypeError(
            f"`{method}` must be given names, one after the other, got {names}."
        )
    if not names:
        raise ValueError(f"`{method}` must be given at least one name.")


def check_stepped(name: str, stepped: Any, carry: Carry) -> tuple[Carry, PyTree]:
    """Returns what `recur` returned, if it is a carry of the same shapes, and outputs.

    Args:
      name: of the cell.
      stepped: what `recur` returned.
      carry: what it was given.
    """
    shapes = jax.tree.map(jnp.shape, carry)
    if not isinstance(stepped, tuple) or len(stepped) != 2:
        raise TypeError(
            f"`recur` of {name} must return (new_carry, output), got "
            f"{type(stepped).__name__} {jax.tree.map(jnp.shape, stepped)}."
        )
    new_shapes = jax.tree.map(jnp.shape, stepped[0])
    if new_shapes != shapes:
        raise ValueError(
            f"`recur` of {name} must return (new_carry, output), the carry with the "
            f"shapes that it had, {shapes}, got {new_shapes}."
        )
    return stepped
