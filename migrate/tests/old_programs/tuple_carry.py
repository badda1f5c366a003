"""A carry that is put together at the call."""
import flax.linen as nn
import jax
import jax.numpy as jnp


class Model(nn.Module):
    @nn.compact
    def __call__(self, c, h, x):
        (c, h), y = nn.LSTMCell()((c, h), x)
        return c, h, y


class Attention(nn.Module):
    @nn.compact
    def __call__(self, state, x):
        state["lstm"], y = nn.LSTMCell()(state["lstm"], x)
        return state, y


def run():
    x = jnp.sin(jnp.arange(6.0)).reshape(2, 3)
    key = jax.random.PRNGKey(0)
    c, h = nn.LSTMCell.initialize_carry(key, (2,), 4)
    return (
        Model().init_with_output(key, c, h, x),
        Attention().init_with_output(key, {"lstm": (c, h)}, x),
    )
