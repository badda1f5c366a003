"""Pytrees: partition by dtype, shapes and dtypes (also as text), zeros, and sums."""

from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from chex import ArrayTree
from jax import Array

# Pytrees, which type checkers cannot follow: their leaves are shapes with dtypes,
# booleans, or any of these or arrays.
StructTree: TypeAlias = Any
BoolTree: TypeAlias = Any
Tree: TypeAlias = Any


def is_inexact(leaf: Any) -> bool:
    return jnp.issubdtype(jnp.result_type(leaf), jnp.inexact)


def inexact(tree: Tree) -> Tree:
    """Returns the tree with None for every leaf that is not floating or complex."""
    return jax.tree.map(lambda leaf: leaf if is_inexact(leaf) else None, tree)


def partition(tree: Tree) -> tuple[Tree, Tree]:
    """Returns `inexact(tree)`, and the tree with None for the leaves of that."""
    nondiff = jax.tree.map(lambda leaf: None if is_inexact(leaf) else leaf, tree)
    return inexact(tree), nondiff


def combine(first: ArrayTree, second: ArrayTree) -> ArrayTree:
    """Returns the tree whose leaves are those of either; the other has None there."""
    return jax.tree.map(
        lambda a, b: b if a is None else a, first, second, is_leaf=lambda x: x is None
    )


def select_leaves(tree: ArrayTree, selected: BoolTree) -> ArrayTree:
    """Returns the tree with None for the leaves that are not selected."""
    return jax.tree.map(lambda leaf, keep: leaf if keep else None, tree, selected)


def structs(tree: Tree, drop_axis: int | None = None) -> StructTree:
    """Returns shapes and dtypes, without the axis `drop_axis` if that is given."""

    def struct(leaf: Any) -> jax.ShapeDtypeStruct:
        shape = jnp.shape(leaf)
        if drop_axis is not None:
            shape = shape[:drop_axis] + shape[drop_axis + 1 :]
        return jax.ShapeDtypeStruct(shape, jnp.result_type(leaf))

    return jax.tree.map(struct, tree)


def zeros(tree: Tree) -> ArrayTree:
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), tree)


def zero_tangents(tree: Tree) -> Tree:
    """Returns the tangents of a tree of constants."""

    def zero(leaf: Array) -> Array | np.ndarray:
        if is_inexact(leaf):
            return jnp.zeros_like(leaf)
        return np.zeros(leaf.shape, jax.dtypes.float0)

    return jax.tree.map(zero, tree)


def expand_left(array: Array, like: Array) -> Array:
    """Returns an array with axes of size 1 added on the left, as many as `like` has."""
    return jax.lax.expand_dims(array, range(jnp.ndim(like) - jnp.ndim(array)))


def full_precision(dtype: Any) -> Any:
    """Returns float32 for a dtype of half precision, and other dtypes as they are."""
    is_half = jnp.issubdtype(dtype, jnp.floating) and jnp.dtype(dtype).itemsize < 4
    return jnp.float32 if is_half else dtype


def upcast(tree: ArrayTree) -> ArrayTree:
    """Returns the tree in the dtypes in which to add up."""
    return jax.tree.map(lambda leaf: leaf.astype(full_precision(leaf.dtype)), tree)


def add(first: ArrayTree, second: ArrayTree) -> ArrayTree:
    """Returns the sum of two trees; None in either adds nothing."""
    return jax.tree.map(
        lambda a, b: b if a is None else a if b is None else a + b.astype(a.dtype),
        first,
        second,
        is_leaf=lambda leaf: leaf is None,
    )


def euclidean(vectors: Array) -> Array:
    """Returns the norms of vectors `(..., features)`, without underflow or overflow."""
    # The square of a number below 1e-23 is 0 in float32.
    sizes = jnp.abs(vectors)
    largest = jnp.max(sizes, -1, keepdims=True, initial=0)
    scale = jnp.where((largest > 0) & jnp.isfinite(largest), largest, 1)
    return scale[..., 0] * jnp.sqrt(jnp.sum((sizes / scale) ** 2, -1))


def array_text(array: Any) -> str:
    """Returns the shape and dtype of an array, a number or a struct: `float32[2,3]`."""
    dtype = getattr(array, "dtype", None)
    dtype = jnp.result_type(array) if dtype is None else dtype
    return f"{dtype}[{','.join(map(str, jnp.shape(array)))}]"


def tree_text(tree: Any) -> str:
    """Returns the structure of a pytree, with the shape and dtype of each array."""
    return str(jax.tree.map(array_text, tree)).replace("'", "")
