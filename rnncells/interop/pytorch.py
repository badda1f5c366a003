"""State dicts of PyTorch's recurrent layers and cells, to and from our parameters.

>>> import jax, jax.numpy as jnp, rnncells
>>> from rnncells.interop import pytorch
>>> layer = rnncells.LSTM(features=4, num_layers=2, bidirectional=True, proj_features=2)
>>> variables = layer.init(jax.random.key(0), jnp.ones((1, 3)))
>>> state_dict = pytorch.to_state_dict(layer, variables)
>>> state_dict["weight_ih_l1_reverse"].shape
(16, 4)
>>> loaded = pytorch.from_state_dict(layer, state_dict)
>>> jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), loaded, variables))
True

=================== ============================= ===================================
`torch.nn`          rnncells                      PyTorch's order of gates
=================== ============================= ===================================
LSTM, LSTMCell      LSTM, LSTMCell                i f g o
LSTM, `proj_size`   LSTM, ProjectedLSTMCell       i f g o; `weight_hr` projects
GRU, GRUCell        GRU, GRUCell                  r z n
RNN, RNNCell        ElmanRNN, SimpleCell
=================== ============================= ===================================

PyTorch has two biases for each gate, which only their sum tells apart from one. (But
for n of the GRU, where both count.) We load the sum, and give it back as `bias_ih`,
with zeros as the other. Both functions can be differentiated and compiled, so that
gradients by every tensor of PyTorch can be had.
"""

import re
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from rnncells.cells.gru import GRUCell
from rnncells.cells.lstm import LSTMCell
from rnncells.cells.projected import ProjectedLSTMCell
from rnncells.cells.simple import SimpleCell
from rnncells.interop.layout import (
    Arrays,
    Params,
    Place,
    biases,
    computes,
    described,
    from_kernels,
    has_functions,
    kernels,
    load,
    merged_biases,
    places,
    unload,
    with_biases,
)

LSTM_GATES, GRU_GATES = "ifgo", "rzn"


def from_state_dict(
    layer: nn.Module, state_dict: Mapping[str, Any], prefix: str = ""
) -> Params:
    """Returns variables of a layer, loaded from PyTorch's tensors.

    Args:
      layer: `LSTM`, `GRU`, `ElmanRNN`, `RNN`, `Bidirectional`, or a cell; its fields
        say what the tensors must be.
      state_dict: names and tensors of `torch.nn.LSTM(...).state_dict()`, or arrays.
      prefix: of the names in a larger model's state dict, as `"encoder.lstm."`; other
        tensors are then passed over.

    Returns:
      `{"params": ...}` for `layer.apply`, in the layer's `param_dtype`.

    Raises:
      ValueError: tensors that are missing, unknown, or of another shape: all are named,
        and nothing is loaded; a prefix that is not there.
      TypeError: a layer that PyTorch has not; what is no state dict.
    """
    if not isinstance(state_dict, Mapping):
        raise TypeError(
            "`state_dict` must be names and tensors, as torch_module.state_dict(), got "
            f"{type(state_dict).__name__}."
        )
    given = {
        name.removeprefix(prefix): tensor
        for name, tensor in state_dict.items()
        if name.startswith(prefix)
    }
    places(layer)
    prefixes = {_prefix(name) for name in state_dict} - {None}
    if prefix not in prefixes and prefixes:
        raise ValueError(
            f"`prefix` must be that of a recurrent layer, one of {sorted(prefixes)}, "
            f"got {prefix!r}."
        )
    return load(layer, given, "PyTorch", _features_in, _to_arrays, _from_arrays)


def to_state_dict(layer: nn.Module, variables: Params, prefix: str = "") -> Arrays:
    """Returns a layer's parameters under the names and in the shapes of PyTorch.

    `torch.nn.Module.load_state_dict` wants tensors:
    `{name: torch.tensor(np.array(array)) for name, array in state_dict.items()}`.

    Args:
      layer: see `from_state_dict`.
      variables: of the layer, `{"params": ...}`.
      prefix: of the names.

    Raises:
      TypeError: a layer that PyTorch has not.
      ValueError: `variables` of another layer, or learnt states, which PyTorch has not.
    """
    arrays = unload(layer, variables, "PyTorch", _to_arrays)
    return {prefix + name: array for name, array in arrays.items()}


def _prefix(name: str) -> str | None:
    """Returns what stands before the name of a recurrent layer's or cell's tensor."""
    found = re.fullmatch(r"(.*?)(weight|bias)_(ih|hh|hr)(_l\d+(_reverse)?)?", name)
    return found and found[1]


def _features_in(arrays: Arrays) -> int | None:
    for name in ("weight_ih_l0", "weight_ih"):
        if name in arrays and arrays[name].ndim == 2:
            return arrays[name].shape[1]
    return None


def _suffix(place: Place) -> str:
    if place.layer is None:
        return ""
    return f"_l{place.layer}" + ("_reverse" if place.reverse else "")


def _to_arrays(found: list[Place], params: list[Params]) -> Arrays:
    return {
        name + _suffix(place): array
        for place, own in zip(found, params, strict=True)
        for name, array in _to_tensors(place.cell, own).items()
    }


def _from_arrays(found: list[Place], arrays: Arrays) -> list[Params]:
    def of(place):
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr")
        at = {name: name + _suffix(place) for name in names}
        own = {name: arrays[at[name]] for name in names if at[name] in arrays}
        return _from_tensors(place.cell, own)

    return [of(place) for place in found]


def _gates(cell: nn.Module) -> str:
    """Returns the letters of the gates in PyTorch's order, "" if there are none."""
    if computes(cell, LSTMCell, ProjectedLSTMCell) and has_functions(cell):
        return LSTM_GATES
    if computes(cell, GRUCell) and has_functions(cell) and cell.reset_after:
        return GRU_GATES
    if computes(cell, SimpleCell) and has_functions(cell, nn.tanh, nn.relu):
        if not cell.residual:
            return ""
    raise TypeError(
        "PyTorch has LSTMCell, ProjectedLSTMCell, GRUCell(reset_after=True), all with "
        "the functions that are our defaults, and SimpleCell(residual=False) with tanh "
        f"or relu; not {described(cell)}."
    )


def _to_tensors(cell: nn.Module, params: Params) -> Arrays:
    """Returns one cell's parameters as PyTorch has them."""
    gates = _gates(cell)
    tensors = {f"weight_{side}h": kernels(params, side, gates).T for side in "ih"}
    if cell.use_bias:
        of_inputs, of_states = (biases(cell, params, side, gates) for side in "ih")
        if not isinstance(cell, GRUCell):
            of_inputs, of_states = of_inputs + of_states, jnp.zeros_like(of_inputs)
        tensors |= {"bias_ih": of_inputs, "bias_hh": of_states}
    if isinstance(cell, ProjectedLSTMCell):
        tensors["weight_hr"] = params["hr"]["kernel"].T
    return tensors


def _from_tensors(cell: nn.Module, tensors: Arrays) -> Params:
    """Returns PyTorch's tensors as one cell's parameters."""
    gates = _gates(cell)
    weights = tensors["weight_ih"], tensors["weight_hh"]
    params = from_kernels(*(weight.T for weight in weights), gates)
    if cell.use_bias:
        pair = tensors["bias_ih"], tensors["bias_hh"]
        params = with_biases(params, merged_biases(cell, *pair, gates))
    if isinstance(cell, ProjectedLSTMCell):
        params["hr"] = {"kernel": tensors["weight_hr"].T}
    return params
