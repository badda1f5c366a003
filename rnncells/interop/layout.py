"""Where a layer keeps the parameters of its cells, and checks of what is converted."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util

from rnncells.base import RNNCellBase
from rnncells.cells.lstm import LSTMCell
from rnncells.cells.projected import ProjectedLSTMCell
from rnncells.cells.variational import VariationalDropout
from rnncells.layers.bidirectional import Bidirectional
from rnncells.layers.deep import DeepRNN
from rnncells.layers.rnn import RNN

Params = dict[str, Any]
Arrays = dict[str, jax.Array]
Shape = tuple[int | None, ...]
Shapes = dict[str, Shape]


class Place(NamedTuple):
    """A cell in a layer.

    Attributes:
      cell: the cell.
      path: of its parameters in those of the layer.
      layer: its number, from 0; None if it is a cell by itself.
      reverse: whether it runs backward in time.
    """

    cell: nn.Module
    path: tuple[str, ...] = ()
    layer: int | None = None
    reverse: bool = False


def places(layer: nn.Module) -> list[Place]:
    """Returns the cells of a layer, layer by layer, forward before backward.

    Args:
      layer: a cell, `RNN` of a cell, `Bidirectional` of two of those, or `LSTM`, `GRU`
        or `ElmanRNN`.
    """
    if isinstance(layer, RNNCellBase):
        return [Place(layer)]
    if isinstance(layer, DeepRNN):
        cell = layer.cell()
        ends = [("cell",)]
        if layer.bidirectional:
            ends = [("forward_rnn", "cell"), ("backward_rnn", "cell")]
        return [
            Place(cell, (f"layers_{k}", *end), k, bool(direction))
            for k in range(layer.num_layers)
            for direction, end in enumerate(ends)
        ]
    if isinstance(layer, RNN) and isinstance(layer.cell, RNNCellBase):
        return [Place(layer.cell, ("cell",), 0)]
    if isinstance(layer, Bidirectional):
        sides = [
            ("forward_rnn", layer.forward_rnn),
            ("backward_rnn", layer.backward_rnn),
        ]
        if all(isinstance(rnn, RNN) for _, rnn in sides):
            return [
                Place(rnn.cell, (name, "cell"), 0, name == "backward_rnn")
                for name, rnn in sides
            ]
    is_class = isinstance(layer, type)
    got = f"the class {layer.__name__}" if is_class else type(layer).__name__
    if isinstance(layer, RNN):
        got += f" of {type(layer.cell).__module__}.{type(layer.cell).__name__}"
    raise TypeError(
        "`layer` must be a cell of rnncells, RNN of one, Bidirectional of two of "
        f"those, LSTM, GRU or ElmanRNN, got {got}."
    )


def load(
    layer: nn.Module,
    given: Mapping[str, Any],
    source: str,
    features_in: Callable[[Arrays], int | None],
    to_arrays: Callable[[list[Place], list[Params]], Arrays],
    from_arrays: Callable[[list[Place], Arrays], list[Params]],
) -> Params:
    """Returns another library's arrays as variables of a layer.

    What a layer learns beside its cells (its first states) is 0.

    Args:
      layer: see `places`.
      given: names and arrays.
      source: name of the other library, for errors.
      features_in: reads the width of the inputs; None where it cannot be read.
      to_arrays: makes the other library's arrays of all cells' parameters.
      from_arrays: the inverse.

    Raises:
      ValueError: arrays that are missing, unknown, or of another shape; all are named.
    """
    found = places(layer)
    dtype = found[0].cell.param_dtype
    arrays = {name: _widened(as_array(name, a), dtype) for name, a in given.items()}
    width = features_in(arrays) or None
    like = template(layer, width or 1)

    def made(variables):
        return to_arrays(found, params_of(found, variables))

    expected = shapes(jax.eval_shape(made, like))
    if width is None:
        other = shapes(jax.eval_shape(made, template(layer, 2)))
        expected = {name: common(expected[name], other[name]) for name in other}
    check_arrays(source, arrays, expected)
    params = from_arrays(found, arrays)
    variables = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), like)
    for place, own in zip(found, params, strict=True):
        put(variables["params"], place.path, own)
    return jax.tree.map(lambda leaf, to: jnp.asarray(leaf, to.dtype), variables, like)


def unload(
    layer: nn.Module,
    variables: Params,
    source: str,
    to_arrays: Callable[[list[Place], list[Params]], Arrays],
) -> Arrays:
    """Returns a layer's variables as another library's arrays.

    Args:
      layer: see `places`.
      variables: `{"params": ...}`, of the layer.
      source: name of the other library, for errors.
      to_arrays: see `load`.

    Raises:
      ValueError: `variables` of another layer, or learnt states.
    """
    check_states(layer, source)
    found = places(layer)
    if "params" not in variables:
        raise ValueError(
            f"`variables` must have `params`, as layer.init returns them, got the keys "
            f"{sorted(variables)}."
        )
    variables = nn.meta.unbox(variables)
    own = flatten(variables["params"])
    first = "/".join((*found[0].path, "i"))
    kernels = [name for name in own if name.startswith(first) and own[name].ndim == 2]
    width = own[kernels[0]].shape[0] if kernels else 1
    like = template(layer, width)["params"]
    check_arrays("`variables`", own, shapes(flatten(like)))
    return to_arrays(found, params_of(found, variables))


def check_states(layer: nn.Module, source: str) -> None:
    """Raises if a layer learns its first states."""
    if getattr(layer, "learn_states", False):
        raise ValueError(f"a layer of {source} has no `learn_states`; this one has.")


def flatten(tree: Params) -> Arrays:
    """Returns the arrays of nested dictionaries by their names, joined by `/`."""
    return traverse_util.flatten_dict(tree, sep="/")


def template(layer: nn.Module, features_in: int) -> Params:
    """Returns shapes and dtypes of a layer's variables."""
    # It has no parameters, and would want to know whether it is on.
    if isinstance(layer, DeepRNN):
        layer = layer.clone(dropout=0.0)
    streams = {getattr(at.cell, "rng_collection", "params") for at in places(layer)}
    keys = dict.fromkeys({"params", *streams}, jax.random.key(0))
    is_cell = isinstance(layer, RNNCellBase)
    shape = (features_in,) if is_cell else (1, features_in)
    inputs = jax.ShapeDtypeStruct(shape, jnp.float32)
    arguments = (layer.initialize_carry(None, inputs), inputs) if is_cell else (inputs,)
    return nn.meta.unbox(jax.eval_shape(layer.init, keys, *arguments))


def params_of(found: list[Place], variables: Params) -> list[Params]:
    """Returns the parameters of each cell."""

    def of(place):
        params = variables["params"]
        for name in place.path:
            params = params[name]
        return params

    return [of(place) for place in found]


def put(params: Params, path: tuple[str, ...], own: Params) -> None:
    """Writes a cell's parameters where it keeps them."""
    for name in path:
        params = params[name]
    assert jax.tree.structure(params) == jax.tree.structure(own)
    params.update(own)


def as_array(name: str, value: Any) -> jax.Array | np.ndarray:
    """Returns an array of any library that NumPy can read, or PyTorch's bfloat16."""
    if isinstance(value, jax.Array):
        return value
    try:
        # NumPy has no bfloat16 to read PyTorch's by.
        is_torch_bfloat16 = str(getattr(value, "dtype", None)) == "torch.bfloat16"
        array = jnp.from_dlpack(value) if is_torch_bfloat16 else np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(
            f"`{name}` must be an array that NumPy reads, got {type(value).__name__}: "
            f"{error}"
        ) from error
    if not jnp.issubdtype(array.dtype, jnp.number):
        raise TypeError(f"`{name}` must be an array of numbers, got {array.dtype}.")
    return array


def _widened(array: jax.Array | np.ndarray, dtype: Any) -> jax.Array | np.ndarray:
    """Returns an array in a dtype if that is wider: sums of biases are then exact."""
    is_wider = np.dtype(dtype).itemsize > array.dtype.itemsize
    return array.astype(dtype) if is_wider else array


def shapes(arrays: Arrays) -> Shapes:
    """Returns the shapes of arrays."""
    return {name: tuple(array.shape) for name, array in arrays.items()}


def common(one: Shape, other: Shape) -> Shape:
    """Returns the sizes that two shapes share, None for the others."""
    return tuple(n if n == m else None for n, m in zip(one, other, strict=True))


def check_arrays(source: str, given: Arrays, expected: Shapes) -> None:
    """Raises one error that names every array that is missing, unknown or misshapen.

    Args:
      source: where the arrays are from.
      given: names and arrays.
      expected: names and shapes; None stands for any size but 0.
    """
    wrong = [f"missing: {name}" for name in expected.keys() - given.keys()]
    wrong += [f"unknown: {name}" for name in given.keys() - expected.keys()]
    for name in sorted(given.keys() & expected.keys()):
        shape, own = given[name].shape, expected[name]
        fits = len(shape) == len(own) and all(
            n == m or (m is None and n > 0) for n, m in zip(shape, own, strict=True)
        )
        if not fits:
            wrong.append(f"of another shape: {name} must be {own}, got {shape}")
    if wrong:
        raise ValueError(
            f"the arrays of {source} do not fit the layer:\n  "
            + "\n  ".join(sorted(wrong))
        )


def split(array: jax.Array, names: tuple[str, ...]) -> Arrays:
    """Returns the equal parts of an array's last axis by name."""
    return dict(zip(names, jnp.split(array, len(names), -1), strict=True))


def gate_names(side: str, gates: str) -> tuple[str, ...]:
    """Returns our names of the gates' weights of inputs, `i`, or of states, `h`."""
    return tuple(side + gate for gate in gates) or (side,)


def kernels(params: Params, side: str, gates: str) -> jax.Array:
    """Returns the gates' kernels side by side, `(features_in, gates * features)`."""
    return jnp.concatenate(
        [params[name]["kernel"] for name in gate_names(side, gates)], axis=-1
    )


def from_kernels(of_inputs: jax.Array, of_states: jax.Array, gates: str) -> Params:
    """Returns parameters without biases: the inverse of `kernels` of both sides."""
    return {
        name: {"kernel": kernel}
        for side, array in (("i", of_inputs), ("h", of_states))
        for name, kernel in split(array, gate_names(side, gates)).items()
    }


def bias_side(cell: nn.Module) -> str:
    """Returns which weights a cell's biases stand with: `i`, or `h`."""
    return "h" if isinstance(cell, LSTMCell | ProjectedLSTMCell) else "i"


def biases(cell: nn.Module, params: Params, side: str, gates: str) -> jax.Array:
    """Returns the gates' biases, `(gates * features,)`, zeros where there are none."""
    zeros = jnp.zeros(cell.features, cell.param_dtype)
    return jnp.concatenate(
        [params[name].get("bias", zeros) for name in gate_names(side, gates)]
    )


def merged_biases(
    cell: nn.Module, of_inputs: jax.Array, of_states: jax.Array, gates: str
) -> Arrays:
    """Returns our biases, by gate, of two for each gate: their sums.

    But for n of a GRU, where both count.

    Args:
      cell: the cell.
      of_inputs: biases that stand with the weights of inputs, `(gates * features,)`.
      of_states: biases that stand with the weights of states.
      gates: letters of the gates in the order of the biases.
    """
    of_inputs = split(of_inputs, gate_names("i", gates))
    of_states = split(of_states, gate_names("h", gates))
    merged = {}
    for (i, b_i), (h, b_h) in zip(of_inputs.items(), of_states.items(), strict=True):
        if h == "hn":
            merged |= {i: b_i, h: b_h}
        else:
            merged[h if bias_side(cell) == "h" else i] = b_i + b_h
    return merged


def with_biases(params: Params, biases: Arrays) -> Params:
    """Returns parameters with biases, by gate."""
    return {
        name: own | ({"bias": biases[name]} if name in biases else {})
        for name, own in params.items()
    }


def computes(cell: nn.Module, *kinds: type[RNNCellBase]) -> bool:
    """Says whether a cell is of a kind, and its step is that kind's, dropout aside."""
    is_kind = isinstance(cell, kinds)
    steps = [kind.recur for kind in kinds]
    return is_kind and (
        isinstance(cell, VariationalDropout) or type(cell).recur in steps
    )


def has_functions(cell: nn.Module, *activation_fns: Callable) -> bool:
    """Says whether gates are logistic and the activation is tanh, or one given."""
    gate_fn = getattr(cell, "gate_fn", nn.sigmoid)
    activation_fns = activation_fns or (nn.tanh,)
    return gate_fn is nn.sigmoid and cell.activation_fn in activation_fns


def described(layer: nn.Module) -> str:
    """Returns how a layer or cell is made, on one line: what is not its default."""
    fields = {f.name: f for f in dataclasses.fields(layer) if f.init}
    own = [name for name in fields if name not in ("parent", "name")]
    values = {name: getattr(layer, name) for name in own}
    given = [
        f"{name}={getattr(value, '__name__', value)}"
        for name, value in values.items()
        if fields[name].default is not value
    ]
    return f"{type(layer).__name__}({', '.join(given)})"
