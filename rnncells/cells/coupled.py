"""Long short-term memory with a coupled input and forget gate."""

import jax.numpy as jnp
from chex import ArrayTree
from jax import Array

from rnncells.cells.contract.carry import Carry, ShapeTree
from rnncells.cells.contract.fields import GatedCell


class CoupledLSTMCell(GatedCell):
    """LSTM with a coupled input and forget gate (CIFG).

    One step computes::

        i_t = σ(W_ii x_t + W_hi h_{t-1} + b_hi)
        f_t = 1 - i_t
        g_t = tanh(W_ig x_t + W_hg h_{t-1} + b_hg)
        o_t = σ(W_io x_t + W_ho h_{t-1} + b_ho)
        c_t = f_t ⊙ c_{t-1} + i_t ⊙ g_t
        h_t = o_t ⊙ tanh(c_t)

    The carry is (c_t, h_t), the output is h_t; all have the shape `(*batch, features)`.

    >>> import jax, jax.numpy as jnp, rnncells
    >>> cell, x = rnncells.CoupledLSTMCell(features=4), jnp.ones((2, 3))
    >>> carry = cell.initialize_carry(jax.random.key(0), x)
    >>> ((c, h), y), params = cell.init_with_output(jax.random.key(1), carry, x)
    >>> y.shape
    (2, 4)

    Attributes, in addition to those of `rnncells.cells.contract.fields.GatedCell`:
      use_bias: whether the gates have biases. Default: True.

    Choose a `gate_fn` with values in [0, 1].

    Reference: Greff et al., 2017, https://arxiv.org/abs/1503.04069, variant CIFG. All
    variants in the paper have peepholes; this cell has none. Parameters are those of
    `LSTMCell` without `if` and `hf`.
    """

    use_bias: bool = True

    def carry_shape(self, input_shape: tuple[int, ...]) -> ShapeTree:
        return (self.features,), (self.features,)

    def setup(self) -> None:
        self._input_gates("ii", "ig", "io", use_bias=False)
        self._recurrent_gates("hi", "hg", "ho", use_bias=self.use_bias)

    def project(self, inputs: ArrayTree) -> ArrayTree:
        return self.affine(inputs, "ii", "ig", "io")

    def recur(self, carry: Carry, projected: ArrayTree) -> tuple[Carry, Array]:
        c, h = carry
        a = self.affine(h, "hi", "hg", "ho") + projected
        i, g, o = jnp.split(a, 3, axis=-1)
        i = self.gate_fn(i)
        f = 1 - i
        g = self.activation_fn(g)
        o = self.gate_fn(o)
        c = f * c + i * g
        h = o * self.activation_fn(c)
        return (c, h), h
