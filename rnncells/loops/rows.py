"""A layer's step and operands, row by row of the batch."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from chex import ArrayTree
from jax import Array

from rnncells.cells.any_cell import feature_dims
from rnncells.loops.request import PureStep, StepRequest
from rnncells.recurrence.forward import run as forward
from rnncells.recurrence.forward.rows import RowStep, real_leaves
from rnncells.recurrence.pytrees import StructTree, Tree, inexact, partition, structs


class Batch(NamedTuple):
    """The batch axes of a layer, and the same rows on one axis."""

    sizes: tuple[int, ...]  # of the batch axes

    def to_rows(self, tree: ArrayTree, lead: int = 0) -> ArrayTree:
        """Returns `(*lead, rows, 1, ..., *features)`: all batch axes as one axis."""
        ones = (1,) * len(self.sizes)

        def rows(leaf: Array) -> Array:
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

    def from_rows(self, tree: ArrayTree, lead: int = 0) -> ArrayTree:
        """Reverses `to_rows`."""
        end = lead + 1 + len(self.sizes)
        return jax.tree.map(
            lambda leaf: leaf.reshape(
                (*leaf.shape[:lead], *self.sizes, *leaf.shape[end:])
            ),
            tree,
        )

    def repeated(self, tree: ArrayTree, lead: int = 0) -> ArrayTree:
        """Returns arrays that are the same for all rows with an axis of rows."""

        def repeat(leaf: Array) -> Array:
            shape = (*leaf.shape[:lead], self.count, *leaf.shape[lead:])
            return jnp.broadcast_to(jnp.expand_dims(leaf, lead), shape)

        return jax.tree.map(repeat, tree)

    @property
    def count(self) -> int:  # type: ignore[override]  # tuples have a method `count`
        """Number of rows."""
        return math.prod(self.sizes)


class RowProblem(NamedTuple):
    """A layer's step and operands, row by row."""

    step: RowStep
    operands: forward.DiffOperands
    constants: forward.NondiffOperands


def batch_of(request: StepRequest) -> Batch:
    """Returns the batch axes of a request."""
    shape = jax.tree.leaves(request.xs.inputs)[0].shape
    return Batch(shape[1 : len(shape) - feature_dims(request.cell)])


def row_problem(batch: Batch, pure: PureStep, carry: ArrayTree) -> RowProblem:
    """Returns the step and the operands of a layer, row by row."""
    shared, reset_carry = pure.consts[0], batch.to_rows(pure.consts[1])
    inputs, keys = pure.xs
    xs = batch.to_rows(inputs, 1), batch.repeated(keys, 1)
    carry, batch_function = batch.to_rows(carry), pure.function

    # JAX caches it, so it must not close over arrays of this trace.
    def function(shared: Tree, reset_carry: Tree, carry: Tree, x: Tree) -> Tree:
        return batch_function((shared, reset_carry), carry, x)

    def row_structs(tree: Tree) -> StructTree:
        return structs(tree, drop_axis=0)

    consts = structs(shared), row_structs(reset_carry)
    x = structs(row_structs(xs), drop_axis=0)
    is_held = None if inputs.update is None else (lambda x: ~x[0].update)
    step = RowStep(function, consts, row_structs(carry), x, is_held)
    operands = forward.DiffOperands(
        real_leaves(shared),
        real_leaves(reset_carry),
        jax.vmap(step.vector)(carry),
        inexact(xs),
    )
    trees = shared, reset_carry, carry, xs
    constants = forward.NondiffOperands(*(partition(tree)[1] for tree in trees))
    return RowProblem(step, operands, constants)
