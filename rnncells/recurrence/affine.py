"""The product of gates: `left @ kernel + bias`."""

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from rnncells.recurrence.settling import on_cpu


@dataclass(frozen=True)
class Affine:
    """`left @ kernel + bias`, computed in `dtype`, or in the promoted one."""

    dtype: Any = None

    def meeting_dtype(self, *arrays: Any) -> Any:
        """Returns the dtype in which a left side and weights (or None) meet."""
        given = [array for array in arrays if array is not None]
        dtype = self.dtype or jnp.result_type(*given, jnp.bool_)
        if not jnp.issubdtype(dtype, jnp.inexact):
            dtype = jnp.promote_types(jnp.float32, dtype)
        return dtype

    def cast_weights(
        self, left: Any, weights: tuple[jax.Array, jax.Array | None]
    ) -> list[jax.Array | None]:
        """Returns kernel and bias in the dtype in which they meet `left`."""
        dtype = self.meeting_dtype(left, *weights)
        return [None if w is None else w.astype(dtype) for w in weights]

    def __call__(
        self, left: jax.Array, weights: tuple[jax.Array, jax.Array | None]
    ) -> jax.Array:
        """Returns `(*leading, features)` of `(*leading, features_in)`."""
        kernel, bias = self.cast_weights(left, weights)
        return add_bias(left.astype(kernel.dtype) @ kernel, bias)

    def pull_weights(
        self,
        left: jax.Array,
        weights: tuple[jax.Array, jax.Array | None],
        gradient: jax.Array,
    ) -> tuple[jax.Array, jax.Array | None]:
        """Returns the gradients by weights; half precision is summed in float32."""
        kernel, bias = weights
        left = left.astype(self.meeting_dtype(left, kernel))
        # As one axis, time and batch need no transposition on CPU; but a batch that is
        # spread over devices would have to be gathered for it.
        if on_cpu() and jax.device_count() == 1:
            rows = math.prod(left.shape[:-1])
            left = left.reshape(rows, left.shape[-1])
            gradient = gradient.reshape(rows, gradient.shape[-1])
        axes = list(range(left.ndim - 1))
        wide = jnp.promote_types(jnp.float32, gradient.dtype)
        d_kernel = jnp.tensordot(
            left, gradient, (axes, axes), preferred_element_type=wide
        )
        if bias is None:
            return cast_gradient(d_kernel, kernel.dtype), None
        d_bias = gradient.sum(tuple(axes), dtype=wide)
        return cast_gradient(d_kernel, kernel.dtype), cast_gradient(d_bias, bias.dtype)


def add_bias(result: jax.Array, bias: jax.Array | None) -> jax.Array:
    """Returns the product with the bias, `(features,)` or None, added."""
    if bias is None:
        return result
    return result + bias.reshape((1,) * (result.ndim - 1) + (-1,))


def cast_gradient(array: jax.Array, dtype: Any) -> jax.Array:
    """Returns the gradient by what was cast from `dtype`."""
    if jnp.issubdtype(dtype, jnp.floating):
        array = array.real
    return array.astype(dtype)
