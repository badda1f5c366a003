"""Pattern 15: carries under vmap over keys."""
import flax.linen as nn
import jax
import jax.numpy as jnp


def run():
    keys = jax.random.split(jax.random.PRNGKey(0), 3)
    zeros = jax.vmap(lambda key: nn.GRUCell.initialize_carry(key, (), 4))(keys)
    drawn = jax.vmap(
        lambda key: nn.LSTMCell.initialize_carry(key, (), 4, nn.initializers.normal(1.0))
    )(keys)
    x = jnp.sin(jnp.arange(9.0)).reshape(3, 3)
    cell = nn.LSTMCell()
    return zeros, drawn, cell.init_with_output(jax.random.PRNGKey(1), drawn, x)
