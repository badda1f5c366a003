"""What the forward pass writes down, step after step, for its result and gradient."""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from rnncells.recurrence.parts import Moment
from rnncells.recurrence.trees import StructTree, join, pick


class Written(NamedTuple):
    """Arrays over time, None for what is not written.

    Attributes:
      outputs: of each step, `(time, ...)`.
      moments: `z` and `values` of each step, and in `carry` that before the first and
        after every step, `(time + 1, ...)`.
    """

    outputs: chex.ArrayTree
    moments: Moment


class Tape(NamedTuple):
    """What is to be written.

    Attributes:
      moment: shapes and dtypes of the residuals of a step.
      outputs: shapes and dtypes of its outputs.
      wanted: of the moment, which leaves to write.
      carried: for each leaf of the outputs, the number of the leaf of the new carry
        that it always equals, or -1. If that leaf is stored, the output is not stored
        twice.
    """

    moment: Moment
    outputs: StructTree
    wanted: Moment
    carried: list[int]

    def blank(self, carry: chex.ArrayTree, time: int) -> Written:
        """Returns the tape before the first step."""

        def rows(struct, count=time):
            return jnp.zeros((count, *struct.shape), struct.dtype)

        moments = jax.tree.map(rows, pick(self.moment, self.wanted))
        carries = jax.tree.map(
            lambda leaf: rows(leaf, time + 1).at[0].set(leaf),
            pick(carry, self.wanted.carry),
        )
        outputs = self._own_outputs(jax.tree.map(rows, self.outputs))
        return Written(outputs, moments._replace(carry=carries))

    def write(
        self, written: Written, i: jax.Array, outputs: chex.ArrayTree, after: Moment
    ) -> Written:
        """Returns the tape with step `i`; `after` has the carry after the step."""
        after = pick(after, self.wanted)
        rows = written.moments
        return Written(
            _set(written.outputs, i, self._own_outputs(outputs)),
            Moment(
                _set(rows.carry, i + 1, after.carry),
                _set(rows.z, i, after.z),
                _set(rows.values, i, after.values),
            ),
        )

    def read_outputs(self, written: Written) -> chex.ArrayTree:
        """Returns the outputs of all steps."""
        carry = jax.tree.structure(self.moment.carry)
        carries = carry.flatten_up_to(written.moments.carry)
        tree = jax.tree.structure(self.outputs)
        own = tree.flatten_up_to(written.outputs)
        leaves = [
            carries[k][1:] if leaf is None else leaf
            for leaf, k in zip(own, self.carried, strict=True)
        ]
        return jax.tree.unflatten(tree, leaves)

    def _own_outputs(self, outputs: chex.ArrayTree) -> chex.ArrayTree:
        wanted = jax.tree.leaves(self.wanted.carry)
        leaves, tree = jax.tree.flatten(outputs)
        own = [
            None if k >= 0 and wanted[k] else leaf
            for leaf, k in zip(leaves, self.carried, strict=True)
        ]
        return jax.tree.unflatten(tree, own)


def recall(moment: Moment, written: Moment, i: jax.Array, steps: int) -> Moment:
    """Returns the residuals of `steps` steps from `i`, `(steps, ...)`.

    Zeros for what is not written, as the gradient does not read it.

    Args:
      moment: shapes and dtypes of the residuals of a step.
      written: of all steps, or of some.
      i: place in `written` of the first.
      steps: how many.
    """
    unknown = jax.tree.map(
        lambda leaf: jnp.zeros((steps, *leaf.shape), leaf.dtype), moment
    )
    return join(slice_time(written, i, steps), unknown)


def slice_time(tree: chex.ArrayTree, start: jax.Array, steps: int) -> chex.ArrayTree:
    """Returns `(steps, ...)` of `(time, ...)`."""

    def take(leaf):
        if leaf.shape[0] == steps:
            return leaf
        place = (start,) + (0,) * (leaf.ndim - 1)
        return jax.lax.dynamic_slice(
            leaf, place, (steps, *leaf.shape[1:]), allow_negative_indices=False
        )

    return jax.tree.map(take, tree)


def write_time(
    tree: chex.ArrayTree, part: chex.ArrayTree, start: jax.Array
) -> chex.ArrayTree:
    """Returns the tree with `part`, `(steps, ...)`, from `start` on."""

    def put(leaf, part):
        if leaf.shape[0] == part.shape[0]:
            return part
        place = (start,) + (0,) * (leaf.ndim - 1)
        return jax.lax.dynamic_update_slice(
            leaf, part, place, allow_negative_indices=False
        )

    return jax.tree.map(put, tree, part)


def _set(rows: chex.ArrayTree, i: jax.Array, row: chex.ArrayTree) -> chex.ArrayTree:
    def put(rows, row):
        place = (i,) + (0,) * row.ndim
        return jax.lax.dynamic_update_slice(
            rows, row[None], place, allow_negative_indices=False
        )

    return jax.tree.map(put, rows, row)
