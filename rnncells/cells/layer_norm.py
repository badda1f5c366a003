"""Recurrent cells with layer normalization."""

from typing import Any

import jax
import jax.numpy as jnp
from chex import ArrayTree
from jax import Array

from rnncells.cells.contract.carry import Carry, ShapeTree
from rnncells.cells.contract.fields import GatedCell
from rnncells.cells.contract.parameters import ElementwiseAffine


def standardize(x: Array, epsilon: float) -> Array:
    """Returns (x - mean(x)) / √(var(x) + epsilon) over the last axis.

    The mean and variance of half-precision arrays are computed in float32.
    """
    wide = x.astype(jnp.promote_types(jnp.float32, x.dtype))
    centered = wide - wide.mean(-1, keepdims=True)
    variance = (centered * centered.conj()).real.mean(-1, keepdims=True)
    return (centered * jax.lax.rsqrt(variance + epsilon)).astype(x.dtype)


class LayerNormLSTMCell(GatedCell):
    """LSTM with layer normalization of its products and of its cell state.

    One step computes::

        (i_t, f_t, g_t, o_t) = LN(W_h h_{t-1}; α_1, β_1) + LN(W_x x_t; α_2, β_2)
        c_t = σ(f_t) ⊙ c_{t-1} + σ(i_t) ⊙ tanh(g_t)
        h_t = σ(o_t) ⊙ tanh(LN(c_t; α_3, β_3))

        LN(z; α, β) = α ⊙ (z - mean(z)) / √(var(z) + epsilon) + β

    The mean and the variance are over all elements of z; the four gates are normalized
    together. The carry is (c_t, h_t), the output is h_t; all have the shape
    `(*batch, features)`.

    >>> import jax, jax.numpy as jnp, rnncells
    >>> cell, x = rnncells.LayerNormLSTMCell(features=4), jnp.ones((2, 3))
    >>> carry = cell.initialize_carry(jax.random.key(0), x)
    >>> ((c, h), y), params = cell.init_with_output(jax.random.key(1), carry, x)
    >>> y.shape
    (2, 4)

    Attributes, in addition to those of `rnncells.cells.contract.fields.GatedCell`:
      use_bias: whether the norms have shifts β. Default: True.
      epsilon: constant added to the variance: 1e-5 in the authors' code, 1e-6 in
        `flax.linen.LayerNorm`. Default: 1e-5.

    Reference: Ba, Kiros and Hinton, 2016, https://arxiv.org/abs/1607.06450,
    supplementary material. There is no b as in the paper, because it would only add to
    β_2. `kernel_init` draws W_x, `recurrent_kernel_init` W_h, and `bias_init` β_2; the
    other shifts start at 0. Kernels have the names of `LSTMCell`. `norm_h`, `norm_x`
    and `norm_c` hold (α_1, β_1) to (α_3, β_3), the gates in the order i, f, g, o.
    """

    use_bias: bool = True
    epsilon: float = 1e-5

    def carry_shape(self, input_shape: tuple[int, ...]) -> ShapeTree:
        return (self.features,), (self.features,)

    def setup(self) -> None:
        self._input_gates("ii", "if", "ig", "io", use_bias=False)
        self._recurrent_gates("hi", "hf", "hg", "ho", use_bias=False)
        options: dict[str, Any] = {
            "use_bias": self.use_bias,
            "param_dtype": self.param_dtype,
        }
        self.norm_h = ElementwiseAffine(dtype=self.dtype, **options)
        self.norm_x = ElementwiseAffine(
            dtype=self.dtype, bias_init=self.bias_init, **options
        )
        # No `dtype`: the cell state, and so the output, keeps the dtype of the carry.
        self.norm_c = ElementwiseAffine(**options)

    def project(self, inputs: ArrayTree) -> ArrayTree:
        a = self.affine(inputs, "ii", "if", "ig", "io")
        return self.norm_x(standardize(a, self.epsilon))

    def recur(self, carry: Carry, projected: ArrayTree) -> tuple[Carry, Array]:
        c, h = carry
        a = self.affine(h, "hi", "hf", "hg", "ho")
        a = self.norm_h(standardize(a, self.epsilon)) + projected
        i, f, g, o = jnp.split(a, 4, axis=-1)
        i = self.gate_fn(i)
        f = self.gate_fn(f)
        g = self.activation_fn(g)
        o = self.gate_fn(o)
        c = f * c + i * g
        normed = self.norm_c(standardize(c, self.epsilon))
        h = o * self.activation_fn(normed)
        return (c, h), h


class LayerNormGRUCell(GatedCell):
    """GRU with layer normalization of its products.

    One step computes::

        (r_t, z_t) = LN(W_h h_{t-1}; α_1, β_1) + LN(W_x x_t; α_2, β_2)
        n_t = tanh(LN(W x_t; α_3, β_3) + σ(r_t) ⊙ LN(U h_{t-1}; α_4, β_4))
        h_t = (1 - σ(z_t)) ⊙ h_{t-1} + σ(z_t) ⊙ n_t

        LN(z; α, β) = α ⊙ (z - mean(z)) / √(var(z) + epsilon) + β

    The mean and the variance are over all elements of z; both gates are normalized
    together. The carry and the output are both h_t, `(*batch, features)`.

    >>> import jax, jax.numpy as jnp, rnncells
    >>> cell, x = rnncells.LayerNormGRUCell(features=4), jnp.ones((2, 3))
    >>> carry = cell.initialize_carry(jax.random.key(0), x)
    >>> (carry, y), params = cell.init_with_output(jax.random.key(1), carry, x)
    >>> y.shape
    (2, 4)

    Attributes, in addition to those of `rnncells.cells.contract.fields.GatedCell`:
      use_bias: whether the norms have shifts β. Default: True.
      epsilon: constant added to the variance: 1e-5 in the authors' code, 1e-6 in
        `flax.linen.LayerNorm`. Default: 1e-5.

    Reference: Ba, Kiros and Hinton, 2016, https://arxiv.org/abs/1607.06450,
    supplementary material. As in the paper, and unlike `GRUCell`, z_t multiplies the
    candidate. `kernel_init` draws W_x and W, `recurrent_kernel_init` W_h and U, and
    `bias_init` β_2, β_3 and β_4, which are the biases of a GRU; β_1 starts at 0.
    Kernels have the names of `GRUCell`. `norm_h`, `norm_x`, `norm_xn` and `norm_hn`
    hold (α_1, β_1) to (α_4, β_4), r and z in this order.
    """

    use_bias: bool = True
    epsilon: float = 1e-5

    def setup(self) -> None:
        self._input_gates("ir", "iz", "in", use_bias=False)
        self._recurrent_gates("hr", "hz", "hn", use_bias=False)
        options: dict[str, Any] = {
            "use_bias": self.use_bias,
            "dtype": self.dtype,
            "param_dtype": self.param_dtype,
        }
        self.norm_h = ElementwiseAffine(**options)
        self.norm_x = ElementwiseAffine(bias_init=self.bias_init, **options)
        self.norm_xn = ElementwiseAffine(bias_init=self.bias_init, **options)
        self.norm_hn = ElementwiseAffine(bias_init=self.bias_init, **options)

    def project(self, inputs: ArrayTree) -> ArrayTree:
        a = self.affine(inputs, "ir", "iz")
        xrz = self.norm_x(standardize(a, self.epsilon))
        a = self.affine(inputs, "in")
        xn = self.norm_xn(standardize(a, self.epsilon))
        return xrz, xn

    def recur(self, carry: Carry, projected: ArrayTree) -> tuple[Carry, Array]:
        h = carry
        xrz, xn = projected
        a = self.affine(h, "hr", "hz")
        a = self.norm_h(standardize(a, self.epsilon)) + xrz
        r, z = jnp.split(a, 2, axis=-1)
        r = self.gate_fn(r)
        z = self.gate_fn(z)
        a = self.affine(h, "hn")
        hn = self.norm_hn(standardize(a, self.epsilon))
        n = self.activation_fn(xn + r * hn)
        h = (1 - z) * h + z * n
        return h, h
