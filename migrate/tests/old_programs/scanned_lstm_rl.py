"""Pattern 6, of two parts: resets with a tree."""
from functools import partial

import jax
import jax.numpy as jnp
from flax import linen as nn


class Core(nn.Module):
    @partial(nn.scan, variable_broadcast="params", in_axes=0, out_axes=0, split_rngs={"params": False})
    @nn.compact
    def __call__(self, state, inputs):
        x, done = inputs
        zeros = self.initialize_carry((x.shape[0],), x.shape[-1])
        state = jax.tree_util.tree_map(lambda z, s: jnp.where(done[:, None], z, s), zeros, state)
        state, out = nn.OptimizedLSTMCell()(state, x)
        return state, out

    @staticmethod
    def initialize_carry(batch_dims, hidden):
        return nn.OptimizedLSTMCell.initialize_carry(jax.random.PRNGKey(0), batch_dims, hidden)


def run():
    x = jnp.sin(jnp.arange(4 * 2 * 6.0)).reshape(4, 2, 6)
    done = jnp.zeros((4, 2), bool).at[2, 1].set(True)
    state = Core.initialize_carry((2,), 6)
    return Core().init_with_output(jax.random.PRNGKey(0), state, (x, done))
