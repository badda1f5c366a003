"""Memories that are written by the delta rule: DeltaNet, and with a gate."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from chex import ArrayTree
from flax.typing import Dtype, Initializer
from jax import Array

from rnncells import initializers
from rnncells.cells.contract.carry import ShapeTree
from rnncells.cells.contract.fields import CellFields
from rnncells.cells.contract.matrix import MatrixRNNCellBase, split_heads
from rnncells.cells.contract.parameters import param
from rnncells.recurrence.linear.matrix_state import OuterUpdate
from rnncells.recurrence.pytrees import expand_left, full_precision


@initializers.in_float32
def _initial_decay_bias(key: Array, shape: tuple, dtype: Dtype = jnp.float32) -> Array:
    """Draws b with softplus(b) in [0.001, 0.1), uniform in its logarithm."""
    low, high = jnp.log(0.001), jnp.log(0.1)
    dt = jnp.exp(jax.random.uniform(key, shape, dtype, low, high))
    return dt + jnp.log(-jnp.expm1(-dt))  # the inverse of softplus


class DeltaNetCell(MatrixRNNCellBase, CellFields):
    """A matrix memory that is written by the delta rule.

    One step of each head computes::

        q_t = norm(silu(W_q x_t))
        k_t = norm(silu(W_k x_t))
        v_t = silu(W_v x_t)
        β_t = σ(w_β x_t)
        S_t = S_{t-1} (I - β_t k_t k_tᵀ) + β_t v_t k_tᵀ
        o_t = S_t q_t

        norm(z) = z / √(z · z + epsilon)

    The carry is S_t, `(*batch, heads, d, d)` with d = features / num_heads. The output
    is o_t of all heads, `(*batch, features)`.

    >>> import jax, jax.numpy as jnp, rnncells
    >>> cell, x = rnncells.DeltaNetCell(features=4, num_heads=2), jnp.ones((2, 3))
    >>> carry = cell.initialize_carry(jax.random.key(0), x)
    >>> (carry, y), params = cell.init_with_output(jax.random.key(1), carry, x)
    >>> carry.shape, y.shape
    ((2, 2, 2, 2), (2, 4))

    Attributes, in addition to those of `rnncells.cells.contract.fields.CellFields`:
      features: width of the output, an int.
      num_heads: number of heads, which divides `features`. Default: 1.
      kernel_init: initializer of the kernels. Default: LeCun normal.
      epsilon: constant added to the square of the norm. Default: 1e-6.
      negative_eigenvalues: whether β_t = 2 σ(w_β x_t), so that I - β_t k_t k_tᵀ has
        eigenvalues in (-1, 1). Default: False.

    Raises:
      ValueError: `num_heads` does not divide `features`.

    Reference: Yang et al., 2024, https://arxiv.org/abs/2406.06484, section 2.2 and
    figure 1; Schlag et al., 2021, https://arxiv.org/abs/2102.11174. The paper's layer
    also has a short causal convolution before silu, and a norm and a product after
    o_t, which are modules around this cell. The authors' later code divides q_t by √d.
    Negative eigenvalues: Grazzi et al., 2025, https://arxiv.org/abs/2411.12537.
    """

    features: int
    num_heads: int = 1
    kernel_init: Initializer = nn.initializers.lecun_normal()
    epsilon: float = 1e-6
    negative_eigenvalues: bool = False

    def carry_shape(self, input_shape: tuple[int, ...]) -> ShapeTree:
        heads, d = self.num_heads, self.features // self.num_heads
        return (heads, d, d)

    def setup(self) -> None:
        options: dict[str, Any] = {"kernel_init": self.kernel_init, "use_bias": False}
        self.gates("q", "k", "v", **options)
        self.gates("beta", features=self.num_heads, **options)

    def project(self, inputs: ArrayTree) -> ArrayTree:
        qkv = self.affine(inputs, "q", "k", "v")
        return *jnp.split(qkv, 3, axis=-1), self.affine(inputs, "beta")

    def update(self, projected: ArrayTree) -> OuterUpdate:
        q, k, v, beta = projected[:4]
        q, k, v = (split_heads(x, self.num_heads) for x in (q, k, v))
        q, k, v = self._normed(q), self._normed(k), nn.silu(v)
        beta = nn.sigmoid(beta) * (2 if self.negative_eigenvalues else 1)
        return OuterUpdate(q, k, beta[..., None] * v, jnp.zeros_like(beta), beta)

    def output(self, read: Array, m: Any, projected: ArrayTree) -> Array:
        return read.reshape(*read.shape[:-2], self.features)

    def _normed(self, x: Array) -> Array:
        """Returns norm(silu(x))."""
        # Squares of half-precision numbers overflow, and so can the cotangent of a
        # vector near 0, before it is multiplied by the slope of silu.
        wide = nn.silu(x.astype(full_precision(x.dtype)))
        square = (wide * wide).sum(-1, keepdims=True)
        return (wide * jax.lax.rsqrt(square + self.epsilon)).astype(x.dtype)


class GatedDeltaNetCell(DeltaNetCell):
    """A matrix memory that decays, and is written by the delta rule.

    One step of each head computes, with the q_t, k_t, v_t and β_t of `DeltaNetCell`::

        α_t = exp(-exp(a) softplus(w_α x_t + b_α))
        S_t = α_t S_{t-1} (I - β_t k_t k_tᵀ) + β_t v_t k_tᵀ
        o_t = S_t q_t

    The carry is S_t, `(*batch, heads, d, d)` with d = features / num_heads. The output
    is o_t of all heads, `(*batch, features)`.

    >>> import jax, jax.numpy as jnp, rnncells
    >>> cell, x = rnncells.GatedDeltaNetCell(features=4, num_heads=2), jnp.ones((2, 3))
    >>> carry = cell.initialize_carry(jax.random.key(0), x)
    >>> (carry, y), params = cell.init_with_output(jax.random.key(1), carry, x)
    >>> carry.shape, y.shape
    ((2, 2, 2, 2), (2, 4))

    Attributes, in addition to those of `rnncells.DeltaNetCell`:
      decay_init: initializer of a, `(num_heads,)`. Default: the logarithm of a uniform
        number in [0, 16), as in the authors' code.
      decay_bias_init: initializer of b_α. Default: softplus(b_α) is between 0.001 and
        0.1, uniform in its logarithm, as in the authors' code.

    Raises:
      ValueError: `num_heads` does not divide `features`.

    Reference: Yang et al., 2025, https://arxiv.org/abs/2412.06464, equation 10; α_t as
    in Mamba2 (Dao and Gu, 2024). The paper's layer also has a short causal convolution
    before silu, and a gated norm and a product after o_t, which are modules around this
    cell. The authors' code divides q_t by √d.
    """

    decay_init: Initializer = initializers.log_of_uniform(0.0, 16.0)
    decay_bias_init: Initializer = _initial_decay_bias

    def setup(self) -> None:
        super().setup()
        self.gates(
            "alpha",
            features=self.num_heads,
            kernel_init=self.kernel_init,
            bias_init=self.decay_bias_init,
        )
        self.a = param(self, "a", self.decay_init, (self.num_heads,))

    def project(self, inputs: ArrayTree) -> ArrayTree:
        alpha = self.affine(inputs, "alpha")
        return *super().project(inputs), alpha

    def update(self, projected: ArrayTree) -> OuterUpdate:
        update = super().update(projected)
        alpha = projected[4]
        # In float16, exp(a) is infinite from a = 12 on.
        wide = full_precision(alpha.dtype)
        rate = expand_left(jnp.exp(self.a.astype(wide)), alpha)
        log_alpha = -rate * nn.softplus(alpha.astype(wide))
        return update._replace(log_alpha=log_alpha.astype(alpha.dtype))
