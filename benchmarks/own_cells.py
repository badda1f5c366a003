"""Cells as users write them, two of them without a recurrent product."""

import flax.linen as nn
import jax
import jax.numpy as jnp


class _OwnCell(nn.RNNCellBase):
    """Base of the cells below, whose carry is `h`, or `(c, h)`."""

    features: int

    @property
    def num_feature_axes(self):
        return 1

    @nn.nowrap
    def initialize_carry(self, rng, input_shape):
        return jnp.zeros((*input_shape[:-1], self.features))


class CompactLSTMCell(_OwnCell):
    """An LSTM, written in one `nn.compact` method."""

    @nn.nowrap
    def initialize_carry(self, rng, input_shape):
        zeros = super().initialize_carry(rng, input_shape)
        return zeros, zeros

    @nn.compact
    def __call__(self, carry, x):
        c, h = carry
        of_h = nn.Dense(4 * self.features, use_bias=False)(h)
        i, f, g, o = jnp.split(nn.Dense(4 * self.features)(x) + of_h, 4, axis=-1)
        c = nn.sigmoid(f) * c + nn.sigmoid(i) * nn.tanh(g)
        h = nn.sigmoid(o) * nn.tanh(c)
        return (c, h), h


class MinGRUCell(_OwnCell):
    """The minimal GRU (Feng et al., 2024): gate and candidate depend on inputs only."""

    @nn.compact
    def __call__(self, carry, x):
        z = nn.sigmoid(nn.Dense(self.features)(x))
        h = (1 - z) * carry + z * nn.Dense(self.features)(x)
        return h, h


class IndRNNCell(_OwnCell):
    """The independently recurrent network (Li et al., 2018): a weight for each unit."""

    @nn.compact
    def __call__(self, carry, x):
        u = self.param("u", nn.initializers.uniform(1.0), (self.features,))
        h = jax.nn.relu(nn.Dense(self.features)(x) + u * carry)
        return h, h
