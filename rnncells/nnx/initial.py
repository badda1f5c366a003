"""Initial values of the parameters of NNX modules that are made from linen modules."""

import inspect
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from rnncells.cells.any_cell import feature_dims, initial_carry_of, is_cell
from rnncells.cells.sample import is_shape
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
      TypeError: `in_features` is neither a size nor a tuple of sizes.
      ValueError: the cell has another number of feature axes.
    """
    if not is_shape(in_features) and not is_shape((in_features,)):
        raise TypeError(
            f"`in_features` of {type(linen).__name__} must be the number of features "
            f"of the inputs, or a tuple of sizes, got {in_features!r}."
        )
    cell = linen.cell() if isinstance(linen, MultiLayerRNN) else linen
    dims = feature_dims(cell) if is_cell(cell) else 1
    if isinstance(in_features, int):
        if dims == 1:
            return [(in_features,)]
        # A kernel fits into the smaller one.
        size = max(getattr(cell, "kernel_size", (1,)))
        return [(size + k,) * (dims - 1) + (in_features,) for k in range(2)]
    if len(in_features) != dims:
        raise ValueError(
            f"`in_features` of {type(linen).__name__} must be a size or a tuple of "
            f"{dims} sizes, one for each feature axis of the inputs, got {in_features}."
        )
    return [tuple(in_features)]


def initial_variables(
    linen: nn.Module, shape: Shape, key: jax.Array, given: Variables
) -> Variables:
    """Returns the initial variables of a linen module.

    Args:
      linen: the linen module.
      shape: shape of one step of input.
      key: random key of the parameters.
      given: variables of submodules, which they keep.
    """
    x: Any = jax.ShapeDtypeStruct((1, *shape), jnp.float32)
    arguments: tuple[Any, ...] = (x,)
    if is_cell(linen):
        x = jax.ShapeDtypeStruct(shape, jnp.float32)
        arguments = jax.eval_shape(partial(initial_carry_of, linen, None, x)), x
    options = _without_dropout(linen)
    if not given:
        return dict(linen.lazy_init({PARAMS: key}, *arguments, **options))

    def variables(arguments):
        _, found = linen.apply(
            given, *arguments, rngs={PARAMS: key}, mutable=True, **options
        )
        return found

    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), arguments)
    return variables(zeros)


def _without_dropout(linen: nn.Module) -> dict[str, Any]:
    takes = inspect.signature(type(linen).__call__).parameters
    return {"deterministic": True} if "deterministic" in takes else {}
