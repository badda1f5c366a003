"""A loop over time of an RNN that keeps the values of each step."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from rnncells.cells.any_cell import feature_dims
from rnncells.cells.carry import Carry
from rnncells.diagnostics.named_step import NamedStep, StepValues, marked
from rnncells.loops.request import NotPure, StepRequest
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

    values: dict[str, jax.Array]
    carry: Carry
    mask: jax.Array
    jacobians: jax.Array | None = None


class Order(NamedTuple):
    """The order of steps in the arguments of a layer, and in its loop.

    Attributes:
      batch: sizes of the batch axes.
      mask: true at valid steps, `(*batch, time)`, in the order of the arguments.
      reverse: whether the loop runs from the last step to the first.
      seq_lengths: `(*batch,)`, or None.
    """

    batch: tuple[int, ...]
    mask: jax.Array
    reverse: bool
    seq_lengths: jax.Array | None

    def from_steps(self, tree: chex.ArrayTree) -> chex.ArrayTree:
        """Returns `(time, *batch, ...)` of the loop as `(*batch, time, ...)`."""
        axis = len(self.batch)
        return self._flip(jax.tree.map(lambda x: jnp.moveaxis(x, 0, axis), tree))

    def to_steps(self, tree: chex.ArrayTree) -> chex.ArrayTree:
        """Returns `(*batch, time, ...)` as `(time, *batch, ...)` of the loop."""
        axis = len(self.batch)
        return jax.tree.map(lambda x: jnp.moveaxis(x, axis, 0), self._flip(tree))

    def _flip(self, tree):
        if not self.reverse:
            return tree
        return masks.flip(tree, self.seq_lengths, len(self.batch))


def order_of(
    rnn: nn.Module,
    inputs: chex.ArrayTree,
    *,
    time_major: bool | None = None,
    reverse: bool | None = None,
    seq_lengths: jax.Array | None = None,
    mask: jax.Array | None = None,
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


class RecordingLoop:
    """A loop over time, which an RNN runs in place of its own.

    Args:
      rnn: the layer, bound.
      order: of the steps of the call.
      taps: `(values, carry)` in the form of `Recorded`, added to what it computes; None
        in place of a leaf, or of all, adds nothing.
      jacobians: whether to compute the Jacobians of the steps.

    Attributes:
      recorded: what the loop has computed, after it has run.
    """

    def __init__(self, rnn: nn.Module, order: Order, taps: Any, jacobians: bool):
        self.rnn, self.order, self.jacobians = rnn, order, jacobians
        self.taps = None
        if taps is not None:
            values, carry = order.to_steps(taps)
            leaves = jax.tree.leaves(carry, is_leaf=lambda leaf: leaf is None)
            self.taps = StepValues(values, leaves)
        self.recorded: Recorded | None = None

    def run(
        self, step: Callable, body: Any, reset_carry: Any, carry: tuple, xs: Any
    ) -> tuple:
        """Runs the loop; see `schedule.scan`."""
        request = StepRequest(self.rnn, carry, xs, marked(step), body, reset_carry)
        try:
            pure = request.function
        except NotPure as error:
            raise ValueError(f"Recording an RNN {error}") from error
        named = NamedStep(
            lambda consts, xs, carry: pure.function(consts, carry, xs),
            *(pure.consts, structs(pure.xs, drop_axis=0), carry),
        )
        self._check_unchanged(request, named.result)
        treedef = jax.tree.structure(carry[0])
        one_step = partial(self._one_step, partial(named, pure.consts))
        carry, (ys, *recorded) = jax.lax.scan(one_step, carry, (pure.xs, self.taps))
        request.count_draws()
        self.recorded = self._recorded(treedef, *recorded)
        return carry, ys

    def _check_unchanged(self, request: StepRequest, result: tuple) -> None:
        """Raises ValueError if the step changes collections of the cell."""
        _, (_, changed) = result
        if names := changed.keys() & request.unbound_cell.variables.keys():
            raise ValueError(
                "Recording an RNN needs a cell that only reads its collections; "
                f"{type(self.rnn.cell).__name__} changes {sorted(names)} at each step. "
                "Leave them out of `mutable`."
            )

    def _one_step(self, named, carry, xs):
        inputs, taps = xs
        (new, (output, _)), values = named(inputs, carry, taps)
        matrices = None
        if self.jacobians:
            state, final = carry

            def of_state(state):
                return named(inputs, (state, final))[0][0][0]

            matrices = upcast(jacobian(of_state, state, len(self.order.batch)))
        return new, (output, values, matrices)

    def _recorded(self, treedef, values, matrices) -> Recorded:
        """Returns the values of all steps, `(time, *batch, ...)`, as a record."""
        order = self.order
        sizes = (order.mask.shape[-1], *order.batch)
        named = {
            name: array
            for name, array in values.values.items()
            if array.shape[: len(sizes)] == sizes
        }
        carry = jax.tree.unflatten(treedef, values.carry)
        named, carry, matrices = order.from_steps((named, carry, matrices))
        if matrices is not None and order.seq_lengths is not None:
            # Where `padded_outputs` is 'run', the loop goes on in the padding.
            identity = jnp.eye(matrices.shape[-1], dtype=matrices.dtype)
            unpadded = masks.before_end(order.seq_lengths, sizes[0], len(order.batch))
            unpadded = masks.expand_right(unpadded, matrices.ndim)
            matrices = jnp.where(unpadded, matrices, identity)
        return Recorded(named, carry, order.mask, matrices)


def jacobian(function: Callable, carry: Carry, batch_dims: int) -> jax.Array:
    """Returns the Jacobian of a function of a carry, `(*batch, size, size)`.

    Args:
      function: from a carry to a carry, of each row by itself.
      carry: leaves `(*batch, ...)`; the Jacobian leaves out integers.
      batch_dims: number of batch axes.
    """
    diff, nondiff = partition(carry)
    row = jax.tree.map(
        lambda leaf: jnp.zeros(leaf.shape[batch_dims:], leaf.dtype), diff
    )
    vector, unravel = ravel_pytree(row)

    def of_diff(diff):
        return inexact(function(combine(diff, nondiff)))

    def column(direction):
        """Returns the derivative in one direction, which is the same in all rows."""
        tangents = jax.tree.map(
            lambda part, leaf: jnp.broadcast_to(part, leaf.shape),
            unravel(direction),
            diff,
        )
        _, results = jax.jvp(of_diff, (diff,), (tangents,))
        leaves = jax.tree.leaves(results)
        flat = [jax.lax.collapse(leaf, batch_dims) for leaf in leaves]
        return jnp.concatenate(flat, -1)

    return jax.vmap(column, out_axes=-1)(jnp.eye(vector.size, dtype=vector.dtype))
