"""Initial values of the parameters of NNX modules that are made from linen modules."""

import inspect
from collections.abc import Set
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from rnncells.cells.any_cell import feature_dims, is_cell
from rnncells.layers.multi_layer import MultiLayerRNN
from rnncells.nnx.parameters import PARAMS, Variables

Shape = tuple[int, ...]


def step_shapes(linen: nn.Module, in_features: int | Shape) -> list[Shape]:
    """Returns shapes that one step of input can have, without batch axes.

    Args:
      linen: the linen cell or layer.
      in_features: sizes of all feature axes; or of the last one, and then there are two
        shapes, which differ in the other axes.

    Raises:
      ValueError: the cell has another number of feature axes.
    """
    cell = linen.cell() if isinstance(linen, MultiLayerRNN) else linen
    dims = feature_dims(cell) if is_cell(cell) else 1
    if isinstance(in_features, int):
        # A kernel fits into the smaller one.
        size = max(getattr(cell, "kernel_size", (1,)))
        return [(size + k,) * (dims - 1) + (in_features,) for k in range(min(2, dims))]
    if len(in_features) != dims:
        raise ValueError(
            f"`in_features` of {type(linen).__name__} must be a size or a tuple of "
            f"{dims} sizes, one for each feature axis of the inputs, got {in_features}."
        )
    return [tuple(in_features)]


def initial_structs(linen: nn.Module, shape: Shape) -> Variables:
    """Returns the shapes and dtypes of the variables of a linen module.

    Args:
      linen: the linen module.
      shape: shape of one step of input.
    """
    init = partial(linen.init, **_without_dropout(linen))
    arguments = _arguments(linen, shape, jax.ShapeDtypeStruct)
    return jax.eval_shape(init, _keys(jax.random.key(0)), *arguments)


def initial_variables(
    linen: nn.Module, shape: Shape, key: jax.Array, others: Set[str]
) -> Variables:
    """Returns the initial variables of a linen module, without some submodules.

    Args:
      linen: the linen module.
      shape: shape of one step of input.
      key: random key of the parameters.
      others: names of submodules.
    """
    arguments = _arguments(linen, shape, jax.ShapeDtypeStruct)
    variables = linen.lazy_init(_keys(key), *arguments, **_without_dropout(linen))
    return {
        collection: {name: v for name, v in tree.items() if name not in others}
        for collection, tree in variables.items()
    }


def _keys(key: jax.Array) -> dict[str, jax.Array]:
    return {PARAMS: key}


def _arguments(linen: nn.Module, shape: Shape, make: Any) -> tuple[Any, ...]:
    """Returns the arguments of a call: one step of a cell, or a sequence of one."""
    if not is_cell(linen):
        return (make((1, *shape), jnp.float32),)
    x = make(shape, jnp.float32)
    return jax.eval_shape(partial(linen.initialize_carry, jax.random.key(0)), x), x


def _without_dropout(linen: nn.Module) -> dict[str, Any]:
    takes = inspect.signature(type(linen).__call__).parameters
    return {"deterministic": True} if "deterministic" in takes else {}
