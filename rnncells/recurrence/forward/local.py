"""The step of a row without its products of the carry with weights.

Random feedback local online learning (Murray, 2019,
https://doi.org/10.7554/eLife.43299) carries an influence only through what a unit keeps
of its own state: a leak, or a forget gate. The values of products with recurrent
weights count as inputs. Products that only the output reads are not cut.
"""

from collections.abc import Callable

import chex
import jax

from rnncells.recurrence import products
from rnncells.recurrence.forward.rows import RowOperands, RowStep, join


def local(step: RowStep) -> Callable:
    """Returns the step, `row -> (s, output)`, without gradients of products."""
    parts = step.parts

    def local_step(row: RowOperands) -> tuple[jax.Array, chex.ArrayTree]:
        weights = parts.weights(join(row.theta, step.consts, row.nondiff_consts))
        x = jax.tree.map(lambda leaf: leaf[None], row.x)
        evaluator = products.direct_evaluator(weights.projections)
        z, _ = parts.project(weights.invariants, x, evaluator)
        z = [leaf[0] for leaf in z]
        evaluator = products.direct_evaluator(weights.products)
        feeds_carry, carry = parts.feeds_carry(), step.carry(row.s, row.nondiff_carry)

        def stopped(k: int, lhs: jax.Array, addend: jax.Array | None) -> jax.Array:
            lhs = jax.lax.stop_gradient(lhs) if feeds_carry[k] else lhs
            return evaluator(k, lhs, addend)

        (new, output), _ = parts.recur(weights.invariants, carry, z, stopped)
        return step.vector(new), output

    return local_step
