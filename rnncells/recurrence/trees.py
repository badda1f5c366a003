"""Pytrees in two parts: what can be differentiated, and the rest."""

from collections.abc import Iterable, Mapping
from typing import Any

import chex
import jax
import jax.numpy as jnp

# Pytrees whose leaves are not arrays: shapes with dtypes, and booleans.
StructTree = jax.ShapeDtypeStruct | Iterable["StructTree"] | Mapping[Any, "StructTree"]
BoolTree = bool | Iterable["BoolTree"] | Mapping[Any, "BoolTree"]
Tree = chex.ArrayTree | StructTree


def smooth(tree: Tree) -> Tree:
    """Returns the tree with None for every leaf that is not floating or complex."""
    return jax.tree.map(lambda leaf: leaf if is_smooth(leaf) else None, tree)


def rest(tree: Tree) -> Tree:
    """Returns the tree with None for every leaf that `smooth` has."""
    return jax.tree.map(lambda leaf: None if is_smooth(leaf) else leaf, tree)


def join(first: chex.ArrayTree, second: chex.ArrayTree) -> chex.ArrayTree:
    """Returns the tree whose leaves are those of either; the other has None there."""
    return jax.tree.map(
        lambda a, b: b if a is None else a, first, second, is_leaf=lambda x: x is None
    )


def structs(tree: Tree, drop_axis: bool = False) -> StructTree:
    """Returns shapes and dtypes, without the first axis if `drop_axis`."""
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(
            jnp.shape(leaf)[drop_axis:], jnp.result_type(leaf)
        ),
        tree,
    )


def zeros(tree: Tree) -> chex.ArrayTree:
    """Returns zeros of the shapes and dtypes of a tree."""
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), tree)


def wide(tree: chex.ArrayTree) -> chex.ArrayTree:
    """Returns the tree in which to add up: half precision as float32."""

    def widen(leaf):
        is_half = jnp.issubdtype(leaf.dtype, jnp.floating) and leaf.dtype.itemsize < 4
        return leaf.astype(jnp.float32) if is_half else leaf

    return jax.tree.map(widen, tree)


def add(first: chex.ArrayTree, second: chex.ArrayTree) -> chex.ArrayTree:
    """Returns the sum, in the dtypes of `first`; None in `second` adds nothing."""
    return jax.tree.map(
        lambda a, b: a if b is None else a + b.astype(a.dtype),
        first,
        second,
        is_leaf=lambda leaf: leaf is None,
    )


def add_given(first: chex.ArrayTree, second: chex.ArrayTree) -> chex.ArrayTree:
    """Returns the sum of two trees, None in either adding nothing."""
    return jax.tree.map(
        lambda a, b: b if a is None else a if b is None else a + b,
        first,
        second,
        is_leaf=lambda leaf: leaf is None,
    )


def pick(tree: Tree, chosen: BoolTree) -> Tree:
    """Returns the tree with None for the leaves that are not chosen."""
    return jax.tree.map(lambda leaf, keep: leaf if keep else None, tree, chosen)


def is_smooth(leaf: Any) -> bool:
    """Says whether a leaf is floating or complex."""
    return jnp.issubdtype(jnp.result_type(leaf), jnp.inexact)
