"""Loads the parameters of recurrent cells and layers of Flax NNX.

>>> import jax.numpy as jnp, rnncells
>>> from flax import nnx
>>> from rnncells.interop import flax_nnx
>>> x, theirs = jnp.ones((2, 5, 3)), nnx.RNN(nnx.GRUCell(3, 4, rngs=nnx.Rngs(0)))
>>> rnn = rnncells.RNN(rnncells.GRUCell(4))
>>> y = rnn.apply(flax_nnx.from_module(rnn, theirs), x)
>>> bool(jnp.allclose(y, theirs(x), atol=1e-6))
True

==================================== ============================ =====================
`flax.nnx`                           rnncells                     order of gates
==================================== ============================ =====================
LSTMCell, OptimizedLSTMCell          LSTM, LSTMCell               i f g o
GRUCell                              GRU, GRUCell                 r z n
SimpleCell                           ElmanRNN, SimpleCell
==================================== ============================ =====================

The fused layers `dense_i` and `dense_h` of Flax hold all gates side by side. GRUCell of
Flax NNX has no bias b_hn; the bias of our cell is loaded as 0. For a layer of
`rnncells.nnx`, write `layer.load(flax_nnx.from_module(layer.linen, theirs))`.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from rnncells.interop.layout import Params, Place
from rnncells.interop.loading import Arrays, load, parts
from rnncells.interop.table import FLAX_NNX


def from_module(layer: nn.Module, modules: Any | Sequence[Any]) -> Params:
    """Returns variables of a layer, loaded from cells or layers of Flax NNX.

    Args:
      layer: `LSTM`, `GRU`, `ElmanRNN`, `RNN`, `Bidirectional`, or a cell; its fields
        determine the arrays that there must be.
      modules: a cell, `RNN` or `Bidirectional` of flax.nnx; or a list of them, layer by
        layer, forward before backward.

    Returns:
      `{"params": ...}` for `layer.apply`, in the layer's `param_dtype`.

    Raises:
      ValueError: arrays are missing, unknown, or have another shape; the error lists
        all of them.
      TypeError: `modules` are no such cells or layers; Flax NNX has no such layer.
    """
    found = parts(layer, FLAX_NNX, _full_name)
    given = {
        f"cells[{k}].{name}": array
        for k, cell in enumerate(_cells(modules))
        for name, array in _arrays_of(cell).items()
    }
    return load(layer, found, given, "Flax NNX")


def _full_name(k: int, place: Place, name: str) -> str:
    return f"cells[{k}].{name}"


def _cells(modules: Any) -> Iterator[Any]:
    """Yields the cells of modules, forward before backward."""
    if isinstance(modules, list | tuple):
        for module in modules:
            yield from _cells(module)
    elif hasattr(modules, "forward_rnn"):
        yield from _cells([modules.forward_rnn, modules.backward_rnn])
    elif hasattr(modules, "cell"):
        yield from _cells(modules.cell)
    elif hasattr(modules, "dense_i") or hasattr(modules, "ii"):
        yield modules
    else:
        raise TypeError(
            "`modules` must be LSTMCell, OptimizedLSTMCell, GRUCell or SimpleCell of "
            f"flax.nnx, or RNN or Bidirectional of them, got {type(modules).__name__}."
        )


def _arrays_of(cell: Any) -> Arrays:
    """Returns the arrays of a cell, with the gates of LSTMCell side by side."""
    if hasattr(cell, "dense_i"):
        layers = {"dense_i": [cell.dense_i], "dense_h": [cell.dense_h]}
    else:
        layers = {
            "dense_i": [cell.ii, cell.if_, cell.ig, cell.io],
            "dense_h": [cell.hi, cell.hf, cell.hg, cell.ho],
        }
    return {
        f"{name}.{kind}": jnp.concatenate([getattr(g, kind)[...] for g in gates], -1)
        for name, gates in layers.items()
        for kind in ("kernel", "bias")
        if getattr(gates[0], kind) is not None
    }
