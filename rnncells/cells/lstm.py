"""Long short-term memory with a forget gate."""

import jax.numpy as jnp
from chex import ArrayTree
from jax import Array

from rnncells.cells.contract.carry import Carry, ShapeTree
from rnncells.cells.contract.fields import GatedCell


class LSTMCell(GatedCell):
    """Long short-term memory with a forget gate.

    One step computes::

        i_t = σ(W_ii x_t + W_hi h_{t-1} + b_hi)
        f_t = σ(W_if x_t + W_hf h_{t-1} + b_hf)
        g_t = tanh(W_ig x_t + W_hg h_{t-1} + b_hg)
        o_t = σ(W_io x_t + W_ho h_{t-1} + b_ho)
        c_t = f_t ⊙ c_{t-1} + i_t ⊙ g_t
        h_t = o_t ⊙ tanh(c_t)

    The carry is (c_t, h_t), the output is h_t; all have the shape `(*batch, features)`.

    >>> import jax, jax.numpy as jnp, rnncells
    >>> cell, x = rnncells.LSTMCell(features=4), jnp.ones((2, 3))
    >>> carry = cell.initialize_carry(jax.random.key(0), x)
    >>> ((c, h), y), params = cell.init_with_output(jax.random.key(1), carry, x)
    >>> y.shape
    (2, 4)

    Attributes, in addition to those of `rnncells.cells.contract.fields.GatedCell`:
      use_bias: whether the gates have biases. Default: True.
      num_heads: number of heads, which divides `features`. The units of a head see
        only each other: recurrent kernels are block-diagonal, and are stored as
        `(num_heads, features / num_heads, features / num_heads)`. Default: 1.

    Reference: Gers, Schmidhuber and Cummins, 2000,
    https://doi.org/10.1162/089976600300015015, with blocks of one cell. Parameters and
    initial values are those of `flax.linen.LSTMCell`; all biases start at 0.
    """

    use_bias: bool = True
    num_heads: int = 1

    def carry_shape(self, input_shape: tuple[int, ...]) -> ShapeTree:
        return (self.features,), (self.features,)

    def setup(self) -> None:
        self._input_gates("ii", "if", "ig", "io", use_bias=False)
        self._recurrent_gates(
            *("hi", "hf", "hg", "ho"), use_bias=self.use_bias, num_heads=self.num_heads
        )

    def project(self, inputs: ArrayTree) -> ArrayTree:
        return self.affine(inputs, "ii", "if", "ig", "io")

    def recur(self, carry: Carry, projected: ArrayTree) -> tuple[Carry, Array]:
        c, h = carry
        a = self.affine(h, "hi", "hf", "hg", "ho") + projected
        i, f, g, o = jnp.split(a, 4, axis=-1)
        i = self.gate_fn(i)
        f = self.gate_fn(f)
        g = self.activation_fn(g)
        o = self.gate_fn(o)
        c = f * c + i * g
        h = o * self.activation_fn(c)
        return (c, h), h


class OptimizedLSTMCell(LSTMCell):
    """`LSTMCell` under the name that Flax gives to its faster version.

    In rnncells both classes run the same code. The class exists because Flax derives
    the automatic names of modules, and so the parameter trees of checkpoints, from the
    names of classes.
    """
