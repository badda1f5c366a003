"""Convolutional cells."""

from collections.abc import Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.typing import Dtype, Initializer, PaddingLike

from rnncells.base import RNNCellBase


class ConvLSTMCell(RNNCellBase):
    r"""LSTM whose products are convolutions, over any number of spatial axes.

    .. math::
        i_t &= \sigma(W_{xi} * x_t + W_{hi} * h_{t-1} + b_i) \\
        g_t &= \tanh(W_{xg} * x_t + W_{hg} * h_{t-1} + b_g) \\
        f_t &= \sigma(W_{xf} * x_t + W_{hf} * h_{t-1} + b_f + 1) \\
        o_t &= \sigma(W_{xo} * x_t + W_{ho} * h_{t-1} + b_o) \\
        c_t &= f_t \odot c_{t-1} + i_t \odot g_t \\
        h_t &= o_t \odot \tanh(c_t)

    Strides and padding are those of the convolution of the input; the one of the state
    has stride 1 and keeps its size: its padding is SAME, or, as in Flax, that of the
    input if that keeps sizes too (CIRCULAR, REFLECT, some pairs). The carry is
    :math:`(c_t, h_t)` and the output :math:`h_t`, all `(*batch, *spatial, features)`
    with the spatial axes of the convolved input.

    >>> import jax, jax.numpy as jnp, rnncells
    >>> cell = rnncells.ConvLSTMCell(features=4, kernel_size=(3, 3), strides=(2, 2))
    >>> x = jnp.ones((2, 8, 6, 3))
    >>> carry = cell.initialize_carry(jax.random.key(0), x)
    >>> (carry, y), params = cell.init_with_output(jax.random.key(1), carry, x)
    >>> y.shape
    (2, 4, 3, 4)

    Attributes:
      features: number of filters of each gate.
      kernel_size: sizes of the kernels, one for each spatial axis.
      strides: strides of the convolution of the input, for each axis or for all, 1 if
        None.
      padding: of the same convolution, as `flax.linen.Conv` has it: `'SAME'`,
        `'VALID'`, `'CIRCULAR'`, ... or `(low, high)` pairs.
      use_bias: whether both convolutions have a bias, as in Flax.
      dtype: dtype of the computation; None promotes inputs and parameters.
      param_dtype: dtype of the parameters and of the carry.
      carry_init: initialiser of the carry.

    Reference: Shi et al., 2015, https://arxiv.org/abs/1506.04214, without its
    peepholes; the 1 added to the forget gate is from Jozefowicz et al., 2015,
    https://proceedings.mlr.press/v37/jozefowicz15.html. Parameters (`ih`, `hh`, gates
    in the order i, g, f, o) and initial values are those of `flax.linen.ConvLSTMCell`,
    where strides and VALID padding do not run.
    """

    features: int
    kernel_size: Sequence[int]
    strides: Sequence[int] | int | None = None
    padding: PaddingLike = "SAME"
    use_bias: bool = True
    dtype: Dtype | None = None
    param_dtype: Dtype = jnp.float32
    carry_init: Initializer = nn.initializers.zeros_init()

    def __post_init__(self):
        if self.features is None:
            raise TypeError("`features` of ConvLSTMCell must be an int, got None.")
        if not isinstance(self.kernel_size, Sequence):
            raise TypeError(
                "`kernel_size` must have one size for each spatial axis, as (3, 3), "
                f"got {self.kernel_size!r}."
            )
        if isinstance(self.strides, Sequence) and len(self.strides) != len(
            self.kernel_size
        ):
            raise ValueError(
                f"`strides` must have one number for each axis of `kernel_size` "
                f"{tuple(self.kernel_size)}, got {self.strides!r}."
            )
        super().__post_init__()

    @property
    def num_feature_dims(self):
        return len(self.kernel_size) + 1

    def carry_shape(self, input_shape):
        *_, channels = input_shape
        kernel = jax.ShapeDtypeStruct((*self.kernel_size, channels, 1), jnp.float32)
        image = jax.ShapeDtypeStruct((1, *input_shape), jnp.float32)
        convolved = jax.eval_shape(
            lambda k, x: self._convolution(1, self._on_input, parent=None).apply(
                {"params": {"kernel": k, "bias": jnp.zeros(1)}}, x
            ),
            kernel,
            image,
        )
        spatial = convolved.shape[1:-1]
        return (*spatial, self.features), (*spatial, self.features)

    def setup(self):
        self.ih = self._convolution(4 * self.features, self._on_input)
        keeps_size = self._keeps_size(self.padding)
        padding = self.padding if keeps_size else "SAME"
        self.hh = self._convolution(4 * self.features, {"padding": padding})

    def project(self, inputs):
        return self.product(self.ih, inputs)

    def recur(self, carry, projected):
        c, h = carry
        a = self.product(self.hh, h, onto=projected)
        i, g, f, o = jnp.split(a, 4, axis=-1)
        i = nn.sigmoid(i)
        g = nn.tanh(g)
        f = nn.sigmoid(f + 1)
        o = nn.sigmoid(o)
        c = f * c + i * g
        h = o * nn.tanh(c)
        return (c, h), h

    @property
    def _on_input(self):
        return {"strides": self.strides, "padding": self.padding}

    @nn.nowrap
    def _keeps_size(self, padding: PaddingLike) -> bool:
        """Says whether a convolution of stride 1 keeps the sizes of images."""
        if isinstance(padding, str):
            return padding != "VALID"
        pads = (
            padding
            if isinstance(padding, Sequence)
            else [padding] * len(self.kernel_size)
        )
        sums = [2 * pad if isinstance(pad, int) else sum(pad) for pad in pads]
        return sums == [size - 1 for size in self.kernel_size]

    @nn.nowrap
    def _convolution(self, features, options, **parent):
        return nn.Conv(
            features,
            self.kernel_size,
            use_bias=self.use_bias,
            dtype=self.dtype,
            param_dtype=self.param_dtype,
            **options,
            **parent,
        )
