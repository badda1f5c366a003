"""Shapes and dtypes of carries."""

from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from chex import ArrayTree
from flax.typing import Dtype

from rnncells.recurrence.pytrees import StructTree

# The state of a cell.
Carry: TypeAlias = ArrayTree
# The shapes of a carry without batch axes: a pytree, whose leaves are tuples of sizes,
# or structs where the dtype is fixed.
ShapeTree: TypeAlias = Any


def dtype_of(leaf: Any) -> Dtype:
    """Returns the dtype of an array, a random key, or a Python number."""
    return leaf.dtype if hasattr(leaf, "dtype") else jnp.result_type(leaf)


def strongly_typed(leaf: Any, params: ArrayTree = ()) -> Any:
    """Returns an array that is not weakly typed.

    The dtype of Python numbers and of weakly typed arrays depends on the operations on
    them, which differ between loops. Floats take the dtype of `params`.
    """
    leaf = leaf if hasattr(leaf, "dtype") else jnp.asarray(leaf)
    if not getattr(leaf, "weak_type", False):
        return leaf
    dtypes = [leaf.dtype]
    if jnp.issubdtype(leaf.dtype, jnp.floating):
        param_dtypes = [p.dtype for p in jax.tree.leaves(params)]
        dtypes = [d for d in param_dtypes if jnp.issubdtype(d, jnp.floating)] or dtypes
    return jax.lax.convert_element_type(leaf, jnp.result_type(*dtypes))


def carry_dtype(param_dtype: Dtype, sample: StructTree) -> Dtype:
    """Returns the dtype of a carry: `param_dtype`, or complex if the sample is."""
    dtypes = [leaf.dtype for leaf in jax.tree.leaves(sample)]
    wider = [d for d in dtypes if jnp.issubdtype(d, jnp.complexfloating)]
    return jnp.result_type(param_dtype, *wider)


def cast_like(new: ArrayTree, old: ArrayTree) -> ArrayTree:
    """Casts each leaf of `new` to the precision of the leaf of `old`.

    Real leaves stay real, and complex leaves stay complex. Other leaves (counters,
    random keys) do not change. A Python number gets the dtype of `old`.
    """

    def cast(new_leaf: Any, old_leaf: Any) -> Any:
        if not hasattr(new_leaf, "dtype"):
            return jnp.asarray(new_leaf, dtype_of(old_leaf))
        old_dtype, new_dtype = dtype_of(old_leaf), dtype_of(new_leaf)
        for kind in (jnp.floating, jnp.complexfloating):
            if jnp.issubdtype(old_dtype, kind) and jnp.issubdtype(new_dtype, kind):
                return jnp.asarray(new_leaf, old_dtype)
        if jnp.issubdtype(old_dtype, jnp.complexfloating):
            return jnp.asarray(new_leaf, old_dtype)
        return new_leaf

    return jax.tree.map(cast, new, old)


def describe(carry: Carry) -> Any:
    """Returns, for each leaf of a carry, its shape and whether it is complex."""

    def kind(leaf: Any) -> str:
        is_complex = jnp.issubdtype(dtype_of(leaf), jnp.complexfloating)
        return ("complex" if is_complex else "real") + str(jnp.shape(leaf))

    return jax.tree.map(kind, carry)


def is_alike(carry: Carry, other: Carry) -> bool:
    """Says whether two carries differ only in values and precision."""
    return jax.tree.flatten(describe(carry)) == jax.tree.flatten(describe(other))
