"""The pooling of quasi-recurrent neural networks."""

from collections.abc import Callable
from typing import Literal

import flax.linen as nn
import jax.numpy as jnp
from chex import ArrayTree
from jax import Array

from rnncells.cells.contract.carry import Carry
from rnncells.cells.contract.linear import LinearGatedCell

Pooling = Literal["f", "fo", "ifo"]


class QRNNCell(LinearGatedCell):
    """Quasi-recurrent network: gates of the inputs, and a pooling, linear in the carry.

    One step computes, with fo-pooling::

        z_t = tanh(W_z x_t + b_z)
        f_t = σ(W_f x_t + b_f)
        o_t = σ(W_o x_t + b_o)
        c_t = f_t ⊙ c_{t-1} + (1 - f_t) ⊙ z_t
        h_t = o_t ⊙ c_t

    With f-pooling there is no o_t, and h_t = c_t. With ifo-pooling::

        i_t = σ(W_i x_t + b_i)
        c_t = f_t ⊙ c_{t-1} + i_t ⊙ z_t

    The carry is c_t, the output is h_t, both `(*batch, features)`.

    >>> import jax, jax.numpy as jnp, rnncells
    >>> cell, x = rnncells.QRNNCell(features=4), jnp.ones((2, 3))
    >>> carry = cell.initialize_carry(jax.random.key(0), x)
    >>> (carry, y), params = cell.init_with_output(jax.random.key(1), carry, x)
    >>> y.shape
    (2, 4)

    Attributes, in addition to those of
    `rnncells.cells.contract.linear.LinearGatedCell`:
      pooling: `'f'`, `'fo'` or `'ifo'`. Default: `'fo'`.
      activation_fn: activation function of the candidate, tanh in the equations.
        Default: tanh.

    Raises:
      ValueError: `pooling` is another value.

    Reference: Bradbury et al., 2017, https://arxiv.org/abs/1611.01576, equations 3 to
    6. The products with W are convolutions over time there, with windows of 1 and more
    steps. This cell has windows of 1. For longer ones, apply a causal convolution
    before it: `nn.Conv(features, (2,), padding="CAUSAL")`.
    """

    pooling: Pooling = "fo"
    activation_fn: Callable[[Array], Array] = nn.tanh

    def setup(self) -> None:
        self._input_gates(*self._names)

    @property
    def _names(self) -> tuple[str, ...]:
        return ("z", *self.pooling)

    def project(self, inputs: ArrayTree) -> ArrayTree:
        parts = jnp.split(self.affine(inputs, *self._names), len(self._names), axis=-1)
        return dict(zip(self._names, parts, strict=True))

    def coefficients(self, projected: ArrayTree) -> tuple[Array, Array]:
        z = self.activation_fn(projected["z"])
        f = nn.sigmoid(projected["f"])
        i = nn.sigmoid(projected["i"]) if "i" in projected else 1 - f
        return f, i * z

    def output(self, carry: Carry, projected: ArrayTree) -> Array:
        c = carry
        return nn.sigmoid(projected["o"]) * c if "o" in projected else c
