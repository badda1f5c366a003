"""Initialisers that JAX does not have, or has only for some dtypes."""

import jax
import jax.numpy as jnp
from flax.typing import Dtype, Initializer
from jax.nn import initializers


def orthogonal(scale: float = 1.0, column_axis: int = -1) -> Initializer:
    """Returns JAX's `orthogonal`, which this makes work in half precision too.

    bfloat16 and float16 matrices are drawn in float32 and rounded, since JAX has no
    QR decomposition in half precision. All other dtypes give JAX's own values.

    Args:
      scale: factor of the orthogonal matrix.
      column_axis: axis of the columns, which are orthonormal.

    Reference: Saxe, McClelland and Ganguli, 2013, https://arxiv.org/abs/1312.6120.
    """
    draw = initializers.orthogonal(scale, column_axis)

    def init(key: jax.Array, shape: tuple[int, ...], dtype: Dtype = jnp.float32):
        is_half = jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits < 32
        return draw(key, shape, jnp.float32 if is_half else dtype).astype(dtype)

    return init


def uniform(limit: float) -> Initializer:
    """Returns an initialiser that draws uniformly from `[-limit, limit)`."""

    def init(key: jax.Array, shape: tuple[int, ...], dtype: Dtype = jnp.float32):
        return jax.random.uniform(key, shape, dtype, -limit, limit)

    return init
