"""The step of a row without its products of the carry with weights.

Random feedback local online learning (Murray, 2019,
https://doi.org/10.7554/eLife.43299) carries an influence only through what a unit keeps
of its own state: a leak, or a forget gate. The values of products with recurrent
weights count as inputs. Products that only the output reads are not cut.
"""

from collections.abc import Callable

import jax

from rnncells.recurrence import products
from rnncells.recurrence.forward.rows import RowStep, join


def local(step: RowStep) -> Callable:
    """Returns `(theta, s, rest, now) -> (s, output)` without gradients of products."""
    parts = step.parts

    def cut(theta, s, rest, now):
        given = join(theta, step.given, rest.given)
        weights = parts.weights(given)
        now = jax.tree.map(lambda leaf: leaf[None], now)
        take = products.as_written(weights.projections)
        z, _ = parts.project(weights.others, now, take)
        z = [leaf[0] for leaf in z]
        take = _cut_products(weights.products, parts.feeds_carry())
        (new, output), _ = parts.recur(weights.others, step.carry(s, rest), z, take)
        return step.vector(new), output

    return cut


def _cut_products(taken, feeds_carry):
    """Returns what takes products; those that feed the carry pass no gradient on."""
    take = products.as_written(taken)

    def cut(k, lhs, add_to):
        return take(k, jax.lax.stop_gradient(lhs) if feeds_carry[k] else lhs, add_to)

    return cut
