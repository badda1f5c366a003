"""The base class of cells whose state is a matrix, changed by an outer product."""

import flax.linen as nn
from chex import ArrayTree
from jax import Array

from rnncells.cells.contract.base import RNNCellBase
from rnncells.cells.contract.carry import Carry
from rnncells.recurrence.linear import matrix_state
from rnncells.recurrence.linear.matrix_state import MatrixState, OuterUpdate


class MatrixRNNCellBase(RNNCellBase):
    """Base of the cells whose state is a matrix, changed by an outer product.

    One step of each head computes::

        S_t = α_t S_{t-1} (I - β_t k_t k_tᵀ) + v_t k_tᵀ
        y_t = output(S_t q_t, x_t)

    where everything but S depends on the inputs only;
    `rnncells.recurrence.linear.matrix_state.OuterUpdate` has the variant with
    exponential gates. A subclass defines `update` instead of `recur`; `RNN` then runs
    chunks of time, in which all steps are computed at once by products of matrices.

    The fields are those of `RNNCellBase`.
    """

    _methods = (*RNNCellBase._methods, "update", "output")

    @nn.nowrap
    def update(self, projected: ArrayTree) -> OuterUpdate:
        """Returns the update of the state and the query of one step.

        Args:
          projected: as `project` returns it.
        """
        raise NotImplementedError(f"{type(self).__name__} must define `update`.")

    @nn.nowrap
    def output(self, read: Array, m: Array | None, projected: ArrayTree) -> ArrayTree:
        """Returns the output of one step.

        Args:
          read: S_t q_t, `(*batch, heads, values)`.
          m: logarithm of the factor that S_t lacks, `(*batch, heads)`; None without.
          projected: as `project` returns it.
        """
        raise NotImplementedError(f"{type(self).__name__} must define `output`.")

    @nn.nowrap
    def to_state(self, carry: Carry) -> MatrixState:
        """Returns a carry as a `MatrixState`. Default: the carry is S."""
        return MatrixState(carry)

    @nn.nowrap
    def to_carry(self, state: MatrixState) -> Carry:
        """Returns a `MatrixState` as a carry. Default: S."""
        return state.S

    def recur(self, carry: Carry, projected: ArrayTree) -> tuple[Carry, ArrayTree]:
        update = self.update(projected)
        state = matrix_state.step(self.to_state(carry), update)
        read = matrix_state.read(state.S, update.q)
        return self.to_carry(state), self.output(read, state.m, projected)


def split_heads(x: Array, num_heads: int) -> Array:
    """Returns `(*leading, heads, features / heads)` of `(*leading, features)`."""
    return x.reshape(*x.shape[:-1], num_heads, x.shape[-1] // num_heads)
