"""Initial carries that are parameters."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from rnncells.cells.carry import Carry, dtype_of


class LearnedCarry(nn.Module):
    """Parameters of the shapes of a carry without batch axes.

    They are named `carry_0`, `carry_1`, ... in the order of the arrays of the carry.
    """

    @nn.compact
    def __call__(self, initial: Carry) -> Carry:
        """Returns the learned carry.

        Args:
          initial: the initial values, a carry without batch axes. Arrays of integers
            are returned unchanged.
        """
        leaves, structure = jax.tree.flatten(initial)

        def learned(k, leaf):
            if not jnp.issubdtype(dtype_of(leaf), jnp.inexact):
                return leaf
            return self.param(f"carry_{k}", lambda key: jnp.asarray(leaf))

        learned = [learned(k, leaf) for k, leaf in enumerate(leaves)]
        return jax.tree.unflatten(structure, learned)
