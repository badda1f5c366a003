"""The plain recurrent cell of Elman."""

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.typing import Dtype, Initializer

from rnncells import initializers
from rnncells.base import RNNCellBase


class SimpleCell(RNNCellBase):
    r"""Elman's cell: one affine map of input and state, and an activation.

    .. math::
        h_t = \tanh(W_i x_t + b_i + W_h h_{t-1})

    The carry and the output are :math:`h_t`, `(*batch, features)`.

    >>> import jax, jax.numpy as jnp, rnncells
    >>> cell, x = rnncells.SimpleCell(features=4), jnp.ones((2, 3))
    >>> carry = cell.initialize_carry(jax.random.key(0), x)
    >>> (carry, y), params = cell.init_with_output(jax.random.key(1), carry, x)
    >>> y.shape
    (2, 4)

    Attributes:
      features: number of units; None takes the width of the carry.
      activation_fn: :math:`\tanh` above; Elman's own was logistic.
      kernel_init: initialiser of :math:`W_i`, `(features_in, features)`.
      recurrent_kernel_init: initialiser of :math:`W_h`, `(features, features)`.
      bias_init: initialiser of :math:`b_i`.
      dtype: dtype of the computation; None promotes inputs and parameters.
      param_dtype: dtype of the parameters and of the carry.
      carry_init: initialiser of the carry.
      residual: adds :math:`h_{t-1}` inside the activation.
      use_bias: whether there is a bias.

    Reference: Elman, 1990, https://doi.org/10.1207/s15516709cog1402_1. Parameters and
    initial values are those of `flax.linen.SimpleCell`.
    """

    features: int | None
    activation_fn: Callable[[jax.Array], jax.Array] = nn.tanh
    kernel_init: Initializer = nn.initializers.lecun_normal()
    recurrent_kernel_init: Initializer = initializers.orthogonal()
    bias_init: Initializer = nn.initializers.zeros_init()
    dtype: Dtype | None = None
    param_dtype: Dtype = jnp.float32
    carry_init: Initializer = nn.initializers.zeros_init()
    residual: bool = False
    use_bias: bool = True

    num_feature_dims = 1

    def carry_shape(self, input_shape):
        return (self.features,)

    def setup(self):
        self.gates(
            "i",
            kernel_init=self.kernel_init,
            bias_init=self.bias_init,
            use_bias=self.use_bias,
        )
        self.gates("h", kernel_init=self.recurrent_kernel_init, use_bias=False)

    def project(self, inputs):
        return self.affine(inputs, "i")

    def recur(self, carry, projected):
        h = carry
        a = self.affine(h, "h", onto=projected)
        if self.residual:
            a = a + h
        h = self.activation_fn(a)
        return h, h
