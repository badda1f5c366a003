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
from rnncells.recurrence.forward.rows import NondiffLeaves, RowStep, join
from rnncells.recurrence.products import ProductEvaluator


def local(step: RowStep) -> Callable:
    """Returns `(theta, s, rest, x) -> (s, output)` without gradients of products."""
    parts = step.parts

    def local_step(
        theta: list[jax.Array], s: jax.Array, rest: NondiffLeaves, x: chex.ArrayTree
    ) -> tuple[jax.Array, chex.ArrayTree]:
        consts = join(theta, step.consts, rest.consts)
        weights = parts.weights(consts)
        x = jax.tree.map(lambda leaf: leaf[None], x)
        evaluator = products.direct_evaluator(weights.projections)
        z, _ = parts.project(weights.invariants, x, evaluator)
        z = [leaf[0] for leaf in z]
        evaluator = _stop_at_products(weights.products, parts.feeds_carry())
        (new, output), _ = parts.recur(
            weights.invariants, step.carry(s, rest), z, evaluator
        )
        return step.vector(new), output

    return local_step


def _stop_at_products(
    products_: list[products.Product], feeds_carry: list[bool]
) -> ProductEvaluator:
    """Returns an evaluator; products that feed the carry pass no gradient on."""
    evaluator = products.direct_evaluator(products_)

    def stopped(k: int, lhs: jax.Array, addend: jax.Array | None) -> jax.Array:
        return evaluator(
            k, jax.lax.stop_gradient(lhs) if feeds_carry[k] else lhs, addend
        )

    return stopped
