"""Loads parameters of recurrent modules of Flax NNX; see `rnncells.interop`."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from rnncells.interop.loading import Arrays, Params, as_list, load, parts
from rnncells.interop.table import FLAX_NNX


def from_module(layer: nn.Module, modules: Any | Sequence[Any]) -> Params:
    """Returns variables of a layer, loaded from Flax NNX.

    `modules` is a cell, `RNN` or `Bidirectional` of flax.nnx; or a list of them, layer
    by layer, forward before backward; or `nnx.state` of these, or a dictionary of the
    state that was restored from a checkpoint.
    """
    cells = parts(layer, FLAX_NNX, lambda k, place, name: f"cells[{k}].{name}")
    arrays = {
        f"cells[{k}].{name}": array
        for k, cell in enumerate(_cells(modules))
        for name, array in _arrays_of(cell).items()
    }
    return load(layer, cells, arrays, "Flax NNX")


def _cells(modules: Any) -> Iterator[Any]:
    """Yields the cells of modules, forward before backward."""
    modules = as_list(modules)
    if isinstance(modules, Sequence):
        for module in modules:
            yield from _cells(module)
    elif (forward := _member(modules, "forward_rnn")) is not None:
        yield from _cells([forward, _member(modules, "backward_rnn")])
    elif (cell := _member(modules, "cell")) is not None:
        yield from _cells(cell)
    elif any(_member(modules, name) is not None for name in ("dense_i", "ii")):
        yield modules
    else:
        raise TypeError(
            "`modules` must be LSTMCell, OptimizedLSTMCell, GRUCell or SimpleCell of "
            "flax.nnx, or RNN or Bidirectional of them, or the state of one, got "
            f"{type(modules).__name__}."
        )


def _arrays_of(cell: Any) -> Arrays:
    """Returns the arrays of a cell, with the gates of LSTMCell side by side."""
    layers = {"dense_i": ["dense_i"], "dense_h": ["dense_h"]}
    if _member(cell, "dense_i") is None:
        layers = {
            "dense_i": ["ii", "if_", "ig", "io"],
            "dense_h": ["hi", "hf", "hg", "ho"],
        }
    arrays = {}
    for name, gates in layers.items():
        for kind in ("kernel", "bias"):
            leaves = [_member(_member(cell, gate), kind) for gate in gates]
            if leaves[0] is not None:
                values = [
                    # Orbax restores a variable as a dictionary.
                    leaf["value"] if isinstance(leaf, Mapping) else leaf[...]
                    for leaf in leaves
                ]
                arrays[f"{name}.{kind}"] = jnp.concatenate(values, -1)
    return arrays


def _member(module: Any, name: str) -> Any:
    """Returns an attribute, or an entry of a state or of a restored dictionary."""
    if isinstance(module, Mapping):
        return module.get(name)
    return getattr(module, name, None)
