"""A subclass of a cell, with a default of its own."""
import flax.linen as nn
import jax
import jax.numpy as jnp


class HardLSTMCell(nn.LSTMCell):
    """An LSTM with hard gates."""

    def scaled(self):
        return 2.0


class Model(nn.Module):
    @nn.compact
    def __call__(self, x):
        carry = HardLSTMCell.initialize_carry(jax.random.PRNGKey(0), (x.shape[0],), 4)
        return HardLSTMCell(gate_fn=nn.hard_sigmoid)(carry, x)


def run():
    x = jnp.sin(jnp.arange(6.0)).reshape(2, 3)
    return Model().init_with_output(jax.random.PRNGKey(1), x)
