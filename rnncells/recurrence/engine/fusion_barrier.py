"""Barriers that stop XLA on CPU from fusing a value into each of its uses.

Without them, XLA fuses the read of a step from a sequence into every operation on that
step, which makes these operations up to five times as slow. Small steps get no
barriers, because XLA compiles their whole loop to one function. A barrier is the
identity in a program for any other platform, wherever that program was traced.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from chex import ArrayTree
from jax import Array, export
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from rnncells.recurrence.pytrees import Tree, structs

_SMALL_STEP = 2**10  # bytes
# jax 0.10 drops barriers before it fuses.
_BARRIERS_HOLD = jax.__version_info__ >= (0, 11)


def barrier(tree: ArrayTree) -> ArrayTree:
    return jax.tree.map(_barrier.bind, tree)


def step_barrier(tree: ArrayTree) -> ArrayTree:
    """Returns the arrays of a step, behind barriers unless the step is small."""
    return tree if is_small(tree) else barrier(tree)


def is_small(step: Tree) -> bool:
    """Says whether XLA on CPU makes one function of a loop with such steps."""
    leaves = jax.tree.leaves(step)
    if any(export.is_symbolic_dim(n) for leaf in leaves for n in leaf.shape):
        return False
    return sum(leaf.size * leaf.dtype.itemsize for leaf in leaves) < _SMALL_STEP


def scan_with_barriers(
    body: Callable, carry: ArrayTree, xs: ArrayTree, steps: int, unroll: int = 1
) -> ArrayTree:
    """Scans `body`, `(carry, x) -> carry`; each x is read apart from other work.

    That is behind barriers, or where they do not hold, one step ahead. Returns the last
    carry.
    """
    if _BARRIERS_HOLD or is_small(structs(xs, drop_axis=0)):

        def behind_barrier(carry: ArrayTree, x: ArrayTree) -> tuple[ArrayTree, None]:
            return body(carry, step_barrier(x)), None

        # None, because time may be symbolic.
        length = None if jax.tree.leaves(xs) else steps
        return jax.lax.scan(behind_barrier, carry, xs, length, unroll=unroll)[0]

    def step_at(i: Array | int) -> ArrayTree:
        index = partial(jax.lax.dynamic_index_in_dim, index=i, keepdims=False)
        return jax.tree.map(partial(index, allow_negative_indices=False), xs)

    # What the loop carries is formed once: each step takes up the next one's.
    def ahead(state: tuple, following: Array) -> tuple[tuple, None]:
        carry, x = state
        return (body(carry, x), step_at(following)), None

    following = 1 + jnp.arange(steps)
    return jax.lax.scan(ahead, (carry, step_at(0)), following, unroll=unroll)[0][0]


_barrier = Primitive("fusion_barrier")
_barrier.def_impl(lambda array: array)
_barrier.def_abstract_eval(lambda array: array)
ad.deflinear2(_barrier, lambda cotangent, _: [_barrier.bind(cotangent)])
batching.primitive_batchers[_barrier] = lambda arrays, axes: (
    _barrier.bind(*arrays),
    axes[0],
)
mlir.register_lowering(_barrier, lambda _, array: [array])
mlir.register_lowering(
    _barrier,
    mlir.lower_fun(jax.lax.optimization_barrier, multiple_results=False),
    platform="cpu",
)
