"""Pattern 5: the carry of the lifted class."""
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp

scanned = partial(
    nn.scan, variable_broadcast="params", split_rngs={"params": False}, in_axes=1, out_axes=1
)


class Model(nn.Module):
    @nn.compact
    def __call__(self, x):
        GRU = nn.scan(
            nn.GRUCell, variable_broadcast="params", split_rngs={"params": False}, in_axes=1, out_axes=1
        )
        carry = GRU.initialize_carry(jax.random.PRNGKey(0), (x.shape[0],), 6)
        return GRU(name="gru")(carry, x)


def run():
    x = jnp.sin(jnp.arange(30.0)).reshape(2, 5, 3)
    return Model().init_with_output(jax.random.PRNGKey(1), x)
