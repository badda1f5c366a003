"""Pattern 8: no batch."""
import flax.linen as nn
import jax
import jax.numpy as jnp


def run():
    x = jnp.sin(jnp.arange(3.0))
    key = jax.random.PRNGKey(0)
    cell = nn.GRUCell()
    carry = cell.initialize_carry(key, (), 4)
    other = nn.LSTMCell.initialize_carry(key, batch_dims=(), size=6)
    params = cell.init(key, carry, x)
    return carry, other, params, cell.apply(params, carry, x)
