"""Loops that take a layer row by row of its batch: forward methods, and Newton's."""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from chex import ArrayTree
from jax import Array

from rnncells.cells.contract.any_cell import feature_dims
from rnncells.loops.fast import plan_of
from rnncells.loops.request import Loop, Obstacle, PureFunction, StepRequest
from rnncells.recurrence import newton, pytrees
from rnncells.recurrence.chunks import Segment, split_time
from rnncells.recurrence.engine import run as engine
from rnncells.recurrence.forward import run as forward
from rnncells.recurrence.newton import Certificate, Newton
from rnncells.recurrence.pytrees import StructTree, Tree
from rnncells.recurrence.rows import RowStep, join, real_leaves

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
    # All rows have the same keys.
    over_rows = jax.vmap(lambda keys: keys, None, 1, axis_size=batch.count)
    xs = batch.to_rows(inputs, 1), over_rows(keys)

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


class ForwardLoop(Loop):
    """The values of the fast loop, and the gradient of the layer's forward method."""

    name = "loop of forward methods"
    options = {"gradient": ("forward",)}

    def check(self, request: StepRequest) -> None:
        check_rows(request)

    def run(self, request: StepRequest) -> tuple[tuple, tuple]:
        request.count_draws()
        (step, operands, constants), batch = row_problem(request)
        shared, reset_carry = request.function.consts
        shapes = pytrees.structs((shared, batch.to_rows(reset_carry)))
        gradient, steps = request.option("gradient"), request.steps
        split_step, unroll = request.split_step, request.unroll
        block = gradient.block()

        # JAX keeps this function, so it must not close over arrays of this trace.
        def values(
            operands: forward.DiffOperands, constants: forward.NondiffOperands
        ) -> tuple[ArrayTree, ArrayTree]:
            shared = join(operands.shared, shapes[0], constants.shared)
            reset_rows = join(operands.per_row, shapes[1], constants.per_row)
            consts = shared, batch.from_rows(reset_rows)
            carry = batch.from_rows(jax.vmap(step.carry)(operands.s, constants.carry))
            inputs, keys = pytrees.combine(operands.x, constants.x)
            keys = jax.tree.map(lambda leaf: leaf[:, 0], keys)
            xs = batch.from_rows(inputs, 1), keys
            weights = split_step.weights(consts)
            engine_operands = engine.EngineOperands(weights, carry, xs)
            plan = plan_of(split_step, consts, engine_operands, "full", "auto")
            values_of = engine.Recurrence(split_step, plan, unroll)
            last, outputs = engine.run(values_of, engine_operands)
            return batch.to_rows(last), batch.to_rows(outputs, 1)

        segments = split_time(steps, block) if block > 1 else (Segment(0, steps, 1),)
        recurrence = forward.ForwardRecurrence(values, step, gradient.method, segments)
        keys = random_keys(request.rnn, batch)
        last, outputs = forward.run(recurrence, operands, constants, keys)
        ys, _ = batch.from_rows(outputs, 1)
        return batch.from_rows(last), ys


def random_keys(rnn: nn.Module, batch: Batch) -> tuple[Array, ...]:
    """Returns a raw random key for each row, if the layer's method draws numbers."""
    # Values need no key, so a missing one is an error of the gradient alone.
    stream = rnn.gradient.rng_stream
    if stream is None or not rnn.has_rng(stream):
        return ()
    return (jax.random.bits(rnn.make_rng(stream), (batch.count, 2), jnp.uint32),)


class NewtonLoop(Loop):
    """Solves for all carries at once; its results are followed by a `Certificate`."""

    name = "loop of Newton's method"
    options = {"gradient": ("exact", "backward"), "implementation": ("newton",)}

    def check(self, request: StepRequest) -> None:
        check_rows(request)
        if jax.tree.leaves(pytrees.partition(request.carry)[1]):
            shapes = jax.tree.map(jnp.shape, request.carry)
            raise Obstacle(
                f"needs a carry of floating or complex numbers, got {shapes} of "
                f"{request.cell_name}."
            )

    def run(self, request: StepRequest) -> tuple[tuple, tuple]:
        request.count_draws()
        rows, batch = row_problem(request)
        options, leaves = request.option("implementation"), real_leaves(request.carry)
        options = options if isinstance(options, Newton) else Newton()
        sizes = [math.prod(leaf.shape) // batch.count for leaf in leaves]
        problem = newton.problem(rows.step, options, sizes)
        carries, certificate = newton.solve_newton(problem, *rows[1:])
        outputs = newton.AllSteps(problem, *rows[1:]).outputs(carries)
        last = jax.vmap(rows.step.carry)(carries[-1], rows.constants.carry)
        certificate = Certificate(
            certificate.error.reshape(batch.sizes),
            certificate.residual.reshape(batch.sizes),
            certificate.iterations,
            certificate.converged.reshape(batch.sizes),
        )
        ys, _ = batch.from_rows(outputs, 1)
        return batch.from_rows(last), (*ys, certificate)


def exact_certificate(sizes: tuple[int, ...]) -> Certificate:
    """Returns the certificate of a layer that has nothing to solve for."""
    zero = jnp.zeros(sizes)
    return Certificate(zero, zero, jnp.array(0), zero == 0)
