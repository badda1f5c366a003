"""Pattern 14: a cell of one's own with a static carry."""
import flax.linen as nn
import jax
import jax.numpy as jnp


class LeakyCell(nn.RNNCellBase):
    """A leaky unit."""

    rate: float = 0.5

    @nn.compact
    def __call__(self, carry, x):
        h = nn.tanh(nn.Dense(carry.shape[-1])(jnp.concatenate([carry, x], axis=-1)))
        carry = self.rate * carry + (1 - self.rate) * h
        return carry, carry

    @staticmethod
    def initialize_carry(rng, batch_dims, size, init_fn=nn.initializers.zeros_init()):
        """Zeros, by default."""
        mem_shape = batch_dims + (size,)
        return init_fn(rng, mem_shape)


class Model(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.RNN(LeakyCell(rate=0.25), 4)(x)


def run():
    x = jnp.sin(jnp.arange(30.0)).reshape(2, 5, 3)
    return Model().init_with_output(jax.random.PRNGKey(0), x)
