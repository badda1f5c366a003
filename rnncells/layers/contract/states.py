"""The states of layers in PyTorch's order, and the carries of cells in Flax's order."""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, export

from rnncells.cells.contract.carry import Carry


class LSTMStates(NamedTuple):
    """The states of the layer `LSTM`, in PyTorch's order.

    A cell's carry is a plain tuple in Flax's order, (c, h). Cells refuse this class, so
    that the two cannot be mistaken for each other.

    Attributes:
      h: hidden states, `(layers * directions, *batch, features)`.
      c: cell states, the same shape, or another width if h is projected.
    """

    h: Array
    c: Array


# So that `jax.export` can serialize programs that take or return states.
export.register_namedtuple_serialization(
    LSTMStates, serialized_name="rnncells.LSTMStates"
)

# Arrays `(layers * directions, *batch, features)`: h, or (h, c).
States: TypeAlias = chex.Array | LSTMStates | tuple[chex.Array, chex.Array]


def to_states(carry: Carry) -> States:
    """Converts a carry h or (c, h) of all layers to states."""
    return LSTMStates(*carry[::-1]) if isinstance(carry, tuple) else carry


def states_tuple(states: States) -> tuple[Any, ...]:
    """Returns the states h or (h, c) as a tuple."""
    return tuple(states) if isinstance(states, tuple) else (states,)


def to_carry(states: list[Array]) -> Carry:
    """Converts the states h or (h, c) to a cell's carry, h or (c, h)."""
    return states[0] if len(states) == 1 else tuple(states[::-1])


def check_states(
    layer: str, states: Any, shapes: tuple, dtype: Any, x_t: jax.ShapeDtypeStruct
) -> tuple[Array, ...]:
    """Returns initial states as a tuple of arrays."""
    expected = shapes if len(shapes) > 1 else shapes[0]
    states = _lstm_states(layer, states)
    is_tuple = isinstance(states, tuple | list)
    parts = tuple(states) if is_tuple else (states,)
    nested = [part for part in parts if isinstance(part, tuple | list)]
    if any(hasattr(leaf, "shape") for leaf in jax.tree.leaves(nested)):
        raise ValueError(
            f"`states` of {layer} must be arrays for all layers, got one tuple for "
            "each layer. Stack them: LSTMStates(jnp.stack([h0, h1]), jnp.stack([c0, "
            "c1]))."
        )
    if not all(isinstance(part, np.ndarray | Array) for part in parts):
        names = [type(part).__name__ for part in parts]
        raise TypeError(f"`states` of {layer} must be arrays, got {', '.join(names)}.")
    parts = tuple(map(jnp.asarray, parts))
    if is_tuple != (len(shapes) > 1) or tuple(p.shape for p in parts) != shapes:
        raise ValueError(
            f"`states` of {layer} must have the shapes {expected} (layers times "
            f"directions, batch, features) for inputs of {x_t.shape} in each step, "
            f"got {jax.tree.map(jnp.shape, states)}. States are h, or (h, c) for an "
            "LSTM."
        )
    for part in parts:
        if part.dtype != dtype:
            raise TypeError(
                f"`states` of {layer} must have the dtype of its parameters, {dtype}, "
                f"got {part.dtype}. Convert them with `astype`."
            )
    return parts


def _lstm_states(layer: str, states: Any) -> Any:
    """Returns states in a dictionary, dataclass or named tuple as `LSTMStates`."""
    if hasattr(states, "_asdict"):
        states = states._asdict()
    elif dataclasses.is_dataclass(states) and not isinstance(states, type):
        names = [field.name for field in dataclasses.fields(states)]
        states = {name: getattr(states, name) for name in names}
    if not isinstance(states, Mapping):
        return states
    if {*states} != {"h", "c"}:
        raise TypeError(
            f"`states` of {layer} must be an array, or LSTMStates(h, c) for an LSTM, "
            f"got the names {sorted(map(str, states))}. Pass the arrays themselves, or "
            "LSTMStates(h=..., c=...)."
        )
    return LSTMStates(**states)
