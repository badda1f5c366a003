"""Variational dropout: one mask for all steps of a sequence."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from chex import ArrayTree
from jax import Array

from rnncells._checks import check_deterministic, check_rate, check_rng
from rnncells.cells.contract.base import RNNCellBase
from rnncells.cells.contract.carry import Carry
from rnncells.cells.gru import GRUCell
from rnncells.cells.lstm import LSTMCell
from rnncells.flax_internals import copy_bound


class VariationalDropout(RNNCellBase):
    """Mixin that adds dropout with the same mask at every step to a cell.

    Each gate a multiplies the inputs and the states by masks before its products::

        W_ia x_t      becomes  W_ia (x_t ⊙ z_x)
        W_ha h_{t-1}  becomes  W_ha (h_{t-1} ⊙ z_h)

    The elements of the masks z_x and z_h are 0 or 1 / (1 - rate). Each sequence of the
    batch has its own masks, which all gates share. Dropout applies only where inputs
    and states are multiplied by kernels, not where the cell carries its state over.

    To add dropout to your own cell, write
    `class MyVariationalCell(VariationalDropout, MyCell)`. The names of its gates must
    begin with `i` for inputs and `h` for states, and the last part of its carry must be
    h.

    The masks are the same at every step because `RNN` does not split the random stream
    over time; `rng_streams` tells it so. `flax.linen.RNN` needs
    `split_rngs={"params": False, "dropout": False}`. A single step, by calling the cell
    or `RNN.step`, draws new masks; pass `deterministic=True` when you run a trained
    cell step by step.

    >>> import jax, jax.numpy as jnp, rnncells
    >>> cell = rnncells.VariationalLSTMCell(4, input_rate=0.2, recurrent_rate=0.3)
    >>> rnn = rnncells.RNN(cell)
    >>> x = jnp.ones((2, 5, 3))  # (batch, time, features)
    >>> params = rnn.init(jax.random.key(0), x, deterministic=True)
    >>> rngs = {"dropout": jax.random.key(1)}
    >>> y = rnn.apply(params, x, deterministic=False, rngs=rngs)
    >>> y.shape
    (2, 5, 4)

    Attributes:
      input_rate: probability of dropping an element of the input, in [0, 1).
        Default: 0.
      recurrent_rate: probability of dropping an element of the state, in [0, 1).
        Default: 0.
      deterministic: whether dropout is off. Required here or in the call, unless both
        rates are 0. Default: None.
      rng_collection: name of the random stream. Default: `'dropout'`.

    Raises:
      ValueError: a rate is not in [0, 1).
      TypeError: a rate is not a number.

    Reference: Gal and Ghahramani, 2016, https://arxiv.org/abs/1512.05287, section 4,
    variant with tied weights. Masks are scaled in training, so outputs need no scaling
    at test time.
    """

    input_rate: float = 0.0
    recurrent_rate: float = 0.0
    deterministic: bool | None = None
    rng_collection: str = "dropout"
    # The mask of the states of one step; `recur` sets it in a copy of the cell.
    z_h = None

    def __post_init__(self) -> None:
        for name in ("input_rate", "recurrent_rate"):
            check_rate(type(self).__name__, name, getattr(self, name))
        super().__post_init__()

    @property
    def rng_streams(self) -> dict[str, bool]:
        """Random streams, and whether `RNN` splits them over time."""
        return {self.rng_collection: False}

    def setup(self) -> None:
        super().setup()
        self.input_dropout = nn.Dropout(
            self.input_rate, rng_collection=self.rng_collection
        )
        self.recurrent_dropout = nn.Dropout(
            self.recurrent_rate, rng_collection=self.rng_collection
        )

    def project(self, inputs: ArrayTree) -> ArrayTree:
        is_number = jnp.issubdtype(inputs.dtype, jnp.inexact)
        ones = jnp.ones(inputs.shape, inputs.dtype if is_number else self.param_dtype)
        z_x = self._mask(self.input_dropout, ones)
        return super().project(inputs * z_x)

    def recur(self, carry: Carry, projected: ArrayTree) -> tuple[Carry, Array]:
        ones = jnp.ones_like(jax.tree.leaves(carry)[-1])
        masked: Any = copy_bound(self, z_h=self._mask(self.recurrent_dropout, ones))
        return super(VariationalDropout, masked).recur(carry, projected)

    @nn.nowrap
    def _mask(self, dropout: nn.Dropout, ones: Array) -> Array:
        if dropout.rate == 0:
            return ones
        name = str(dropout.name).replace("dropout", "rate")
        check_deterministic(type(self).__name__, self.deterministic, name, dropout.rate)
        if not self.deterministic:
            check_rng(self, self.rng_collection)
        return dropout(ones, deterministic=self.deterministic)

    @nn.nowrap
    def affine(self, inputs: Any, *names: str) -> Array:
        if names and names[0].startswith("h"):
            inputs = inputs * self.z_h
        return super().affine(inputs, *names)


class VariationalLSTMCell(VariationalDropout, LSTMCell):
    """`LSTMCell` with `VariationalDropout`; it has the parameters of `LSTMCell`."""


class VariationalGRUCell(VariationalDropout, GRUCell):
    """`GRUCell` with `VariationalDropout`; it has the parameters of `GRUCell`."""
