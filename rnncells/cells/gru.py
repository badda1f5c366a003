"""Gated recurrent units: the GRU, and the minimal gated unit."""

from collections.abc import Callable

import flax.linen as nn
import jax.numpy as jnp
from chex import ArrayTree
from flax.typing import Dtype, Initializer
from jax import Array

from rnncells import initializers
from rnncells.cells.contract.carry import Carry
from rnncells.cells.contract.fields import GatedCell, VectorCell


class GRUCell(GatedCell):
    """Gated recurrent unit; the reset gate acts after the recurrent product.

    One step computes::

        r_t = σ(W_ir x_t + b_ir + W_hr h_{t-1})
        z_t = σ(W_iz x_t + b_iz + W_hz h_{t-1})
        n_t = tanh(W_in x_t + b_in + r_t ⊙ (W_hn h_{t-1} + b_hn))
        h_t = (1 - z_t) ⊙ n_t + z_t ⊙ h_{t-1}

    With `reset_after=False`, as in the paper, the reset gate acts before the product::

        n_t = tanh(W_in x_t + b_in + W_hn (r_t ⊙ h_{t-1}))

    Then there is no b_hn, because it would only add to b_in. The carry and the output
    are both h_t, `(*batch, features)`.

    >>> import jax, jax.numpy as jnp, rnncells
    >>> cell, x = rnncells.GRUCell(features=4), jnp.ones((2, 3))
    >>> carry = cell.initialize_carry(jax.random.key(0), x)
    >>> (carry, y), params = cell.init_with_output(jax.random.key(1), carry, x)
    >>> y.shape
    (2, 4)

    Attributes, in addition to those of `rnncells.cells.contract.fields.GatedCell`:
      reset_after: whether the reset gate acts after the recurrent product.
        Default: True.
      use_bias: whether the gates have biases. Default: True.
      num_heads: number of heads, which divides `features`. The units of a head see
        only each other: recurrent kernels are block-diagonal, and are stored as
        `(num_heads, features / num_heads, features / num_heads)`. Default: 1.

    Reference: Cho et al., 2014, https://arxiv.org/abs/1406.1078; as in the paper,
    z_t multiplies the old state. Parameters and initial values are those of
    `flax.linen.GRUCell`. cuDNN also applies the reset gate after the product.
    """

    reset_after: bool = True
    use_bias: bool = True
    num_heads: int = 1

    def setup(self) -> None:
        heads, hn_bias = self.num_heads, self.use_bias and self.reset_after
        self._input_gates("ir", "iz", "in", use_bias=self.use_bias)
        self._recurrent_gates("hr", "hz", use_bias=False, num_heads=heads)
        self._recurrent_gates("hn", use_bias=hn_bias, num_heads=heads)

    def project(self, inputs: ArrayTree) -> ArrayTree:
        return self.affine(inputs, "ir", "iz"), self.affine(inputs, "in")

    def recur(self, carry: Carry, projected: ArrayTree) -> tuple[Carry, Array]:
        h = carry
        xrz, xn = projected
        r, z = jnp.split(self.affine(h, "hr", "hz") + xrz, 2, axis=-1)
        r = self.gate_fn(r)
        z = self.gate_fn(z)
        if self.reset_after:
            n = self.activation_fn(xn + r * self.affine(h, "hn"))
        else:
            n = self.activation_fn(self.affine(r * h, "hn") + xn)
        h = (1 - z) * n + z * h
        return h, h


class MGUCell(VectorCell):
    """Minimal gated unit: a GRU whose reset and update gate are one gate.

    One step computes::

        f_t = σ(W_if x_t + b_if + W_hf h_{t-1})
        n_t = tanh(W_in x_t + b_in + f_t ⊙ (W_hn h_{t-1} + b_hn))
        h_t = (1 - f_t) ⊙ n_t + f_t ⊙ h_{t-1}

    With `reset_gate=False` the gate does not act on the candidate::

        n_t = tanh(W_in x_t + b_in + W_hn h_{t-1})

    The carry and the output are both h_t, `(*batch, features)`.

    >>> import jax, jax.numpy as jnp, rnncells
    >>> cell, x = rnncells.MGUCell(features=4), jnp.ones((2, 3))
    >>> carry = cell.initialize_carry(jax.random.key(0), x)
    >>> (carry, y), params = cell.init_with_output(jax.random.key(1), carry, x)
    >>> y.shape
    (2, 4)

    Attributes:
      features: number of units; None takes the width of the carry.
      gate_fn: activation function of the gate, σ in the equations. Default: sigmoid.
      activation_fn: activation function of the candidate, tanh in the equations.
        Default: tanh.
      kernel_init: initializer of W_if and W_in, each `(features_in, features)`.
        Default: LeCun normal.
      recurrent_kernel_init: initializer of W_hf and W_hn, each `(features, features)`.
        Default: orthogonal.
      forget_bias_init: initializer of b_if. Default: ones.
      activation_bias_init: initializer of b_in and b_hn. Default: zeros.
      dtype: dtype of the computation; None promotes inputs and parameters.
        Default: None.
      param_dtype: dtype of the parameters and of the carry. Default: float32.
      carry_init: initializer of the carry. Default: zeros.
      reset_gate: whether the gate acts on the candidate. Default: True.

    Reference: Zhou et al., 2016, https://arxiv.org/abs/1603.09420. Different in the
    paper: the gate acts on h_{t-1} before the product, and f_t and 1 - f_t are
    exchanged. Parameters and initial values are those of `flax.linen.MGUCell`.
    """

    # In Flax's order two initializers take the place of `bias_init`, so this class
    # declares its fields itself instead of inheriting them from `GatedCell`.
    gate_fn: Callable[[Array], Array] = nn.sigmoid
    activation_fn: Callable[[Array], Array] = nn.tanh
    kernel_init: Initializer = nn.initializers.lecun_normal()
    recurrent_kernel_init: Initializer = initializers.orthogonal()
    forget_bias_init: Initializer = nn.initializers.ones_init()
    activation_bias_init: Initializer = nn.initializers.zeros_init()
    dtype: Dtype | None = None
    param_dtype: Dtype = jnp.float32
    carry_init: Initializer = nn.initializers.zeros_init()
    reset_gate: bool = True

    def setup(self) -> None:
        kernel, recurrent = self.kernel_init, self.recurrent_kernel_init
        f_bias, n_bias = self.forget_bias_init, self.activation_bias_init
        self.gates("if", kernel_init=kernel, bias_init=f_bias)
        self.gates("in", kernel_init=kernel, bias_init=n_bias)
        self.gates("hf", kernel_init=recurrent, use_bias=False)
        self.gates(
            "hn", kernel_init=recurrent, bias_init=n_bias, use_bias=self.reset_gate
        )

    def project(self, inputs: ArrayTree) -> ArrayTree:
        return self.affine(inputs, "if"), self.affine(inputs, "in")

    def recur(self, carry: Carry, projected: ArrayTree) -> tuple[Carry, Array]:
        h = carry
        xf, xn = projected
        f = self.gate_fn(self.affine(h, "hf") + xf)
        if self.reset_gate:
            n = self.activation_fn(xn + f * self.affine(h, "hn"))
        else:
            n = self.activation_fn(self.affine(h, "hn") + xn)
        h = (1 - f) * n + f * h
        return h, h
