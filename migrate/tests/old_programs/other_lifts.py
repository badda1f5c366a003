"""Classes that went through remat, jit and vmap."""
import flax.linen as nn
import jax
import jax.numpy as jnp


class Model(nn.Module):
    @nn.compact
    def __call__(self, x):
        key = jax.random.PRNGKey(0)
        carry = nn.GRUCell.initialize_carry(key, (x.shape[0],), 4)
        carry, y = nn.remat(nn.GRUCell)()(carry, x)
        carry, y = nn.jit(nn.GRUCell)()(carry, y)
        Many = nn.vmap(nn.GRUCell, variable_axes={"params": 0}, split_rngs={"params": True})
        carries = jnp.stack([carry, carry])
        return Many()(carries, jnp.stack([y, y]))


def run():
    x = jnp.sin(jnp.arange(6.0)).reshape(2, 3)
    return Model().init_with_output(jax.random.PRNGKey(1), x)
