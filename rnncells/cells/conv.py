"""Convolutional cells."""

from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from chex import ArrayTree
from flax.typing import Dtype, Initializer, PaddingLike
from jax import Array

from rnncells import initializers
from rnncells._checks import check_count
from rnncells.cells.contract.base import RNNCellBase
from rnncells.cells.contract.carry import Carry, ShapeTree
from rnncells.cells.contract.parameters import ElementwiseAffine

# Names of paddings of `flax.linen.Conv`.
PADDINGS = "SAME", "SAME_LOWER", "VALID", "CIRCULAR", "REFLECT", "CAUSAL"


class ConvCell(RNNCellBase):
    """Base of the cells whose inputs and states are convolved.

    `strides` and `padding` apply to the convolution of the input. Convolutions of the
    state have stride 1 and keep its size. They use `padding` too, as in Flax, if it
    keeps the size (CIRCULAR, REFLECT, some pairs), and SAME otherwise. States are
    `(*batch, *spatial, features)`, with the spatial axes of the convolved input.

    Attributes:
      features: number of filters of each gate.
      kernel_size: sizes of the kernels, one for each spatial axis.
      strides: strides of the convolution of the input: one for each spatial axis, one
        for all axes, or None for 1. Default: None.
      padding: padding of the convolution of the input, as in `flax.linen.Conv`:
        `'SAME'`, `'VALID'`, `'CIRCULAR'`, ... or `(low, high)` pairs.
        Default: `'SAME'`.
      use_bias: whether the convolutions have biases. Default: True.
      dtype: dtype of the computation; None promotes inputs and parameters.
        Default: None.
      param_dtype: dtype of the parameters and of the carry. Default: float32.
      carry_init: initializer of the carry. Default: zeros.
    """

    features: int
    kernel_size: Sequence[int]
    strides: Sequence[int] | int | None = None
    padding: PaddingLike = "SAME"
    use_bias: bool = True
    dtype: Dtype | None = None
    param_dtype: Dtype = jnp.float32
    carry_init: Initializer = nn.initializers.zeros_init()

    def __post_init__(self) -> None:
        name, kernel_size = type(self).__name__, self.kernel_size
        if not isinstance(kernel_size, Sequence) or isinstance(kernel_size, str):
            raise TypeError(
                f"`kernel_size` of {name} must have one size for each spatial axis, "
                f"for example (3, 3), got {kernel_size!r}."
            )
        strides = self.strides
        if isinstance(strides, Sequence) and len(strides) != len(kernel_size):
            raise ValueError(
                f"`strides` of {name} must have one number for each axis of "
                f"`kernel_size` {tuple(kernel_size)}, got {strides!r}."
            )
        for k, size in enumerate(kernel_size):
            check_count(name, f"kernel_size[{k}]", size)
        if strides is not None:
            for stride in strides if isinstance(strides, Sequence) else [strides]:
                check_count(name, "strides", stride)
        is_named = isinstance(self.padding, str) and self.padding.upper() in PADDINGS
        if self.padding is None or (isinstance(self.padding, str) and not is_named):
            raise ValueError(
                f"`padding` of {name} must be one of {list(PADDINGS)}, or numbers, got "
                f"{self.padding!r}."
            )
        super().__post_init__()

    @property
    def num_feature_dims(self) -> int:
        return len(self.kernel_size) + 1

    @nn.nowrap
    def state_shape(self, input_shape: tuple[int, ...]) -> tuple[int, ...]:
        """Returns the shape of a state, `(*spatial, features)` of the convolved input.

        Args:
          input_shape: `(*spatial, channels)`.
        """
        *_, channels = input_shape
        kernel = jax.ShapeDtypeStruct((*self.kernel_size, channels, 1), jnp.float32)
        image = jax.ShapeDtypeStruct((1, *input_shape), jnp.float32)
        convolution = self.of_input(1, use_bias=False, parent=None)
        convolved = jax.eval_shape(
            lambda k, x: convolution.apply({"params": {"kernel": k}}, x), kernel, image
        )
        return (*convolved.shape[1:-1], self.features)

    @nn.nowrap
    def of_input(self, features: int, **options: Any) -> nn.Conv:
        """Returns a convolution of the input; `options` are passed to `nn.Conv`."""
        return self._convolution(
            features, strides=self.strides, padding=self.padding, **options
        )

    @nn.nowrap
    def of_state(self, features: int, **options: Any) -> nn.Conv:
        """Returns a convolution of a state; `options` are passed to `nn.Conv`."""
        padding = self.padding if self._keeps_size(self.padding) else "SAME"
        return self._convolution(features, padding=padding, **options)

    @nn.nowrap
    def _convolution(self, features: int, **options: Any) -> nn.Conv:
        return nn.Conv(
            features,
            self.kernel_size,
            dtype=self.dtype,
            param_dtype=self.param_dtype,
            **{"use_bias": self.use_bias, **options},
        )

    @nn.nowrap
    def _keeps_size(self, padding: PaddingLike) -> bool:
        """Returns whether a convolution of stride 1 keeps the spatial sizes."""
        if isinstance(padding, str):
            return padding.upper() != "VALID"
        pads: Any = (
            padding
            if isinstance(padding, Sequence)
            else [padding] * len(self.kernel_size)
        )
        sums = [2 * pad if isinstance(pad, int) else sum(pad) for pad in pads]
        return sums == [size - 1 for size in self.kernel_size]


class ConvLSTMCell(ConvCell):
    """LSTM with convolutions over any number of spatial axes.

    One step computes, with ∗ for the convolution::

        i_t = σ(W_xi ∗ x_t + W_hi ∗ h_{t-1} + b_i)
        g_t = tanh(W_xg ∗ x_t + W_hg ∗ h_{t-1} + b_g)
        f_t = σ(W_xf ∗ x_t + W_hf ∗ h_{t-1} + b_f + 1)
        o_t = σ(W_xo ∗ x_t + W_ho ∗ h_{t-1} + b_o)
        c_t = f_t ⊙ c_{t-1} + i_t ⊙ g_t
        h_t = o_t ⊙ tanh(c_t)

    With `peepholes=True`, as in the paper, gates also read the cell state::

        i_t = σ(W_xi ∗ x_t + W_hi ∗ h_{t-1} + W_ci ⊙ c_{t-1} + b_i)
        f_t = σ(W_xf ∗ x_t + W_hf ∗ h_{t-1} + W_cf ⊙ c_{t-1} + b_f + 1)
        o_t = σ(W_xo ∗ x_t + W_ho ∗ h_{t-1} + W_co ⊙ c_t + b_o)

    The carry is (c_t, h_t), the output is h_t; all have the shape
    `(*batch, *spatial, features)`, with the spatial axes of the convolved input.

    >>> import jax, jax.numpy as jnp, rnncells
    >>> cell = rnncells.ConvLSTMCell(features=4, kernel_size=(3, 3), strides=(2, 2))
    >>> x = jnp.ones((2, 8, 6, 3))
    >>> carry = cell.initialize_carry(jax.random.key(0), x)
    >>> (carry, y), params = cell.init_with_output(jax.random.key(1), carry, x)
    >>> y.shape
    (2, 4, 3, 4)

    Attributes, in addition to those of `rnncells.cells.conv.ConvCell`:
      peepholes: whether there are peephole weights W_ci, W_cf and W_co, each
        `(*spatial, features)`. They start at 0. A cell with peepholes takes images of
        one size only. Default: False.

    Reference: Shi et al., 2015, https://arxiv.org/abs/1506.04214, equation (3); the
    peepholes of the paper are off by default. The 1 added to the forget gate is from
    Jozefowicz et al., 2015, https://proceedings.mlr.press/v37/jozefowicz15.html.
    Parameters (`ih`, `hh`, gates in the order i, g, f, o) and initial values are those
    of `flax.linen.ConvLSTMCell`, which fails with strides and with VALID padding. The
    peepholes are `ci cf co`.
    """

    peepholes: bool = False

    def carry_shape(self, input_shape: tuple[int, ...]) -> ShapeTree:
        return self.state_shape(input_shape), self.state_shape(input_shape)

    def setup(self) -> None:
        self.ih = self.of_input(4 * self.features)
        self.hh = self.of_state(4 * self.features)
        if self.peepholes:
            self.ci, self.cf, self.co = (
                ElementwiseAffine(
                    num_feature_dims=self.num_feature_dims,
                    kernel_init=nn.initializers.zeros_init(),
                    dtype=self.dtype,
                    param_dtype=self.param_dtype,
                )
                for _ in range(3)
            )

    def project(self, inputs: ArrayTree) -> ArrayTree:
        return self.ih(inputs)

    def recur(self, carry: Carry, projected: ArrayTree) -> tuple[Carry, Array]:
        c, h = carry
        a = self.hh(h) + projected
        i, g, f, o = jnp.split(a, 4, axis=-1)
        if self.peepholes:
            i = self.ci(c) + i
            f = self.cf(c) + f
        i = nn.sigmoid(i)
        g = nn.tanh(g)
        f = nn.sigmoid(f + 1)
        c = f * c + i * g
        if self.peepholes:
            o = self.co(c) + o
        o = nn.sigmoid(o)
        h = o * nn.tanh(c)
        return (c, h), h


class ConvGRUCell(ConvCell):
    """GRU with convolutions over any number of spatial axes.

    One step computes, with ∗ for the convolution::

        z_t = σ(W_z ∗ x_t + b_z + U_z ∗ h_{t-1})
        r_t = σ(W_r ∗ x_t + b_r + U_r ∗ h_{t-1})
        n_t = tanh(W_n ∗ x_t + b_n + U_n ∗ (r_t ⊙ h_{t-1}))
        h_t = (1 - z_t) ⊙ h_{t-1} + z_t ⊙ n_t

    With `reset_after=True` the reset gate acts after the convolution of the state. The
    convolution then has its own bias::

        n_t = tanh(W_n ∗ x_t + b_n + r_t ⊙ (U_n ∗ h_{t-1} + b_hn))

    The carry and the output are both h_t, `(*batch, *spatial, features)`, with the
    spatial axes of the convolved input.

    >>> import jax, jax.numpy as jnp, rnncells
    >>> cell = rnncells.ConvGRUCell(features=4, kernel_size=(3, 3), strides=(2, 2))
    >>> x = jnp.ones((2, 8, 6, 3))
    >>> carry = cell.initialize_carry(jax.random.key(0), x)
    >>> (carry, y), params = cell.init_with_output(jax.random.key(1), carry, x)
    >>> y.shape
    (2, 4, 3, 4)

    Attributes, in addition to those of `rnncells.cells.conv.ConvCell`:
      gate_fn: activation function of the gates, σ in the equations. Default: sigmoid.
      activation_fn: activation function of the candidate, tanh in the equations.
        Default: tanh.
      kernel_init: initializer of W_z, W_r and W_n as one kernel,
        `(*kernel_size, channels, 3 * features)`. Default: LeCun normal.
      recurrent_kernel_init: initializer of U_z and U_r as one kernel,
        `(*kernel_size, features, 2 * features)`, and of U_n,
        `(*kernel_size, features, features)`. Default: orthogonal.
      bias_init: initializer of the biases. Default: zeros.
      reset_after: whether the reset gate acts after the convolution. Default: False.

    Reference: Ballas et al., 2016, https://arxiv.org/abs/1511.06432, one layer of
    GRU-RCN; the equations of the paper have no biases. As in the paper, and unlike
    `GRUCell`, z_t multiplies the candidate. Parameters: `ih` (z, r, n side by side),
    `hh` (z, r) and `hn`.
    """

    gate_fn: Callable[[Array], Array] = nn.sigmoid
    activation_fn: Callable[[Array], Array] = nn.tanh
    kernel_init: Initializer = nn.initializers.lecun_normal()
    recurrent_kernel_init: Initializer = initializers.orthogonal()
    bias_init: Initializer = nn.initializers.zeros_init()
    reset_after: bool = False

    def carry_shape(self, input_shape: tuple[int, ...]) -> ShapeTree:
        return self.state_shape(input_shape)

    def setup(self) -> None:
        biases = {"bias_init": self.bias_init}
        recurrent = {"kernel_init": self.recurrent_kernel_init, **biases}
        self.ih = self.of_input(
            3 * self.features, kernel_init=self.kernel_init, **biases
        )
        self.hh = self.of_state(2 * self.features, use_bias=False, **recurrent)
        self.hn = self.of_state(
            self.features, use_bias=self.use_bias and self.reset_after, **recurrent
        )

    def project(self, inputs: ArrayTree) -> ArrayTree:
        x = self.ih(inputs)
        return tuple(jnp.split(x, [2 * self.features], axis=-1))

    def recur(self, carry: Carry, projected: ArrayTree) -> tuple[Carry, Array]:
        h = carry
        xzr, xn = projected
        z, r = jnp.split(self.hh(h) + xzr, 2, axis=-1)
        z = self.gate_fn(z)
        r = self.gate_fn(r)
        if self.reset_after:
            n = self.activation_fn(xn + r * self.hn(h))
        else:
            n = self.activation_fn(self.hn(r * h) + xn)
        h = (1 - z) * h + z * n
        return h, h
