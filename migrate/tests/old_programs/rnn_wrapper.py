"""Pattern 11: the size as an argument of RNN."""
import flax.linen as nn
import jax
import jax.numpy as jnp


class Classifier(nn.Module):
    hidden: int = 4

    @nn.compact
    def __call__(self, x):
        x = nn.RNN(nn.LSTMCell(), self.hidden)(x)
        x = nn.RNN(nn.GRUCell(), cell_size=5, reverse=True, keep_order=True)(x)
        carry, x = nn.RNN(nn.OptimizedLSTMCell(), 6, return_carry=True)(x)
        return carry, nn.Dense(2)(x[:, -1])


def run():
    x = jnp.sin(jnp.arange(30.0)).reshape(2, 5, 3)
    time_major = nn.RNN(nn.LSTMCell(), 4, time_major=True)
    return (
        Classifier().init_with_output(jax.random.PRNGKey(0), x),
        time_major.init_with_output(jax.random.PRNGKey(0), x),
    )
