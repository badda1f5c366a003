"""Where a layer keeps the parameters of its cells."""

import dataclasses
from functools import partial
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from chex import ArrayTree

from rnncells.cells.base import RNNCellBase
from rnncells.layers.bidirectional import Bidirectional
from rnncells.layers.multi_layer import MultiLayerRNN
from rnncells.layers.rnn import RNN

# Nested dictionaries, as `layer.init` returns them.
Params = dict[str, ArrayTree]


class Place(NamedTuple):
    """A cell in a layer: its path in the layer's parameters, number and direction.

    `layer` is None for a cell without a layer.
    """

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


def described(layer: nn.Module) -> str:
    """Returns the constructor call of a layer or cell, without default values."""
    arguments = []
    for field in dataclasses.fields(layer):
        if field.init and field.name not in ("parent", "name"):
            value = getattr(layer, field.name)
            if value is not field.default:
                arguments.append(f"{field.name}={getattr(value, '__name__', value)}")
    return f"{type(layer).__name__}({', '.join(arguments)})"
