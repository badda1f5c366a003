"""Pattern 16: other ways to the same names."""
import flax
import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.linen.recurrent import LSTMCell as Cell
from flax.linen import transforms


class Model(nn.Module):
    @nn.compact
    def __call__(self, x):
        carry = nn.recurrent.GRUCell.initialize_carry(jax.random.PRNGKey(0), (2,), 4)
        Scanned = nn.transforms.scan(
            nn.recurrent.GRUCell, variable_broadcast="params", split_rngs={"params": False}, in_axes=1, out_axes=1
        )
        _, x = Scanned()(carry, x)
        carry = Cell.initialize_carry(jax.random.PRNGKey(0), (2,), 5)
        carry, y = Cell()(carry, x[:, 0])
        return carry, y


class Other(flax.linen.Module):
    @flax.linen.compact
    def __call__(self, carry, x):
        return flax.linen.GRUCell()(carry, x)


def run():
    x = jnp.sin(jnp.arange(30.0)).reshape(2, 5, 3)
    carry = flax.linen.GRUCell.initialize_carry(jax.random.PRNGKey(0), (2,), 4)
    return (
        Model().init_with_output(jax.random.PRNGKey(1), x),
        Other().init_with_output(jax.random.PRNGKey(1), carry, x[:, 0]),
    )
