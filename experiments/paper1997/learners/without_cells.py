"""What all learners of networks without the memory cells of 1997 share."""

from typing import Any

import jax


class WithoutCells:
    """A learner whose networks have no cell states that grow."""


def count(w: Any) -> int:
    """Returns the number of weights of one trial; the last axis is `trials`."""
    return sum(leaf.size // leaf.shape[-1] for leaf in jax.tree.leaves(w))
