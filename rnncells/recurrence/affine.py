"""A matrix product with a bias: `lhs @ kernel + bias`."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from rnncells.recurrence.fusion_barrier import barrier
from rnncells.recurrence.products import ProductFunction
from rnncells.recurrence.pytrees import sum_dtype

# As measured on CPU, the form with weights first is the faster for so many bytes of
# weights, and rows so few that packing weights is much of the work.
_MUCH_TO_PACK = 2**19
_FEW_ROWS = 64

KernelAndBias = tuple[jax.Array, jax.Array | None]


@dataclass(frozen=True)
class Affine(ProductFunction):
    """`lhs @ kernel + bias`, computed in `dtype`, or in the promoted one."""

    dtype: Any = None

    def cast_weights(self, lhs: Any, weights: KernelAndBias) -> list[jax.Array | None]:
        """Returns kernel and bias in the dtype in which they meet `lhs`."""
        given = [array for array in (lhs, *weights) if array is not None]
        dtype = self.dtype or jnp.result_type(*given, jnp.bool_)
        if not jnp.issubdtype(dtype, jnp.inexact):
            dtype = jnp.promote_types(jnp.float32, dtype)
        return [None if w is None else w.astype(dtype) for w in weights]

    def __call__(self, lhs: jax.Array, weights: KernelAndBias) -> jax.Array:
        """Returns `(*leading, features)` of `(*leading, features_in)`."""
        kernel, bias = self.cast_weights(lhs, weights)
        return _add_bias(lhs.astype(kernel.dtype) @ kernel, bias)

    def in_loop(self, lhs: jax.ShapeDtypeStruct, weights: KernelAndBias) -> Callable:
        kernel, bias = self.cast_weights(lhs, weights)
        if not _is_better_first(kernel, lhs):
            return lambda lhs: self(lhs, (kernel, bias))
        transposed = kernel.T

        def weights_first(lhs):
            rows = lhs.astype(kernel.dtype)
            return _add_bias(_weights_first(transposed, rows), bias)

        return weights_first

    def vjp_lhs(
        self, lhs: jax.ShapeDtypeStruct, weights: KernelAndBias, cotangent: jax.Array
    ) -> jax.Array:
        kernel, _ = self.cast_weights(lhs, weights)
        if _is_better_first(kernel, lhs):
            return _cast_cotangent(_weights_first(kernel, cotangent), lhs.dtype)
        return _cast_cotangent(cotangent @ kernel.T, lhs.dtype)

    def vjp_weights(
        self, lhs: jax.Array, weights: KernelAndBias, cotangent: jax.Array
    ) -> KernelAndBias:
        """Returns the cotangents of the weights; float32 sums half precision."""
        kernel, bias = weights
        lhs = lhs.astype(self.cast_weights(lhs, weights)[0].dtype)
        # As one axis, time and batch need no transposition on CPU; but a batch that is
        # spread over devices would have to be gathered for it.
        if jax.device_count() == 1:
            rows = math.prod(lhs.shape[:-1])
            lhs = lhs.reshape(rows, lhs.shape[-1])
            cotangent = cotangent.reshape(rows, cotangent.shape[-1])
        axes = list(range(lhs.ndim - 1))
        dtype = sum_dtype(cotangent.dtype)
        d_kernel = jnp.tensordot(
            lhs, cotangent, (axes, axes), preferred_element_type=dtype
        )
        if bias is None:
            return _cast_cotangent(d_kernel, kernel.dtype), None
        d_bias = cotangent.sum(tuple(axes), dtype=dtype)
        return _cast_cotangent(d_kernel, kernel.dtype), _cast_cotangent(
            d_bias, bias.dtype
        )


def side_by_side(weights: Sequence[KernelAndBias]) -> KernelAndBias:
    """Concatenates kernels and biases along the last axis.

    The bias of a kernel without bias is 0. If no kernel has one, the bias is None.
    """
    kernels, biases = zip(*weights, strict=True)
    if len(kernels) == 1:
        return weights[0]
    if all(bias is None for bias in biases):
        return jnp.concatenate(kernels, -1), None
    biases = [
        jnp.zeros(kernel.shape[-1], kernel.dtype) if bias is None else bias
        for kernel, bias in weights
    ]
    return jnp.concatenate(kernels, -1), jnp.concatenate(biases)


def _cast_cotangent(array: jax.Array, dtype: Any) -> jax.Array:
    """Returns the cotangent of what was cast from `dtype`."""
    if jnp.issubdtype(dtype, jnp.floating):
        array = array.real
    return array.astype(dtype)


def _add_bias(result: jax.Array, bias: jax.Array | None) -> jax.Array:
    if bias is None:
        return result
    return result + bias.reshape((1,) * (result.ndim - 1) + (-1,))


def _is_better_first(kernel: jax.Array, lhs: jax.ShapeDtypeStruct) -> bool:
    rows = math.prod(lhs.shape[:-1])
    is_few = isinstance(rows, int) and rows <= _FEW_ROWS
    return is_few and kernel.nbytes >= _MUCH_TO_PACK


def _weights_first(matrix: jax.Array, rows: jax.Array) -> jax.Array:
    """Returns `rows @ matrix.T` as the product with the matrix on the left.

    On CPU XLA packs the right side anew at each call: with 16 MiB of weights there it
    takes more than twice the time. The barriers keep XLA from turning it around.
    """
    flat = rows.reshape(-1, rows.shape[-1])
    result = barrier(matrix @ barrier(flat).T).T
    return result.reshape(*rows.shape[:-1], matrix.shape[0])
