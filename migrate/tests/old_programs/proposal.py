"""The example of Flax's proposal for today's API (FLIP 3099), with sizes that fit."""
import flax.linen as nn
import jax
import jax.numpy as jnp

key1, key2 = jax.random.split(jax.random.PRNGKey(0))


def run():
    x = jnp.sin(jnp.arange(72.0)).reshape(2, 4, 3, 3)
    carry = nn.ConvLSTMCell.initialize_carry(key1, (2,), (4, 3, 6))

    lstm = nn.ConvLSTMCell(features=6, kernel_size=(3, 3))
    (carry, y), initial_params = lstm.init_with_output(key2, carry, x)
    return carry, y, initial_params
