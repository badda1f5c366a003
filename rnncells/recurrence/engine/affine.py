"""A matrix product with a bias: `lhs @ kernel + bias`.

The features of the result can be one axis, or several: gates and features, say.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from rnncells.recurrence.engine.fusion_barrier import barrier
from rnncells.recurrence.engine.linear_map import mapped_size
from rnncells.recurrence.engine.products import ProductFunction
from rnncells.recurrence.jaxprs import bind
from rnncells.recurrence.mesh import may_be_sharded
from rnncells.recurrence.pytrees import expand_left, full_precision

# As measured on CPU, the form with weights first is the faster for so many bytes of
# weights, and rows so few that packing weights is much of the work.
_MUCH_TO_PACK = 2**19
_FEW_ROWS = 64

# As measured on an AMD EPYC, the product of transposed rows takes 1.2 to 1.9 times as
# long in jax 0.10 where the width of the gates is a multiple of this number, unless the
# rows are transposed first. Not at other widths, and not in jax 0.12.
_SLOW_WIDTH = 2**11
_HAS_SLOW_WIDTH = jax.__version_info__ < (0, 11)

KernelAndBias = tuple[Array, Array | None]


@dataclass(frozen=True)
class Affine(ProductFunction):
    """`lhs @ kernel + bias`, computed in `dtype`, or in the promoted one.

    A kernel is `(features_in, *features)` and a bias `(*features,)`, with one axis or
    two: `(gates, features)`, see `stacked`.
    """

    dtype: Any = None

    def cast_weights(self, lhs: Any, weights: KernelAndBias) -> KernelAndBias:
        """Returns kernel and bias in the dtype in which they meet `lhs`."""
        operands = [array for array in (lhs, *weights) if array is not None]
        dtype = self.dtype or jnp.result_type(*operands)
        if not jnp.issubdtype(dtype, jnp.inexact):
            dtype = jnp.promote_types(jnp.float32, dtype)
        kernel, bias = weights
        return kernel.astype(dtype), None if bias is None else bias.astype(dtype)

    def __call__(self, lhs: Array, weights: KernelAndBias) -> Array:
        kernel, bias = self.cast_weights(lhs, weights)
        return _add_bias(jnp.tensordot(lhs.astype(kernel.dtype), kernel, 1), bias)

    def in_loop(self, lhs: jax.ShapeDtypeStruct, weights: KernelAndBias) -> Callable:
        kernel, bias = self.cast_weights(lhs, weights)
        if not _is_better_first(kernel, lhs):
            return lambda lhs: self(lhs, (kernel, bias))
        transposed = jnp.moveaxis(kernel, 0, -1)

        def weights_first(lhs: Array) -> Array:
            rows = lhs.astype(kernel.dtype)
            return _add_bias(_weights_first(transposed, rows, 1), bias)

        return weights_first

    def vjp_lhs(
        self, lhs: jax.ShapeDtypeStruct, weights: KernelAndBias, cotangent: Array
    ) -> Array:
        kernel, _ = self.cast_weights(lhs, weights)
        axes = kernel.ndim - 1
        if _is_better_first(kernel, lhs):
            d_lhs = _weights_first(kernel, cotangent, axes)
        else:
            d_lhs = jnp.tensordot(cotangent, jnp.moveaxis(kernel, 0, -1), axes)
        return _cast_cotangent(d_lhs, lhs.dtype)

    def vjp_weights(
        self, lhs: Array, weights: KernelAndBias, cotangent: Array
    ) -> KernelAndBias:
        """Returns the cotangents of the weights; float32 sums half precision."""
        kernel, bias = weights
        lhs = lhs.astype(self.cast_weights(lhs, weights)[0].dtype)
        # As one axis, time and batch need no transposition on CPU; but a batch that is
        # spread over devices would have to be gathered for it.
        if not may_be_sharded():
            rows = math.prod(lhs.shape[:-1])
            lhs = lhs.reshape(rows, lhs.shape[-1])
            cotangent = cotangent.reshape(rows, *kernel.shape[1:])
            if _HAS_SLOW_WIDTH and math.prod(kernel.shape[1:]) % _SLOW_WIDTH == 0:
                lhs = barrier(lhs.T).T
        axes = list(range(lhs.ndim - 1))
        dtype = full_precision(cotangent.dtype)
        d_kernel = jnp.tensordot(
            lhs, cotangent, (axes, axes), preferred_element_type=dtype
        )
        d_kernel = _cast_cotangent(d_kernel, kernel.dtype)
        if bias is None:
            return d_kernel, None
        d_bias = cotangent.sum(tuple(axes), dtype=dtype)
        return d_kernel, _cast_cotangent(d_bias, bias.dtype)


def block_affine(
    lhs: Array, weights: Sequence[KernelAndBias], dtype: Any = None
) -> Array:
    """Returns `lhs @ kernel + bias` of block-diagonal kernels, all in one product.

    `lhs` is `(*leading, features_in)`, a kernel `(heads, features_in / heads, features
    / heads)`, and a bias `(features,)` or None.
    """
    kernel, bias = Affine(dtype).cast_weights(lhs, side_by_side(weights))
    *leading, features_in = lhs.shape
    heads = kernel.shape[0]
    by_head = lhs.astype(kernel.dtype).reshape(*leading, heads, features_in // heads)
    products = jnp.einsum("...hi,hij->...hj", by_head, kernel)
    ends = list(accumulate(kernel.shape[-1] for kernel, _ in weights))
    gates = jnp.split(products, ends[:-1], -1)
    parts = [gate.reshape(*leading, heads * gate.shape[-1]) for gate in gates]
    return _add_bias(jnp.concatenate(parts, -1), bias)


def side_by_side(
    weights: Sequence[KernelAndBias], concatenate: Callable = jnp.concatenate
) -> KernelAndBias:
    """Concatenates kernels, and biases (0 for None; None if all are)."""
    if len(weights) == 1:
        return weights[0]
    biases = _filled_biases(weights)
    kernel = concatenate([kernel for kernel, _ in weights], axis=-1)
    return kernel, None if biases is None else concatenate(biases)


class Concatenation:
    """Concatenates arrays; concatenated arrays count as their parts.

    In the gradient, parts of one shape are slices by the same kernel, whatever their
    offset: XLA on CPU compiles each slice at a constant offset to a kernel of its own.
    """

    def __init__(self) -> None:
        self._is_in_use = not may_be_sharded()
        self._parts: dict[int, tuple[Array, int, list[Array]]] = {}

    def __call__(self, arrays: Sequence[Array], axis: int = -1) -> Array:
        dtype = jnp.result_type(*arrays)
        if not (self._is_in_use and jnp.issubdtype(dtype, jnp.inexact)):
            return jnp.concatenate(arrays, axis)
        axis = axis % arrays[0].ndim
        parts = []
        for array in arrays:
            _, joined_axis, inner = self._parts.get(id(array), (array, -1, []))
            parts += inner if joined_axis == axis else [array]
        joined = _joined.bind(*(part.astype(dtype) for part in parts), axis=axis)
        # The array is kept so that no other array gets its `id`.
        self._parts[id(joined)] = joined, axis, parts
        return joined

    def rule(self, equation: Any, operands: list[Array]) -> Sequence[Array]:
        """Evaluates an equation of a jaxpr; if it concatenates, by this object."""
        if equation.primitive.name == "concatenate":
            return [self(operands, equation.params["dimension"])]
        return bind(equation, operands)


def _concatenate(*arrays: Array, axis: int) -> Array:
    return jax.lax.concatenate(arrays, axis)


def _concatenated_struct(*arrays: Any, axis: int) -> jax.core.ShapedArray:
    shape = list(arrays[0].shape)
    shape[axis] = sum(array.shape[axis] for array in arrays)
    return jax.core.ShapedArray(tuple(shape), arrays[0].dtype)


def _cut_cotangent(cotangent: Array, *arrays: Any, axis: int) -> list[Array]:
    cut = partial(jax.lax.dynamic_slice, cotangent, allow_negative_indices=False)
    shapes = [array.aval.shape for array in arrays]
    offsets = accumulate((shape[axis] for shape in shapes[:-1]), initial=0)
    # Not 0, which would be one operand with the starts of the other axes, in another
    # kernel. XLA clamps -1 to 0.
    starts = barrier([jnp.int32(offset or -1) for offset in offsets])
    zeros = [jnp.int32(0)] * (cotangent.ndim - 1)
    return [
        cut([*zeros[:axis], start, *zeros[axis:]], shape)
        for start, shape in zip(starts, shapes, strict=True)
    ]


def _concatenate_batched(
    arrays: list[Array], axes: list[int | None], *, axis: int
) -> tuple[Array, int]:
    front = partial(batching.bdim_at_front, size=mapped_size(arrays, axes))
    return _joined.bind(*map(front, arrays, axes), axis=axis + 1), 0


_joined = Primitive("concatenated_weights")
_joined.def_impl(_concatenate)
_joined.def_abstract_eval(_concatenated_struct)
ad.deflinear2(_joined, _cut_cotangent)
batching.primitive_batchers[_joined] = _concatenate_batched
mlir.register_lowering(_joined, mlir.lower_fun(_concatenate, multiple_results=False))


def stacked(weights: Sequence[KernelAndBias]) -> KernelAndBias:
    """Stacks kernels and biases: `(features_in, gates, features)`, `(gates, features)`.

    Devices that share the features then hold the same features of each gate.
    """
    biases = _filled_biases(weights)
    kernel = jnp.stack([kernel for kernel, _ in weights], 1)
    return kernel, None if biases is None else jnp.stack(biases)


def _filled_biases(weights: Sequence[KernelAndBias]) -> list[Array] | None:
    """Returns biases, zeros in place of None; or None, if no kernel has one."""
    if all(bias is None for _, bias in weights):
        return None

    def width(kernel: Array) -> int:
        return kernel.shape[-1] * (kernel.shape[0] if kernel.ndim > 2 else 1)

    return [
        jnp.zeros(width(kernel), kernel.dtype) if bias is None else bias
        for kernel, bias in weights
    ]


def _cast_cotangent(array: Array, dtype: Any) -> Array:
    """Returns the cotangent of what was cast from `dtype`."""
    if jnp.issubdtype(dtype, jnp.floating):
        array = array.real
    return array.astype(dtype)


def _add_bias(result: Array, bias: Array | None) -> Array:
    if bias is None:
        return result
    return result + expand_left(bias, result)


def _is_better_first(kernel: Array, lhs: jax.ShapeDtypeStruct) -> bool:
    rows = math.prod(lhs.shape[:-1])
    is_few = isinstance(rows, int) and rows <= _FEW_ROWS
    return is_few and kernel.nbytes >= _MUCH_TO_PACK


def _weights_first(matrix: Array, rows: Array, axes: int) -> Array:
    """Returns `(*leading, *features)` of `(*features, *summed)`, `(*leading, *summed)`.

    On CPU XLA packs the right side anew at each call: with 16 MiB of weights there it
    takes more than twice the time. The barriers keep XLA from turning it around.
    """
    leading, features = rows.shape[:-axes], matrix.shape[:-axes]
    flat = rows.reshape(-1, *rows.shape[-axes:])
    columns = jnp.moveaxis(barrier(flat), 0, -1)
    result = jnp.moveaxis(barrier(jnp.tensordot(matrix, columns, axes)), -1, 0)
    return result.reshape(*leading, *features)
