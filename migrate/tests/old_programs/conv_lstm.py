"""Pattern 12: ConvLSTMCell and the carry of an image."""
import flax.linen as nn
import jax
import jax.numpy as jnp


class Video(nn.Module):
    @nn.compact
    def __call__(self, frames):
        carry = nn.ConvLSTMCell.initialize_carry(jax.random.PRNGKey(0), (frames.shape[0],), (6, 4, 5))
        cell = nn.ConvLSTMCell(features=5, kernel_size=(3, 3))
        for t in range(frames.shape[1]):
            carry, y = cell(carry, frames[:, t])
        return carry, y


def run():
    frames = jnp.sin(jnp.arange(2 * 3 * 6 * 4 * 2.0)).reshape(2, 3, 6, 4, 2)
    layer = nn.RNN(nn.ConvLSTMCell(5, (3, 3)), (6, 4, 5))
    return (
        Video().init_with_output(jax.random.PRNGKey(0), frames),
        layer.init_with_output(jax.random.PRNGKey(0), frames),
    )
