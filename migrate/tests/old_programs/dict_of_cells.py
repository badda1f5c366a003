"""Cells in a dictionary, made in setup."""
import flax.linen as nn
import jax
import jax.numpy as jnp


class Model(nn.Module):
    size: int

    def setup(self):
        self.cells = {"a": nn.LSTMCell(), "b": nn.LSTMCell()}

    def __call__(self, x):
        out = {}
        for name, cell in self.cells.items():
            carry = cell.initialize_carry(jax.random.PRNGKey(0), x.shape[:-1], self.size)
            out[name] = cell(carry, x)
        return out


def run():
    x = jnp.sin(jnp.arange(6.0)).reshape(2, 3)
    return Model(4).init_with_output(jax.random.PRNGKey(1), x)
