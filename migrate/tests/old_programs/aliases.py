"""Names of names."""
from flax import linen as fnn
import jax
import jax.numpy as jnp

Cell = fnn.GRUCell
make_lstm = fnn.LSTMCell
lift = fnn.scan


class Model(fnn.Module):
    @fnn.compact
    def __call__(self, x):
        Scanned = lift(Cell, variable_broadcast="params", split_rngs={"params": False}, in_axes=1, out_axes=1)
        carry = Cell.initialize_carry(jax.random.PRNGKey(0), (x.shape[0],), 4)
        carry, y = Scanned()(carry, x)
        state = make_lstm.initialize_carry(jax.random.PRNGKey(0), (x.shape[0],), 5)
        lstm = make_lstm()
        return lstm(state, y[:, -1])


def run():
    x = jnp.sin(jnp.arange(30.0)).reshape(2, 5, 3)
    return Model().init_with_output(jax.random.PRNGKey(1), x)
