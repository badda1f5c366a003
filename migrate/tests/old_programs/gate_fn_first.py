"""Pattern 10: the first positional argument was the gate function."""
import flax.linen as nn
import jax
import jax.numpy as jnp

SHIM = False  # What a shim cannot see.


class Model(nn.Module):
    @nn.compact
    def __call__(self, carry, x):
        carry, y = nn.LSTMCell(nn.hard_sigmoid, nn.relu)(carry, x)
        return carry, y


def run():
    x = jnp.sin(jnp.arange(6.0)).reshape(2, 3)
    key = jax.random.PRNGKey(0)
    carry = nn.LSTMCell.initialize_carry(key, (2,), 4)
    return Model().init_with_output(key, carry, x)
