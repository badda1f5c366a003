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
from rnncells.recurrence.pytrees import zeros

Shape = tuple[int, ...]


def step_shapes(linen: nn.Module, in_features: int | Shape) -> list[Shape]:
    """Returns shapes that one step of input can have, without batch axes.

    `in_features` has the sizes of all feature axes; or of the last one, and then there
    are two shapes, which differ in the other axes.

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
    linen: nn.Module, shape: Shape, key: jax.Array, variables: Variables
) -> Variables:
    """Returns the initial variables of a linen module for a step of some shape.

    Submodules keep those that they have in `variables`.
    """
    arguments, options = _arguments(linen, shape), _dropout(linen, is_off=True)
    rngs = {PARAMS: key}
    if not variables:
        return dict(linen.lazy_init(rngs, *arguments, **options))
    options |= {"rngs": rngs, "mutable": True}
    result: Any = linen.apply(variables, *zeros(arguments), **options)
    return result[1]


def drawn_streams(
    linen: nn.Module, shape: Shape, variables: Variables
) -> tuple[str, ...]:
    """Returns the random streams that a call of a linen module draws from."""
    arguments, options = _arguments(linen, shape), _dropout(linen, is_off=False)

    def call(variables: Variables, keys: dict, arguments: tuple) -> Any:
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
    name = re.search(r'PRNG for "(\w+)"', str(error))
    return name and name[1]


def _arguments(linen: nn.Module, shape: Shape) -> tuple[Any, ...]:
    """Returns shapes and dtypes of the arguments of a call."""
    if not is_cell(linen):
        return (jax.ShapeDtypeStruct((1, *shape), jnp.float32),)
    x = jax.ShapeDtypeStruct(shape, jnp.float32)
    return jax.eval_shape(partial(initialize_carry, linen, None, x)), x


def _dropout(linen: nn.Module, is_off: bool) -> dict[str, Any]:
    takes = inspect.signature(type(linen).__call__).parameters
    return {"deterministic": is_off} if "deterministic" in takes else {}
