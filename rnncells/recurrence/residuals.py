"""Buffers for the outputs and the residuals of each step of a forward pass."""

from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp

from rnncells.recurrence.chunks import write_time
from rnncells.recurrence.pytrees import BoolTree, StructTree


class Residuals(NamedTuple):
    """Residuals of one step, or with a leading time axis, of many; None: not saved.

    Attributes:
      carry: the carry before the step (in a buffer: also the carry after the last).
      z: the projected inputs.
      values: the values of the products.
    """

    carry: chex.ArrayTree
    z: chex.ArrayTree
    values: list[Any]


class StepBuffers(NamedTuple):
    """Arrays over time, None for what is not written.

    Attributes:
      outputs: of each step, `(time, ...)`.
      residuals: `z` and `values` of each step, and in `carry` that before the first
        and after every step, `(time + 1, ...)`.
    """

    outputs: chex.ArrayTree
    residuals: Residuals


class ResidualBuffer(NamedTuple):
    """Shapes of the buffers, and which residuals to save.

    Attributes:
      residuals: shapes and dtypes of those of a step.
      outputs: shapes and dtypes of the outputs of a step.
      saved: for each leaf of the residuals, whether to write it.
      outputs_in_carry: for each leaf of the outputs, the number of the leaf of the new
        carry that it is, or -1. Such an output is not written twice.
    """

    residuals: Residuals
    outputs: StructTree
    saved: Residuals
    outputs_in_carry: list[int]

    def empty(self, carry: chex.ArrayTree, time: int) -> StepBuffers:
        """Returns the buffers before the first step."""

        def rows(struct: jax.ShapeDtypeStruct, count: int = time) -> jax.Array:
            return jnp.zeros((count, *struct.shape), struct.dtype)

        residuals = jax.tree.map(rows, select_leaves(self.residuals, self.saved))
        carries = jax.tree.map(
            lambda leaf: rows(leaf, time + 1).at[0].set(leaf),
            select_leaves(carry, self.saved.carry),
        )
        outputs = self._outputs_not_in_carry(jax.tree.map(rows, self.outputs))
        return StepBuffers(outputs, residuals._replace(carry=carries))

    def write(
        self,
        buffers: StepBuffers,
        i: jax.Array,
        outputs: chex.ArrayTree,
        after: Residuals,
    ) -> StepBuffers:
        """Returns the buffers with step `i`; `after` has the carry after the step."""
        after = select_leaves(after, self.saved)
        rows = buffers.residuals
        return StepBuffers(
            _write(buffers.outputs, i, self._outputs_not_in_carry(outputs)),
            Residuals(
                _write(rows.carry, i + 1, after.carry),
                _write(rows.z, i, after.z),
                _write(rows.values, i, after.values),
            ),
        )

    def read_outputs(self, buffers: StepBuffers) -> chex.ArrayTree:
        """Returns the outputs of all steps."""
        carry: Any = jax.tree.structure(self.residuals.carry)
        carries = carry.flatten_up_to(buffers.residuals.carry)
        tree: Any = jax.tree.structure(self.outputs)
        stored = tree.flatten_up_to(buffers.outputs)
        leaves = [
            carries[k][1:] if leaf is None else leaf
            for leaf, k in zip(stored, self.outputs_in_carry, strict=True)
        ]
        return jax.tree.unflatten(tree, leaves)

    def _outputs_not_in_carry(self, outputs: chex.ArrayTree) -> chex.ArrayTree:
        saved = jax.tree.leaves(self.saved.carry)
        leaves, tree = jax.tree.flatten(outputs)
        stored = [
            None if k >= 0 and saved[k] else leaf
            for leaf, k in zip(leaves, self.outputs_in_carry, strict=True)
        ]
        return jax.tree.unflatten(tree, stored)


def select_leaves(tree: chex.ArrayTree, selected: BoolTree) -> chex.ArrayTree:
    """Returns the tree with None for the leaves that are not selected."""
    return jax.tree.map(lambda leaf, keep: leaf if keep else None, tree, selected)


def _write(rows: chex.ArrayTree, i: jax.Array, row: chex.ArrayTree) -> chex.ArrayTree:
    return write_time(rows, jax.tree.map(lambda leaf: leaf[None], row), i)
