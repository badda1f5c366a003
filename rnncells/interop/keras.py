"""Converts weights of Keras' recurrent layers and cells to and from our parameters.

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
ConvLSTM1D, ConvLSTM2D, ConvLSTM3D      RNN(ConvLSTMCell)             i f c o (c: g)
CuDNNLSTM, CuDNNGRU (Keras 2)           LSTM, GRU                     (only loaded)
RNN(cell)                               RNN(cell)
Bidirectional(layer)                    Bidirectional, or             forward, then
                                        `bidirectional=True`          backward
Sequential, or RNN of several cells     `num_layers`                  layer by layer
======================================= ============================= ===============

The weights are a list, as `get_weights()` returns and `set_weights()` takes it: the
`kernel`, the `recurrent_kernel` and, with `use_bias`, the `bias` of each cell. From a
larger model take the weights of the recurrent layers only,
`model.layers[0].get_weights() + ...`. Activation functions and the merge mode of
`Bidirectional` are not part of the weights; our defaults are those of Keras.

Keras' GRU with `reset_after` has two rows of biases. Except for h only their sum
matters: `from_weights` loads the sum, and `to_weights` writes it as the first row, with
zeros as the second. `ConvLSTMCell` adds 1 to the forget gate, so Keras' bias is ours
plus 1, which rounds; of our two biases the sum matters. All other arrays make the round
trip bit by bit. Both functions can be differentiated and compiled.

`CuDNNLSTM` and `CuDNNGRU` have a vector of two biases for each gate, `(2 * gates *
units,)`, and transposed kernels. `from_weights` recognizes them by the vector. In
Keras 2 the default `recurrent_activation` of `ConvLSTM2D` and of some other layers is
the hard sigmoid, which `ConvLSTMCell` does not have.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from rnncells.cells.lstm import LSTMCell
from rnncells.interop.layout import Params, Place
from rnncells.interop.loading import (
    Arrays,
    Part,
    as_array,
    as_list,
    load,
    parts,
    unload,
)
from rnncells.interop.table import KERAS


def from_weights(layer: nn.Module, weights: Sequence[Any]) -> Params:
    """Returns variables of a layer, loaded from Keras' weights.

    Args:
      layer: `LSTM`, `GRU`, `ElmanRNN`, `RNN`, `Bidirectional`, or a cell; its fields
        determine the weights that there must be.
      weights: arrays in the order of `get_weights()`.

    Returns:
      `{"params": ...}` for `layer.apply`, in the layer's `param_dtype`.

    Raises:
      ValueError: weights are missing, unknown, or have another shape; the error lists
        all of them.
      TypeError: Keras has no such layer; `weights` is not a list.
    """
    found, weights = _parts(layer), as_list(weights)
    if not isinstance(weights, Sequence):
        raise TypeError(
            "`weights` must be a list of arrays, as keras_layer.get_weights(), got "
            f"{type(weights).__name__}."
        )
    names = [name for part in found for name in part.arrays]
    names += [f"weights[{k}]" for k in range(len(names), len(weights))]
    given = dict(zip(names, weights, strict=False))
    for part in found:
        given |= _without_cudnn(part, given)
    return load(layer, found, given, "Keras")


def to_weights(layer: nn.Module, variables: Params) -> list[jax.Array]:
    """Returns a layer's parameters as the weights that `set_weights()` takes.

    Args:
      layer: see `from_weights`.
      variables: variables of the layer, `{"params": ...}`.

    Raises:
      TypeError: Keras has no such layer.
      ValueError: `variables` belong to another layer, or contain learned states, which
        Keras does not have.
    """
    return list(unload(layer, _parts(layer), variables, "Keras").values())


def _without_cudnn(part: Part, given: Arrays) -> Arrays:
    """Returns a cell's weights from those of CuDNNLSTM or CuDNNGRU.

    Their kernels of each gate are those of cuDNN, `(units, features_in)`, in the memory
    of an array `(features_in, units)`.
    """
    units, gates, names = part.place.cell.features, len(part.form.gates), [*part.arrays]
    is_possible = isinstance(part.place.cell, LSTMCell) or "b_h" in " ".join(
        part.arrays.values()
    )
    if not is_possible or len(names) != 3 or not given.keys() >= {*names}:
        return {}
    kernel, recurrent, bias = (as_array(name, given[name]) for name in names)
    if bias.shape != (2 * gates * units,):
        return {}

    def transposed(kernel):
        by_gate = jnp.split(jnp.asarray(kernel), gates, -1)
        return jnp.hstack([k.reshape(k.shape[::-1]).T for k in by_gate])

    biases = bias.reshape(2, -1)
    if isinstance(part.place.cell, LSTMCell):
        biases = biases.sum(0)
    arrays = transposed(kernel), transposed(recurrent), biases
    return dict(zip(names, arrays, strict=True))


def _parts(layer: nn.Module) -> list[Part]:
    position = itertools.count()

    def full_name(k: int, place: Place, name: str) -> str:
        # The list has no names; errors show these.
        where = f" of {'/'.join(place.path)}" if place.path else ""
        return f"weights[{next(position)}] ({name}{where})"

    return parts(layer, KERAS, full_name)
