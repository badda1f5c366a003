"""Lambdas, comprehensions and a walrus."""
import flax.linen as nn
import jax
import jax.numpy as jnp

zeros = lambda batch, size: nn.LSTMCell.initialize_carry(jax.random.PRNGKey(0), (batch,), size)
tree = {name: nn.GRUCell.initialize_carry(jax.random.PRNGKey(0), (2,), n) for name, n in [("a", 4), ("b", 5)]}


class Model(nn.Module):
    @nn.compact
    def __call__(self, carries, x):
        out = {}
        for name in sorted(carries):
            out[name] = nn.GRUCell(name=name)(carries[name], x)[1]
        if (state := zeros(x.shape[0], 6)) is not None:
            out["lstm"] = nn.LSTMCell()(state, x)[1]
        return out


def run():
    x = jnp.sin(jnp.arange(6.0)).reshape(2, 3)
    return Model().init_with_output(jax.random.PRNGKey(1), tree, x)
