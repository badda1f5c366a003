"""Initial values of the parameters of NNX modules that are made from linen modules."""

import inspect
import re
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.errors import InvalidRngError

from rnncells.cells.any_cell import feature_dims, initialize_carry, is_cell
from rnncells.cells.input_spec import is_shape
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
    arguments, options = _arguments(linen, shape), _dropout(linen, is_off=True)
    if not given:
        return dict(linen.lazy_init({PARAMS: key}, *arguments, **options))

    def variables(arguments):
        _, found = linen.apply(
            given, *arguments, rngs={PARAMS: key}, mutable=True, **options
        )
        return found

    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), arguments)
    return variables(zeros)


def drawn_streams(
    linen: nn.Module, shape: Shape, variables: Variables
) -> tuple[str, ...]:
    """Returns the random streams that a call of a linen module draws from.

    Args:
      linen: the linen module.
      shape: shape of one step of input.
      variables: its variables.
    """
    arguments, options = _arguments(linen, shape), _dropout(linen, is_off=False)

    def call(variables, keys, arguments):
        return linen.apply(variables, *arguments, rngs=keys, mutable=True, **options)

    drawn: list[str] = []
    while True:
        keys = {name: jax.random.key(0) for name in drawn}
        try:
            jax.eval_shape(call, variables, keys, arguments)
        except InvalidRngError as error:
            missing = missing_stream(error)
            if missing and missing not in drawn:
                drawn.append(missing)
                continue
        except Exception:  # which the user's own call will raise again
            pass
        return tuple(drawn)


def missing_stream(error: InvalidRngError) -> str | None:
    """Returns the random stream that linen misses; None if the error has no name."""
    found = re.search(r'PRNG for "(\w+)"', str(error))
    return found[1] if found else None


def _arguments(linen: nn.Module, shape: Shape) -> tuple[Any, ...]:
    """Returns shapes and dtypes of the arguments of a call."""
    x: Any = jax.ShapeDtypeStruct((1, *shape), jnp.float32)
    if not is_cell(linen):
        return (x,)
    x = jax.ShapeDtypeStruct(shape, jnp.float32)
    return jax.eval_shape(partial(initialize_carry, linen, None, x)), x


def _dropout(linen: nn.Module, is_off: bool) -> dict[str, Any]:
    takes = inspect.signature(type(linen).__call__).parameters
    return {"deterministic": is_off} if "deterministic" in takes else {}
