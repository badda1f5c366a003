"""A linear map that is given by its transpose.

JAX needs a linear function from tangents to tangents, and transposes it. The engine has
the transpose: a function from cotangents to cotangents. As a primitive, the map is
transposed without being evaluated, evaluated as the transpose of its transpose, and
differentiated as often as wanted. (`jax.custom_derivatives.linear_call` needs both
functions, and `jax.vmap` does not map it in all versions of JAX.)
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
from chex import ArrayTree
from jax import Array
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from rnncells.recurrence.pytrees import StructTree, zeros


def linear_map(
    transpose: Callable, residuals: ArrayTree, tangents: ArrayTree, result: StructTree
) -> ArrayTree:
    """Returns the map of `tangents` whose transpose is `transpose`.

    `transpose` is `(residuals, cotangents of the result) -> cotangents of tangents`,
    linear in the cotangents.
    """
    leaves, tree = jax.tree.flatten(residuals)
    out = jax.tree.structure(result)

    def flat(residuals: list[Array], cotangents: list[Array]) -> list[Array]:
        operands = jax.tree.unflatten(tree, residuals)
        d_results = jax.tree.unflatten(out, cotangents)
        return jax.tree.leaves(transpose(operands, d_results))

    spec = _Spec(flat, len(leaves), tuple(jax.tree.leaves(result)))
    results = _map.bind(*leaves, *jax.tree.leaves(tangents), spec=spec)
    return jax.tree.unflatten(out, results)


class _Spec(NamedTuple):
    """The definition of a map, whose operands are residuals, followed by tangents."""

    transpose: Callable
    residuals: int
    result: tuple[jax.ShapeDtypeStruct, ...]

    def split(self, operands: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
        return operands[: self.residuals], operands[self.residuals :]


def _evaluate(*operands: Array, spec: _Spec) -> list[Array]:
    residuals, tangents = spec.split(operands)
    _, vjp = jax.vjp(partial(spec.transpose, residuals), zeros(list(spec.result)))
    return vjp(list(tangents))[0]


def _abstract(*operands: Any, spec: _Spec) -> list[jax.core.ShapedArray]:
    return [jax.core.ShapedArray(leaf.shape, leaf.dtype) for leaf in spec.result]


def _jvp(primals: list[Array], tangents: list[Any], spec: _Spec) -> tuple:
    nonzero = [k for k, t in enumerate(tangents) if not isinstance(t, ad.Zero)]
    if all(k >= spec.residuals for k in nonzero):
        residuals, values = spec.split(primals)
        dense_tangents = map(ad.instantiate_zeros, spec.split(tangents)[1])
        bind = partial(_map.bind, *residuals, spec=spec)
        return bind(*values), bind(*dense_tangents)

    def evaluate_at(*values: Array) -> list[Array]:
        operands = list(primals)
        for k, operand in zip(nonzero, values, strict=True):
            operands[k] = operand
        return _evaluate(*operands, spec=spec)

    return jax.jvp(
        evaluate_at, [primals[k] for k in nonzero], [tangents[k] for k in nonzero]
    )


def _transpose(cotangents: list[Any], *operands: Any, spec: _Spec) -> list[Any]:
    full = list(map(ad.instantiate_zeros, cotangents))
    residuals, tangents = spec.split(operands)
    pairs = zip(spec.transpose(residuals, full), tangents, strict=True)
    by_tangents = [ct if ad.is_undefined_primal(t) else None for ct, t in pairs]
    return [None] * spec.residuals + by_tangents


def mapped_together(results: ArrayTree, operands: ArrayTree) -> ArrayTree:
    """Returns results, which `jax.vmap` maps if it maps any of the operands.

    `linear_map` maps all its results then, and JAX allows no tangent to be mapped where
    its primal is not.
    """
    leaves = jax.tree.leaves(operands)
    return jax.tree.map(lambda result: _together.bind(result, *leaves), results)


def mapped_size(operands: list[Array], axes: list[int | None]) -> int:
    mapped = zip(operands, axes, strict=True)
    return next(a.shape[k] for a, k in mapped if k is not None)


def _batch(
    operands: list[Array], axes: list[int | None], *, spec: _Spec
) -> tuple[list[Array], list[int]]:
    size = mapped_size(operands, axes)
    residuals, tangents = spec.split(operands)
    residual_axes, tangent_axes = spec.split(axes)
    # All tangents are mapped, so that all results and all cotangents are.
    tangents = [
        batching.bdim_at_front(tangent, axis, size)
        for tangent, axis in zip(tangents, tangent_axes, strict=True)
    ]
    in_axes = tuple(residual_axes), 0
    transpose = jax.vmap(spec.transpose, in_axes=in_axes, axis_size=size)
    result = [jax.ShapeDtypeStruct((size, *s.shape), s.dtype) for s in spec.result]
    spec = _Spec(transpose, spec.residuals, tuple(result))
    results = _map.bind(*residuals, *tangents, spec=spec)
    return results, [0] * len(results)


def _batch_together(operands: list[Array], axes: list[int | None]) -> tuple[Array, int]:
    size = mapped_size(operands, axes)
    return batching.bdim_at_front(operands[0], axes[0], size), 0


_map = Primitive("linear_map")
_map.multiple_results = True
_map.def_impl(_evaluate)
_map.def_abstract_eval(_abstract)
ad.primitive_jvps[_map] = _jvp
ad.primitive_transposes[_map] = _transpose
batching.primitive_batchers[_map] = _batch
mlir.register_lowering(_map, mlir.lower_fun(_evaluate, multiple_results=True))

_together = Primitive("mapped_together")
_together.def_impl(lambda result, *operands: result)
_together.def_abstract_eval(lambda result, *operands: result)
batching.primitive_batchers[_together] = _batch_together
mlir.register_lowering(_together, lambda _, result, *operands: [result])
