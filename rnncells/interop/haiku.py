"""Converts Haiku's cores to and from our parameters; see `rnncells.interop`."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax

from rnncells.cells.gru import GRUCell
from rnncells.cells.lstm import LSTMCell
from rnncells.cells.simple import SimpleCell
from rnncells.interop.loading import Arrays, Params, Part, load, parts, places, unload
from rnncells.interop.table import HAIKU

# Haiku's names of modules.
MODULES = {LSTMCell: "lstm", GRUCell: "gru", SimpleCell: "vanilla_rnn"}


def from_params(
    layer: nn.Module,
    params: Mapping[str, Mapping[str, Any]],
    names: Sequence[str] | None = None,
    double_bias: bool = True,
) -> Params:
    """Returns variables of a layer, loaded from Haiku's parameters.

    Args:
      layer: the layer or cell.
      params: `{module_name: {name: array}}`, as `hk.transform(...).init` returns them.
      names: names of the cores in a larger model, layer by layer, forward before
        backward, for example `["encoder/~/lstm", "encoder/~/lstm_1"]`; other modules
        are ignored. None: `lstm`, `lstm_1`, ..., or `gru` or `vanilla_rnn`, as Haiku
        names them, inside any one module; there must be no other modules.
      double_bias: the `double_bias` of VanillaRNN.

    Raises:
      ValueError: also if the number of `names` differs from the number of cells, or
        `params` has such cores in several modules.
    """
    cores = _cores(layer, names)
    is_dict = isinstance(params, Mapping)
    if not (is_dict and all(isinstance(arrays, Mapping) for arrays in params.values())):
        raise TypeError(
            "`params` must be {module_name: {name: array}}, as Haiku's `init` returns "
            f"them, got {jax.tree.structure(params)}."
        )
    if names is None:
        cores = _with_prefix(cores, params)
    arrays = {
        f"{module}/{name}": array
        for module, of_module in params.items()
        for name, array in of_module.items()
        if names is None or any(f"{module}/".startswith(f"{core}/") for core in cores)
    }
    return load(layer, _parts(layer, cores, double_bias), arrays, "Haiku")


def to_params(
    layer: nn.Module,
    variables: Params,
    names: Sequence[str] | None = None,
    double_bias: bool = True,
) -> dict[str, Arrays]:
    """Returns a layer's parameters as those of Haiku's cores; see `from_params`."""
    cells = _parts(layer, _cores(layer, names), double_bias)
    params: dict[str, Arrays] = {}
    for path, array in unload(layer, cells, variables, "Haiku").items():
        module, _, name = path.rpartition("/")
        params.setdefault(module, {})[name] = array
    return params


def _parts(layer: nn.Module, cores: list[str], double_bias: bool) -> list[Part]:
    cells = parts(layer, HAIKU, lambda k, place, name: f"{cores[k]}/{name}")
    if not double_bias:
        for core, part in zip(cores, cells, strict=True):
            part.arrays.pop(f"{core}/linear_1/b", None)
    return cells


def _with_prefix(cores: list[str], params: Mapping[str, Any]) -> list[str]:
    """Returns the names of cores inside of the module that has them in `params`."""
    pattern = re.compile(rf"((?:.*/)?){re.escape(cores[0])}(?:/[^/~]+)?")
    matches = (pattern.fullmatch(module) for module in params)
    prefixes = sorted({match[1] for match in matches if match})
    if "" in prefixes or not prefixes:
        return cores
    if len(prefixes) > 1:
        raise ValueError(
            f"`names` must be the names of {len(cores)} cores, because `params` has "
            f"several: {[prefix + cores[0] for prefix in prefixes]}."
        )
    return [prefixes[0] + core for core in cores]


def _cores(layer: nn.Module, names: Sequence[str] | None) -> list[str]:
    """Returns the names of Haiku's cores, one for each cell."""
    kinds = [MODULES[HAIKU.form_of(place.cell).kind] for place in places(layer)]
    if names is None:
        before = [kinds[:k].count(kind) for k, kind in enumerate(kinds)]
        return [
            f"{kind}_{n}" if n else kind for kind, n in zip(kinds, before, strict=True)
        ]
    names = [names] if isinstance(names, str) else list(names)
    if len(names) != len(kinds):
        raise ValueError(
            f"`names` must be the names of {len(kinds)} cores, layer by layer, forward "
            f"before backward, got {names}."
        )
    if len(set(names)) != len(names):
        raise ValueError(f"`names` must all differ, got {names}.")
    return names
