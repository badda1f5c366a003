"""Arrays of Equinox' recurrent cells, to and from our parameters.

>>> import jax, jax.numpy as jnp, rnncells
>>> from rnncells.interop import equinox
>>> layer = rnncells.GRU(features=4, num_layers=2)
>>> variables = layer.init(jax.random.key(0), jnp.ones((1, 3)))
>>> first, second = equinox.to_arrays(layer, variables)
>>> {name: array.shape for name, array in first.items()}
{'weight_ih': (12, 3), 'weight_hh': (12, 4), 'bias': (12,), 'bias_n': (4,)}
>>> loaded = equinox.from_module(layer, [first, second])
>>> jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), loaded, variables))
True

=============== ================ =====================================================
`equinox.nn`    rnncells         arrays
=============== ================ =====================================================
LSTMCell        LSTM, LSTMCell   weight_ih, weight_hh, bias; gates i f g o
GRUCell         GRU, GRUCell     weight_ih, weight_hh, bias, bias_n; gates r z n
=============== ================ =====================================================

Without `use_bias` there are no biases, here as there. Nothing is rounded: arrays come
back to the bit, either way. Both functions can be differentiated and compiled.

Equinox has cells alone. A layer of ours is loaded from one cell for each layer and
direction, layer by layer, forward before backward. The other way, `eqx.tree_at` puts
the arrays into a cell:

>>> def put(cell, arrays):  # doctest: +SKIP
...     def where(cell):
...         return [getattr(cell, name) for name in arrays]
...
...     return eqx.tree_at(where, cell, list(arrays.values()))
>>> cell = put(eqx.nn.GRUCell(3, 4, key=jax.random.key(0)), first)  # doctest: +SKIP
"""

from collections.abc import Mapping, Sequence
from typing import Any

import flax.linen as nn

from rnncells.cells.gru import GRUCell
from rnncells.cells.lstm import LSTMCell
from rnncells.interop.layout import (
    Arrays,
    Params,
    Place,
    bias_side,
    biases,
    computes,
    described,
    from_kernels,
    gate_names,
    has_functions,
    kernels,
    load,
    split,
    unload,
    with_biases,
)

LSTM_GATES, GRU_GATES = "ifgo", "rzn"
ARRAYS = ("weight_ih", "weight_hh", "bias", "bias_n")


def from_module(layer: nn.Module, modules: Any | Sequence[Any]) -> Params:
    """Returns variables of a layer, loaded from Equinox' cells.

    Args:
      layer: `LSTM`, `GRU`, `RNN`, `Bidirectional`, or a cell; its fields say what the
        arrays must be.
      modules: a cell of Equinox, or a list of them, layer by layer, forward before
        backward; or dictionaries of their arrays.

    Returns:
      `{"params": ...}` for `layer.apply`, in the layer's `param_dtype`.

    Raises:
      ValueError: arrays that are missing, unknown, or of another shape: all are named,
        and nothing is loaded.
      TypeError: a layer that Equinox has not.
    """
    if not isinstance(modules, list | tuple):
        modules = [modules]
    given = {
        f"modules[{k}].{name}": array
        for k, module in enumerate(modules)
        for name, array in _arrays_of(module).items()
    }
    return load(layer, given, "Equinox", _features_in, _to_arrays, _from_arrays)


def to_arrays(layer: nn.Module, variables: Params) -> list[Arrays]:
    """Returns a layer's parameters as arrays of Equinox' cells, by name.

    Args:
      layer: see `from_module`.
      variables: of the layer, `{"params": ...}`.

    Returns:
      One dictionary for each cell, layer by layer, forward before backward.

    Raises:
      TypeError: a layer that Equinox has not.
      ValueError: `variables` of another layer, or learnt states, which Equinox has not.
    """
    cells = {}
    for at, array in unload(layer, variables, "Equinox", _to_arrays).items():
        module, _, name = at.partition(".")
        cells.setdefault(module, {})[name] = array
    return list(cells.values())


def _arrays_of(module: Any) -> Arrays:
    """Returns the arrays of a cell of Equinox; biases that are None are none."""
    if isinstance(module, Mapping):
        arrays = module
    else:
        arrays = {name: getattr(module, name, None) for name in ARRAYS}
    return {name: array for name, array in arrays.items() if array is not None}


def _gates(cell: nn.Module) -> str:
    """Returns the letters of the gates in Equinox' order."""
    if computes(cell, LSTMCell) and has_functions(cell):
        return LSTM_GATES
    if computes(cell, GRUCell) and has_functions(cell) and cell.reset_after:
        return GRU_GATES
    raise TypeError(
        "Equinox has LSTMCell and GRUCell(reset_after=True), with the functions of "
        f"gates that are our defaults; not {described(cell)}."
    )


def _features_in(arrays: Arrays) -> int | None:
    weight = arrays.get("modules[0].weight_ih")
    return weight.shape[1] if weight is not None and weight.ndim == 2 else None


def _to_arrays(found: list[Place], params: list[Params]) -> Arrays:
    return {
        f"modules[{k}].{name}": array
        for k, (place, own) in enumerate(zip(found, params, strict=True))
        for name, array in _to_module(place.cell, own).items()
    }


def _from_arrays(found: list[Place], arrays: Arrays) -> list[Params]:
    def of(k, place):
        at = {name: f"modules[{k}].{name}" for name in ARRAYS}
        own = {name: arrays[at[name]] for name in ARRAYS if at[name] in arrays}
        return _from_module(place.cell, own)

    return [of(k, place) for k, place in enumerate(found)]


def _to_module(cell: nn.Module, params: Params) -> Arrays:
    """Returns one cell's parameters as Equinox has them."""
    gates = _gates(cell)
    arrays = {f"weight_{side}h": kernels(params, side, gates).T for side in "ih"}
    if cell.use_bias:
        arrays["bias"] = biases(cell, params, bias_side(cell), gates)
        if gates == GRU_GATES:
            arrays["bias_n"] = params["hn"]["bias"]
    return arrays


def _from_module(cell: nn.Module, arrays: Arrays) -> Params:
    """Returns Equinox' arrays as one cell's parameters."""
    gates = _gates(cell)
    weights = arrays["weight_ih"], arrays["weight_hh"]
    params = from_kernels(*(weight.T for weight in weights), gates)
    if not cell.use_bias:
        return params
    own_biases = split(arrays["bias"], gate_names(bias_side(cell), gates))
    if gates == GRU_GATES:
        own_biases["hn"] = arrays["bias_n"]
    return with_biases(params, own_biases)
