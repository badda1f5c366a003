"""Layers that are zipped with their carries."""
import flax.linen as nn
import jax
import jax.numpy as jnp


class Deep(nn.Module):
    hidden: int = 4
    depth: int = 2

    def setup(self):
        self.layers = [nn.OptimizedLSTMCell(kernel_init=nn.initializers.ones) for _ in range(self.depth)]

    def initial(self, batch):
        return [
            nn.OptimizedLSTMCell.initialize_carry(jax.random.PRNGKey(0), (batch,), self.hidden)
            for _ in range(self.depth)
        ]

    def __call__(self, carries, x):
        new = []
        for i, (cell, carry) in enumerate(zip(self.layers, carries)):
            carry, x = cell(carry, x)
            new.append(carry)
        return new, x


def run():
    x = jnp.sin(jnp.arange(6.0)).reshape(2, 3)
    model = Deep()
    return model.init_with_output(jax.random.PRNGKey(0), model.initial(2), x)
