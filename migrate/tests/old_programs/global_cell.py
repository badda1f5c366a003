"""A cell, its size and its carry at module level."""
import flax.linen as nn
import jax
import jax.numpy as jnp

HIDDEN = 4
BATCH_DIMS = (2,)
cell = nn.GRUCell()
initial = cell.initialize_carry(jax.random.PRNGKey(0), BATCH_DIMS, HIDDEN)


def unroll(params, xs):
    def body(carry, x):
        return cell.apply(params, carry, x)

    return jax.lax.scan(body, initial, xs)


def run():
    xs = jnp.sin(jnp.arange(30.0)).reshape(5, 2, 3)
    params = cell.init(jax.random.PRNGKey(0), initial, xs[0])
    return params, unroll(params, xs)
