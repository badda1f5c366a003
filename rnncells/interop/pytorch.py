"""Converts PyTorch's state dicts to and from ours; see `rnncells.interop`."""

import re
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from rnncells.interop.loading import (
    Arrays,
    Params,
    Place,
    as_array,
    load,
    parts,
    places,
    unload,
)
from rnncells.interop.table import PYTORCH

TENSOR = r"(weight|bias)_(ih|hh|hr)(_l\d+(_reverse)?)?"
# The lengths g of weight norm, old and new.
WEIGHT_NORM = re.compile(
    rf"(?P<prefix>.*?)(parametrizations\.)?(?P<tensor>{TENSOR})(_g|\.original0)"
)


def from_state_dict(
    layer: nn.Module, state_dict: Mapping[str, Any], prefix: str = ""
) -> Params:
    """Returns variables of a layer, loaded from PyTorch's tensors.

    Args:
      layer: the layer or cell.
      state_dict: names and tensors of `torch.nn.LSTM(...).state_dict()`, or arrays.
      prefix: prefix of the layer's names in the state dict of a larger model, for
        example `"encoder.lstm."`; other tensors are ignored.

    Raises:
      ValueError: also if no name has the prefix.
    """
    if not isinstance(state_dict, Mapping):
        raise TypeError(
            "`state_dict` must be names and tensors, as torch_module.state_dict(), got "
            f"{type(state_dict).__name__}."
        )
    places(layer)
    state_dict = _without_weight_norm(state_dict)
    matches = (re.fullmatch(rf"(.*?){TENSOR}", name) for name in state_dict)
    prefixes = sorted({match[1] for match in matches if match})
    if state_dict and not prefixes:
        raise ValueError(
            "`state_dict` must have the names of a recurrent layer, such as "
            f"weight_ih_l0, got {', '.join(map(str, [*state_dict][:5]))}."
        )
    if prefixes and prefix not in prefixes:
        raise ValueError(
            "`prefix` must be the prefix of a recurrent layer in `state_dict`: "
            f"{' or '.join(map(repr, prefixes))}, got {prefix!r}."
        )
    tensors = {
        name.removeprefix(prefix): tensor
        for name, tensor in state_dict.items()
        if name.startswith(prefix)
    }
    return load(layer, parts(layer, PYTORCH, _full_name), tensors, "PyTorch")


def to_state_dict(layer: nn.Module, variables: Params, prefix: str = "") -> Arrays:
    """Returns a layer's parameters with the names and shapes of PyTorch.

    `torch.nn.Module.load_state_dict` needs tensors:
    `{name: torch.tensor(np.array(array)) for name, array in state_dict.items()}`. All
    names start with `prefix`.
    """
    arrays = unload(layer, parts(layer, PYTORCH, _full_name), variables, "PyTorch")
    return {prefix + name: array for name, array in arrays.items()}


def _without_weight_norm(state_dict: Mapping[str, Any]) -> dict[str, Any]:
    """Returns tensors with `g * v / norm(v)` for each pair of g and v."""
    tensors = dict(state_dict)
    for name in state_dict:
        match = WEIGHT_NORM.fullmatch(name)
        is_new = name.endswith(".original0")
        of_v = f"{name[:-1]}1" if is_new else f"{name.removesuffix('_g')}_v"
        if match is None or of_v not in tensors:
            continue
        g, v = (as_array(n, tensors.pop(n)) for n in (name, of_v))
        # Squares of half precision overflow, or are 0.
        dtype = jnp.promote_types(v.dtype, jnp.float32)
        g, v = (jnp.asarray(array, dtype) for array in (g, v))
        sizes = g.shape or (1,) * v.ndim
        if len(sizes) != v.ndim or any(n not in (1, m) for n, m in zip(sizes, v.shape)):
            raise ValueError(
                f"`{name}` must have the size 1 or that of `{of_v}`, {v.shape}, along "
                f"each axis, got {g.shape}."
            )
        # g has the size 1 along the axes of the norm.
        axes = tuple(k for k, n in enumerate(sizes) if n == 1)
        norm = jnp.sqrt(jnp.sum(jnp.square(v), axes, keepdims=True))
        tensors[match["prefix"] + match["tensor"]] = g * v / norm
    return tensors


def _full_name(k: int, place: Place, name: str) -> str:
    if place.layer is None:
        return name
    return f"{name}_l{place.layer}" + ("_reverse" if place.reverse else "")
