"""The recurrent cell with independent units."""

from collections.abc import Callable

import flax.linen as nn
from chex import ArrayTree
from flax.typing import Initializer
from jax import Array

from rnncells.cells.contract.carry import Carry
from rnncells.cells.contract.fields import CellFields
from rnncells.cells.contract.parameters import ElementwiseAffine


class IndRNNCell(CellFields):
    """Independently recurrent cell: each unit sees itself and the inputs only.

    One step computes::

        h_t = relu(W x_t + u ⊙ h_{t-1} + b)

    The carry and the output are both h_t, `(*batch, features)`.

    >>> import jax, jax.numpy as jnp, rnncells
    >>> cell, x = rnncells.IndRNNCell(features=4), jnp.ones((2, 3))
    >>> carry = cell.initialize_carry(jax.random.key(0), x)
    >>> (carry, y), params = cell.init_with_output(jax.random.key(1), carry, x)
    >>> y.shape
    (2, 4)

    Attributes, in addition to those of `rnncells.cells.contract.fields.CellFields`:
      activation_fn: activation function, relu in the equation. Default: relu.
      kernel_init: initializer of W, `(features_in, features)`. Default: LeCun normal.
      recurrent_init: initializer of u, `(features,)`. To keep relu from exploding over
        T steps, draw from [0, 2^(1/T)). Default: uniform in [0, 1).
      bias_init: initializer of b. Default: zeros.
      use_bias: whether there is a bias. Default: True.

    Reference: Li et al., 2018, https://arxiv.org/abs/1803.04831, equation 2; section
    4.1 for the ranges of u. The parameter u is `h/kernel`.
    """

    activation_fn: Callable[[Array], Array] = nn.relu
    kernel_init: Initializer = nn.initializers.lecun_normal()
    recurrent_init: Initializer = nn.initializers.uniform(1.0)
    bias_init: Initializer = nn.initializers.zeros_init()
    use_bias: bool = True

    def setup(self) -> None:
        self.gates(
            "i",
            kernel_init=self.kernel_init,
            bias_init=self.bias_init,
            use_bias=self.use_bias,
        )
        self.h = ElementwiseAffine(
            kernel_init=self.recurrent_init,
            dtype=self.dtype,
            param_dtype=self.param_dtype,
        )

    def project(self, inputs: ArrayTree) -> ArrayTree:
        return self.affine(inputs, "i")

    def recur(self, carry: Carry, projected: ArrayTree) -> tuple[Carry, Array]:
        h = carry
        h = self.activation_fn(projected + self.h(h))
        return h, h
