"""A layer's step and operands, row by row of the batch."""

import math
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from rnncells.layers.loops import PureStep
from rnncells.recurrence.forward import run as forward
from rnncells.recurrence.forward.rows import Row, RowStep, real_leaves
from rnncells.recurrence.pytrees import StructTree, Tree, inexact, partition, structs


class Batch(NamedTuple):
    """The batch axes of a layer, and the same rows on one axis.

    Attributes:
      sizes: of the batch axes.
    """

    sizes: tuple[int, ...]

    def to_rows(self, tree: chex.ArrayTree, lead: int = 0) -> chex.ArrayTree:
        """Returns `(rows, 1, ..., *features)` of `(*batch, *features)`.

        Args:
          tree: pytree of arrays.
          lead: number of axes before the batch axes.
        """
        ones = (1,) * len(self.sizes)

        def rows(leaf):
            end = lead + len(self.sizes)
            if leaf.shape[lead:end] != self.sizes:
                raise ValueError(
                    "Forward methods of `gradient` and implementation='newton' need a "
                    f"cell whose carry has the batch axes {self.sizes} first, got the "
                    f"shape {leaf.shape}."
                )
            shape = (*leaf.shape[:lead], self.count, *ones, *leaf.shape[end:])
            return leaf.reshape(shape)

        return jax.tree.map(rows, tree)

    def from_rows(self, tree: chex.ArrayTree, lead: int = 0) -> chex.ArrayTree:
        """Reverses `to_rows`."""
        end = lead + 1 + len(self.sizes)
        return jax.tree.map(
            lambda leaf: leaf.reshape(
                (*leaf.shape[:lead], *self.sizes, *leaf.shape[end:])
            ),
            tree,
        )

    def repeated(self, tree: chex.ArrayTree, lead: int = 0) -> chex.ArrayTree:
        """Returns arrays that are the same for all rows with an axis of rows."""

        def repeat(leaf):
            shape = (*leaf.shape[:lead], self.count, *leaf.shape[lead:])
            return jnp.broadcast_to(jnp.expand_dims(leaf, lead), shape)

        return jax.tree.map(repeat, tree)

    @property
    def count(self) -> int:  # type: ignore[override]  # tuples have a method `count`
        """Number of rows."""
        return math.prod(self.sizes)


class RowsOf(NamedTuple):
    """A layer's step and operands, row by row.

    Attributes:
      step: the step of a row.
      operands: what is differentiated.
      others: what is not.
    """

    step: RowStep
    operands: forward.Operands
    others: forward.Others


def by_rows(batch: Batch, pure: PureStep, carry: chex.ArrayTree) -> RowsOf:
    """Returns the step and the operands of a layer, row by row."""
    shared, own = pure.given[0], batch.to_rows(pure.given[1])
    xs, keys = pure.now
    now = batch.to_rows(xs, 1), batch.repeated(keys, 1)
    carry, whole = batch.to_rows(carry), pure.function

    # JAX keeps it: with arrays of this trace, they would leak.
    def function(shared, own, carry, now):
        return whole((shared, own), carry, now)

    def of_row(tree: Tree) -> StructTree:
        return structs(tree, drop_axis=0)

    row = Row(of_row(own), of_row(carry), structs(of_row(now), drop_axis=0))
    update = xs[2] if len(xs) > 2 else None
    is_held = None if update is None else (lambda now: ~now[0][2])
    step = RowStep(function, structs(shared), row, is_held)
    operands = forward.Operands(
        real_leaves(shared),
        real_leaves(own),
        jax.vmap(step.vector)(carry),
        inexact(now),
    )
    others = [partition(tree)[1] for tree in (shared, own, carry, now)]
    return RowsOf(step, operands, forward.Others(*others))
