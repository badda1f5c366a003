"""Long short-term memory whose state is projected to fewer units."""

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.typing import Dtype, Initializer

from rnncells import initializers
from rnncells.base import RNNCellBase
from rnncells.checks import check_projection


class ProjectedLSTMCell(RNNCellBase):
    r"""LSTM with a recurrent projection (LSTMP).

    .. math::
        i_t &= \sigma(W_{ii} x_t + W_{hi} h_{t-1} + b_{hi}) \\
        f_t &= \sigma(W_{if} x_t + W_{hf} h_{t-1} + b_{hf}) \\
        g_t &= \tanh(W_{ig} x_t + W_{hg} h_{t-1} + b_{hg}) \\
        o_t &= \sigma(W_{io} x_t + W_{ho} h_{t-1} + b_{ho}) \\
        c_t &= f_t \odot c_{t-1} + i_t \odot g_t \\
        m_t &= o_t \odot \tanh(c_t) \\
        h_t &= W_{hr} m_t

    The carry is :math:`(c_t, h_t)`, `(*batch, features)` and
    `(*batch, proj_features)`; the output is :math:`h_t`.

    >>> import jax, jax.numpy as jnp, rnncells
    >>> cell = rnncells.ProjectedLSTMCell(features=4, proj_features=2)
    >>> x = jnp.ones((5, 3))
    >>> carry = cell.initialize_carry(jax.random.key(0), x)
    >>> ((c, h), y), params = cell.init_with_output(jax.random.key(1), carry, x)
    >>> c.shape, h.shape, y.shape
    ((5, 4), (5, 2), (5, 2))

    Attributes:
      features: number of units, the width of :math:`c`.
      proj_features: width of :math:`h`, less than `features`.
      gate_fn: :math:`\sigma`.
      activation_fn: :math:`\tanh`.
      kernel_init: initialiser of :math:`W_{i\cdot}`, each `(features_in, features)`.
      recurrent_kernel_init: of :math:`W_{h\cdot}`, each `(proj_features, features)`.
      bias_init: initialiser of the biases.
      dtype: dtype of the computation; None promotes inputs and parameters.
      param_dtype: dtype of the parameters and of the carry.
      carry_init: initialiser of the carry.
      use_bias: whether the gates have biases.
      projection_init: initialiser of :math:`W_{hr}`, `(features, proj_features)`.

    Raises:
      ValueError: `proj_features` that is not in `[1, features)`.

    Reference: Sak, Senior and Beaufays, 2014, https://arxiv.org/abs/1402.1128, without
    its peepholes and its non-recurrent projection; `torch.nn.LSTM(proj_size=...)` is
    the same.
    """

    features: int
    proj_features: int
    gate_fn: Callable[[jax.Array], jax.Array] = nn.sigmoid
    activation_fn: Callable[[jax.Array], jax.Array] = nn.tanh
    kernel_init: Initializer = nn.initializers.lecun_normal()
    recurrent_kernel_init: Initializer = initializers.orthogonal()
    bias_init: Initializer = nn.initializers.zeros_init()
    dtype: Dtype | None = None
    param_dtype: Dtype = jnp.float32
    carry_init: Initializer = nn.initializers.zeros_init()
    use_bias: bool = True
    projection_init: Initializer = nn.initializers.lecun_normal()

    num_feature_dims = 1

    def __post_init__(self):
        check_projection(type(self).__name__, self.proj_features, self.features)
        super().__post_init__()

    def carry_shape(self, input_shape):
        return (self.features,), (self.proj_features,)

    def setup(self):
        self.gates(
            *("ii", "if", "ig", "io"), kernel_init=self.kernel_init, use_bias=False
        )
        self.gates(
            *("hi", "hf", "hg", "ho"),
            kernel_init=self.recurrent_kernel_init,
            bias_init=self.bias_init,
            use_bias=self.use_bias,
        )
        self.gates(
            "hr",
            features=self.proj_features,
            kernel_init=self.projection_init,
            use_bias=False,
        )

    def project(self, inputs):
        return self.affine(inputs, "ii", "if", "ig", "io")

    def recur(self, carry, projected):
        c, h = carry
        a = self.affine(h, "hi", "hf", "hg", "ho", onto=projected)
        i, f, g, o = jnp.split(a, 4, axis=-1)
        i = self.gate_fn(i)
        f = self.gate_fn(f)
        g = self.activation_fn(g)
        o = self.gate_fn(o)
        c = f * c + i * g
        m = o * self.activation_fn(c)
        h = self.affine(m, "hr")
        return (c, h), h
