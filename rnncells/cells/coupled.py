"""Long short-term memory with input and forget gate in one."""

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.typing import Dtype, Initializer

from rnncells import initializers
from rnncells.base import RNNCellBase


class CoupledLSTMCell(RNNCellBase):
    r"""LSTM with coupled input and forget gate (CIFG): it forgets what it replaces.

    .. math::
        i_t &= \sigma(W_{ii} x_t + W_{hi} h_{t-1} + b_{hi}) \\
        f_t &= 1 - i_t \\
        g_t &= \tanh(W_{ig} x_t + W_{hg} h_{t-1} + b_{hg}) \\
        o_t &= \sigma(W_{io} x_t + W_{ho} h_{t-1} + b_{ho}) \\
        c_t &= f_t \odot c_{t-1} + i_t \odot g_t \\
        h_t &= o_t \odot \tanh(c_t)

    The carry is :math:`(c_t, h_t)`, the output :math:`h_t`, all `(*batch, features)`.

    >>> import jax, jax.numpy as jnp, rnncells
    >>> cell, x = rnncells.CoupledLSTMCell(features=4), jnp.ones((2, 3))
    >>> carry = cell.initialize_carry(jax.random.key(0), x)
    >>> ((c, h), y), params = cell.init_with_output(jax.random.key(1), carry, x)
    >>> y.shape
    (2, 4)

    Attributes:
      features: number of units; None takes the width of the carry.
      gate_fn: :math:`\sigma`, with values in [0, 1].
      activation_fn: :math:`\tanh`.
      kernel_init: initialiser of :math:`W_{i\cdot}`, each `(features_in, features)`.
      recurrent_kernel_init: of :math:`W_{h\cdot}`, each `(features, features)`.
      bias_init: initialiser of the biases.
      dtype: dtype of the computation; None promotes inputs and parameters.
      param_dtype: dtype of the parameters and of the carry.
      carry_init: initialiser of the carry.
      use_bias: whether the gates have biases.

    Reference: Greff et al., 2017, https://arxiv.org/abs/1503.04069, variant CIFG,
    without the peepholes of all its variants. Parameters are those of `LSTMCell`
    without `if` and `hf`.
    """

    features: int | None
    gate_fn: Callable[[jax.Array], jax.Array] = nn.sigmoid
    activation_fn: Callable[[jax.Array], jax.Array] = nn.tanh
    kernel_init: Initializer = nn.initializers.lecun_normal()
    recurrent_kernel_init: Initializer = initializers.orthogonal()
    bias_init: Initializer = nn.initializers.zeros_init()
    dtype: Dtype | None = None
    param_dtype: Dtype = jnp.float32
    carry_init: Initializer = nn.initializers.zeros_init()
    use_bias: bool = True

    num_feature_dims = 1

    def carry_shape(self, input_shape):
        return (self.features,), (self.features,)

    def setup(self):
        self.gates("ii", "ig", "io", kernel_init=self.kernel_init, use_bias=False)
        self.gates(
            *("hi", "hg", "ho"),
            kernel_init=self.recurrent_kernel_init,
            bias_init=self.bias_init,
            use_bias=self.use_bias,
        )

    def project(self, inputs):
        return self.affine(inputs, "ii", "ig", "io")

    def recur(self, carry, projected):
        c, h = carry
        a = self.affine(h, "hi", "hg", "ho", onto=projected)
        i, g, o = jnp.split(a, 3, axis=-1)
        i = self.gate_fn(i)
        f = 1 - i
        g = self.activation_fn(g)
        o = self.gate_fn(o)
        c = f * c + i * g
        h = o * self.activation_fn(c)
        return (c, h), h
