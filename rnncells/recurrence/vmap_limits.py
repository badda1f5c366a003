"""What in a step `jax.vmap` changes or refuses.

The fast loop takes the derivative of all steps at once, by `vmap` over time.
"""

from collections.abc import Iterator
from typing import Any

import jax

# Calls whose inner jaxpr has the operands and the results of the call.
_CALLS = (
    *("jit", "pjit", "closed_call", "remat", "checkpoint"),
    *("custom_jvp_call", "custom_vjp_call"),
)


def why_not_vmapped(jaxpr: Any, varying: list[bool]) -> str | None:
    """Returns what `vmap` over some operands changes or refuses, None if nothing.

    Args:
      jaxpr: of a step, as from `jax.make_jaxpr`.
      varying: for each operand, whether it differs from step to step.
    """
    if jaxpr.effects:
        return "has side effects or a named axis"
    for equation, operands, results in _equations(_open(jaxpr), varying, []):
        name = equation.primitive.name
        if name == "pure_callback" and equation.params["vmap_method"] is None:
            return "calls `jax.pure_callback` without `vmap_method`"
        # Other generators draw other numbers under `vmap`.
        if name == "random_bits" and any(operands):
            if equation.invars[0].aval.dtype != _threefry():
                return "draws random numbers by a generator other than threefry2x32"
        # JAX then sums cotangents that should stay apart.
        if name == "custom_vjp_call" and any(operands) and not all(results):
            return "has a `jax.custom_vjp` with a result that is the same at each step"
    return None


def drawn(jaxpr: Any) -> int:
    """Returns how many random words a function draws."""
    found = _equations(_open(jaxpr), [False] * len(_open(jaxpr).invars), [])
    draws = [e for e, *_ in found if e.primitive.name == "random_bits"]
    return sum(v.aval.size for e in draws for v in e.outvars)


def _equations(jaxpr, varying, results: list[bool]) -> Iterator:
    """Yields all equations, also of inner jaxprs, with what varies of each.

    As `(equation, operands, results)`. `results` takes what varies of the jaxpr's own.
    """
    varies = dict(zip(jaxpr.invars, varying, strict=True))

    def of(variables):
        return [not hasattr(v, "val") and varies.get(v, False) for v in variables]

    for equation in jaxpr.eqns:
        operands = of(equation.invars)
        inner = [_open(value) for value in _jaxprs(equation)]
        out = [any(operands)] * len(equation.outvars)
        if equation.primitive.name in _CALLS:
            out = []
            yield from _equations(inner[0], operands, out)
        else:
            for body in inner:
                yield from _equations(body, [any(operands)] * len(body.invars), [])
        yield equation, operands, out
        varies.update(zip(equation.outvars, out, strict=True))
    results += of(jaxpr.outvars)


def _jaxprs(equation) -> list[Any]:
    leaves = jax.tree.leaves(list(equation.params.values()), is_leaf=_is_jaxpr)
    return [leaf for leaf in leaves if _is_jaxpr(leaf)]


def _is_jaxpr(value: Any) -> bool:
    return hasattr(value, "eqns") or hasattr(getattr(value, "jaxpr", None), "eqns")


def _open(jaxpr: Any) -> Any:
    """Returns a jaxpr without its constants."""
    return getattr(jaxpr, "jaxpr", jaxpr)


def _threefry():
    return jax.eval_shape(lambda: jax.random.key(0, impl="threefry2x32")).dtype
