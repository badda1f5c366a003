"""Shapes and dtypes as text, for messages: `float32[2,3]`."""

from typing import Any

import jax
import jax.numpy as jnp


def array_text(array: Any) -> str:
    """Returns the shape and dtype of an array, a number or a struct: `float32[2,3]`."""
    dtype = getattr(array, "dtype", None)
    dtype = jnp.result_type(array) if dtype is None else dtype
    return f"{dtype}[{','.join(map(str, jnp.shape(array)))}]"


def tree_text(tree: Any) -> str:
    """Returns the structure of a pytree, with the shape and dtype of each array."""
    return str(jax.tree.map(array_text, tree)).replace("'", "")
