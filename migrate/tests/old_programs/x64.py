"""Carries of a program in float64."""
import flax.linen as nn
import jax
import jax.numpy as jnp

KEY = jax.random.PRNGKey(0)


class Model(nn.Module):
    @nn.compact
    def __call__(self, x):
        LSTM = nn.scan(
            nn.LSTMCell, variable_broadcast="params", split_rngs={"params": False}
        )
        carry = nn.LSTMCell.initialize_carry(KEY, (2,), 4)
        carry, y = LSTM(param_dtype=jnp.float64)(carry, x)
        state = nn.GRUCell.initialize_carry(KEY, (2,), 5, nn.initializers.normal())
        return carry, state, nn.GRUCell()(state, y[0])


def run():
    with jax.enable_x64(True):
        x = jnp.sin(jnp.arange(30.0)).reshape(5, 2, 3)
        return Model().init_with_output(KEY, x)
