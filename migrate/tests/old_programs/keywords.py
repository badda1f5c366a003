"""Pattern 3: keywords of the old carry, and its initialiser."""
import flax.linen as nn
import jax
import jax.numpy as jnp

KEY = jax.random.PRNGKey(3)


def carries():
    a = nn.LSTMCell.initialize_carry(KEY, batch_dims=(2,), size=4)
    b = nn.GRUCell.initialize_carry(rng=KEY, batch_dims=(2, 3), size=4)
    c = nn.LSTMCell.initialize_carry(KEY, (2,), 4, nn.initializers.ones)
    d = nn.GRUCell.initialize_carry(
        KEY,
        (2,),
        size=4,
        init_fn=nn.initializers.normal(0.1),
    )
    return a, b, c, d


def run():
    a, b, c, d = carries()
    x = jnp.cos(jnp.arange(6.0)).reshape(2, 3)
    lstm = nn.LSTMCell()
    params = lstm.init(KEY, a, x)
    return a, b, c, d, params, lstm.apply(params, c, x)
