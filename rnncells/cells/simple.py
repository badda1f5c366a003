"""The simple recurrent cell of Elman."""

from chex import ArrayTree
from jax import Array

from rnncells.cells.contract.carry import Carry
from rnncells.cells.contract.fields import DenseCell


class SimpleCell(DenseCell):
    """Elman's recurrent cell: an affine map of input and state, and an activation.

    One step computes::

        h_t = tanh(W_i x_t + b_i + W_h h_{t-1})

    The carry and the output are both h_t, `(*batch, features)`.

    >>> import jax, jax.numpy as jnp, rnncells
    >>> cell, x = rnncells.SimpleCell(features=4), jnp.ones((2, 3))
    >>> carry = cell.initialize_carry(jax.random.key(0), x)
    >>> (carry, y), params = cell.init_with_output(jax.random.key(1), carry, x)
    >>> y.shape
    (2, 4)

    Attributes, in addition to those of `rnncells.cells.contract.fields.DenseCell`:
      residual: whether h_{t-1} is added inside the activation. Default: False.
      use_bias: whether there is a bias. Default: True.
      num_heads: number of heads, which divides `features`. The units of a head see
        only each other: recurrent kernels are block-diagonal, and are stored as
        `(num_heads, features / num_heads, features / num_heads)`. Default: 1.

    Reference: Elman, 1990, https://doi.org/10.1207/s15516709cog1402_1; the activation
    function there is logistic. Parameters and initial values are those of
    `flax.linen.SimpleCell`.
    """

    residual: bool = False
    use_bias: bool = True
    num_heads: int = 1

    def setup(self) -> None:
        self._input_gates("i", use_bias=self.use_bias)
        self._recurrent_gates("h", use_bias=False, num_heads=self.num_heads)

    def project(self, inputs: ArrayTree) -> ArrayTree:
        return self.affine(inputs, "i")

    def recur(self, carry: Carry, projected: ArrayTree) -> tuple[Carry, Array]:
        h = carry
        a = self.affine(h, "h") + projected
        if self.residual:
            a = a + h
        h = self.activation_fn(a)
        return h, h
