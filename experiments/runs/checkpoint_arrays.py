"""The leaves of a pytree as a checkpoint stores them: arrays that are not empty.

Typed PRNG keys are stored as their numbers, Python numbers as arrays of NumPy. Empty
arrays, which Orbax refuses, are left out.
"""

from typing import Any

import jax
import numpy as np

PyTree = Any
NUMBERS = {bool: np.bool_, int: np.int64, float: np.float64, complex: np.complex128}


def described(tree: PyTree) -> dict[str, str]:
    """Returns what each leaf is, such as `float32[3,4]`, `key<fry>[]` or `int`."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=_is_none)
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): _text(leaf)
        for path, leaf in leaves
    }


def stored(tree: PyTree) -> PyTree:
    """Returns a pytree as it is stored.

    Raises:
      TypeError: a leaf is neither an array, nor a typed key, nor a number.
      OverflowError: an integer does not fit into 64 bits.
    """

    def store(leaf):
        if type(leaf) in NUMBERS:
            return np.asarray(leaf, NUMBERS[type(leaf)])
        leaf = jax.random.key_data(leaf) if _is_key(leaf) else leaf
        leaf = np.asarray(leaf) if isinstance(leaf, np.generic) else leaf
        if not isinstance(leaf, np.ndarray | jax.Array):
            raise TypeError(f"a checkpoint stores arrays and numbers, got {leaf!r}.")
        return leaf if leaf.size else None

    return jax.tree.map(store, tree)


def template(like: PyTree) -> PyTree:
    """Returns how to read each stored leaf: on which devices, or as a NumPy array."""

    def form(leaf):
        if type(leaf) in NUMBERS:
            return np.zeros((), NUMBERS[type(leaf)])
        sharding = placement(leaf)
        if _is_key(leaf):
            leaf = jax.eval_shape(jax.random.key_data, leaf)
        if not np.prod(leaf.shape, dtype=int):
            return None
        if sharding is None:
            return np.zeros(leaf.shape, leaf.dtype)
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    return jax.tree.map(form, like)


def restored(like: PyTree, found: PyTree) -> PyTree:
    """Returns stored leaves in the types of `like`."""

    def restore(leaf, part):
        if leaf is None:
            return None
        if type(leaf) in NUMBERS:
            return part.item()
        if _is_key(leaf):
            shape = jax.eval_shape(jax.random.key_data, leaf)
            part = np.zeros(shape.shape, shape.dtype) if part is None else part
            return jax.random.wrap_key_data(part, impl=_implementation(leaf))
        if part is None:
            part = np.zeros(leaf.shape, leaf.dtype)
        if isinstance(leaf, np.generic):
            return part[()]
        if isinstance(leaf, np.ndarray):
            return part
        # A copy: JAX can share the memory of a NumPy array, and change it.
        return part if isinstance(part, jax.Array) else jax.numpy.array(part, copy=True)

    return jax.tree.map(restore, like, found, is_leaf=_is_none)


def placement(leaf: Any) -> jax.sharding.Sharding | None:
    """Returns where a leaf must be; None for the default device and for NumPy."""
    if isinstance(leaf, jax.Array):
        return leaf.sharding if leaf.committed else None
    return getattr(leaf, "sharding", None)


def _is_none(leaf: Any) -> bool:
    return leaf is None


def _is_key(leaf: Any) -> bool:
    dtype = getattr(leaf, "dtype", None)
    return dtype is not None and jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key)


def _text(leaf: Any) -> str:
    if leaf is None or type(leaf) in NUMBERS:
        return type(leaf).__name__
    return f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]"


def _implementation(leaf: Any) -> str:
    """Returns the name of a key's algorithm; JAX tells it of tracers and arrays."""
    found = []
    jax.eval_shape(lambda key: found.append(jax.random.key_impl(key)), leaf)
    return found[0]
