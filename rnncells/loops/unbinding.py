"""A cell apart from its model, with all variables that its fields need."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax


class UnboundCell(NamedTuple):
    """A cell for `apply`.

    Attributes:
      module: the cell, unbound.
      variables: its variables.
      has_outside_modules: whether a field contains a module that another module owns.
    """

    module: nn.Module
    variables: Mapping[str, Any]
    has_outside_modules: bool


def unbound(cell: nn.Module) -> UnboundCell:
    """Returns an unbound copy of a bound cell, and the variables for its `apply`.

    A module that an `nn.compact` method creates belongs to the module of that method,
    also as a field of the cell. `nn.Module.unbind` leaves out its variables. In the
    copy it belongs to the cell, so its variables are put in that place.
    """
    assert cell.scope is not None
    module, variables = cell.unbind()
    outside = list(_outside_modules(cell, module.bind(variables), cell.scope.path))
    for path, module_variables in outside:
        for collection, values in module_variables.items():
            variables = placed(variables, (collection, *path), values)
    return UnboundCell(module, variables, bool(outside))


def _outside_modules(
    cell: nn.Module, copy: nn.Module, root: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], Mapping[str, Any]]]:
    """Yields, for modules in fields that other modules own, their place and variables.

    Args:
      cell: the cell, or a module in one of its fields.
      copy: the same module in the bound copy of the cell.
      root: path of the cell.
    """
    for original, copied in zip(_submodules(cell), _submodules(copy), strict=True):
        assert copied.scope is not None
        path = copied.scope.path
        if original.scope is not None and original.scope.path != root + path:
            yield path, original.variables
        yield from _outside_modules(original, copied, root)


def _submodules(module: nn.Module) -> list[nn.Module]:
    module._try_setup(shallow=True)  # binds the modules in fields
    names = [field.name for field in dataclasses.fields(module) if field.init]
    values = [getattr(module, name) for name in names if name not in ("parent", "name")]
    leaves = jax.tree.leaves(values, is_leaf=_is_module)
    return list(filter(_is_module, leaves))


def _is_module(leaf: Any) -> bool:
    return isinstance(leaf, nn.Module)


def placed(tree: Mapping, path: tuple[str, ...], values: Any) -> dict:
    """Returns a copy of a nested dict with `values` at a path."""
    (name, *rest), below = path, tree.get(path[0], {})
    return {**tree, name: placed(below, tuple(rest), values) if rest else values}
