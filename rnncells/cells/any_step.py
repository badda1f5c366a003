"""One step of any cell, and the argument `deterministic` of any module."""

import inspect
from collections.abc import Callable
from typing import Any

import chex
import flax.linen as nn

from rnncells.cells.any_cell import is_cell
from rnncells.cells.base import RNNCellBase
from rnncells.cells.carry import Carry, cast_like
from rnncells.cells.checks import check_kept, check_returned


def apply_step(
    cell: nn.Module,
    carry: Carry,
    inputs: chex.ArrayTree,
    deterministic: bool | None = None,
) -> tuple[Carry, chex.ArrayTree]:
    """Applies one step of any cell; casts the new carry to the dtypes of the old.

    Args:
      cell: the cell, bound.
      carry: carry before the step.
      inputs: one step of input.
      deterministic: overrides the field of our cells; passed to other cells if they
        take this argument.
    """
    name = type(cell).__name__
    if isinstance(cell, RNNCellBase):
        cell = cell._with_deterministic(deterministic)
        if hasattr(type(cell), "deterministic"):
            deterministic = None  # under `nn.remat`, an argument would be an array
    result = cell(carry, inputs, **deterministic_option(cell, deterministic))
    new, output = check_returned("__call__", name, result)
    check_kept(name, new, carry)
    return cast_like(new, carry), output


def deterministic_option(module: Any, deterministic: bool | None) -> dict[str, bool]:
    """Returns `deterministic` as an argument of a call, if the callee takes it.

    Args:
      module: a cell, another module, or a function, which does not take it.
      deterministic: the argument; None: it is not given.

    Raises:
      TypeError: the module has a field `deterministic`, but its call does not take it.
    """
    if deterministic is None or not isinstance(module, nn.Module):
        return {}
    call = type(module).__call__
    # A cell with `**kwargs` wraps another cell. (`nn.Sequential` has them, too, but its
    # layers need not take the argument.)
    is_wrapper = is_cell(module) and takes_any_keyword(call)
    if is_wrapper or "deterministic" in inspect.signature(call).parameters:
        return {"deterministic": deterministic}
    if hasattr(type(module), "deterministic"):
        name = type(module).__name__
        raise TypeError(
            f"`deterministic` was passed to a layer of {name}, which has a field "
            "`deterministic`, but does not take it in its call. Add the argument "
            f"`deterministic=None` to `{name}.__call__`, or set only the field."
        )
    return {}


def takes_any_keyword(function: Callable) -> bool:
    """Says whether a function has a parameter such as `**kwargs`."""
    parameters = inspect.signature(function).parameters.values()
    return any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)


def without_dropout(function: Callable) -> dict[str, bool]:
    """Returns deterministic=True for a function, unless its own field decides."""
    is_decided = getattr(function, "deterministic", None) is not None
    return {} if is_decided else deterministic_option(function, True)
