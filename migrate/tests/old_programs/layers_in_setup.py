"""Layers in `setup`, of one size or several, whose carries are made in the call."""
import flax.linen as nn
import jax
import jax.numpy as jnp

KEY = jax.random.PRNGKey(0)
LEFT = 3  # Cells whose widths are in other methods.


class TwoLayers(nn.Module):
    dim: int

    def setup(self):
        LSTM = nn.scan(
            nn.OptimizedLSTMCell,
            variable_broadcast="params",
            split_rngs={"params": False},
            in_axes=1,
            out_axes=1,
        )
        self.first = LSTM()
        self.second = LSTM()
        self.third = LSTM()

    def __call__(self, x):
        carry, hidden = nn.OptimizedLSTMCell.initialize_carry(
            KEY, batch_dims=(len(x),), size=self.dim
        )
        (carry, hidden), x = self.first((carry, hidden), x)
        carry, hidden = nn.OptimizedLSTMCell.initialize_carry(
            KEY, batch_dims=(len(x),), size=self.dim
        )
        (carry, hidden), x = self.second((carry, hidden), x)
        carry, hidden = nn.OptimizedLSTMCell.initialize_carry(
            KEY, batch_dims=(len(x),), size=6
        )
        (carry, hidden), x = self.third((carry, hidden), x)
        return x


class Stack(nn.Module):
    def setup(self):
        self.layers = [nn.LSTMCell() for _ in range(2)]

    def __call__(self, x):
        for layer in self.layers:
            carry = layer.initialize_carry(KEY, (x.shape[0],), 4)
            _, x = layer(carry, x)
        return x


def run():
    x = jnp.sin(jnp.arange(30.0)).reshape(2, 5, 3)
    return (
        TwoLayers(4).init_with_output(KEY, x),
        Stack().init_with_output(KEY, x[:, 0]),
    )
