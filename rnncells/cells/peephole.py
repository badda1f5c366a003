"""Long short-term memory with peepholes."""

import flax.linen as nn
import jax.numpy as jnp
from chex import ArrayTree
from flax.typing import Initializer
from jax import Array

from rnncells.cells.contract.carry import Carry, ShapeTree
from rnncells.cells.contract.fields import GatedCell
from rnncells.cells.contract.parameters import ElementwiseAffine


class PeepholeLSTMCell(GatedCell):
    """LSTM with peepholes: each gate also reads the cell state of its unit.

    One step computes::

        i_t = σ(W_ii x_t + W_hi h_{t-1} + p_i ⊙ c_{t-1} + b_hi)
        f_t = σ(W_if x_t + W_hf h_{t-1} + p_f ⊙ c_{t-1} + b_hf)
        g_t = tanh(W_ig x_t + W_hg h_{t-1} + b_hg)
        c_t = f_t ⊙ c_{t-1} + i_t ⊙ g_t
        o_t = σ(W_io x_t + W_ho h_{t-1} + p_o ⊙ c_t + b_ho)
        h_t = o_t ⊙ tanh(c_t)

    The carry is (c_t, h_t), the output is h_t; all have the shape `(*batch, features)`.

    >>> import jax, jax.numpy as jnp, rnncells
    >>> cell, x = rnncells.PeepholeLSTMCell(features=4), jnp.ones((2, 3))
    >>> carry = cell.initialize_carry(jax.random.key(0), x)
    >>> ((c, h), y), params = cell.init_with_output(jax.random.key(1), carry, x)
    >>> y.shape
    (2, 4)

    Attributes, in addition to those of `rnncells.cells.contract.fields.GatedCell`:
      use_bias: whether the gates have biases. Default: True.
      peephole_init: initializer of p_i, p_f and p_o, each `(features,)`. With zeros,
        the cell starts as an `LSTMCell`. Default: zeros.

    Reference: Gers and Schmidhuber, 2000, https://doi.org/10.1109/IJCNN.2000.861302,
    and Gers, Schraudolph and Schmidhuber, 2002,
    https://www.jmlr.org/papers/v3/gers02a.html. Different here, as in Graves, 2013,
    https://arxiv.org/abs/1308.0850: each unit has its own gates, the activation
    function is tanh, and the gradient is the full one, also through the peepholes.
    Parameters are those of `LSTMCell` and the peepholes `pi pf po`.
    """

    use_bias: bool = True
    peephole_init: Initializer = nn.initializers.zeros_init()

    def carry_shape(self, input_shape: tuple[int, ...]) -> ShapeTree:
        return (self.features,), (self.features,)

    def setup(self) -> None:
        self._input_gates("ii", "if", "ig", "io", use_bias=False)
        self._recurrent_gates("hi", "hf", "hg", "ho", use_bias=self.use_bias)
        self.pi, self.pf, self.po = (
            ElementwiseAffine(
                kernel_init=self.peephole_init,
                dtype=self.dtype,
                param_dtype=self.param_dtype,
            )
            for _ in range(3)
        )

    def project(self, inputs: ArrayTree) -> ArrayTree:
        return self.affine(inputs, "ii", "if", "ig", "io")

    def recur(self, carry: Carry, projected: ArrayTree) -> tuple[Carry, Array]:
        c, h = carry
        a = self.affine(h, "hi", "hf", "hg", "ho") + projected
        i, f, g, o = jnp.split(a, 4, axis=-1)
        i = self.gate_fn(self.pi(c) + i)
        f = self.gate_fn(self.pf(c) + f)
        g = self.activation_fn(g)
        c = f * c + i * g
        o = self.gate_fn(self.po(c) + o)
        h = o * self.activation_fn(c)
        return (c, h), h
