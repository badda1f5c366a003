"""Dropout with one mask for all steps of a sequence."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from rnncells.base import RNNCellBase
from rnncells.cells.gru import GRUCell
from rnncells.cells.lstm import LSTMCell
from rnncells.checks import check_rate


class VariationalDropout(RNNCellBase):
    r"""What makes a cell that it is mixed into drop the same numbers at every step.

    .. math::
        W_{i\cdot} \, x_t \quad &\text{becomes} \quad W_{i\cdot} (x_t \odot z_x) \\
        W_{h\cdot} \, h_{t-1} \quad &\text{becomes} \quad
            W_{h\cdot} (h_{t-1} \odot z_h)

    with masks of 0 and :math:`1 / (1 - rate)`, drawn once for each row of the batch,
    and the same for all gates. Nothing else of the cell changes: what it keeps of its
    state by itself is not dropped. A cell of one's own can have it if its gates' names
    begin with `i` for inputs and `h` for states, and if the last part of its carry is
    :math:`h`: `class MyVariationalCell(VariationalDropout, MyCell)`.

    The masks stay because the random stream does, which `RNN` is told by `streams`.
    (Flax's must be told by `split_rngs={"params": False, "dropout": False}`.) Steps by
    themselves, of the cell or by `RNN.step`, draw masks of their own: in use, where
    steps are taken one at a time, `deterministic` drops nothing.

    >>> import jax, jax.numpy as jnp, rnncells
    >>> cell = rnncells.VariationalLSTMCell(4, input_rate=0.2, recurrent_rate=0.3)
    >>> rnn = rnncells.RNN(cell)
    >>> x = jnp.ones((2, 5, 3))  # (batch, time, features)
    >>> keys = {"params": jax.random.key(0), "dropout": jax.random.key(1)}
    >>> y, params = rnn.init_with_output(keys, x)
    >>> y.shape
    (2, 5, 4)

    Attributes:
      input_rate: probability that an input is dropped, in [0, 1).
      recurrent_rate: probability that a state is dropped, in [0, 1).
      deterministic: drops nothing.
      rng_collection: the random stream.

    Raises:
      ValueError: a rate outside of [0, 1).

    Reference: Gal and Ghahramani, 2016, https://arxiv.org/abs/1512.05287, section 4,
    with the weights of gates tied; masks are scaled in training, so that nothing is
    scaled in use.
    """

    input_rate: float = 0.0
    recurrent_rate: float = 0.0
    deterministic: bool = False
    rng_collection: str = "dropout"

    def __post_init__(self):
        for name in ("input_rate", "recurrent_rate"):
            check_rate(type(self).__name__, name, getattr(self, name))
        super().__post_init__()

    @property
    def streams(self) -> dict[str, bool]:
        """Random streams, and whether they differ by step: for `RNN`."""
        return {self.rng_collection: False}

    def setup(self):
        super().setup()
        self.input_dropout = nn.Dropout(
            self.input_rate, rng_collection=self.rng_collection
        )
        self.recurrent_dropout = nn.Dropout(
            self.recurrent_rate, rng_collection=self.rng_collection
        )

    def project(self, inputs):
        # Axes before those of the batch are of time, and have the same mask.
        batch = len(getattr(self, "_carry_shape", inputs.shape)) - 1
        ones = (1,) * (inputs.ndim - batch - 1)
        is_number = jnp.issubdtype(inputs.dtype, jnp.inexact)
        dtype = inputs.dtype if is_number else self.param_dtype
        mask = jnp.ones(inputs.shape[len(ones) :], dtype)
        z_x = self.input_dropout(mask, deterministic=self.deterministic)
        return super().project(inputs * z_x.reshape(*ones, *z_x.shape))

    def recur(self, carry, projected):
        *_, h = jax.tree.leaves(carry)
        ones = jnp.ones_like(h)
        z_h = self.recurrent_dropout(ones, deterministic=self.deterministic)
        # Modules are frozen; the mask is there for this step alone.
        object.__setattr__(self, "_z_h", z_h)
        return super().recur(carry, projected)

    @nn.nowrap
    def affine(self, inputs, *names, onto=None):
        is_of_states = bool(names) and names[0].startswith("h")
        inputs = inputs * self._z_h if is_of_states else inputs
        return super().affine(inputs, *names, onto=onto)


class VariationalLSTMCell(VariationalDropout, LSTMCell):
    """`LSTMCell` with `VariationalDropout`; parameters are those of `LSTMCell`."""


class VariationalGRUCell(VariationalDropout, GRUCell):
    """`GRUCell` with `VariationalDropout`; parameters are those of `GRUCell`."""
