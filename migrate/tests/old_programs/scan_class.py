"""Pattern 4: the lifted class, made at once, by a name, and through an alias."""
import flax.linen as nn
import jax
import jax.numpy as jnp


class Model(nn.Module):
    hidden: int = 4

    @nn.compact
    def __call__(self, x):
        carry = nn.LSTMCell.initialize_carry(jax.random.PRNGKey(0), x.shape[:1], self.hidden)
        carry, x = nn.scan(
            nn.LSTMCell,
            variable_broadcast="params",
            split_rngs={"params": False},
            in_axes=1,
            out_axes=1,
        )()(carry, x)
        ScanLSTM = nn.scan(
            nn.LSTMCell, variable_broadcast="params", split_rngs={"params": False}, in_axes=1, out_axes=1
        )
        carry, x = ScanLSTM(name="second")(carry, x)
        carry, x = ScanLSTM()(carry, x)
        return x


def run():
    x = jnp.sin(jnp.arange(30.0)).reshape(2, 5, 3)
    return Model().init_with_output(jax.random.PRNGKey(1), x)
