"""What a carry is made of: samples, shapes and dtypes."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.typing import Dtype
from jax import export

Carry = Any
PyTree = Any


def is_shape(value: Any) -> bool:
    """Says whether `value` is a shape: a tuple or list of sizes, the empty one too.

    Sizes are integers of Python or NumPy, symbolic dimensions of `jax.export`, or None
    where a size is not known.
    """
    return isinstance(value, tuple | list) and all(
        n is None or isinstance(n, int | np.integer) or export.is_symbolic_dim(n)
        for n in value
    )


def sample_structs(sample: PyTree) -> PyTree:
    """Returns a sample as a pytree of `jax.ShapeDtypeStruct`.

    Args:
      sample: an array, a `jax.ShapeDtypeStruct`, a pytree of those, or a shape. A shape
        gets the dtype bool, to which every other dtype is wider.

    Raises:
      TypeError: there is no sample.
    """
    if sample is None:
        raise TypeError(
            "`sample_input` must be one step of input: an array, a "
            "jax.ShapeDtypeStruct or a shape, got None."
        )
    if is_shape(sample):
        return jax.ShapeDtypeStruct(tuple(sample), jnp.bool_)
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(jnp.shape(leaf), jnp.result_type(leaf)),
        sample,
    )


def dtype_of(leaf: Any) -> Dtype:
    """Returns the dtype of an array, a random key, or a Python number."""
    return leaf.dtype if hasattr(leaf, "dtype") else jnp.result_type(leaf)


def with_own_dtype(leaf: Any) -> Any:
    """Returns an array that keeps its dtype when it meets others.

    Python numbers, and what JAX makes of them (weakly typed arrays), do not: what meets
    them would decide their dtype, and each loop meets them elsewhere.
    """
    leaf = leaf if hasattr(leaf, "dtype") else jnp.asarray(leaf)
    is_weak = getattr(leaf, "weak_type", False)
    return jax.lax.convert_element_type(leaf, leaf.dtype) if is_weak else leaf


def carry_dtype(param_dtype: Dtype, sample: PyTree) -> Dtype:
    """Returns the dtype of a carry: `param_dtype`, complex where the sample is.

    Args:
      param_dtype: dtype of the parameters.
      sample: pytree of `jax.ShapeDtypeStruct`.
    """
    dtypes = [leaf.dtype for leaf in jax.tree.leaves(sample)]
    wider = [d for d in dtypes if jnp.issubdtype(d, jnp.complexfloating)]
    return jnp.result_type(param_dtype, *wider)


def cast_like(new: PyTree, old: PyTree) -> PyTree:
    """Returns `new` in the precision of `old`, leaf by leaf.

    Real stays real, complex stays complex, and what is neither (counters, random keys)
    stays as it is. A Python number takes the dtype of `old`.
    """

    def cast(new_leaf, old_leaf):
        if not hasattr(new_leaf, "dtype"):
            return jnp.asarray(new_leaf, dtype_of(old_leaf))
        was, is_now = dtype_of(old_leaf), dtype_of(new_leaf)
        for kind in (jnp.floating, jnp.complexfloating):
            if jnp.issubdtype(was, kind) and jnp.issubdtype(is_now, kind):
                return jnp.asarray(new_leaf, was)
        if jnp.issubdtype(was, jnp.complexfloating):
            return jnp.asarray(new_leaf, was)
        return new_leaf

    return jax.tree.map(cast, new, old)
