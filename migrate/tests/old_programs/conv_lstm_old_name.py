"""Pattern 12: the name of Flax <= 0.6.3, with a name of its own in the tree."""
import flax.linen as nn
import jax
import jax.numpy as jnp


class Video(nn.Module):
    def setup(self):
        self.core = nn.ConvLSTM(features=5, kernel_size=(3, 3))

    def __call__(self, carry, frame):
        return self.core(carry, frame)


class Named(nn.Module):
    @nn.compact
    def __call__(self, carry, frame):
        return nn.ConvLSTM(5, (3, 3), name="conv")(carry, frame)


def run():
    frame = jnp.sin(jnp.arange(2 * 6 * 4 * 2.0)).reshape(2, 6, 4, 2)
    key = jax.random.PRNGKey(0)
    carry = nn.ConvLSTM.initialize_carry(key, (2,), (6, 4, 5))
    return (
        Video().init_with_output(key, carry, frame),
        Named().init_with_output(key, carry, frame),
    )
