"""Pattern 16: lengths by a mask."""
import flax.linen as nn
import jax
import jax.numpy as jnp


def run():
    x = jnp.sin(jnp.arange(30.0)).reshape(2, 5, 3)
    mask = jnp.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
    layer = nn.RNN(nn.LSTMCell(), 4, return_carry=True)
    key = jax.random.PRNGKey(0)
    params = layer.init(key, x)
    return params, layer.apply(params, x, segmentation_mask=mask)
