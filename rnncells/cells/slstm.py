"""The LSTM with exponential gates of the extended LSTM (xLSTM)."""

import flax.linen as nn
import jax.numpy as jnp
from chex import ArrayTree
from flax.typing import Initializer
from jax import Array

from rnncells import initializers
from rnncells.cells.contract.carry import Carry, ShapeTree
from rnncells.cells.contract.fields import DenseCell
from rnncells.cells.mlstm import ForgetGate
from rnncells.recurrence.linear.matrix_state import lowest
from rnncells.recurrence.pytrees import full_precision


class SLSTMCell(DenseCell):
    """LSTM with exponential gates and a normalizer (sLSTM of xLSTM).

    One step computes::

        z_t = tanh(W_iz x_t + W_hz h_{t-1} + b_hz)
        i_t = exp(ĩ_t),  ĩ_t = W_ii x_t + W_hi h_{t-1} + b_hi
        f_t = σ(f̃_t),  f̃_t = W_if x_t + W_hf h_{t-1} + b_hf
        o_t = σ(W_io x_t + W_ho h_{t-1} + b_ho)
        c_t = f_t ⊙ c_{t-1} + i_t ⊙ z_t
        n_t = f_t ⊙ n_{t-1} + i_t
        h_t = o_t ⊙ c_t / n_t

    c and n are stored relative to exp(m_t), the stabilizer state, as c_t exp(-m_t) and
    n_t exp(-m_t)::

        m_t = max(log f_t + m_{t-1}, ĩ_t)

    The carry is (c_t, n_t, m_t, h_t), the output is h_t; all have the shape
    `(*batch, features)`.

    >>> import jax, jax.numpy as jnp, rnncells
    >>> cell, x = rnncells.SLSTMCell(features=4, num_heads=2), jnp.ones((2, 3))
    >>> carry = cell.initialize_carry(jax.random.key(0), x)
    >>> ((c, n, m, h), y), params = cell.init_with_output(jax.random.key(1), carry, x)
    >>> y.shape
    (2, 4)

    Attributes, in addition to those of `rnncells.cells.contract.fields.DenseCell`:
      num_heads: number of heads, which divides `features`. The units of a head see
        only each other: recurrent kernels are block-diagonal, and are stored as
        `(num_heads, features / num_heads, features / num_heads)`. Default: 1.
      forget_gate_bias_init: initializer of b_hf. Default: evenly spaced from 3 to 6.
      forget_gate: `'sigmoid'`, or `'exp'` for f_t = exp(f̃_t). Default: `'sigmoid'`.

    Raises:
      ValueError: `forget_gate` is another value, or `num_heads` does not divide
        `features`.

    Reference: Beck et al., 2024, https://arxiv.org/abs/2405.04517, equations 8 to 18.
    Where n_{t-1} is 0, as in the initial carry, m_t is ĩ_t, as in the authors' code.
    Different there: recurrent kernels start at 0.
    """

    num_heads: int = 1
    forget_gate_bias_init: Initializer = initializers.linspace(3.0, 6.0)
    forget_gate: ForgetGate = "sigmoid"

    # Diagonal blocks of the kernels of the inputs.
    _input_heads = 1

    def carry_shape(self, input_shape: tuple[int, ...]) -> ShapeTree:
        return ((self.features,),) * 4

    def setup(self) -> None:
        self._input_gates(
            *("iz", "ii", "if", "io"), use_bias=False, num_heads=self._input_heads
        )
        f_bias, heads = self.forget_gate_bias_init, self.num_heads
        self._recurrent_gates("hz", "hi", "ho", num_heads=heads)
        self._recurrent_gates("hf", bias_init=f_bias, num_heads=heads)

    def project(self, inputs: ArrayTree) -> ArrayTree:
        return self.affine(inputs, "iz", "ii", "if", "io")

    def recur(self, carry: Carry, projected: ArrayTree) -> tuple[Carry, Array]:
        c, n, m, h = carry
        a = self.affine(h, "hz", "hi", "hf", "ho") + projected
        z, i, f, o = jnp.split(a, 4, axis=-1)
        z = self.activation_fn(z)
        log_f = nn.log_sigmoid(f) if self.forget_gate == "sigmoid" else f
        o = nn.sigmoid(o)
        # An empty memory has no scale. (`jax_debug_infs` refuses -inf.)
        m_before = log_f + jnp.where(n == 0, lowest(m.dtype), m)
        m = jnp.maximum(m_before, i)
        f = jnp.exp(m_before - m)
        i = jnp.exp(i - m)
        c = f * c + i * z
        n = f * n + i
        h = o * quotient(c, n)
        return (c, n, m, h), h


def quotient(above: Array, below: Array) -> Array:
    """Returns above / below, computed in float32 for half precision.

    The derivative has the square of `below`, which is infinite in float16 from 256 on,
    and 0 below 1/4096.
    """
    dtype = jnp.result_type(above, below)
    wide = full_precision(dtype)
    return (above.astype(wide) / below.astype(wide)).astype(dtype)
