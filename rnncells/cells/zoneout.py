"""Zoneout: a cell some of whose units keep their state."""

from collections.abc import Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp

from rnncells.base import RNNCellBase
from rnncells.checks import check_inner_cell, check_rate


class ZoneoutCell(RNNCellBase):
    r"""Another cell, each part of whose carry keeps some of its numbers at each step.

    With :math:`\tilde s_t` a part of the carry as the other cell computes it, and
    :math:`d_t` zeros and ones, 1 with probability `rate`, drawn anew for each number:

    .. math::
        s_t = d_t \odot s_{t-1} + (1 - d_t) \odot \tilde s_t

    and with `deterministic`, the expectation of it:

    .. math::
        s_t = rate \, s_{t-1} + (1 - rate) \, \tilde s_t

    The output is the part of the carry that the other cell gives out, after this.
    (Where both are made within `nn.compact`, the other cell's parameters belong to the
    model, and the layer takes the plain loop; made in `setup`, the fast one.)
    (Flax's `RNN` must be told of the random stream by `split_rngs`, ours is not.)

    >>> import jax, jax.numpy as jnp, rnncells
    >>> cell = rnncells.ZoneoutCell(rnncells.LSTMCell(4), rate=(0.5, 0.05))
    >>> rnn = rnncells.RNN(cell)
    >>> x = jnp.ones((2, 5, 3))  # (batch, time, features)
    >>> keys = {"params": jax.random.key(0), "dropout": jax.random.key(1)}
    >>> y, params = rnn.init_with_output(keys, x)
    >>> y.shape
    (2, 5, 4)

    Attributes:
      cell: the other cell, whose output is a part of its carry (as h of an LSTM).
      rate: probability that a number is kept, in [0, 1): for all parts of the carry, or
        one for each, as (c, h) of an LSTM.
      deterministic: takes the expectation and draws nothing.
      rng_collection: the random stream.

    Raises:
      ValueError: a rate outside of [0, 1), rates that are not one for each part; a
        random stream from which the other cell draws the same at each step.
      TypeError: a cell whose output is no part of its carry.

    Reference: Krueger et al., 2017, https://arxiv.org/abs/1606.01305, equations 4 and
    5; the candidate for h is formed of the c before zoneout, as there.
    """

    cell: RNNCellBase
    rate: float | Sequence[float] = 0.1
    deterministic: bool = False
    rng_collection: str = "dropout"

    def __post_init__(self):
        check_inner_cell(type(self).__name__, self.cell)
        rates = self.rate if isinstance(self.rate, Sequence) else [self.rate]
        for rate in rates:
            check_rate(type(self).__name__, "rate", rate)
        if getattr(self.cell, "streams", {}).get(self.rng_collection) is False:
            raise ValueError(
                f"`rng_collection` of ZoneoutCell must not be {self.rng_collection!r}: "
                f"{type(self.cell).__name__} draws from it, the same at each step. "
                "Give one of them another."
            )
        super().__post_init__()

    @property
    def features(self) -> int:
        """Of the other cell."""
        return self.cell.features

    @property
    def streams(self) -> dict[str, bool]:
        """Random streams, and whether they differ by step: for `RNN`."""
        return {**getattr(self.cell, "streams", {}), self.rng_collection: True}

    @property
    def num_feature_dims(self):
        return self.cell.num_feature_dims

    def carry_shape(self, input_shape):
        return self.cell.carry_shape(input_shape)

    @property
    def param_dtype(self):
        """Of the other cell."""
        return getattr(self.cell, "param_dtype", jnp.float32)

    @property
    def carry_init(self):
        """Of the other cell."""
        return getattr(self.cell, "carry_init", nn.initializers.zeros_init())

    def project(self, inputs):
        # Without a carry, all axes before the features are of the batch.
        dims = self.num_feature_dims
        own = getattr(self, "_carry_shape", (*inputs.shape[:-dims], *(None,) * dims))
        self.cell._take_shape(own)
        if self.is_initializing():
            self.cell._check_bias_init()
        return self.cell.project(inputs)

    def recur(self, carry, projected):
        candidates, output = self.cell.recur(carry, projected)
        old, structure = jax.tree.flatten(carry)
        new = jax.tree.leaves(candidates)
        given_out = [leaf is output for leaf in new]
        if not any(given_out):
            raise TypeError(
                "`cell` of ZoneoutCell must give out a part of its carry, which "
                f"{type(self.cell).__name__} does not."
            )
        rates = self._rates(len(new))
        s = [self._zoned(*part) for part in zip(old, new, rates, strict=True)]
        return jax.tree.unflatten(structure, s), s[given_out.index(True)]

    def _zoned(self, old: jax.Array, new: jax.Array, rate: float) -> jax.Array:
        if rate == 0:
            return new
        if self.deterministic:
            return rate * old + (1 - rate) * new
        key = self.make_rng(self.rng_collection)
        return jnp.where(jax.random.bernoulli(key, rate, old.shape), old, new)

    @nn.nowrap
    def _rates(self, parts: int) -> list[float]:
        if not isinstance(self.rate, Sequence):
            return [self.rate] * parts
        if len(self.rate) != parts:
            raise ValueError(
                f"`rate` of ZoneoutCell must be one number, or one for each of {parts} "
                f"parts of the carry, got {self.rate!r}."
            )
        return list(self.rate)
