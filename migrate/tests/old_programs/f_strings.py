"""Old forms within f-strings and beside strings that look like them."""
import flax.linen as nn
import jax
import jax.numpy as jnp

HELP = "nn.LSTMCell() and nn.LSTMCell.initialize_carry(key, (2,), 4)"


class Model(nn.Module):
    @nn.compact
    def __call__(self, carry, x):
        """Uses `nn.GRUCell()`.

        >>> nn.GRUCell.initialize_carry(key, (2,), 4)  # doctest: +SKIP
        """
        text = f"a carry of {carry.shape[-1]} by nn.GRUCell()"
        assert text.endswith("nn.GRUCell()")
        return nn.GRUCell()(carry, x)


def run():
    key = jax.random.PRNGKey(0)
    width = 4
    carry = nn.GRUCell.initialize_carry(key, (2,), width)
    print(f"{HELP}: {carry.shape} {'of ' + str(width)}")
    x = jnp.sin(jnp.arange(6.0)).reshape(2, 3)
    return Model().init_with_output(key, carry, x)
