"""Carries in methods of all kinds, and a wrapper with another signature."""
import flax.linen as nn
import jax
import jax.numpy as jnp


class Core(nn.Module):
    features_: int = 4

    @nn.compact
    def __call__(self, state, x):
        return nn.LSTMCell()(state, x)

    @nn.nowrap
    def initial_state(self, batch_dims):
        return nn.LSTMCell.initialize_carry(jax.random.PRNGKey(0), batch_dims, self.features_)

    @classmethod
    def initialize_carry(cls, rng, batch_dims, size):
        """A wrapper: calls of it are not those of a cell."""
        return nn.LSTMCell.initialize_carry(rng, batch_dims, size)

    @property
    def zero(self):
        return nn.LSTMCell.initialize_carry(jax.random.PRNGKey(0), (), self.features_)


def run():
    x = jnp.sin(jnp.arange(6.0)).reshape(2, 3)
    core, key = Core(), jax.random.PRNGKey(0)
    state = core.initial_state((2,))
    again = Core.initialize_carry(key, (2,), 4)
    return core.init_with_output(key, state, x), again, core.zero
