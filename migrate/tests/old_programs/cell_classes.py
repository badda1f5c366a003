"""Pattern 13: classes of cells as values, of which only some can be known."""
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

LEFT = 3  # Places that a person has to look at.


class Model(nn.Module):
    hidden: int
    cell_cls: Any = nn.GRUCell

    @nn.compact
    def __call__(self, x):
        carry = self.cell_cls.initialize_carry(jax.random.PRNGKey(0), (x.shape[0],), self.hidden)
        return self.cell_cls()(carry, x)


def is_cell(cell):
    return isinstance(cell, nn.RNNCellBase)


def run():
    x = jnp.sin(jnp.arange(6.0)).reshape(2, 3)
    key = jax.random.PRNGKey(0)
    cell = getattr(nn, "GRUCell")()
    carry = cell.initialize_carry(key, (2,), 4)
    assert is_cell(cell)
    return Model(4).init_with_output(key, x), cell.init_with_output(key, carry, x)
