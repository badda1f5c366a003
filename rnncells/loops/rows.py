"""A layer's step and operands, row by row of the batch."""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from chex import ArrayTree
from jax import Array

from rnncells.cells.any_cell import feature_dims
from rnncells.loops.request import Obstacle, PureFunction, StepRequest
from rnncells.recurrence import pytrees
from rnncells.recurrence.forward import run as forward
from rnncells.recurrence.forward.rows import RowStep, real_leaves
from rnncells.recurrence.pytrees import StructTree, Tree

_DRAWING = ("random_bits", "threefry2x32", "rng_bit_generator", "rng_uniform")
_NEED = "Forward methods of `gradient` and implementation='newton' need a cell"


@dataclass(frozen=True)
class Batch:
    """The batch axes of a layer, and the same rows on one axis."""

    sizes: tuple[int, ...]  # of the batch axes

    @property
    def count(self) -> int:
        """Number of rows."""
        return math.prod(self.sizes)

    def to_rows(self, tree: ArrayTree, lead: int = 0) -> ArrayTree:
        """Returns `(*lead, rows, 1, ..., *features)`: all batch axes as one axis."""
        ones = (1,) * len(self.sizes)

        def rows(leaf: Array) -> Array:
            end = lead + len(self.sizes)
            if leaf.shape[lead:end] != self.sizes:
                raise ValueError(
                    f"{_NEED} whose carry has the batch axes {self.sizes} first, got "
                    f"the shape {leaf.shape}."
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


class RowProblem(NamedTuple):
    """A layer's step and operands, row by row."""

    step: RowStep
    operands: forward.DiffOperands
    constants: forward.NondiffOperands


def check_rows(request: StepRequest) -> None:
    """Raises Obstacle if a step cannot be taken row by row."""
    name = request.cell_name
    draws = Obstacle(f"needs a step that draws no random numbers, got {name}.", "draws")
    try:
        step = request.split_step
    except Obstacle as obstacle:
        raise (draws if obstacle.kind == "draws" else obstacle) from None
    if any(e.primitive.name in _DRAWING for e in step.jaxpr.eqns):
        raise draws
    traced = [c for c in step.captured_arrays if isinstance(c, jax.core.Tracer)]
    if traced:
        raise Obstacle(
            "needs a step that reads only parameters, its carry and its inputs, got "
            f"{name}, which closes over a traced array of shape {traced[0].shape}, "
            "such as an argument of a function in `jax.jit` or `jax.grad`. Make the "
            "array a parameter or an input of the cell."
        )


def row_problem(request: StepRequest) -> tuple[RowProblem, Batch]:
    """Returns the step and the operands of a layer, row by row, and the batch axes.

    Raises ValueError if a row of a step depends on other rows of the batch.
    """
    shape = jax.tree.leaves(request.xs.inputs)[0].shape
    batch = Batch(shape[1 : len(shape) - feature_dims(request.cell)])
    if batch.sizes:
        _check_independent_rows(request, batch)
    batch_function, (shared, reset_carry), (inputs, keys), _ = request.function
    reset_carry, carry = batch.to_rows((reset_carry, request.carry))
    xs = batch.to_rows(inputs, 1), batch.repeated(keys, 1)

    # JAX caches it, so it must not close over arrays of this trace.
    def function(shared: Tree, reset_carry: Tree, carry: Tree, x: Tree) -> Tree:
        return batch_function((shared, reset_carry), carry, x)

    def row_structs(tree: Tree) -> StructTree:
        return pytrees.structs(tree, drop_axis=0)

    consts = pytrees.structs(shared), row_structs(reset_carry)
    x = pytrees.structs(row_structs(xs), drop_axis=0)
    is_held = None if inputs.update is None else (lambda x: ~x[0].update)
    step = RowStep(function, consts, row_structs(carry), x, is_held)
    operands = forward.DiffOperands(
        real_leaves(shared),
        real_leaves(reset_carry),
        jax.vmap(step.vector)(carry),
        pytrees.inexact(xs),
    )
    trees = shared, reset_carry, carry, xs
    constants = forward.NondiffOperands(*(pytrees.partition(tree)[1] for tree in trees))
    return RowProblem(step, operands, constants), batch


def _check_independent_rows(request: StepRequest, batch: Batch) -> None:
    """Raises ValueError if a row of a step depends on other rows of the batch.

    At random values, two rows along each batch axis show any such dependence.
    """
    pure, small = request.function, Batch((2,) * len(batch.sizes))
    try:
        # A compiled program runs on concrete arrays even while JAX traces the layer.
        with jax.disable_jit(False):
            jacobians = _jacobians_by_row(pure, request.carry, small)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{_NEED} that runs with any batch axes, and every array of its carry must "
            f"begin with them, got {request.cell_name}, which fails with the axes "
            f"{small.sizes}: {error}"
        ) from error
    for jacobian in map(np.asarray, jacobians):
        depends = np.isfinite(jacobian) & (jacobian != 0)
        by_row = depends.reshape(small.count, small.count, -1).any(-1)
        if (by_row & ~np.eye(small.count, dtype=bool)).any():
            raise ValueError(
                f"{_NEED} that computes each row of the batch by itself, got "
                f"{request.cell_name}, whose rows depend on each other. Use neither."
            )


def _jacobians_by_row(
    pure: PureFunction, carry: ArrayTree, batch: Batch
) -> list[Array]:
    """Returns derivatives of a sum over each row, at random values."""
    rng = np.random.default_rng(0)

    def random(leaf: Any, dropped: int = 0, sizes: tuple = ()) -> np.ndarray:
        """Draws an array with the axes `sizes` in place of the first axes of `leaf`."""
        shape = (*sizes, *leaf.shape[dropped:])
        if not pytrees.is_inexact(leaf):
            return np.zeros(shape, leaf.dtype)
        return rng.standard_normal(shape).astype(leaf.dtype)

    def random_rows(tree: ArrayTree, lead: int = 0) -> ArrayTree:
        dropped = lead + len(batch.sizes)
        return jax.tree.map(lambda leaf: random(leaf, dropped, batch.sizes), tree)

    shared = jax.tree.map(random, pure.consts[0])
    keys = jax.tree.map(lambda leaf: random(leaf, 1), pure.xs[1])
    reset_carry, carry = random_rows((pure.consts[1], carry))
    xs = random_rows(pure.xs[0], 1)
    # Every row is updated; none is reset.
    masks = {"update": xs.update, "final": xs.final}
    rows = reset_carry, carry, xs._replace(**jax.tree.map(np.ones_like, masks))
    constants = pytrees.partition(rows)[1]

    @jax.jit
    @jax.jacrev
    def jacobians(varied: ArrayTree) -> Array | int:
        reset_carry, carry, xs = pytrees.combine(varied, constants)
        outputs = pure.function((shared, reset_carry), carry, (xs, keys))
        leaves = jax.tree.leaves(pytrees.inexact(outputs))
        return sum(jnp.abs(leaf).reshape(batch.count, -1).sum(1) for leaf in leaves)

    compiled = jacobians.lower(pytrees.inexact(rows)).compile()
    return jax.tree.leaves(compiled(pytrees.inexact(rows)))
