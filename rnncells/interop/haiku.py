"""Parameters of Haiku's recurrent cores, to and from ours.

>>> import jax, jax.numpy as jnp, rnncells
>>> from rnncells.interop import haiku
>>> layer = rnncells.LSTM(features=4, num_layers=2)
>>> variables = layer.init(jax.random.key(0), jnp.ones((1, 3)))
>>> params = haiku.to_params(layer, variables)
>>> {module: sorted(own) for module, own in params.items()}
{'lstm/linear': ['b', 'w'], 'lstm_1/linear': ['b', 'w']}
>>> loaded = haiku.from_params(layer, params)
>>> jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), loaded, variables))
True

============ ==================================== ====================== ============
`haiku`      rnncells                             its parameters         order of
                                                                         gates
============ ==================================== ====================== ============
LSTM         LSTM, LSTMCell                       linear: w, b           i g f o
GRU          GRU, GRUCell, `reset_after=False`    w_i, w_h, b            z r a (a: n)
VanillaRNN   ElmanRNN, SimpleCell, with relu      linear: w, b;
                                                  linear_1: w, b
DeepRNN      `num_layers`                         those of its cores
============ ==================================== ====================== ============

All have biases. `w` of the LSTM acts on `[x, h]`. The GRU's z stands where ours has
1 - z, which is z of the negated weights. VanillaRNN has two biases, which only their
sum tells apart from one; we load the sum, and give it back as that of `linear`, with
zeros as the other.

Haiku's LSTM adds 1 to the forget gate, so the bias it stores is ours less 1. That is
rounded to the spacing of floats near 1: ours -> Haiku -> ours brings back forget biases
in [1/2, 2^24] to the bit in float32 (Haiku's initial one is our 1), and others
to half a unit in the last place of b - 1, for |b| <= 1 that is 6e-8. No array of
Haiku's could hold them better. All else comes back to the bit.

Haiku has no layer of two directions, so a bidirectional layer of ours is loaded from
two cores for each layer, forward before backward. Both functions can be differentiated
and compiled.
"""

from collections.abc import Mapping, Sequence
from functools import partial
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
    has_functions,
    kernels,
    load,
    merged_biases,
    places,
    split,
    unload,
    with_biases,
)

LSTM_GATES, GRU_GATES = "igfo", "zrn"
MODULES = {LSTM_GATES: "lstm", GRU_GATES: "gru", "": "vanilla_rnn"}


def from_params(
    layer: nn.Module,
    params: Mapping[str, Mapping[str, Any]],
    names: Sequence[str] | None = None,
    double_bias: bool = True,
) -> Params:
    """Returns variables of a layer, loaded from Haiku's parameters.

    Args:
      layer: `LSTM`, `GRU`, `ElmanRNN`, `RNN`, `Bidirectional`, or a cell; its fields
        say what the parameters must be.
      params: `{module_name: {name: array}}`, as `hk.transform(...).init` returns them.
      names: of the cores, layer by layer, forward before backward, as
        `["encoder/~/lstm", "encoder/~/lstm_1"]` in a larger model; other modules are
        then passed over. None: `lstm`, `lstm_1`, ..., or `gru` or `vanilla_rnn`, as
        Haiku names them outside of other modules, and no other modules.
      double_bias: whether VanillaRNN was made so.

    Returns:
      `{"params": ...}` for `layer.apply`, in the layer's `param_dtype`.

    Raises:
      ValueError: arrays that are missing, unknown, or of another shape: all are named,
        and nothing is loaded; another number of `names` than of cells.
      TypeError: a layer that Haiku has not; `params` of other nesting.
    """
    cores = _cores(places(layer), names)
    is_dict = isinstance(params, Mapping)
    if not (is_dict and all(isinstance(own, Mapping) for own in params.values())):
        raise TypeError(
            "`params` must be {module_name: {name: array}}, as Haiku's `init` returns "
            f"them, got {jax.tree.structure(params)}."
        )
    given = {
        f"{module}/{name}": array
        for module, own in params.items()
        for name, array in own.items()
        if names is None or any(f"{module}/".startswith(f"{core}/") for core in cores)
    }
    return load(
        layer,
        given,
        "Haiku",
        partial(_features_in, places(layer)[0].cell, cores[0]),
        partial(_to_arrays, cores, double_bias),
        partial(_from_arrays, cores),
    )


def to_params(
    layer: nn.Module,
    variables: Params,
    names: Sequence[str] | None = None,
    double_bias: bool = True,
) -> dict[str, Arrays]:
    """Returns a layer's parameters as those of Haiku's cores.

    Args:
      layer: see `from_params`.
      variables: of the layer, `{"params": ...}`.
      names: of the cores; see `from_params`.
      double_bias: whether VanillaRNN is made so.

    Raises:
      TypeError: a layer that Haiku has not.
      ValueError: `variables` of another layer; learnt states, which Haiku has not;
        another number of `names` than of cells.
    """
    cores = _cores(places(layer), names)
    to_arrays = partial(_to_arrays, cores, double_bias)
    params = {}
    for at, array in unload(layer, variables, "Haiku", to_arrays).items():
        module, _, name = at.rpartition("/")
        params.setdefault(module, {})[name] = array
    return params


def _gates(cell: nn.Module) -> str:
    """Returns our letters of the gates in Haiku's order, "" if there are none."""
    if getattr(cell, "use_bias", False):
        if computes(cell, LSTMCell) and has_functions(cell):
            return LSTM_GATES
        if computes(cell, GRUCell) and has_functions(cell) and not cell.reset_after:
            return GRU_GATES
        if computes(cell, SimpleCell) and has_functions(cell, nn.relu):
            if not cell.residual:
                return ""
    raise TypeError(
        "Haiku has LSTMCell, GRUCell(reset_after=False) and SimpleCell(activation_fn="
        "flax.linen.relu, residual=False), all with `use_bias`, and the functions of "
        f"gates that are our defaults; not {described(cell)}."
    )


def _cores(found: list[Place], names: Sequence[str] | None) -> list[str]:
    """Returns the names of Haiku's cores, one for each cell."""
    kinds = [MODULES[_gates(place.cell)] for place in found]
    if names is None:
        before = [kinds[:k].count(kind) for k, kind in enumerate(kinds)]
        return [
            f"{kind}_{n}" if n else kind for kind, n in zip(kinds, before, strict=True)
        ]
    names = [names] if isinstance(names, str) else list(names)
    if len(names) != len(found):
        raise ValueError(
            f"`names` must be those of {len(found)} cores, layer by layer, forward "
            f"before backward, got {names}."
        )
    if len(set(names)) != len(names):
        raise ValueError(f"`names` must be different ones, got {names}.")
    return names


def _features_in(cell: nn.Module, core: str, arrays: Arrays) -> int | None:
    is_gru = isinstance(cell, GRUCell)
    w = arrays.get(f"{core}/w_i" if is_gru else f"{core}/linear/w")
    if w is None or w.ndim != 2:
        return None
    return max(1, w.shape[0] - (cell.features if isinstance(cell, LSTMCell) else 0))


def _to_arrays(
    cores: list[str], double_bias: bool, found: list[Place], params: list[Params]
) -> Arrays:
    return {
        f"{core}/{name}": array
        for core, place, own in zip(cores, found, params, strict=True)
        for name, array in _to_core(place.cell, own, double_bias).items()
    }


def _from_arrays(cores: list[str], found: list[Place], arrays: Arrays) -> list[Params]:
    def of(core, place):
        own = {
            name.removeprefix(f"{core}/"): array
            for name, array in arrays.items()
            if name.startswith(f"{core}/")
        }
        return _from_core(place.cell, own)

    return [of(core, place) for core, place in zip(cores, found, strict=True)]


def _to_core(cell: nn.Module, params: Params, double_bias: bool) -> Arrays:
    """Returns one cell's parameters as Haiku has them."""
    gates = _gates(cell)
    params = _with_their_gates(gates, params, -1)
    w_i, w_h = (kernels(params, side, gates) for side in "ih")
    b = biases(cell, params, bias_side(cell), gates)
    if gates == LSTM_GATES:
        return {"linear/w": jnp.concatenate([w_i, w_h]), "linear/b": b}
    if gates == GRU_GATES:
        return {"w_i": w_i, "w_h": w_h, "b": b}
    core = {"linear/w": w_i, "linear/b": b, "linear_1/w": w_h}
    return core | ({"linear_1/b": jnp.zeros_like(b)} if double_bias else {})


def _from_core(cell: nn.Module, core: Arrays) -> Params:
    """Returns Haiku's arrays as one cell's parameters."""
    gates = _gates(cell)
    if gates == LSTM_GATES:
        w, b = core["linear/w"], core["linear/b"]
        w_i, w_h = w[: -cell.features], w[-cell.features :]
    elif gates == GRU_GATES:
        w_i, w_h, b = core["w_i"], core["w_h"], core["b"]
    else:
        w_i, w_h, b = core["linear/w"], core["linear_1/w"], core["linear/b"]
    if "linear_1/b" in core:
        own_biases = merged_biases(cell, b, core["linear_1/b"], gates)
    else:
        own_biases = split(b, gate_names(bias_side(cell), gates))
    params = with_biases(from_kernels(w_i, w_h, gates), own_biases)
    return _with_their_gates(gates, params, 1)


def _with_their_gates(gates: str, params: Params, forget: int) -> Params:
    """Returns parameters with the gates of the other library.

    Args:
      gates: of the cell.
      params: of the cell.
      forget: what the bias of the forget gate gets: 1 to ours, -1 to Haiku's.
    """
    if gates == GRU_GATES:
        negated = jax.tree.map(jnp.negative, {n: params[n] for n in ("iz", "hz")})
        return params | negated
    if gates == LSTM_GATES:
        hf = params["hf"]
        return params | {"hf": hf | {"bias": hf["bias"] + forget}}
    return params
