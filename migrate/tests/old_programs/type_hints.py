"""Type hints, also of cells and carries."""
from __future__ import annotations

from typing import Any, Callable, Optional, Tuple

import flax.linen as nn
import jax
import jax.numpy as jnp

Array = Any
Carry = Tuple[Array, Array]


class Model(nn.Module):
    hidden: int
    cell: Optional[nn.LSTMCell] = None
    activation: Callable[[Array], Array] = nn.relu

    @nn.compact
    def __call__(self, carry: Carry, x: Array) -> Tuple[Carry, Array]:
        cell: nn.LSTMCell = nn.LSTMCell()
        carry, y = cell(carry, x)
        return carry, self.activation(y)

    @staticmethod
    def start(batch: int, hidden: int) -> Carry:
        carry: Carry = nn.LSTMCell.initialize_carry(jax.random.PRNGKey(0), (batch,), hidden)
        return carry


def run() -> Any:
    x = jnp.sin(jnp.arange(6.0)).reshape(2, 3)
    return Model(4).init_with_output(jax.random.PRNGKey(1), Model.start(2, 4), x)
