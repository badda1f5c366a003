"""Barriers that stop XLA on CPU from fusing a value into each of its uses.

Without them, XLA fuses the read of a step from a sequence into every operation on that
step, which makes these operations up to five times as slow. Small steps get no
barriers, because XLA compiles their whole loop to one function.
"""

from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp
from jax import export

from rnncells.recurrence.trees import Tree, structs

_SMALL_STEP = 2**10  # bytes
# jax 0.10 drops barriers before it fuses.
_BARRIERS_HOLD = jax.__version_info__ >= (0, 11)


def on_cpu() -> bool:
    """Says whether JAX runs on CPU."""
    return jax.default_backend() == "cpu"


def settled(tree: chex.ArrayTree) -> chex.ArrayTree:
    """Returns the arrays of a step behind a barrier, where that is faster."""
    return jax.lax.optimization_barrier(tree) if _is_worth_it(tree) else tree


def scan_settled(
    body: Callable,
    carry: chex.ArrayTree,
    first: chex.ArrayTree,
    xs: chex.ArrayTree,
    unroll: int = 1,
) -> chex.ArrayTree:
    """Returns the last carry of a loop whose steps find `first` settled.

    Args:
      body: `(carry, (first, x)) -> (carry, None)`.
      carry: before the first step.
      first: `(time, ...)`.
      xs: `(time, ...)`.
      unroll: steps in one iteration.
    """
    steps = jax.tree.leaves(first)[0].shape[0]
    if _BARRIERS_HOLD or not _is_worth_it(structs(first, drop_axis=True)):

        def one(carry, now):
            return body(carry, (settled(now[0]), now[1]))

        return jax.lax.scan(one, carry, (first, xs), unroll=unroll)[0]

    def take(i):
        return jax.tree.map(
            lambda leaf: jax.lax.dynamic_index_in_dim(leaf, i, keepdims=False), first
        )

    # What the loop carries is formed once: each step takes up the next one's.
    def ahead(so_far, now):
        carry, taken = so_far
        i, x = now
        carry, _ = body(carry, (taken, x))
        return (carry, take(i + 1)), None

    so_far = carry, take(0)
    return jax.lax.scan(ahead, so_far, (jnp.arange(steps), xs), unroll=unroll)[0][0]


def is_one_function(step: Tree) -> bool:
    """Says whether XLA on CPU makes one function of a loop with such steps."""
    leaves = jax.tree.leaves(step)
    if any(export.is_symbolic_dim(n) for leaf in leaves for n in leaf.shape):
        return False
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)
    return on_cpu() and size < _SMALL_STEP


def _is_worth_it(step: Tree) -> bool:
    return on_cpu() and not is_one_function(step)
