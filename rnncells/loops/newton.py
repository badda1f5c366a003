"""The loop of a layer whose carries are solved for at once, by Newton's method."""

import math

import jax
import jax.numpy as jnp

from rnncells.gradients import is_plain_backward
from rnncells.loops.request import Loop, Obstacle, StepRequest, is_newton
from rnncells.loops.rows import check_rows, row_problem
from rnncells.recurrence import newton
from rnncells.recurrence.forward.rows import real_leaves
from rnncells.recurrence.newton import Certificate, Newton
from rnncells.recurrence.pytrees import partition


class NewtonLoop(Loop):
    """Solves for all carries at once; its results are followed by a `Certificate`."""

    name = "loop of Newton's method"
    options = {"gradient": is_plain_backward, "implementation": is_newton}

    def check(self, request: StepRequest) -> None:
        check_rows(request)
        if jax.tree.leaves(partition(request.carry)[1]):
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
        outputs = newton.outputs(problem, *rows[1:], carries)
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
