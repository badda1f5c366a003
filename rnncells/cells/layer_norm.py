"""Recurrent cells with layer normalisation."""

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.typing import Dtype, Initializer

from rnncells import initializers
from rnncells.base import RNNCellBase
from rnncells.gates import Diagonal


def standardize(x: jax.Array, epsilon: float) -> jax.Array:
    r"""Returns :math:`(x - \mu) / \sqrt{\sigma^2 + \epsilon}` over the last axis.

    Mean and variance of half precision are taken in float32.
    """
    wide = x.astype(jnp.promote_types(jnp.float32, x.dtype))
    centered = wide - wide.mean(-1, keepdims=True)
    variance = (centered * centered.conj()).real.mean(-1, keepdims=True)
    return (centered * jax.lax.rsqrt(variance + epsilon)).astype(x.dtype)


class LayerNormLSTMCell(RNNCellBase):
    r"""LSTM whose products and state are normalised over the layer.

    .. math::
        (i_t, f_t, g_t, o_t) &= LN(W_h h_{t-1}; \alpha_1, \beta_1)
            + LN(W_x x_t; \alpha_2, \beta_2) \\
        c_t &= \sigma(f_t) \odot c_{t-1} + \sigma(i_t) \odot \tanh(g_t) \\
        h_t &= \sigma(o_t) \odot \tanh(LN(c_t; \alpha_3, \beta_3))

    with :math:`LN(z; \alpha, \beta) = \alpha \odot (z - \mu) / \sigma + \beta`, where
    :math:`\mu` and :math:`\sigma` are mean and standard deviation of all numbers of
    :math:`z`, those of the four gates together. The carry is :math:`(c_t, h_t)`, the
    output :math:`h_t`, all `(*batch, features)`.

    >>> import jax, jax.numpy as jnp, rnncells
    >>> cell, x = rnncells.LayerNormLSTMCell(features=4), jnp.ones((2, 3))
    >>> carry = cell.initialize_carry(jax.random.key(0), x)
    >>> ((c, h), y), params = cell.init_with_output(jax.random.key(1), carry, x)
    >>> y.shape
    (2, 4)

    Attributes:
      features: number of units; None takes the width of the carry.
      gate_fn: :math:`\sigma`.
      activation_fn: :math:`\tanh`.
      kernel_init: initialiser of :math:`W_x`, `(features_in, features)` for each gate.
      recurrent_kernel_init: of :math:`W_h`, `(features, features)` for each gate.
      bias_init: initialiser of :math:`\beta_2`; the other shifts start at 0.
      dtype: dtype of the computation; None promotes inputs and parameters.
      param_dtype: dtype of the parameters and of the carry.
      carry_init: initialiser of the carry.
      use_bias: whether the norms have shifts :math:`\beta`.
      epsilon: what is added to the variance; by default that of the authors' code (the
        default of `flax.linen.LayerNorm` is 1e-6).

    Reference: Ba, Kiros and Hinton, 2016, https://arxiv.org/abs/1607.06450,
    supplementary material. The paper's :math:`b` is left out, as it would only add to
    :math:`\beta_2`. Kernels are in the tree as those of `LSTMCell`; gains and shifts
    of the gates lie side by side, in the order i, f, g, o: `norm_h`, `norm_x`, and
    `norm_c` of the state.
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
    epsilon: float = 1e-5

    num_feature_dims = 1

    def carry_shape(self, input_shape):
        return (self.features,), (self.features,)

    def setup(self):
        self.gates(
            *("ii", "if", "ig", "io"), kernel_init=self.kernel_init, use_bias=False
        )
        self.gates(
            *("hi", "hf", "hg", "ho"),
            kernel_init=self.recurrent_kernel_init,
            use_bias=False,
        )
        options = {"use_bias": self.use_bias, "param_dtype": self.param_dtype}
        self.norm_h = Diagonal(dtype=self.dtype, **options)
        self.norm_x = Diagonal(dtype=self.dtype, bias_init=self.bias_init, **options)
        # In the dtype of the carry, as the state is, and so the output.
        self.norm_c = Diagonal(**options)

    def project(self, inputs):
        a = self.affine(inputs, "ii", "if", "ig", "io")
        return self.product(self.norm_x, standardize(a, self.epsilon))

    def recur(self, carry, projected):
        c, h = carry
        a = self.affine(h, "hi", "hf", "hg", "ho")
        a = self.product(self.norm_h, standardize(a, self.epsilon), onto=projected)
        i, f, g, o = jnp.split(a, 4, axis=-1)
        i = self.gate_fn(i)
        f = self.gate_fn(f)
        g = self.activation_fn(g)
        o = self.gate_fn(o)
        c = f * c + i * g
        normed = self.product(self.norm_c, standardize(c, self.epsilon))
        h = o * self.activation_fn(normed)
        return (c, h), h


class LayerNormGRUCell(RNNCellBase):
    r"""GRU whose products are normalised over the layer.

    .. math::
        (r_t, z_t) &= LN(W_h h_{t-1}; \alpha_1, \beta_1)
            + LN(W_x x_t; \alpha_2, \beta_2) \\
        n_t &= \tanh(LN(W x_t; \alpha_3, \beta_3)
            + \sigma(r_t) \odot LN(U h_{t-1}; \alpha_4, \beta_4)) \\
        h_t &= (1 - \sigma(z_t)) \odot h_{t-1} + \sigma(z_t) \odot n_t

    with :math:`LN(z; \alpha, \beta) = \alpha \odot (z - \mu) / \sigma + \beta`, where
    :math:`\mu` and :math:`\sigma` are mean and standard deviation of all numbers of
    :math:`z`, those of both gates together. The carry and the output are :math:`h_t`,
    `(*batch, features)`.

    >>> import jax, jax.numpy as jnp, rnncells
    >>> cell, x = rnncells.LayerNormGRUCell(features=4), jnp.ones((2, 3))
    >>> carry = cell.initialize_carry(jax.random.key(0), x)
    >>> (carry, y), params = cell.init_with_output(jax.random.key(1), carry, x)
    >>> y.shape
    (2, 4)

    Attributes:
      features: number of units; None takes the width of the carry.
      gate_fn: :math:`\sigma`.
      activation_fn: :math:`\tanh`.
      kernel_init: initialiser of :math:`W_x` and :math:`W`, `(features_in, features)`
        for each gate.
      recurrent_kernel_init: of :math:`W_h` and :math:`U`, `(features, features)` for
        each gate.
      bias_init: initialiser of :math:`\beta_2`, :math:`\beta_3` and :math:`\beta_4`,
        which are the biases of a GRU; :math:`\beta_1` starts at 0.
      dtype: dtype of the computation; None promotes inputs and parameters.
      param_dtype: dtype of the parameters and of the carry.
      carry_init: initialiser of the carry.
      use_bias: whether the norms have shifts :math:`\beta`.
      epsilon: what is added to the variance; by default that of the authors' code (the
        default of `flax.linen.LayerNorm` is 1e-6).

    Reference: Ba, Kiros and Hinton, 2016, https://arxiv.org/abs/1607.06450,
    supplementary material. As there, and not as in `GRUCell`, :math:`z_t` is the share
    of what is new. Kernels are in the tree as those of `GRUCell`; gains and shifts are
    `norm_h` and `norm_x` (of r and z, side by side), `norm_xn` and `norm_hn`.
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
    epsilon: float = 1e-5

    num_feature_dims = 1

    def carry_shape(self, input_shape):
        return (self.features,)

    def setup(self):
        self.gates("ir", "iz", "in", kernel_init=self.kernel_init, use_bias=False)
        self.gates(
            *("hr", "hz", "hn"), kernel_init=self.recurrent_kernel_init, use_bias=False
        )
        options = {
            "use_bias": self.use_bias,
            "dtype": self.dtype,
            "param_dtype": self.param_dtype,
        }
        self.norm_h = Diagonal(**options)
        self.norm_x = Diagonal(bias_init=self.bias_init, **options)
        self.norm_xn = Diagonal(bias_init=self.bias_init, **options)
        self.norm_hn = Diagonal(bias_init=self.bias_init, **options)

    def project(self, inputs):
        a = self.affine(inputs, "ir", "iz")
        xrz = self.product(self.norm_x, standardize(a, self.epsilon))
        a = self.affine(inputs, "in")
        xn = self.product(self.norm_xn, standardize(a, self.epsilon))
        return xrz, xn

    def recur(self, carry, projected):
        h = carry
        xrz, xn = projected
        a = self.affine(h, "hr", "hz")
        a = self.product(self.norm_h, standardize(a, self.epsilon), onto=xrz)
        r, z = jnp.split(a, 2, axis=-1)
        r = self.gate_fn(r)
        z = self.gate_fn(z)
        a = self.affine(h, "hn")
        hn = self.product(self.norm_hn, standardize(a, self.epsilon))
        n = self.activation_fn(xn + r * hn)
        h = (1 - z) * h + z * n
        return h, h
