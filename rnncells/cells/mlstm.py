"""The LSTM with a matrix memory of the extended LSTM (xLSTM)."""

import math
from typing import Any, Literal

import flax.linen as nn
import jax.numpy as jnp
from chex import ArrayTree
from flax.typing import Initializer
from jax import Array

from rnncells import initializers
from rnncells.cells.contract.carry import Carry, ShapeTree
from rnncells.cells.contract.fields import CellFields
from rnncells.cells.contract.matrix import MatrixRNNCellBase, split_heads
from rnncells.recurrence.linear.matrix_state import MatrixState, OuterUpdate
from rnncells.recurrence.pytrees import full_precision

ForgetGate = Literal["sigmoid", "exp"]


class MLSTMCell(MatrixRNNCellBase, CellFields):
    """LSTM with a matrix memory and exponential gates (mLSTM of xLSTM).

    One step of each head, with d = features / num_heads, computes::

        q_t = W_q x_t + b_q
        k_t = (W_k x_t + b_k) / √d
        v_t = W_v x_t + b_v
        i_t = exp(ĩ_t),  ĩ_t = w_i x_t + b_i
        f_t = σ(f̃_t),  f̃_t = w_f x_t + b_f
        o_t = σ(W_o x_t + b_o)
        C_t = f_t C_{t-1} + i_t v_t k_tᵀ
        n_t = f_t n_{t-1} + i_t k_t
        h_t = o_t ⊙ C_t q_t / max(|n_t · q_t|, 1)

    C and n are stored relative to exp(m_t), the stabilizer state, as C_t exp(-m_t) and
    n_t exp(-m_t)::

        m_t = max(log f_t + m_{t-1}, ĩ_t)

    The carry is (C, n, m), with the shapes `(*batch, heads, d, d)`, `(*batch, heads,
    d)` and `(*batch, heads)`. The output is h_t, `(*batch, features)`.

    >>> import jax, jax.numpy as jnp, rnncells
    >>> cell, x = rnncells.MLSTMCell(features=4, num_heads=2), jnp.ones((2, 3))
    >>> carry = cell.initialize_carry(jax.random.key(0), x)
    >>> ((C, n, m), y), params = cell.init_with_output(jax.random.key(1), carry, x)
    >>> C.shape, y.shape
    ((2, 2, 2, 2), (2, 4))

    Attributes, in addition to those of `rnncells.cells.contract.fields.CellFields`:
      features: width of the output, an int.
      num_heads: number of heads, which divides `features`. Default: 1.
      kernel_init: initializer of W_q, W_k, W_v and W_o, each `(features_in, features)`.
        Default: LeCun normal.
      bias_init: initializer of b_q, b_k, b_v and b_o. Default: zeros.
      gate_kernel_init: initializer of w_i and w_f, each `(features_in, num_heads)`.
        Default: zeros, as in the authors' code.
      input_gate_bias_init: initializer of b_i. Default: normal with a standard
        deviation of 0.1, as in the authors' code.
      forget_gate_bias_init: initializer of b_f. Default: evenly spaced from 3 to 6, as
        in the authors' code.
      use_bias: whether q, k, v and o have biases. Default: True.
      forget_gate: `'sigmoid'`, or `'exp'` for f_t = exp(f̃_t). Default: `'sigmoid'`.
      output_gate: whether there is o_t; without it, o_t = 1. Default: True.

    Raises:
      ValueError: `forget_gate` is another value, or `num_heads` does not divide
        `features`.

    Reference: Beck et al., 2024, https://arxiv.org/abs/2405.04517, equations 19 to 27;
    the stabilized form is in their appendix A.3. Different in the paper: b_k is not
    divided by √d. The authors' code adds 1e-6 to the denominator of h_t.
    """

    features: int
    num_heads: int = 1
    kernel_init: Initializer = nn.initializers.lecun_normal()
    bias_init: Initializer = nn.initializers.zeros_init()
    gate_kernel_init: Initializer = nn.initializers.zeros_init()
    input_gate_bias_init: Initializer = nn.initializers.normal(0.1)
    forget_gate_bias_init: Initializer = initializers.linspace(3.0, 6.0)
    use_bias: bool = True
    forget_gate: ForgetGate = "sigmoid"
    output_gate: bool = True

    def carry_shape(self, input_shape: tuple[int, ...]) -> ShapeTree:
        heads, d = self.num_heads, self.features // self.num_heads
        return (heads, d, d), (heads, d), (heads,)

    def setup(self) -> None:
        self.gates(
            *("q", "k", "v", "o") if self.output_gate else ("q", "k", "v"),
            kernel_init=self.kernel_init,
            bias_init=self.bias_init,
            use_bias=self.use_bias,
        )
        self._declare_exponential_gates()

    @nn.nowrap
    def _declare_exponential_gates(self) -> None:
        for name, bias_init in (
            ("i", self.input_gate_bias_init),
            ("f", self.forget_gate_bias_init),
        ):
            self.gates(
                name,
                features=self.num_heads,
                kernel_init=self.gate_kernel_init,
                bias_init=bias_init,
            )

    def project(self, inputs: ArrayTree) -> ArrayTree:
        q, k, v = jnp.split(self.affine(inputs, "q", "k", "v"), 3, axis=-1)
        i, f = jnp.split(self.affine(inputs, "i", "f"), 2, axis=-1)
        o = nn.sigmoid(self.affine(inputs, "o")) if self.output_gate else None
        return q, k, v, i, f, o

    def update(self, projected: ArrayTree) -> OuterUpdate:
        q, k, v, i, f, _ = projected
        q, k, v = (split_heads(x, self.num_heads) for x in (q, k, v))
        k = k / k.shape[-1] ** 0.5
        log_f = nn.log_sigmoid(f) if self.forget_gate == "sigmoid" else f
        # n is the last row of the memory: its value is always 1.
        v = jnp.concatenate([v, jnp.ones_like(v[..., :1])], -1)
        return OuterUpdate(q, k, v, log_f, log_i=i)

    def output(self, read: Any, m: Any, projected: ArrayTree) -> Array:
        *_, o = projected
        dtype = jnp.result_type(read, m)
        wide = full_precision(dtype)
        read, m = read.astype(wide), m.astype(wide)
        Cq, nq = read[..., :-1], read[..., -1:]
        # Cq / max(|nq|, exp(-m)), where exp(-m) can overflow. It can also underflow,
        # and be 0, and the derivative has the square of the denominator.
        max_exponent = -math.log(jnp.finfo(wide).tiny) / 2
        scale = jnp.exp(jnp.minimum(m, 0))[..., None]
        lower_bound = jnp.exp(-jnp.clip(m, 0, max_exponent))[..., None]
        h = scale * Cq / jnp.maximum(scale * jnp.abs(nq), lower_bound)
        h = h.astype(dtype)
        h = h.reshape(*h.shape[:-2], self.features)
        return h if o is None else o * h

    def to_state(self, carry: Carry) -> MatrixState:
        C, n, m = carry
        return MatrixState(jnp.concatenate([C, n[..., None, :]], -2), m)

    def to_carry(self, state: MatrixState) -> Carry:
        S, m = state
        return S[..., :-1, :], S[..., -1, :], m
