"""Converts Equinox' cells to and from our parameters; see `rnncells.interop`."""

from collections.abc import Mapping, Sequence
from typing import Any

import flax.linen as nn

from rnncells.interop.loading import Arrays, Params, Place, as_list, load, parts, unload
from rnncells.interop.table import EQUINOX


def from_module(layer: nn.Module, modules: Any | Sequence[Any]) -> Params:
    """Returns variables of a layer, loaded from Equinox' cells.

    `modules` is a cell of Equinox, or a list of cells, layer by layer, forward before
    backward; or dictionaries of their arrays.
    """
    modules = as_list(modules)
    if not isinstance(modules, list | tuple):
        modules = [modules]
    arrays = {
        f"modules[{k}].{name}": array
        for k, module in enumerate(modules)
        for name, array in _arrays_of(module).items()
    }
    return load(layer, parts(layer, EQUINOX, _full_name), arrays, "Equinox")


def to_arrays(layer: nn.Module, variables: Params) -> list[Arrays]:
    """Returns a layer's parameters as arrays of Equinox' cells, by name.

    There is one dictionary for each cell, layer by layer, forward before backward.
    """
    cells = parts(layer, EQUINOX, _full_name)
    arrays = unload(layer, cells, variables, "Equinox")
    return [
        {name.partition(".")[2]: arrays[name] for name in part.arrays} for part in cells
    ]


def _full_name(k: int, place: Place, name: str) -> str:
    return f"modules[{k}].{name}"


def _arrays_of(module: Any) -> Arrays:
    """Returns the arrays of a cell of Equinox, without biases that are None."""
    arrays = module
    if not isinstance(module, Mapping):
        names = {name for form in EQUINOX.forms for name in form.arrays}
        arrays = {name: getattr(module, name, None) for name in names}
    return {name: array for name, array in arrays.items() if array is not None}
