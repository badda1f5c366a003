"""Operations of a step that `jax.vmap` changes or refuses.

The fast loop takes the derivative of all steps at once, by `vmap` over time.
"""

from collections.abc import Iterator
from typing import Any

import jax

from rnncells.recurrence.jaxprs import inner_jaxprs
from rnncells.recurrence.primitives import CUSTOM, INLINED


def has_side_effects(jaxpr: Any) -> bool:
    """Says whether a jaxpr has side effects, such as those of `jax.debug.print`."""
    # JAX counts the use of a named axis, as in `jax.lax.psum`, as an effect.
    return any(type(e).__name__ != "NamedAxisEffect" for e in jaxpr.effects)


def why_not_vmapped(jaxpr: Any, varying: list[bool]) -> str | None:
    """Returns why `vmap` over some operands cannot be used, None if it can.

    Args:
      jaxpr: of a step, as from `jax.make_jaxpr`.
      varying: for each operand, whether it differs from step to step.
    """
    if jaxpr.effects:
        return (
            "has side effects, such as `jax.debug.print`, or uses a named axis, as in "
            "`jax.lax.psum`"
        )
    for equation, operands, results in _equations(jaxpr, varying, []):
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


def _equations(jaxpr: Any, varying: list[bool], results: list[bool]) -> Iterator:
    """Yields `(equation, operands, results)`, with flags of what varies.

    `results` takes the flags of the results of the jaxpr itself.
    """
    varies = dict(zip(jaxpr.invars, varying, strict=True))

    def of(variables: list[Any]) -> list[bool]:
        return [not hasattr(v, "val") and varies.get(v, False) for v in variables]

    for equation in jaxpr.eqns:
        operands = of(equation.invars)
        inner = inner_jaxprs(equation)
        out = [any(operands)] * len(equation.outvars)
        if equation.primitive.name in (*INLINED, *CUSTOM):
            # Their inner jaxpr has the operands and the results of the call.
            out = []
            yield from _equations(inner[0], operands, out)
        else:
            for body in inner:
                yield from _equations(body, [any(operands)] * len(body.invars), [])
        yield equation, operands, out
        varies.update(zip(equation.outvars, out, strict=True))
    results += of(jaxpr.outvars)


def _threefry() -> Any:
    return jax.eval_shape(lambda: jax.random.key(0, impl="threefry2x32")).dtype
