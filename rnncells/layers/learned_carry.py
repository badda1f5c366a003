"""Initial carries that are parameters."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from rnncells.cells.carry import Carry, dtype_of
from rnncells.cells.parameters import MissingParamError


class LearnedCarry(nn.Module):
    """Parameters of the shapes of a carry without batch axes.

    They are named `carry_0`, `carry_1`, ... in the order of the arrays of the carry.
    """

    @nn.compact
    def __call__(self, initial: Carry) -> Carry:
        """Returns the learned carry; arrays of integers are those of `initial`."""
        leaves, structure = jax.tree.flatten(initial)

        def learned(k: int, leaf: Any) -> Array:
            if not jnp.issubdtype(dtype_of(leaf), jnp.inexact):
                return leaf
            name = f"carry_{k}"
            is_given = self.has_variable("params", name)
            if not (is_given or self.is_mutable_collection("params")):
                raise MissingParamError(self, name)
            value = self.param(name, lambda key: jnp.asarray(leaf))
            # Complex inputs make a real carry complex.
            return jnp.asarray(value, jnp.result_type(value, leaf))

        learned_leaves = [learned(k, leaf) for k, leaf in enumerate(leaves)]
        return jax.tree.unflatten(structure, learned_leaves)
