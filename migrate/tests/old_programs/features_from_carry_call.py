"""Patterns 1 and 2: a cell without features, and the carry from its class."""
import flax.linen as nn
import jax
import jax.numpy as jnp


class Encoder(nn.Module):
    hidden: int

    @nn.compact
    def __call__(self, x):
        # The carry first, as in the tutorials.
        carry = nn.LSTMCell.initialize_carry(jax.random.PRNGKey(0), (x.shape[0],), self.hidden)
        cell = nn.LSTMCell()
        ys = []
        for t in range(x.shape[1]):
            carry, y = cell(carry, x[:, t])  # one step
            ys.append(y)
        return carry, jnp.stack(ys, axis=1)


def run():
    x = jnp.sin(jnp.arange(30.0)).reshape(2, 5, 3)
    return Encoder(hidden=4).init_with_output(jax.random.PRNGKey(1), x)
