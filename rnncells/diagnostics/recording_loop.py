"""A loop over time of an RNN that keeps the values of each step."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from chex import ArrayTree
from jax import Array
from jax.flatten_util import ravel_pytree

from rnncells.cells.any_cell import feature_dims
from rnncells.cells.carry import Carry
from rnncells.diagnostics.named_step import NamedStep, StepValues, marked
from rnncells.loops.request import Obstacle, StepRequest
from rnncells.recurrence import masks
from rnncells.recurrence.pytrees import combine, inexact, partition, structs, upcast


class Recorded(NamedTuple):
    """The values that a recurrent layer computed at every step, or their cotangents.

    All arrays have the axes `(*batch, time, ...)`, also with `time_major`, and are in
    the order of the inputs, also with `reverse`. At steps where `mask` is false, the
    cell ran on padding, or its result was not used: ignore the values there.

    Attributes:
      values: arrays by name, see `record`.
      carry: the carry after each step, in the form of the cell's carry.
      mask: true at valid steps, booleans `(*batch, time)`.
      jacobians: derivatives of the carry after a step by the carry before it,
        `(*batch, time, size, size)`, or None; see `record`.
    """

    values: dict[str, Array]
    carry: Carry
    mask: Array
    jacobians: Array | None = None


class Order(NamedTuple):
    """The order of steps in the arguments of a layer, and in its loop.

    `batch` has the sizes of the batch axes; `mask`, `(*batch, time)`, is true at valid
    steps, in the order of the arguments.
    """

    batch: tuple[int, ...]
    mask: Array
    reverse: bool
    seq_lengths: Array | None

    def from_steps(self, tree: ArrayTree) -> ArrayTree:
        """Returns `(time, *batch, ...)` of the loop as `(*batch, time, ...)`."""
        axis = len(self.batch)
        return self._flip(jax.tree.map(lambda x: jnp.moveaxis(x, 0, axis), tree))

    def to_steps(self, tree: ArrayTree) -> ArrayTree:
        """Returns `(*batch, time, ...)` as `(time, *batch, ...)` of the loop."""
        axis = len(self.batch)
        return jax.tree.map(lambda x: jnp.moveaxis(x, axis, 0), self._flip(tree))

    def _flip(self, tree: ArrayTree) -> ArrayTree:
        if not self.reverse:
            return tree
        return masks.flip(tree, self.seq_lengths, len(self.batch))


def order_of(
    rnn: nn.Module,
    inputs: ArrayTree,
    *,
    time_major: bool | None = None,
    reverse: bool | None = None,
    seq_lengths: Array | None = None,
    mask: Array | None = None,
    **_: Any,
) -> Order:
    """Returns the order of the steps in a call of an RNN, from its arguments."""
    first = jnp.asarray(jax.tree.leaves(inputs)[0])
    sizes = first.shape[: first.ndim - feature_dims(rnn.cell)]
    time_major = rnn.time_major if time_major is None else time_major
    axis = 0 if time_major else len(sizes) - 1
    batch, steps = sizes[:axis] + sizes[axis + 1 :], sizes[axis]
    valid = jnp.ones((*batch, steps), bool)
    if mask is not None:
        valid &= jnp.moveaxis(jnp.asarray(mask), axis, -1)
    if seq_lengths is not None:
        seq_lengths = jnp.clip(jnp.asarray(seq_lengths), 0, steps)
        valid &= masks.before_end(seq_lengths, steps, len(batch))
    reverse = rnn.reverse if reverse is None else reverse
    return Order(batch, valid, reverse, seq_lengths)


@dataclass
class RecordingLoop:
    """A loop over time, which a bound RNN runs in place of its own.

    `taps` is `(values, carry)` in the form of `Recorded`, added to what the loop
    computes; None in place of a leaf, or of all, adds nothing. After the loop has run,
    `recorded` is what it has computed.
    """

    rnn: nn.Module
    order: Order
    taps: Any
    jacobians: bool
    recorded: Recorded | None = None

    def run(
        self, step: Callable, body: Any, reset_carry: Any, carry: tuple, xs: Any
    ) -> tuple:
        """Runs the loop; see `schedule.scan`."""
        request = StepRequest(self.rnn, carry, xs, marked(step), body, reset_carry)
        try:
            pure = request.function
        except Obstacle as error:
            raise ValueError(f"Recording an RNN {error}") from error
        named = NamedStep(
            lambda consts, xs, carry: pure.function(consts, carry, xs),
            *(pure.consts, structs(pure.xs, drop_axis=0), carry),
        )
        _, (_, changed) = named.result
        if names := changed.keys() & request.unbound_cell.variables.keys():
            raise ValueError(
                "Recording an RNN needs a cell that only reads its collections; "
                f"{type(self.rnn.cell).__name__} changes {sorted(names)} at each step. "
                "Leave them out of `mutable`."
            )
        taps = None
        if self.taps is not None:
            of_values, of_carry = self.order.to_steps(self.taps)
            leaves = jax.tree.leaves(of_carry, is_leaf=lambda leaf: leaf is None)
            taps = StepValues(of_values, leaves)
        one_step = partial(self._one_step, partial(named, pure.consts))
        final, (ys, values, matrices) = jax.lax.scan(one_step, carry, (pure.xs, taps))
        request.count_draws()
        recorded_carry = jax.tree.unflatten(jax.tree.structure(carry[0]), values.carry)
        self.recorded = self._recorded(values.values, recorded_carry, matrices)
        return final, ys

    def _one_step(self, named: Callable, carry: tuple, xs: tuple) -> tuple[Any, Any]:
        inputs, taps = xs
        (new, (output, _)), values = named(inputs, carry, taps)
        if not self.jacobians:
            return new, (output, values, None)
        state, final = carry

        def of_state(state: Carry) -> Carry:
            return named(inputs, (state, final))[0][0][0]

        matrices = jacobian(of_state, state, len(self.order.batch))
        return new, (output, values, upcast(matrices))

    def _recorded(
        self, values: dict[str, Array], carry: Carry, matrices: Array | None
    ) -> Recorded:
        """Returns the values of all steps, `(time, *batch, ...)`, as a record."""
        order = self.order
        sizes = (order.mask.shape[-1], *order.batch)
        values = {k: v for k, v in values.items() if v.shape[: len(sizes)] == sizes}
        values, carry, matrices = order.from_steps((values, carry, matrices))
        if matrices is not None and order.seq_lengths is not None:
            # Where `padded_outputs` is 'run', the loop goes on in the padding.
            identity = jnp.eye(matrices.shape[-1], dtype=matrices.dtype)
            unpadded = masks.before_end(order.seq_lengths, sizes[0], len(order.batch))
            unpadded = masks.expand_right(unpadded, matrices.ndim)
            matrices = jnp.where(unpadded, matrices, identity)
        return Recorded(values, carry, order.mask, matrices)


def jacobian(function: Callable, carry: Carry, batch_dims: int) -> Array:
    """Returns the Jacobian of a function of a carry, `(*batch, size, size)`.

    The function maps each row of the batch by itself. Integers are left out.
    """
    diff, nondiff = partition(carry)
    row = jax.tree.map(
        lambda leaf: jnp.zeros(leaf.shape[batch_dims:], leaf.dtype), diff
    )
    vector, unravel = ravel_pytree(row)

    def moved(direction: Array) -> Array:
        """Returns the result for a carry moved in one direction in all rows."""
        parts = unravel(direction)
        carry = jax.tree.map(jnp.add, diff, parts)
        leaves = jax.tree.leaves(inexact(function(combine(carry, nondiff))))
        return jnp.concatenate([jax.lax.collapse(x, batch_dims) for x in leaves], -1)

    jacfwd = jax.jacfwd(moved, holomorphic=jnp.iscomplexobj(vector))
    return jacfwd(jnp.zeros_like(vector))
