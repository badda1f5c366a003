"""A linear map that is given by its transpose.

JAX needs a linear function from tangents to tangents, and transposes it. The engine has
the transpose: a function from cotangents to cotangents. As a primitive, the map is
transposed without being evaluated, evaluated as the transpose of its transpose, and
differentiated as often as wanted. (`jax.custom_derivatives.linear_call` needs both
functions, and `jax.vmap` does not map it in all versions of JAX.)
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from chex import ArrayTree
from jax import Array
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from rnncells.recurrence.pytrees import StructTree, zeros


def linear_map(
    transpose: Callable, residuals: ArrayTree, tangents: ArrayTree, result: StructTree
) -> ArrayTree:
    """Returns the map of `tangents` whose transpose is `transpose`.

    `transpose` is `(residuals, cotangents) -> cotangents`, from those of the result to
    those of `tangents`, and linear in the cotangents. `tangents` are floating or
    complex, and `result` has shapes and dtypes.
    """
    leaves, tree = jax.tree.flatten(residuals)
    out = jax.tree.structure(result)

    def flat(residuals: list[Array], cotangents: list[Array]) -> list[Array]:
        full = jax.tree.unflatten(tree, residuals)
        return jax.tree.leaves(transpose(full, jax.tree.unflatten(out, cotangents)))

    results = _map.bind(
        *(*leaves, *jax.tree.leaves(tangents)),
        transpose=flat,
        count=len(leaves),
        result=tuple(jax.tree.leaves(result)),
    )
    return jax.tree.unflatten(out, results)


def _evaluate(
    *operands: Array, transpose: Callable, count: int, result: StructTree
) -> list[Array]:
    residuals, tangents = operands[:count], operands[count:]
    _, vjp = jax.vjp(lambda cotangents: transpose(residuals, cotangents), zeros(result))
    return vjp(list(tangents))[0]


def _abstract(
    *operands: Any, transpose: Callable, count: int, result: StructTree
) -> list[jax.core.ShapedArray]:
    return [jax.core.ShapedArray(leaf.shape, leaf.dtype) for leaf in result]


def _jvp(primals: list[Array], tangents: list[Any], **params: Any) -> tuple:
    count = params["count"]
    nonzero = [k for k, t in enumerate(tangents) if not isinstance(t, ad.Zero)]
    if all(k >= count for k in nonzero):
        dense_tangents = map(ad.instantiate_zeros, tangents[count:])
        bind = partial(_map.bind, *primals[:count], **params)
        return bind(*primals[count:]), bind(*dense_tangents)

    def evaluate_at(*values: Array) -> list[Array]:
        operands = list(primals)
        for k, operand in zip(nonzero, values, strict=True):
            operands[k] = operand
        return _evaluate(*operands, **params)

    return jax.jvp(
        evaluate_at, [primals[k] for k in nonzero], [tangents[k] for k in nonzero]
    )


def _transpose(
    cotangents: list[Any],
    *operands: Any,
    transpose: Callable,
    count: int,
    result: StructTree,
) -> list[Any]:
    full = list(map(ad.instantiate_zeros, cotangents))
    by_tangents = transpose(operands[:count], full)
    wanted = map(ad.is_undefined_primal, operands[count:])
    return [None] * count + [
        ct if is_wanted else None
        for ct, is_wanted in zip(by_tangents, wanted, strict=True)
    ]


def _batch(
    operands: list[Array],
    axes: list[int | None],
    *,
    transpose: Callable,
    count: int,
    result: StructTree,
) -> tuple[list[Array], list[int]]:
    mapped = zip(operands, axes, strict=True)
    (size, *_) = {a.shape[k] for a, k in mapped if k is not None}
    # All tangents are mapped, so that all results and all cotangents are.
    tangents = [
        jnp.broadcast_to(tangent, (size, *tangent.shape))
        if axis is None
        else jnp.moveaxis(tangent, axis, 0)
        for tangent, axis in zip(operands[count:], axes[count:], strict=True)
    ]
    in_axes = tuple(axes[:count]), 0
    results = _map.bind(
        *(*operands[:count], *tangents),
        transpose=jax.vmap(transpose, in_axes=in_axes, axis_size=size),
        count=count,
        result=tuple(
            jax.ShapeDtypeStruct((size, *leaf.shape), leaf.dtype) for leaf in result
        ),
    )
    return results, [0] * len(results)


_map = Primitive("linear_map")
_map.multiple_results = True
_map.def_impl(_evaluate)
_map.def_abstract_eval(_abstract)
ad.primitive_jvps[_map] = _jvp
ad.primitive_transposes[_map] = _transpose
batching.primitive_batchers[_map] = _batch
mlir.register_lowering(_map, mlir.lower_fun(_evaluate, multiple_results=True))
