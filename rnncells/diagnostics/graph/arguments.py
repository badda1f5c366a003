"""The arguments of a function: their names, and which require gradients."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from rnncells.recurrence.pytrees import is_inexact


class Argument(NamedTuple):
    """A leaf of the arguments.

    Attributes:
      name: its name.
      requires: whether it requires a gradient.
      device: where it is.
    """

    name: str
    requires: bool
    device: str | None = None


def argument_leaves(
    trees: Sequence[Any], names: Sequence[str], requires: Sequence[Sequence[bool]]
) -> list[Argument]:
    """Returns the leaves of arguments, in the order of `jax.tree.leaves`.

    Args:
      trees: the arguments.
      names: their names.
      requires: for each argument and each of its leaves, if it requires a gradient.
    """
    return [
        Argument(name + jax.tree_util.keystr(path), is_required, _device(leaf))
        for name, tree, required in zip(names, trees, requires, strict=True)
        for (path, leaf), is_required in zip(
            jax.tree_util.tree_leaves_with_path(tree), required, strict=True
        )
    ]


def which_require(
    argnums: int | Sequence[int] | None, args: Sequence[Any]
) -> list[list[bool]]:
    """Returns, for each argument and each of its leaves, if it requires a gradient."""
    chosen = range(len(args)) if argnums is None else argnums
    numbers = [chosen] if isinstance(chosen, int) else list(chosen)
    for number in numbers:
        if not -len(args) <= number < len(args):
            raise ValueError(
                f"`argnums` must be in [0, {len(args)}), because there are "
                f"{len(args)} arguments, got {number}."
            )
    required = {number % len(args) for number in numbers}
    if len(required) != len(numbers):
        raise ValueError(f"`argnums` must name each argument once, got {numbers}.")
    requires = []
    for number, tree in enumerate(args):
        leaves = jax.tree.leaves(tree)
        inexact = [number in required and is_inexact(leaf) for leaf in leaves]
        if argnums is not None and number in required and not all(inexact):
            dtypes = sorted({str(jnp.result_type(leaf)) for leaf in leaves})
            raise TypeError(
                f"argument {number} must have floating or complex leaves, because "
                f"`argnums` names it, got the dtypes {dtypes}. Leave it out of "
                "`argnums`."
            )
        requires.append(inexact)
    return requires


def argument_names(fn: Callable, count: int) -> list[str]:
    """Returns the names of a function's parameters, as far as it has them."""
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    labels: list[str] = []
    for parameter in parameters:
        if parameter.kind == parameter.VAR_POSITIONAL:
            rest = range(count - len(labels))
            labels += [f"{parameter.name}[{k}]" for k in rest]
        elif parameter.kind != parameter.VAR_KEYWORD:
            labels.append(parameter.name)
    labels += [f"argument[{k}]" for k in range(len(labels), count)]
    return labels[:count]


def bound_module(fn: Callable) -> nn.Module | None:
    """Returns the bound module that is called: itself, or by one of its methods."""
    module = fn if isinstance(fn, nn.Module) else getattr(fn, "__self__", None)
    is_bound = isinstance(module, nn.Module) and module.scope is not None
    return module if is_bound else None


def as_function_of_params(fn: Callable) -> tuple[Callable, Any]:
    """Returns the call of a bound module as a function of params, and its params."""
    bound = bound_module(fn)
    assert bound is not None and bound.scope is not None
    module, variables = bound.unbind()
    method = None if fn is bound else fn.__name__
    rngs = dict(bound.scope.rngs)

    def call(params, *args):
        return module.apply(
            {**variables, "params": params}, *args, rngs=rngs, method=method
        )

    call.__name__ = type(module).__name__
    return call, variables.get("params", {})


def _device(leaf: Any) -> str | None:
    """Returns the device, or the devices, of an array."""
    if not isinstance(leaf, jax.Array) or isinstance(leaf, jax.core.Tracer):
        return None
    return ", ".join(sorted(f"{d.platform}:{d.id}" for d in leaf.devices()))
