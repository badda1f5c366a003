"""An import that may fail, and imports within functions."""
try:
    import flax.linen as nn
except ImportError:  # no Flax here
    nn = None
import jax
import jax.numpy as jnp


def carry_of(batch, hidden=4):
    from flax.linen import GRUCell

    return GRUCell.initialize_carry(jax.random.PRNGKey(0), (batch,), hidden)


def step(carry, x):
    from flax import linen

    cell = linen.GRUCell(bias_init=linen.initializers.ones)
    return cell.init_with_output(jax.random.PRNGKey(1), carry, x)


def run():
    x = jnp.sin(jnp.arange(6.0)).reshape(2, 3)
    carry = carry_of(2)
    return step(carry, x), nn.GRUCell().init_with_output(jax.random.PRNGKey(1), carry, x)
