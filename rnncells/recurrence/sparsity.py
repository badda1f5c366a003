"""Which elements of a function's results depend on which elements of its arguments.

The function is evaluated with other numbers: every value is 1, and every derivative is
a count of paths. Elementwise operations become sums of their operands, products and
sums stay, and an operation that is not listed here makes every element of its results
depend on every element of its operands.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from rnncells.recurrence.jaxprs import bind, evaluate, is_variable, trace
from rnncells.recurrence.primitives import CUSTOM, ELEMENTWISE, LINEAR, REDUCTIONS
from rnncells.recurrence.pytrees import StructTree, is_inexact, structs


def dependencies(function: Callable, *args: StructTree) -> list[Any]:
    """Returns where the derivatives of a function can be other than zero.

    The function returns a vector, `(n,)`. The result is a pytree of booleans for each
    of `args`, `(n, *leaf.shape)`.
    """
    equations, result = trace(function, *args)
    leaves, tree = jax.tree.flatten(args)
    equations = replace(equations, constants=dict.fromkeys(equations.constants))

    def paths(*operands: Array) -> Array:
        (counts,) = equations(*operands, rule=_count)
        return _ones(result) if counts is None else counts

    @jax.jit
    def counted(seeds: Array, *ones: Array) -> list[Array]:
        _, vjp = jax.vjp(paths, *ones)
        return [count > 0 for count in jax.vmap(vjp)(seeds)]

    ones = [np.ones(leaf.shape, np.float32) for leaf in leaves]
    with jax.ensure_compile_time_eval():
        flags = map(np.asarray, counted(np.eye(*result.shape, dtype=np.float32), *ones))
    return list(jax.tree.unflatten(tree, flags))


def color_rows(pattern: np.ndarray) -> np.ndarray:
    """Returns colors of rows such that rows of one color have no column in common."""
    if pattern.all(0).any():
        return np.arange(len(pattern))
    colors = np.zeros(len(pattern), int)
    used: list[np.ndarray] = []  # the columns of each color
    for row, columns in enumerate(pattern):
        color = next((k for k, u in enumerate(used) if not (u & columns).any()), None)
        if color is None:
            color = len(used)
            used.append(np.zeros_like(columns))
        used[color] = used[color] | columns
        colors[row] = color
    return colors


def _count(equation: Any, operands: list[Any]) -> list[Array | None]:
    """Rule for counts of paths; None stands for a value without paths."""
    operands = [
        operand if is_variable(v) else None
        for v, operand in zip(equation.invars, operands, strict=True)
    ]
    if all(operand is None for operand in operands):
        return [None] * len(equation.outvars)
    if equation.primitive.name in CUSTOM:
        results = _of_custom(equation, operands)
    elif equation.primitive.name == "stop_gradient":
        results = [None]
    else:
        results = _results(equation, operands)
    return [
        _as_one(value) if value is not None and is_inexact(v.aval) else None
        for v, value in zip(equation.outvars, results, strict=True)
    ]


def _of_custom(equation: Any, operands: list[Any]) -> list[Array | None]:
    """Returns the results of a function that has its own derivative.

    The derivative can pass where the function has none, as for a step function with a
    surrogate gradient. So the paths are those of cotangents, transposed.
    """
    primals = structs([v.aval for v in equation.invars])
    diff = [k for k, primal in enumerate(primals) if is_inexact(primal)]
    d_results = [_ones(v.aval) for v in equation.outvars if is_inexact(v.aval)]

    def derivative(primals: list[Any], d_results: list[Array]) -> Any:
        def call(*values: Array) -> list[Array]:
            inputs = list(primals)
            for k, value in zip(diff, values, strict=True):
                inputs[k] = value
            return [result for result in bind(equation, inputs) if is_inexact(result)]

        results, vjp = jax.vjp(call, *[primals[k] for k in diff])
        pairs = zip(d_results, results, strict=True)
        return vjp([d.astype(result.dtype) for d, result in pairs])

    equations, _ = trace(derivative, primals, d_results)
    from_primals, from_results = equations.arguments

    def paths(d_results: list[Array]) -> list[Array]:
        values = dict.fromkeys((*equations.constants, *from_primals), None)
        values |= dict(zip(from_results, d_results, strict=True))
        evaluate(equations.equations, values, _count)
        counts = [values.get(v) if is_variable(v) else None for v in equations.results]
        zeros = [jnp.zeros(primals[k].shape, jnp.float32) for k in diff]
        return [z if d is None else d for d, z in zip(counts, zeros, strict=True)]

    d_operands, transpose = jax.vjp(paths, d_results)
    (results,) = transpose(
        [
            # With x64, operands can be float64.
            jnp.zeros_like(d) if operands[k] is None else operands[k].astype(d.dtype)
            for k, d in zip(diff, d_operands, strict=True)
        ]
    )
    remaining = iter(results)
    return [next(remaining) if is_inexact(v.aval) else None for v in equation.outvars]


def _results(equation: Any, operands: list[Any]) -> list[Any]:
    name, shapes = equation.primitive.name, [v.aval.shape for v in equation.outvars]
    if name in ELEMENTWISE:
        present = [operand for operand in operands if operand is not None]
        if len(shapes) == len(operands) > 1:  # as optimization_barrier
            return operands
        return [jnp.broadcast_to(sum(present), shapes[0])]
    if name in REDUCTIONS:
        return [jnp.sum(operands[0], equation.params["axes"])]
    integers = [v for v in equation.invars if not is_inexact(v.aval)]
    if name in LINEAR and not integers:
        filled = [
            _ones(v.aval) if operand is None else operand
            for v, operand in zip(equation.invars, operands, strict=True)
        ]
        params = dict(equation.params)
        if "preferred_element_type" in params:
            params["preferred_element_type"] = jnp.dtype(jnp.float32)
        out = equation.primitive.bind(*filled, **params)
        return out if equation.primitive.multiple_results else [out]
    # Each element of the results depends on all elements of the operands.
    total = sum(jnp.sum(operand) for operand in operands if operand is not None)
    return [jnp.broadcast_to(total, shape) for shape in shapes]


def _ones(struct: Any) -> Array:
    return jnp.ones(struct.shape, jnp.float32)


def _as_one(value: Array) -> Array:
    """Returns ones that have the derivatives of a value, so that counts stay small."""
    return 1 + (value - jax.lax.stop_gradient(value))
