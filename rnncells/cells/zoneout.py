"""Zoneout: random units keep their previous state."""

from collections.abc import Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp
from chex import ArrayTree
from jax import Array

from rnncells._checks import check_deterministic, check_rate, check_rng
from rnncells.cells.contract.carry import Carry
from rnncells.cells.contract.wrapper import WrapperCell


class ZoneoutCell(WrapperCell):
    """Wraps a cell so that random elements of its carry keep their previous values.

    Let s'_t be a part of the carry as the wrapped cell computes it. The elements of the
    mask d_t are 1 with probability `rate` and 0 otherwise, drawn independently at every
    step. One step computes::

        s_t = d_t ⊙ s_{t-1} + (1 - d_t) ⊙ s'_t

    With `deterministic=True` the cell computes the expected value::

        s_t = rate · s_{t-1} + (1 - rate) · s'_t

    The output is the part of the new carry that the wrapped cell would have returned.

    Create both cells in `setup`, or outside of the model. In an `nn.compact` method the
    parameters of the wrapped cell would belong to the model, and `RNN` would use the
    slower plain loop to draw masks. `flax.linen.RNN` needs the random stream in
    `split_rngs`, `rnncells.RNN` does not.

    >>> import jax, jax.numpy as jnp, rnncells
    >>> cell = rnncells.ZoneoutCell(rnncells.LSTMCell(4), rate=(0.5, 0.05))
    >>> rnn = rnncells.RNN(cell)
    >>> x = jnp.ones((2, 5, 3))  # (batch, time, features)
    >>> params = rnn.init(jax.random.key(0), x, deterministic=True)
    >>> rngs = {"dropout": jax.random.key(1)}
    >>> y = rnn.apply(params, x, deterministic=False, rngs=rngs)
    >>> y.shape
    (2, 5, 4)

    Attributes:
      cell: the wrapped cell. Its output must be a part of its carry, like h of an LSTM.
      rate: probability that an element keeps its previous value, in [0, 1): one rate
        for all parts of the carry, or one rate for each part, for example for (c, h).
        Default: 0.1.
      deterministic: whether to compute the expected value and draw no mask. Required
        here or in the call. Default: None.
      rng_collection: name of the random stream. Default: `'dropout'`.

    Raises:
      ValueError: a rate is not in [0, 1); the number of rates differs from the number
        of parts; the wrapped cell uses the same random stream for masks that do not
        change over time.
      TypeError: the output of the wrapped cell is not a part of its carry.

    Reference: Krueger et al., 2017, https://arxiv.org/abs/1606.01305, equations 4 and
    5. As in the paper, the candidate for h is computed from c before zoneout.
    """

    rate: float | Sequence[float] = 0.1
    deterministic: bool | None = None
    rng_collection: str = "dropout"

    def __post_init__(self) -> None:
        rates = self.rate if isinstance(self.rate, Sequence) else [self.rate]
        for rate in rates:
            check_rate(type(self).__name__, "rate", rate)
        super().__post_init__()

    def recur(self, carry: Carry, projected: ArrayTree) -> tuple[Carry, Array]:
        candidates, output = self.cell.recur(carry, projected)
        old, structure = jax.tree.flatten(carry)
        new = jax.tree.leaves(candidates)
        is_output = [leaf is output for leaf in new]
        if not any(is_output):
            raise TypeError(
                "the output of the `cell` of ZoneoutCell must be a part of its carry; "
                f"the output of {type(self.cell).__name__} is not."
            )
        rates = self._rates(len(new))
        s = [self._zoned(*part) for part in zip(old, new, rates, strict=True)]
        return jax.tree.unflatten(structure, s), s[is_output.index(True)]

    @nn.nowrap
    def _zoned(self, old: Array, new: Array, rate: float) -> Array:
        if rate == 0:
            return new
        check_deterministic("ZoneoutCell", self.deterministic, "rate", rate)
        if self.deterministic:
            return rate * old + (1 - rate) * new
        check_rng(self, self.rng_collection)
        key = self.make_rng(self.rng_collection)
        return jnp.where(jax.random.bernoulli(key, rate, old.shape), old, new)

    @nn.nowrap
    def _rates(self, parts: int) -> list[float]:
        if not isinstance(self.rate, Sequence):
            return [self.rate] * parts
        if len(self.rate) != parts:
            raise ValueError(
                f"`rate` of ZoneoutCell must be one number, or one number for each of "
                f"the {parts} parts of the carry, got {self.rate!r}."
            )
        return list(self.rate)
