"""The loop of a layer whose carries are solved for at once, by Newton's method."""

import math

import jax
import jax.numpy as jnp

from rnncells.gradients import is_plain_backward
from rnncells.loops.forward import rows_obstacle
from rnncells.loops.independent_rows import check_independent_rows
from rnncells.loops.request import Loop, Obstacle, PureStep, StepRequest, is_newton
from rnncells.loops.rows import Batch, batch_of, row_problem
from rnncells.recurrence import newton
from rnncells.recurrence.forward.rows import real_leaves
from rnncells.recurrence.newton import Certificate, Newton
from rnncells.recurrence.pytrees import partition


class NewtonLoop(Loop):
    """Solves for all carries at once; its results are followed by a `Certificate`."""

    name = "loop of Newton's method"
    options = {"gradient": is_plain_backward, "implementation": is_newton}

    def why_not(self, request: StepRequest) -> Obstacle | None:
        obstacle = rows_obstacle(request)
        if obstacle is None and jax.tree.leaves(partition(request.carry)[1]):
            shapes = jax.tree.map(jnp.shape, request.carry)
            text = (
                f"needs a carry of floating or complex numbers, got {shapes} of "
                f"{request.cell_name}."
            )
            return Obstacle("step", text)
        return obstacle

    def run(self, request: StepRequest) -> tuple[tuple, tuple]:
        pure, options = request.pure, request.option("implementation")
        assert not isinstance(pure, Obstacle)
        request.count_draws()
        batch = batch_of(request)
        check_independent_rows(request.cell_name, batch, pure, request.carry)
        options = options if isinstance(options, Newton) else Newton()
        carry, (ys, _), certificate = _solve(options, batch, pure, request.carry)
        return carry, (*ys, certificate)


def exact_certificate(sizes: tuple[int, ...]) -> Certificate:
    """Returns the certificate of a layer that has nothing to solve for."""
    zero = jnp.zeros(sizes)
    return Certificate(zero, zero, jnp.array(0), zero == 0)


def _solve(options: Newton, batch: Batch, pure: PureStep, carry: tuple) -> tuple:
    """Returns the last carry, the outputs, `(time, *batch, ...)`, and a certificate."""
    rows = row_problem(batch, pure, carry)
    sizes = [math.prod(leaf.shape) // batch.count for leaf in real_leaves(carry)]
    problem = newton.problem(rows.step, options, sizes)
    solved, certificate = newton.solve_newton(problem, rows.operands, rows.constants)
    outputs = newton.outputs(problem, rows.operands, rows.constants, solved)
    last = jax.vmap(rows.step.carry)(solved[-1], rows.constants.carry)
    error, residual, iterations, converged = certificate
    error, residual, converged = (
        leaf.reshape(batch.sizes) for leaf in (error, residual, converged)
    )
    certificate = Certificate(error, residual, iterations, converged)
    return batch.from_rows(last), batch.from_rows(outputs, 1), certificate
