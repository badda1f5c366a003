"""Weights of Keras' recurrent layers and cells, to and from our parameters.

>>> import jax, jax.numpy as jnp, rnncells
>>> from rnncells.interop import keras
>>> layer = rnncells.GRU(features=4, num_layers=2, bidirectional=True)
>>> variables = layer.init(jax.random.key(0), jnp.ones((1, 3)))
>>> weights = keras.to_weights(layer, variables)
>>> [array.shape for array in weights[:3]], len(weights)
([(3, 12), (4, 12), (2, 12)], 12)
>>> loaded = keras.from_weights(layer, weights)
>>> jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), loaded, variables))
True

======================================= ============================= ===============
`keras.layers`                          rnncells                      order of gates
======================================= ============================= ===============
LSTM, LSTMCell                          LSTM, LSTMCell                i f c o (c: g)
GRU, GRUCell, both `reset_after`        GRU, GRUCell                  z r h (h: n)
SimpleRNN, SimpleRNNCell                ElmanRNN, SimpleCell
RNN(cell)                               RNN(cell)
Bidirectional(layer)                    Bidirectional, or             forward, then
                                        `bidirectional=True`          backward
Sequential, or RNN of several cells     `num_layers`                  layer by layer
======================================= ============================= ===============

The weights are a list, as `get_weights()` returns and `set_weights()` takes: of each
cell its `kernel`, `recurrent_kernel` and, with `use_bias`, `bias`. Of a larger model
take the recurrent layers' alone, `model.layers[0].get_weights() + ...`. Activations,
and how two directions are merged, are not in the weights: our defaults are Keras' own.

Keras' GRU with `reset_after` has two rows of biases, which only their sum tells apart
from one. (But for h, where both count.) We load the sum, and give it back as the first
row, with zeros in the second. All else comes back to the bit. Both functions can be
differentiated and compiled.
"""

from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from rnncells.cells.gru import GRUCell
from rnncells.cells.lstm import LSTMCell
from rnncells.cells.simple import SimpleCell
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
    kernels,
    load,
    merged_biases,
    places,
    split,
    unload,
    with_biases,
)

LSTM_GATES, GRU_GATES = "ifgo", "zrn"


def from_weights(layer: nn.Module, weights: Sequence[Any]) -> Params:
    """Returns variables of a layer, loaded from Keras' weights.

    Args:
      layer: `LSTM`, `GRU`, `ElmanRNN`, `RNN`, `Bidirectional`, or a cell; its fields
        say what the weights must be.
      weights: arrays in the order of `get_weights()`.

    Returns:
      `{"params": ...}` for `layer.apply`, in the layer's `param_dtype`.

    Raises:
      ValueError: weights that are missing, unknown, or of another shape: all are named,
        and nothing is loaded.
      TypeError: a layer that Keras has not; what is no list.
    """
    names = _names(places(layer))
    if not isinstance(weights, Sequence):
        raise TypeError(
            "`weights` must be a list of arrays, as keras_layer.get_weights(), got "
            f"{type(weights).__name__}."
        )
    names += [f"weights[{k}]" for k in range(len(names), len(weights))]
    given = dict(zip(names, weights, strict=False))
    return load(layer, given, "Keras", _features_in, _to_arrays, _from_arrays)


def to_weights(layer: nn.Module, variables: Params) -> list[jax.Array]:
    """Returns a layer's parameters as the weights that `set_weights()` takes.

    Args:
      layer: see `from_weights`.
      variables: of the layer, `{"params": ...}`.

    Raises:
      TypeError: a layer that Keras has not.
      ValueError: `variables` of another layer, or learnt states, which Keras has not.
    """
    return list(unload(layer, variables, "Keras", _to_arrays).values())


def _gates(cell: nn.Module) -> str:
    """Returns our letters of the gates in Keras' order, "" if there are none."""
    if computes(cell, LSTMCell):
        return LSTM_GATES
    if computes(cell, GRUCell):
        return GRU_GATES
    if computes(cell, SimpleCell) and not cell.residual:
        return ""
    raise TypeError(
        "Keras has LSTMCell, GRUCell and SimpleCell(residual=False); not "
        f"{described(cell)}."
    )


def _names(found: list[Place]) -> list[str]:
    """Returns what each weight is, for errors: Keras' lists have no names."""
    names = []
    for place in found:
        _gates(place.cell)
        where = f" of {'/'.join(place.path)}" if place.path else ""
        parts = ["kernel", "recurrent_kernel"] + ["bias"] * place.cell.use_bias
        names += [
            f"weights[{len(names) + k}] ({p}{where})" for k, p in enumerate(parts)
        ]
    return names


def _features_in(arrays: Arrays) -> int | None:
    kernel = next(iter(arrays.values()), None)
    return kernel.shape[0] if kernel is not None and kernel.ndim == 2 else None


def _to_arrays(found: list[Place], params: list[Params]) -> Arrays:
    weights = [
        array
        for place, own in zip(found, params, strict=True)
        for array in _to_weights(place.cell, own)
    ]
    return dict(zip(_names(found), weights, strict=True))


def _from_arrays(found: list[Place], arrays: Arrays) -> list[Params]:
    weights = iter([arrays[name] for name in _names(found)])
    return [
        _from_weights(place.cell, *(next(weights) for _ in _names([place])))
        for place in found
    ]


def _has_two_biases(cell: nn.Module) -> bool:
    return isinstance(cell, GRUCell) and cell.reset_after


def _to_weights(cell: nn.Module, params: Params) -> list[jax.Array]:
    """Returns one cell's parameters as Keras has them."""
    gates = _gates(cell)
    weights = [kernels(params, side, gates) for side in "ih"]
    if cell.use_bias:
        sides = "ih" if _has_two_biases(cell) else bias_side(cell)
        bias = jnp.stack([biases(cell, params, side, gates) for side in sides])
        weights.append(bias if _has_two_biases(cell) else bias[0])
    return weights


def _from_weights(
    cell: nn.Module,
    kernel: jax.Array,
    recurrent_kernel: jax.Array,
    bias: jax.Array | None = None,
) -> Params:
    """Returns Keras' weights as one cell's parameters."""
    gates = _gates(cell)
    params = from_kernels(kernel, recurrent_kernel, gates)
    if bias is None:
        return params
    if _has_two_biases(cell):
        return with_biases(params, merged_biases(cell, *bias, gates))
    return with_biases(params, split(bias, gate_names(bias_side(cell), gates)))
