"""Comments in, before and behind old forms stay where they are."""
import flax.linen as nn
import jax
import jax.numpy as jnp


class Model(nn.Module):
    hidden: int = 4

    @nn.compact
    def __call__(self, x):
        # carry = nn.LSTMCell.initialize_carry(key, (2,), 3)
        carry = nn.LSTMCell.initialize_carry(
            jax.random.PRNGKey(0),  # not used by zeros
            (x.shape[0],),  # batch
            self.hidden,  # features
        )  # (c, h)
        other = nn.GRUCell.initialize_carry(
            jax.random.PRNGKey(0),
            (),  # no batch
            self.hidden,
        )
        (c, h), y = nn.LSTMCell(  # the cell
            name="lstm",  # its name
        )(carry, x)
        # nn.LSTMCell() in a comment
        return c, h, y, other


def run():
    x = jnp.sin(jnp.arange(6.0)).reshape(2, 3)
    return Model().init_with_output(jax.random.PRNGKey(1), x)
