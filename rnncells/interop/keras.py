"""Converts Keras' layers and cells to and from ours; see `rnncells.interop`."""

import itertools
from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jax import Array

from rnncells.cells.lstm import LSTMCell
from rnncells.interop import loading
from rnncells.interop.table import KERAS


def from_weights(layer: nn.Module, weights: Sequence[Any]) -> loading.Params:
    """Returns variables of a layer, loaded from Keras' weights.

    `weights` are arrays in the order of `get_weights()`.
    """
    cells, weights = _parts(layer), loading.as_list(weights)
    if not isinstance(weights, Sequence):
        raise TypeError(
            "`weights` must be a list of arrays, as keras_layer.get_weights(), got "
            f"{type(weights).__name__}."
        )
    names = [name for part in cells for name in part.arrays]
    names += [f"weights[{k}]" for k in range(len(names), len(weights))]
    arrays = dict(zip(names, weights, strict=False))
    for part in cells:
        arrays |= _without_cudnn(part, arrays)
    return loading.load(layer, cells, arrays, "Keras")


def to_weights(layer: nn.Module, variables: loading.Params) -> list[Array]:
    """Returns a layer's parameters as `set_weights()` takes them."""
    return list(loading.unload(layer, _parts(layer), variables, "Keras").values())


def _without_cudnn(part: loading.Part, arrays: loading.Arrays) -> loading.Arrays:
    """Returns a cell's weights from those of CuDNNLSTM or CuDNNGRU.

    Their kernels of each gate are those of cuDNN, `(units, features_in)`, in the memory
    of an array `(features_in, units)`.
    """
    cell, gates, names = part.place.cell, len(part.form.gates), [*part.arrays]
    is_possible = isinstance(cell, LSTMCell) or "b_i b_h" in part.arrays.values()
    if not is_possible or len(names) != 3 or not arrays.keys() >= {*names}:
        return {}
    kernel, recurrent, bias = (loading.as_array(name, arrays[name]) for name in names)
    if bias.shape != (2 * gates * cell.features,):
        return {}

    def transposed(kernel: Any) -> Array:
        by_gate = jnp.split(jnp.asarray(kernel), gates, -1)
        return jnp.hstack([k.reshape(k.shape[::-1]).T for k in by_gate])

    biases = bias.reshape(2, -1)
    if isinstance(cell, LSTMCell):
        biases = biases.sum(0)
    return dict(zip(names, (transposed(kernel), transposed(recurrent), biases)))


def _parts(layer: nn.Module) -> list[loading.Part]:
    position = itertools.count()

    def full_name(k: int, place: loading.Place, name: str) -> str:
        # The list has no names; errors show these.
        where = f" of {'/'.join(place.path)}" if place.path else ""
        return f"weights[{next(position)}] ({name}{where})"

    return loading.parts(layer, KERAS, full_name)
