"""The values that an operation keeps for its backward pass, found by tracing that.

`jax.vjp` of an operation returns a function that holds the values it needs. If it is
traced, these values are variables of a jaxpr: an operand, a result, or what was
computed from them.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from rnncells.recurrence.jaxprs import inner_jaxprs, is_variable
from rnncells.recurrence.pytrees import is_inexact

# Formulas of computed values; others are named by their function: `cos(x)`.
_INFIX = {"add": "+", "add_any": "+", "sub": "-", "mul": "*", "div": "/", "pow": "^"}
_INFIX |= {"gt": ">", "lt": "<", "eq": "=", "ge": ">=", "le": "<="}
_LONGEST_FORMULA = 30


class Residual(NamedTuple):
    """A value that is kept for a backward pass.

    Attributes:
      formula: the value, in the letters of operands (`x`) and results (`z`).
      source: `"operand"`, `"result"` or `"computed"`.
      number: of the operand or the result; of a computed value, the number of the
        operand that it is, broadcast, or -1.
      struct: shape and dtype.
    """

    formula: str
    source: str
    number: int
    struct: Any


class Derivative(NamedTuple):
    """The dependencies of the backward pass of an operation.

    Attributes:
      passes: for each operand that requires a gradient, whether its gradient depends on
        the gradient of the result: not if the derivative is zero everywhere.
      residuals: values that are kept for the backward pass.
    """

    passes: list[bool]
    residuals: list[Residual]


def vjp_of(function: Callable, operands: Sequence[Any], wanted: Sequence[int]):
    """Returns the results of an operation, and its backward pass as a function.

    Args:
      function: maps operands to a list of results.
      operands: values of all operands.
      wanted: numbers of the operands whose gradients the backward pass returns.
    """

    def function_of_wanted(*varied):
        values = list(operands)
        for k, value in zip(wanted, varied, strict=True):
            values[k] = value
        return function(*values)

    return jax.vjp(function_of_wanted, *(operands[k] for k in wanted))


def derivative(
    function: Callable,
    operands: Sequence[Any],
    wanted: Sequence[int],
    letters: Sequence[str],
) -> Derivative:
    """Traces the backward pass of an operation.

    Args:
      function: maps operands to a list of results.
      operands: shapes and dtypes of variables, and values of constants.
      wanted: numbers of the operands that require gradients.
      letters: of the operands, for formulas.
    """
    traced = [k for k, v in enumerate(operands) if isinstance(v, jax.ShapeDtypeStruct)]

    def forward(*values):
        filled = list(operands)
        for k, value in zip(traced, values, strict=True):
            filled[k] = value
        return vjp_of(function, filled, wanted)

    structs = [operands[k] for k in traced]
    jaxpr, (results, vjp) = jax.make_jaxpr(forward, return_shape=True)(*structs)
    leaves, tree = jax.tree.flatten(vjp)
    traced_letters = [letters[k] for k in traced]
    formulas = _Formulas(jaxpr.jaxpr, traced_letters, traced, len(results))
    kept = filter(is_variable, jaxpr.jaxpr.outvars[len(results) :])
    variables = dict.fromkeys(v for v in kept if v not in jaxpr.jaxpr.constvars)
    residuals = list(map(formulas.residual, variables))
    return Derivative(_passes(leaves, tree, results), residuals)


def cotangents_of(results: Sequence[Any], inexact: Sequence[Any]) -> list[Any]:
    """Returns cotangents of all results, from those of the inexact ones."""
    remaining = iter(inexact)
    return [
        next(remaining) if is_inexact(r) else np.zeros(r.shape, jax.dtypes.float0)
        for r in results
    ]


def _passes(leaves, tree, results) -> list[bool]:
    """Returns which gradients depend on the cotangents of the results."""
    inexact = [r for r in results if is_inexact(r)]

    def pullback(leaves, cotangents):
        return tree.unflatten(leaves)(cotangents_of(results, cotangents))

    jaxpr = jax.make_jaxpr(pullback)(leaves, inexact).jaxpr
    depends = set(jaxpr.invars[len(leaves) :])
    for equation in jaxpr.eqns:
        if depends.intersection(filter(is_variable, equation.invars)):
            depends.update(equation.outvars)
    return [is_variable(v) and v in depends for v in jaxpr.outvars]


class _Formulas:
    """Formulas of the variables of a traced forward pass."""

    def __init__(self, jaxpr, letters, numbers, results):
        names = ["z"] if results == 1 else [f"z{k}" for k in range(results)]
        outvars = zip(jaxpr.outvars[:results], names, range(results), strict=True)
        # Of each variable: its formula, its source, and the number there.
        self._known = {v: (z, "result", k) for v, z, k in outvars if is_variable(v)}
        operands = zip(jaxpr.invars, letters, numbers, strict=True)
        self._known |= {v: (letter, "operand", k) for v, letter, k in operands}
        self._letters = dict(zip(letters, numbers, strict=True))
        self._producers = {v: e for e in jaxpr.eqns for v in e.outvars}

    def residual(self, variable) -> Residual:
        struct = jax.ShapeDtypeStruct(variable.aval.shape, variable.aval.dtype)
        if variable in self._known:
            formula, source, number = self._known[variable]
            return Residual(formula, source, number, struct)
        formula = self._formula(variable)
        if len(formula) > _LONGEST_FORMULA:
            formula = "computed"
        # An operand that is broadcast has its letter.
        return Residual(formula, "computed", self._letters.get(formula, -1), struct)

    def _formula(self, atom) -> str:
        if not is_variable(atom):
            return f"{atom.val:g}" if atom.aval.shape == () else "constant"
        if atom in self._known:
            return self._known[atom][0]
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
