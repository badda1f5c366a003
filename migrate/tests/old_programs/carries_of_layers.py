"""Pattern 9: the same carry several times, and one for each layer."""
import flax.linen as nn
import jax
import jax.numpy as jnp

SIZES = [4, 5]


class Stacked(nn.Module):
    @nn.compact
    def __call__(self, carries, x):
        new = []
        for carry in carries:
            carry, x = nn.LSTMCell()(carry, x)
            new.append(carry)
        return new, x


def run():
    key = jax.random.PRNGKey(0)
    x = jnp.sin(jnp.arange(6.0)).reshape(2, 3)
    same = [nn.LSTMCell.initialize_carry(key, (2,), 4)] * 3
    each = [nn.LSTMCell.initialize_carry(key, (2,), size) for size in SIZES]
    return Stacked().init_with_output(key, same, x), Stacked().init_with_output(key, each, x)
