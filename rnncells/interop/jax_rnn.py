"""Converts weights of `jax.experimental.rnn`, cuDNN's LSTM; see `rnncells.interop`."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array
from jax.flatten_util import ravel_pytree

from rnncells.interop import pytorch
from rnncells.interop.loading import Params, as_array, check_states, places, template
from rnncells.interop.table import described
from rnncells.layers.torch_style import LSTM
from rnncells.recurrence.pytrees import zeros


def from_weights(layer: LSTM, weights: Array) -> Params:
    """Returns variables of an `LSTM`, loaded from a vector of weights.

    `weights` are `(numbers,)`, as `jax.experimental.rnn.init_lstm_weight` returns them.
    The layer has biases and no projection.
    """
    _check_layer(layer)
    weights = as_array("weights", weights)
    tensors = _tensors(layer, _features_in(layer, weights))
    _, unravel = ravel_pytree(zeros([*tensors.values()]))
    state_dict = dict(zip(tensors, unravel(jnp.asarray(weights)), strict=True))
    return pytorch.from_state_dict(layer, state_dict)


def to_weights(layer: LSTM, variables: Params) -> Array:
    """Returns an LSTM's parameters as the vector of `jax.experimental.rnn`."""
    _check_layer(layer)
    check_states(layer, "jax.experimental.rnn")
    tensors = _in_order(layer, pytorch.to_state_dict(layer, variables))
    return ravel_pytree([*tensors.values()])[0]


def _check_layer(layer: nn.Module) -> None:
    places(layer)
    if not (isinstance(layer, LSTM) and layer.proj_features is None and layer.use_bias):
        raise TypeError(
            "`layer` must be an LSTM with `use_bias` and without `proj_features`, the "
            f"only layer of jax.experimental.rnn, got {described(layer)}."
        )


def _features_in(layer: LSTM, weights: Array) -> int:
    """Returns the width of the inputs, computed from the number of weights."""
    one = sum(tensor.size for tensor in _tensors(layer, 1).values())
    for_each = 4 * layer.features * layer.directions
    more, rest = divmod(weights.size - one, for_each)
    if weights.ndim != 1 or more < 0 or rest != 0:
        raise ValueError(
            f"`weights` must be a vector of {one - for_each} + {for_each} * "
            f"features_in numbers for this layer, got the shape {weights.shape}."
        )
    return 1 + more


def _tensors(layer: LSTM, features_in: int) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns PyTorch's tensors as structs, in the order of the vector."""
    layer = layer.clone(learn_states=False)
    variables = template(layer, features_in)
    tensors = jax.eval_shape(lambda v: pytorch.to_state_dict(layer, v), variables)
    return _in_order(layer, tensors)


def _in_order(layer: LSTM, tensors: dict[str, Any]) -> dict[str, Any]:
    """Returns PyTorch's tensors in the order of the vector."""
    suffixes = ["", "_reverse"][: layer.directions]
    names = [
        f"{kind}_{side}_l{k}{suffix}"
        for kind in ("weight", "bias")
        for k in range(layer.num_layers)
        for suffix in suffixes
        for side in ("ih", "hh")
    ]
    return {name: tensors[name] for name in names}
