"""Modules within modules and within functions."""
import flax.linen as nn
import jax
import jax.numpy as jnp


class Outer(nn.Module):
    hidden: int = 4

    class Inner(nn.Module):
        size: int

        @nn.compact
        def __call__(self, x):
            carry = nn.GRUCell.initialize_carry(jax.random.PRNGKey(0), x.shape[:-1], self.size)
            return nn.GRUCell()(carry, x)[1]

    def setup(self):
        self.inner = self.Inner(self.hidden)
        self.cell = nn.GRUCell()

    def __call__(self, x):
        carry = self.cell.initialize_carry(jax.random.PRNGKey(0), x.shape[:-1], self.hidden)
        return self.cell(carry, self.inner(x))


def make(size):
    class Local(nn.Module):
        @nn.compact
        def __call__(self, x):
            carry = nn.LSTMCell.initialize_carry(jax.random.PRNGKey(0), x.shape[:-1], size)
            return nn.LSTMCell()(carry, x)

    return Local()


def run():
    x = jnp.sin(jnp.arange(6.0)).reshape(2, 3)
    key = jax.random.PRNGKey(0)
    return Outer().init_with_output(key, x), make(5).init_with_output(key, x)
