"""DropConnect: random recurrent weights are zero for a whole sequence."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from chex import ArrayTree
from jax import Array

from rnncells._checks import check_deterministic, check_rate, check_rng
from rnncells.cells.contract.carry import Carry
from rnncells.cells.contract.parameters import DenseParams
from rnncells.cells.contract.wrapper import WrapperCell
from rnncells.flax_internals import copy_bound, run_setup


class DropConnectCell(WrapperCell):
    """Wraps a cell so that random recurrent weights are zero, the same at every step.

    Each kernel that multiplies the state becomes::

        W_ha ⊙ M_a / (1 - rate)

    where the elements of the mask M_a are 0 with probability `rate`, and 1 otherwise.
    All rows of the batch and all steps share one mask. With `deterministic=True`, the
    cell is the wrapped cell.

    The recurrent kernels are those of gates whose names begin with `h`, in the wrapped
    cell itself. As in `VariationalDropout`, all steps share the masks because `RNN`
    does not split the random stream over time; `flax.linen.RNN` needs
    `split_rngs={"params": False, "dropout": False}`. A single step draws new masks:
    pass `deterministic=True` when you run a trained cell step by step. Create both
    cells in `setup`, or outside of the model.

    >>> import jax, jax.numpy as jnp, rnncells
    >>> cell = rnncells.DropConnectCell(rnncells.LSTMCell(4), rate=0.5)
    >>> rnn = rnncells.RNN(cell)
    >>> x = jnp.ones((2, 5, 3))  # (batch, time, features)
    >>> params = rnn.init(jax.random.key(0), x, deterministic=True)
    >>> rngs = {"dropout": jax.random.key(1)}
    >>> y = rnn.apply(params, x, deterministic=False, rngs=rngs)
    >>> y.shape
    (2, 5, 4)

    Attributes:
      cell: the wrapped cell.
      rate: probability that a weight is zero, in [0, 1). Default: 0.5.
      deterministic: whether no weight is dropped. Required here or in the call.
        Default: None.
      rng_collection: name of the random stream. Default: `'dropout'`.

    Raises:
      ValueError: the rate is not in [0, 1).
      TypeError: the cell has no gates whose names begin with `h`.

    Reference: Merity, Keskar and Socher, 2018, https://arxiv.org/abs/1708.02182,
    section 2 (AWD-LSTM); Wan et al., 2013.
    """

    rate: float = 0.5
    deterministic: bool | None = None
    rng_collection: str = "dropout"

    _splits_stream = False

    def __post_init__(self) -> None:
        check_rate("DropConnectCell", "rate", self.rate)
        super().__post_init__()

    def recur(self, carry: Carry, projected: ArrayTree) -> tuple[Carry, Array]:
        check_deterministic("DropConnectCell", self.deterministic, "rate", self.rate)
        if self.deterministic or self.rate == 0:
            return self.cell.recur(carry, projected)
        check_rng(self, self.rng_collection)
        run_setup(self.cell)
        gates = {k: v for k, v in self.cell._gates().items() if k.startswith("h")}
        if not gates:
            raise TypeError(
                "`cell` of DropConnectCell must have gates whose names begin with 'h', "
                f"which multiply the state, got {type(self.cell).__name__} with the "
                f"gates {sorted(self.cell._gates())}."
            )
        dropped = {
            name: _Dropped(gate, self.make_rng(self.rng_collection), self.rate)
            for name, gate in gates.items()
        }
        return copy_bound(self.cell, **dropped).recur(carry, projected)


@dataclass(frozen=True)
class _Dropped:
    """A gate without random weights; it takes the place of the gate in a cell."""

    gate: DenseParams
    key: Array
    rate: float

    @property
    def num_heads(self) -> int:
        return self.gate.num_heads

    def __call__(self, features_in: int) -> tuple[Array, Array | None]:
        kernel, bias = self.gate(features_in)
        keep_mask = jax.random.bernoulli(self.key, 1 - self.rate, kernel.shape)
        return jnp.where(keep_mask, kernel / (1 - self.rate), 0), bias
