"""Loads arrays of other libraries into our layers, and writes them back.

`load` and `unload` read names, transposes and orders of gates from `table`.
"""

import keyword
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util
from flax.core import FrozenDict
from jax import Array

from rnncells.cells.contract.any_cell import feature_dims
from rnncells.cells.contract.base import RNNCellBase
from rnncells.interop.table import Form, Library
from rnncells.layers.bidirectional import Bidirectional
from rnncells.layers.multi_layer import MultiLayerRNN
from rnncells.layers.rnn import RNN

# Nested dictionaries, as `layer.init` returns them.
Params = dict[str, chex.ArrayTree]
Arrays = dict[str, chex.Array]
# None stands for any size but 0.
Shapes = dict[str, tuple[int | None, ...]]


class Place(NamedTuple):
    """A cell, its path in the parameters, and its number and direction in a layer."""

    cell: nn.Module
    path: tuple[str, ...] = ()
    layer: int | None = None
    reverse: bool = False


def places(layer: nn.Module) -> list[Place]:
    """Returns the cells of a layer, layer by layer, forward before backward."""
    if isinstance(layer, RNNCellBase):
        return [Place(layer)]
    if isinstance(layer, MultiLayerRNN):
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
        forward, backward = layer.forward_rnn, layer.backward_rnn
        if isinstance(forward, RNN) and isinstance(backward, RNN):
            return [
                Place(forward.cell, ("forward_rnn", "cell"), 0),
                Place(backward.cell, ("backward_rnn", "cell"), 0, reverse=True),
            ]
    is_class = isinstance(layer, type)
    got = f"the class {layer.__name__}" if is_class else type(layer).__name__
    if isinstance(layer, RNN):
        got += f" of {type(layer.cell).__module__}.{type(layer.cell).__name__}"
    raise TypeError(
        "`layer` must be a cell of rnncells, RNN of a cell, Bidirectional of two RNN, "
        f"LSTM, GRU or ElmanRNN, got {got}."
    )


def template(layer: nn.Module, features_in: int) -> Params:
    """Returns the shapes and dtypes of a layer's variables for a width of inputs."""
    is_cell = isinstance(layer, RNNCellBase)
    # Images as large as the kernel; parameters do not depend on their size.
    shape = (*getattr(places(layer)[0].cell, "kernel_size", ()), features_in)
    shape = shape if is_cell else (1, *shape)
    inputs = jax.ShapeDtypeStruct(shape, jnp.float32)
    arguments = (layer.initialize_carry(None, inputs), inputs) if is_cell else (inputs,)
    init = partial(layer.init, deterministic=True)
    return nn.meta.unbox(jax.eval_shape(init, jax.random.key(0), *arguments))


class Part(NamedTuple):
    """A cell of a layer in another library.

    `form` is its row of the table, and `arrays` has the blocks of each array, by its
    name among all arrays of the layer.
    """

    place: Place
    form: Form
    arrays: dict[str, str]


def parts(
    layer: nn.Module, library: Library, full_name: Callable[[int, Place, str], str]
) -> list[Part]:
    """Returns the cells of a layer as another library has them.

    `full_name` returns the name of an array among all arrays of the layer, from the
    number of the cell, the cell, and the name of the array in the cell.
    """
    cells = []
    for k, place in enumerate(places(layer)):
        form = library.form_of(place.cell)
        arrays = {
            full_name(k, place, name): blocks
            for name, blocks in form.arrays.items()
            if place.cell.use_bias or not blocks.startswith("b")
        }
        cells.append(Part(place, form, arrays))
    return cells


def load(
    layer: nn.Module, cells: list[Part], arrays: Mapping[str, Any], source: str
) -> Params:
    """Returns another library's arrays as variables of a layer.

    Parameters that the other library, `source`, does not have are 0: learned initial
    states, and the bias b_hn of GRUCell of Flax NNX.
    """
    dtype = np.dtype(cells[0].place.cell.param_dtype)
    arrays = {name: as_array(name, array) for name, array in arrays.items()}
    for name, array in arrays.items():
        # So that sums of biases are exact.
        if dtype.itemsize > array.dtype.itemsize:
            arrays[name] = array.astype(dtype)
    width = _features_in(cells[0], arrays)
    like = template(layer, width or 1)
    to_arrays = partial(_arrays, cells, is_loading=True)
    expected = shapes(jax.eval_shape(to_arrays, like))
    if width is None:
        # Sizes that depend on the unknown width of the inputs may have any value.
        wider = shapes(jax.eval_shape(to_arrays, template(layer, 2)))
        expected = {
            name: tuple(n if n == m else None for n, m in zip(shape, wider[name]))
            for name, shape in expected.items()
        }
    check_arrays(source, arrays, expected)
    wide = jnp.result_type(*arrays.values(), *jax.tree.leaves(like))
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, wide), like)
    # Apart from offsets, the map to arrays permutes numbers: its transpose inverts it.
    offsets, transpose = jax.vjp(to_arrays, zeros)
    (variables,) = transpose(
        {name: jnp.asarray(arrays[name], wide) - offsets[name] for name in offsets}
    )
    return jax.tree.map(lambda leaf, to: jnp.asarray(leaf, to.dtype), variables, like)


def unload(
    layer: nn.Module, cells: list[Part], variables: Params, source: str
) -> Arrays:
    """Returns a layer's variables as another library's arrays; see `load`."""
    check_states(layer, source)
    variables = plain(variables)
    if not isinstance(variables, Mapping):
        raise TypeError(
            '`variables` must be {"params": ...}, as layer.init returns them, got '
            f"{type(variables).__name__}."
        )
    if "params" not in variables:
        raise ValueError(
            "`variables` must have the key 'params', as layer.init returns them, got "
            f"the keys {sorted(variables)}."
        )
    params = flatten(nn.meta.unbox(variables["params"]))
    params = {without_nnx_spelling(name): array for name, array in params.items()}
    first = "/".join((*cells[0].place.path, "i"))
    kernels = [x for name, x in params.items() if name.startswith(first) and x.ndim > 1]
    width = kernels[0].shape[-2] if kernels else 1
    like = template(layer, width)["params"]
    check_arrays("`variables`", params, shapes(flatten(like)))
    return _arrays(cells, {"params": traverse_util.unflatten_dict(params, sep="/")})


def plain(variables: Any) -> Any:
    """Returns a state of Flax NNX as variables of linen; other trees as they are."""
    if not isinstance(variables, Mapping):
        return variables
    leaves = dict(_leaves(variables))
    is_dict = isinstance(variables, dict | FrozenDict)
    if is_dict and not any(map(_is_nnx_variable, leaves.values())):
        return variables
    params = {}
    for path, leaf in leaves.items():
        if _is_nnx_variable(leaf):
            # Not random keys and counts.
            if "Param" not in (kind.__name__ for kind in type(leaf).__mro__):
                continue
            leaf = leaf.get_value()
        params[without_nnx_spelling("/".join(path))] = leaf
    nested = traverse_util.unflatten_dict(params, sep="/")
    return nested if nested.keys() == {"params"} else {"params": nested}


def without_nnx_spelling(name: str) -> str:
    """Returns the name in linen of an array of NNX or of a checkpoint.

    In NNX, `if` is `if_`. Orbax saves a variable of NNX, and an array with metadata, as
    a dictionary with the key `value`. No array of our cells has such a name.
    """
    parts = name.removesuffix("/value").split("/")
    stems = [part.removesuffix("_") for part in parts]
    named = zip(parts, stems, strict=True)
    return "/".join(stem if keyword.iskeyword(stem) else part for part, stem in named)


def as_list(value: Any) -> Any:
    """Returns a list that was restored as a dictionary by position as a list again."""
    if not isinstance(value, Mapping) or not value:
        return value
    positions = [str(k) for k in range(len(value))]
    items = {str(name): item for name, item in value.items()}
    return [items[k] for k in positions] if items.keys() == {*positions} else value


def _leaves(
    tree: Any, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(tree, Mapping):
        for name, value in tree.items():
            yield from _leaves(value, (*path, str(name)))
    else:
        yield path, tree


def _is_nnx_variable(leaf: Any) -> bool:
    # Without importing flax.nnx, which some versions of JAX cannot import.
    return any(kind.__module__.startswith("flax.nnx") for kind in type(leaf).__mro__)


def check_states(layer: nn.Module, source: str) -> None:
    """Raises an error if a layer learns its initial states."""
    if getattr(layer, "learn_states", False):
        raise ValueError(
            f"{source} has no layers that learn their initial states: `learn_states` "
            "of `layer` must be False."
        )


def check_arrays(source: str, arrays: Arrays, expected: Shapes) -> None:
    """Raises one error that lists all missing, unknown and misshapen arrays."""
    wrong = [f"missing: {name}" for name in expected.keys() - arrays.keys()]
    wrong += [f"unknown: {name}" for name in arrays.keys() - expected.keys()]
    for name in arrays.keys() & expected.keys():
        shape, sizes = arrays[name].shape, expected[name]
        fits = len(shape) == len(sizes) and all(
            n == m or (m is None and n > 0) for n, m in zip(shape, sizes, strict=True)
        )
        if not fits:
            wrong.append(f"wrong shape: {name} must be {sizes}, got {shape}")
    if wrong:
        raise ValueError(
            f"The arrays of {source} do not fit the layer:\n  "
            + "\n  ".join(sorted(wrong))
        )


def as_array(name: str, value: Any) -> chex.Array:
    """Returns an array of any library that NumPy can read, or PyTorch's bfloat16."""
    if isinstance(value, Array):
        return value
    try:
        # NumPy cannot read PyTorch's bfloat16.
        is_torch_bfloat16 = str(getattr(value, "dtype", None)) == "torch.bfloat16"
        array = np.asarray(value.float() if is_torch_bfloat16 else value)
        array = array.astype(jnp.bfloat16) if is_torch_bfloat16 else array
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(
            f"`{name}` must be an array that NumPy can read, got "
            f"{type(value).__name__}: {error}"
        ) from error
    if not jnp.issubdtype(array.dtype, jnp.number):
        raise TypeError(f"`{name}` must be an array of numbers, got {array.dtype}.")
    return array


def flatten(tree: Params) -> Arrays:
    """Returns the arrays of nested dictionaries by their names, joined by `/`."""
    return traverse_util.flatten_dict(tree, sep="/")


def shapes(arrays: Arrays) -> Shapes:
    """Returns the shapes of arrays by name."""
    return {name: tuple(array.shape) for name, array in arrays.items()}


def _features_in(part: Part, arrays: Arrays) -> int | None:
    """Returns the width of the inputs; None if the arrays do not tell."""
    name, blocks = next(item for item in part.arrays.items() if "W" in item[1])
    if name not in arrays or arrays[name].ndim != 1 + feature_dims(part.place.cell):
        return None
    *_, rows, columns = arrays[name].shape
    if blocks == "W U":
        return max(1, rows - part.place.cell.features)
    return (columns if blocks == "W.T" else rows) or None


def _arrays(cells: list[Part], variables: Params, is_loading: bool = False) -> Arrays:
    """Returns the parameters of all cells as another library's arrays.

    Two biases of theirs, of which only the sum counts, are our bias and 0. If
    `is_loading`, both are our bias, so that the transpose of this map adds them.
    """
    arrays = {}
    for part in cells:
        params = variables["params"]
        for name in part.place.path:
            params = params[name]
        params = _in_convention(part.form, params, is_loading)
        for name, blocks in part.arrays.items():
            joined = [
                _block(block, part.form, params, is_loading)
                for block in blocks.removesuffix(".T").split()
            ]
            array = joined[0] if len(joined) == 1 else jnp.vstack(joined)
            arrays[name] = array.T if blocks.endswith(".T") else array
    return arrays


def _block(block: str, form: Form, params: Params, is_loading: bool) -> chex.Array:
    """Returns a block of one cell's parameters; see `table`."""
    if block in ("W", "U"):
        gates = form.gate_names("i" if block == "W" else "h")
        return jnp.concatenate([params[gate]["kernel"] for gate in gates], -1)
    if block == "P":
        return params["hr"]["kernel"]
    if block == "b_hn":
        return params["hn"]["bias"]
    gates = form.gate_names(form.bias_side)
    biases = [params[gate]["bias"] for gate in gates]
    if block == "b_h":
        biases = [x if is_loading else jnp.zeros_like(x) for x in biases]
        if "in" in gates:
            biases[gates.index("in")] = params["hn"]["bias"]
    return jnp.concatenate(biases, -1)


def _in_convention(form: Form, params: Params, is_loading: bool) -> Params:
    """Returns one cell's parameters by gate, with another library's signs and offsets.

    A cell that has all gates side by side has two biases for each.
    """
    if gates := form.side_by_side:
        bias = params["ih"]["bias"]
        if not is_loading:
            bias += params["hh"]["bias"]
        sides: Any = {
            "i": {"kernel": params["ih"]["kernel"], "bias": bias},
            "h": {"kernel": params["hh"]["kernel"]},
        }
        params = {
            side + gate: {
                name: jnp.split(x, len(gates), -1)[k] for name, x in arrays.items()
            }
            for side, arrays in sides.items()
            for k, gate in enumerate(gates)
        }
    for gate in form.negated:
        for name in (f"i{gate}", f"h{gate}"):
            params = params | {name: jax.tree.map(jnp.negative, params[name])}
    for gate, offset in form.offsets.items():
        name = form.bias_side + gate
        bias = params[name]["bias"] + offset
        params = params | {name: params[name] | {"bias": bias}}
    return params
