"""Evaluation in parts of a fixed size, so that a large split needs little memory."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from experiments.supervised.task import Array

# Sequences of a part.
SIZE = 250


def sum_over_parts(
    f: Callable[[Any, Array], Any], arrays: Any, size: int = SIZE
) -> Any:
    """Returns the sum of a function over parts of arrays.

    Args:
      f: function of a part, whose arrays have a first axis `size`, and of a mask
        `(size,)`, false for the padding at the end. It returns a pytree of sums over
        the rows where the mask is true.
      arrays: pytree of arrays with equal first axes, at least 1.
      size: number of rows of a part, at least 1.

    >>> data = jnp.arange(1.0, 8.0)
    >>> sum_over_parts(lambda part, mask: jnp.sum(part, where=mask), data, size=3)
    Array(28., dtype=float32)
    """
    arrays = jax.tree.map(jnp.asarray, arrays)
    count = len(jax.tree.leaves(arrays)[0])
    size = min(size, count)

    def part(first: Array) -> Any:
        rows = first + jnp.arange(size)
        # The last row again in place of those that are missing.
        take = jnp.minimum(rows, count - 1)
        return f(jax.tree.map(lambda leaf: leaf[take], arrays), rows < count)

    def add(total: Any, first: Array) -> tuple[Any, None]:
        return jax.tree.map(jnp.add, total, part(first)), None

    zeros = jax.tree.map(
        lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(part, 0)
    )
    total, _ = jax.lax.scan(add, zeros, jnp.arange(0, count, size))
    return total
