"""What all learners of networks without the memory cells of 1997 share."""

from typing import Any

import jax
import jax.numpy as jnp

from experiments.paper1997.learners.network import Array


class WithoutCells:
    """A learner whose networks have no cell states that grow."""

    def largest_state(self, w: Any, inputs: Array, lengths: Array) -> Array:
        """Returns NaN for each sequence, `(sequences,)`."""
        return jnp.full(lengths.shape, jnp.nan)


def count(w: Any) -> int:
    """Returns the number of weights of one trial; the last axis is `trials`."""
    return sum(leaf.size // leaf.shape[-1] for leaf in jax.tree.leaves(w))
