"""Backpropagation in blocks of time, and influence at their borders.

An exact gradient with memory for one block (Schmidhuber, 1992, "A fixed size storage
O(n³) time complexity learning algorithm for fully recurrent continually running
networks"). For a block from s to s', with J the influence before it::

    dE/dθ = ∂E/∂θ + (∂E/∂s) J          by one backward pass through the block
    J' = ∂s'/∂θ + (∂s'/∂s) J           by n backward passes
"""

import jax
import jax.numpy as jnp
from chex import ArrayTree
from jax import Array

from rnncells.recurrence.forward.rows import RowOperands, RowStep, add_flat
from rnncells.recurrence.pytrees import combine, inexact, partition


class BlockInfluence:
    """The influence of one row at the border of a block: matrices of n rows."""

    def __init__(self, step: RowStep) -> None:
        self.step = step

    def initial(self, s: Array) -> list[Array]:
        sizes = [leaf.size for leaf in self.step.theta]
        dtype = self.step.influence_dtype
        zeros = [jnp.zeros((self.step.size, size), dtype) for size in sizes]
        return [*zeros, jnp.eye(self.step.size, dtype=dtype)]

    def advance(
        self, influence: list[Array], row: RowOperands, d_outputs: ArrayTree
    ) -> tuple[tuple, tuple]:
        """Takes a block; see `run.advance_rows`, with a leading time axis of `x`."""
        diff_x, nondiff_x = partition(row.x)

        def block(theta: list[Array], s: Array, diff_x: ArrayTree) -> tuple:
            def one(carry: tuple, x: ArrayTree) -> tuple[tuple, ArrayTree]:
                s, rest = carry
                operands = row._replace(theta=theta, s=s, x=x, nondiff_carry=rest)
                s, rest, output = self.step(operands)
                return (s, rest), inexact(output)

            before = s, row.nondiff_carry
            (s, after), outputs = jax.lax.scan(one, before, combine(diff_x, nondiff_x))
            return (s, outputs), after

        s = row.s
        after: Array
        rest: ArrayTree
        (after, _), vjp, rest = jax.vjp(block, row.theta, s, diff_x, has_aux=True)
        d_theta, d_s, d_x = vjp((jnp.zeros_like(after), d_outputs))
        *through, d_initial = self.cotangents(influence, d_s)
        d_theta = add_flat(d_theta, through)
        none = jax.tree.map(jnp.zeros_like, d_outputs)
        by_theta, by_s, _ = jax.vmap(lambda seed: vjp((seed, none)))(
            jnp.eye(len(s), dtype=after.dtype)
        )
        immediate = [leaf.reshape(len(s), -1) for leaf in by_theta]
        influence = [by_s @ j for j in influence]
        influence[:-1] = map(jnp.add, influence, immediate)
        influence = [j.astype(self.step.influence_dtype) for j in influence]
        return (after, rest, influence), (d_theta, d_initial.astype(s.dtype), d_x)

    def cotangents(self, influence: list[Array], d_s: Array) -> list[Array]:
        """See `Influence.cotangents`."""
        return [d_s @ j for j in influence]
