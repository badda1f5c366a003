"""One step from any carry that Flax <= 0.6.11 accepted."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from rnncells.cells.any_cell import split_shape
from rnncells.cells.carry import Carry
from rnncells.cells.input_spec import is_shape


class OldStep:
    """Mixin for cells that accept a list or an array that broadcasts as their carry.

    As in Flax, the equations determine the shapes and dtypes of the new carry. LSTM and
    GRU cells with `features` accept the carries of rnncells only.
    """

    @nn.nowrap
    def _step(self: Any, carry: Carry, inputs: jax.Array) -> tuple[Carry, jax.Array]:
        # `self` is a cell, whose class this mixin precedes.
        if self.features is not None and not hasattr(self, "state_shape"):
            return super()._step(carry, inputs)  # type: ignore[misc]
        inputs = jnp.asarray(inputs)
        parts = unpack(self, carry, inputs.shape)
        if parts is None:
            # Raises the error for a wrong carry.
            return super()._step(carry, inputs)  # type: ignore[misc]
        carry = parts if len(parts) > 1 else parts[0]
        cell = self._with_inferred_width(carry)
        return cell.recur(carry, cell.project(inputs))


def unpack(
    cell: nn.Module, carry: Carry, input_shape: tuple[int, ...]
) -> tuple[jax.Array, ...] | None:
    """Returns the parts of a carry as arrays, or None if they do not fit the cell."""
    try:
        batch, features = split_shape(cell, input_shape)
        own = jax.tree.leaves(cell.carry_shape(features), is_leaf=is_shape)
        parts = (carry,) if len(own) == 1 else tuple(carry)
        h_shape = parts[-1].shape
        own_h = [h_shape[-1] if n is None else n for n in own[-1]]
        jnp.broadcast_shapes((*batch, *own_h), *map(jnp.shape, parts))
    except (AttributeError, IndexError, TypeError, ValueError):
        return None
    if len(parts) != len(own) or len(h_shape) < len(features):
        return None
    return tuple(map(jnp.asarray, parts))
