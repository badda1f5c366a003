"""Pattern 11, inside of Bidirectional, in setup and at top level."""
import flax.linen as nn
import jax
import jax.numpy as jnp


class Tagger(nn.Module):
    hidden: int

    def setup(self):
        self.layer = nn.Bidirectional(
            nn.RNN(nn.LSTMCell(), self.hidden),
            nn.RNN(nn.LSTMCell(), cell_size=self.hidden),  # the way back
        )

    def __call__(self, x, lengths):
        return self.layer(x, seq_lengths=lengths)


def run():
    x = jnp.sin(jnp.arange(30.0)).reshape(2, 5, 3)
    layer = nn.Bidirectional(nn.RNN(nn.GRUCell(), 4), nn.RNN(nn.GRUCell(), 6), merge_fn=lambda a, b: a[..., :4] + b[..., :4])
    return (
        Tagger(4).init_with_output(jax.random.PRNGKey(0), x, jnp.array([5, 3])),
        layer.init_with_output(jax.random.PRNGKey(0), x),
    )
