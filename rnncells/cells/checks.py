"""Checks of the arguments and results of cells."""

import operator
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

from rnncells.cells.carry import Carry


def check_fields(cell: Any) -> None:
    """Raises an error unless `features` is a count and activations are functions."""
    name = type(cell).__name__
    check_features(name, getattr(cell, "features", None))
    for field in ("gate_fn", "activation_fn"):
        function = getattr(cell, field, len)
        if not callable(function):
            raise TypeError(
                f"`{field}` of {name} must be a function, got {function!r}. The width "
                "of the inputs is not an argument: cells read it from the inputs."
            )


def check_features(name: str, features: Any) -> None:
    """Raises an error unless the field `features` of a cell is a count, or None."""
    if features is None:
        return
    try:
        is_count = not isinstance(features, bool) and operator.index(features) > 0
    except TypeError as error:
        hint = ""
        if callable(features):
            hint = (
                " Up to Flax 0.6.11, the first argument of a cell was `gate_fn`: "
                f"write {name}(features, gate_fn=...)."
            )
        raise TypeError(
            f"`features` of {name} must be an int, or None to take the width of the "
            f"carry, got {features!r}.{hint}"
        ) from error
    if not is_count:
        raise ValueError(f"`features` of {name} must be at least 1, got {features!r}.")


def check_count(name: str, field: str, value: Any, least: int = 1) -> None:
    """Raises an error unless a field or an argument is an int of at least `least`."""
    if not isinstance(value, int | np.integer) or isinstance(value, bool):
        raise TypeError(f"`{field}` of {name} must be an int, got {value!r}.")
    if value < least:
        raise ValueError(f"`{field}` of {name} must be at least {least}, got {value}.")


def check_projection(name: str, proj_features: Any, features: Any) -> None:
    """Raises an error unless `proj_features` is less than `features`."""
    if features is None:
        raise TypeError(f"`features` of {name} must be an int, got None.")
    check_features(name, features)
    check_count(name, "proj_features", proj_features)
    if proj_features >= features:
        raise ValueError(
            f"`proj_features` of {name} must be less than `features` {features}, got "
            f"{proj_features}."
        )


def check_rate(name: str, field: str, rate: Any) -> None:
    """Raises an error unless a dropout rate is a number in [0, 1)."""
    if isinstance(rate, bool) or not isinstance(rate, int | float | np.number):
        raise TypeError(f"`{field}` of {name} must be a number, got {rate!r}.")
    if not 0 <= rate < 1:
        raise ValueError(f"`{field}` of {name} must be in [0, 1), got {rate!r}.")


def check_inner_cell(name: str, cell: Any) -> None:
    """Raises an error unless `cell` has `project`, `recur` and `features`."""
    if not hasattr(cell, "recur"):
        raise TypeError(
            f"`cell` of {name} must be a cell with `project` and `recur`, got {cell!r}."
        )
    if getattr(cell, "features", 0) is None:
        raise TypeError(f"`features` of the cell of {name} must be an int, got None.")


def check_names(method: str, names: tuple[Any, ...]) -> None:
    """Raises an error unless a method of a cell was called with names."""
    if not all(isinstance(name, str) for name in names):
        raise TypeError(
            f"`{method}` takes names as separate arguments, for example "
            f"{method}('i', 'h'), got {names}."
        )
    if not names:
        raise ValueError(f"`{method}` needs at least one name, got none.")


def check_stepped(
    name: str, stepped: Any, carry: Carry
) -> tuple[Carry, chex.ArrayTree]:
    """Returns the result of `recur`, or raises an error if it is malformed.

    Args:
      name: name of the cell.
      stepped: result of `recur`, which must be `(new_carry, output)`.
      carry: carry before the step.
    """
    shapes = jax.tree.map(jnp.shape, carry)
    new_carry, output = check_returned("recur", name, stepped)
    new_shapes = jax.tree.map(jnp.shape, new_carry)
    if new_shapes != shapes:
        raise ValueError(
            f"`recur` of {name} must return (new_carry, output), a new carry with the "
            f"shapes of the old, {shapes}, got {new_shapes}."
        )
    return new_carry, output


def check_returned(method: str, name: str, returned: Any) -> tuple[Any, Any]:
    """Returns the result of a step, or raises TypeError unless it is a pair.

    Args:
      method: name of the method that took the step.
      name: name of the cell.
      returned: result of the method, which must be `(new_carry, output)`.
    """
    if isinstance(returned, tuple) and len(returned) == 2:
        return returned
    shapes = jax.tree.map(jnp.shape, returned)
    is_array = hasattr(returned, "shape")
    got = "an array of shape" if is_array else type(returned).__name__
    raise TypeError(
        f"`{method}` of {name} must return (new_carry, output), got {got} {shapes}."
    )
