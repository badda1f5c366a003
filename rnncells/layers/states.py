"""The states of layers in PyTorch's order, and the carries of cells in Flax's order."""

from typing import Any, NamedTuple, TypeAlias

import chex
import jax
import jax.numpy as jnp
from jax import export

from rnncells.cells.carry import Carry


class LSTMStates(NamedTuple):
    """The states of the layer `LSTM`, in PyTorch's order.

    A cell's carry is a plain tuple in Flax's order, (c, h). Cells refuse this class, so
    that the two cannot be mistaken for each other.

    Attributes:
      h: hidden states, `(layers * directions, *batch, features)`.
      c: cell states, the same shape, or another width if h is projected.
    """

    h: jax.Array
    c: jax.Array


# So that `jax.export` can serialize programs that take or return states.
export.register_namedtuple_serialization(
    LSTMStates, serialized_name="rnncells.LSTMStates"
)

# Arrays `(layers * directions, *batch, features)`: h, or (h, c).
States: TypeAlias = chex.Array | LSTMStates | tuple[chex.Array, chex.Array]


def states_of(carry: Carry) -> States:
    """Converts a carry h or (c, h) of all layers to states."""
    return LSTMStates(*carry[::-1]) if isinstance(carry, tuple) else carry


def parts_of(states: States) -> tuple[Any, ...]:
    """Returns the states h or (h, c) as a tuple."""
    return tuple(states) if isinstance(states, tuple) else (states,)


def carry_of_states(states: list[jax.Array]) -> Carry:
    """Converts the states h or (h, c) to a cell's carry, h or (c, h)."""
    return states[0] if len(states) == 1 else tuple(states[::-1])


def check_states(
    layer: str, states: Any, shapes: tuple[tuple[int, ...], ...], dtype: Any
) -> tuple[jax.Array, ...]:
    """Returns initial states as a tuple of arrays.

    Args:
      layer: name of the layer.
      states: an array, or a pair of arrays if there are two shapes.
      shapes: the shapes that the arrays must have.
      dtype: the dtype that the arrays must have.
    """
    expected = shapes if len(shapes) > 1 else shapes[0]
    is_tuple = isinstance(states, tuple | list)
    parts = tuple(states) if is_tuple else (states,)
    if any(isinstance(part, tuple | list) for part in parts):
        raise ValueError(
            f"`states` of {layer} must be arrays for all layers, got one tuple for "
            "each layer. Stack them: LSTMStates(jnp.stack([h0, h1]), jnp.stack([c0, "
            "c1]))."
        )
    parts = tuple(map(jnp.asarray, parts))
    if is_tuple != (len(shapes) > 1) or tuple(p.shape for p in parts) != shapes:
        raise ValueError(
            f"`states` of {layer} must have the shapes {expected} (layers times "
            f"directions, batch, features), got {jax.tree.map(jnp.shape, states)}. "
            "States are h, or (h, c) for an LSTM."
        )
    for part in parts:
        if part.dtype != dtype:
            raise TypeError(
                f"`states` of {layer} must have the dtype of its parameters, {dtype}, "
                f"got {part.dtype}. Convert them with `astype`."
            )
    return parts
