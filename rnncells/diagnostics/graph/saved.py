"""The values that an operation keeps for its backward pass.

The function that `jax.vjp` returns holds them. If it is traced, they are variables of a
jaxpr: an operand, a result, or what was computed from them.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import Array

from rnncells.diagnostics.graph.nodes import Saved
from rnncells.diagnostics.graph.steps import Step
from rnncells.recurrence.jaxprs import (
    Atom,
    Variable,
    inner_jaxprs,
    is_variable,
    trace,
)
from rnncells.recurrence.pytrees import is_inexact, structs

# Formulas of computed values; others are named by their function: `cos(x)`.
_INFIX = {"add": "+", "add_any": "+", "sub": "-", "mul": "*", "div": "/", "pow": "^"}
_INFIX |= {"gt": ">", "lt": "<", "eq": "=", "ge": ">=", "le": "<="}
_LONGEST_FORMULA = 30


def derivative(
    step: Step,
    wanted: Sequence[int],
    letters: Sequence[str],
    names: Sequence[str | None],
) -> tuple[list[bool], list[Saved]]:
    """Traces the backward pass of a step.

    Returns, for each operand in `wanted`, whether its gradient depends on the gradient
    of the result: not if the derivative is zero everywhere. And the values that are
    kept, in the `letters` of the operands; `names` are those of arguments and
    constants.
    """
    if step.equation.primitive.name == "while":
        return [True] * len(wanted), []
    traced = [k for k, v in enumerate(step.invars) if is_variable(v)]
    literals = {k: v.val for k, v in enumerate(step.invars) if not is_variable(v)}

    def forward(*values: Array) -> tuple[list[Array], Callable]:
        operands = literals | dict(zip(traced, values, strict=True))

        def function(varied: dict[int, Array]) -> tuple[list[Array], list[Array]]:
            arguments = operands | varied
            results = step.function(*(arguments[k] for k in sorted(arguments)))
            return [r for r in results if is_inexact(r)], results

        primals = {k: operands[k] for k in wanted}
        _, vjp, results = jax.vjp(function, primals, has_aux=True)
        return results, vjp

    avals = [step.invars[k].aval for k in traced]
    inputs = [
        jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=a.weak_type) for a in avals
    ]
    jaxpr, (results, vjp) = jax.make_jaxpr(forward, return_shape=True)(*inputs)
    operands = [(letters[k], "operand", step.invars[k], names[k]) for k in traced]
    values = _SavedValues(step, jaxpr.jaxpr, operands, letters, len(results))
    kept = filter(is_variable, jaxpr.jaxpr.outvars[len(results) :])
    variables = dict.fromkeys(v for v in kept if v not in jaxpr.jaxpr.constvars)
    return _passes(vjp, results), [values.saved(v) for v in variables]


def _passes(vjp: Callable, results: Sequence[Any]) -> list[bool]:
    """Returns which gradients depend on those of the results."""
    leaves, tree = jax.tree.flatten(vjp)
    cotangents = [r for r in results if is_inexact(r)]

    def pullback(leaves: list[Any], cotangents: list[Array]) -> Any:
        return jax.tree.unflatten(tree, leaves)(cotangents)

    equations, _ = trace(pullback, leaves, cotangents)
    stages = equations.stages()
    return [is_variable(v) and stages[v] == 1 for v in equations.results]


class _SavedValues:
    """The variables of a traced forward pass as values that a step saves."""

    def __init__(
        self,
        step: Step,
        jaxpr: Any,
        operands: Sequence[tuple[str, str, Atom, str | None]],
        letters: Sequence[str],
        results: int,
    ):
        names = ["z"] if results == 1 else [f"z{k}" for k in range(results)]
        outvars = zip(jaxpr.outvars[:results], names, step.outvars, strict=True)
        # Of each operand and result: formula, source, array and name, as of `Saved`.
        self._ends = {
            v: (name, "result", of, None) for v, name, of in outvars if is_variable(v)
        }
        self._ends |= dict(zip(jaxpr.invars, operands, strict=True))
        self._letters: dict[str, Atom] = {}
        if len(step.equation.invars) == len(step.invars):
            self._letters = dict(zip(letters, step.equation.invars, strict=True))
        self._producers = {v: e for e in jaxpr.eqns for v in e.outvars}

    def saved(self, variable: Variable) -> Saved:
        kind = structs(variable.aval)
        if variable in self._ends:
            formula, source, of, name = self._ends[variable]
            return Saved(formula, source, kind, of, name)
        formula = self._formula(variable)
        if len(formula) > _LONGEST_FORMULA:
            formula = "computed"
        # An operand that is broadcast has its letter.
        of = self._letters.get(formula, object())
        return Saved(formula, "computed", kind, of)

    def _formula(self, atom: Atom) -> str:
        if not is_variable(atom):
            return f"{atom.val:g}" if atom.aval.shape == () else "constant"
        if atom in self._ends:
            return self._ends[atom][0]
        equation = self._producers.get(atom)
        if equation is None:
            return "constant"
        name = equation.primitive.name
        if inner_jaxprs(equation) or len(equation.outvars) > 1:
            return "computed by " + equation.params.get("name", name)
        if name in ("broadcast_in_dim", "convert_element_type", "copy"):
            return self._formula(equation.invars[0])
        terms = [self._formula(v) for v in equation.invars]
        if name == "one_minus_square":
            return f"1 - {terms[0]}^2"
        if name == "integer_pow":
            return f"{terms[0]}^{equation.params['y']}"
        if name in _INFIX and len(terms) == 2:
            terms = [f"({t})" if " " in t else t for t in terms]
            return f" {_INFIX[name]} ".join(terms)
        return f"{name}({', '.join(terms)})"
