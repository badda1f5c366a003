"""A function as the steps of PyTorch's size, each of one or a few equations of JAX.

JAX records smaller operations than PyTorch. These equations become one step:

* a product and the addition of a bias, a row that is the same for all rows: `Addmm`;
* the sum over elements divided by their number: `Mean`;
* a slice of one index whose axis is dropped: `Select`;
* slices of all indices of an axis, when an array is iterated over: `Unbind`;
* new leading axes of size 1 with the elementwise operation that reads them, because
  broadcasting is no operation of its own.

The function that `jax.vjp` returns holds the values that a step keeps for its backward
pass. If it is traced, they are variables of a jaxpr.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any

import jax
from jax import Array

from rnncells.diagnostics.graph import operations
from rnncells.diagnostics.graph.nodes import Saved
from rnncells.recurrence import primitives
from rnncells.recurrence.jaxprs import (
    Atom,
    Equations,
    Variable,
    bind,
    inner_jaxprs,
    is_variable,
    live_equations,
    trace,
)
from rnncells.recurrence.pytrees import is_inexact, structs

# Formulas of computed values; others are named by their function: `cos(x)`.
_INFIX = {"add": "+", "add_any": "+", "sub": "-", "mul": "*", "div": "/", "pow": "^"}
_INFIX |= {"gt": ">", "lt": "<", "eq": "=", "ge": ">=", "le": "<="}
_LONGEST_FORMULA = 30


@dataclass(frozen=True, eq=False)
class Step:
    """An operation of the forward pass.

    `name` is that of its node, `equation` its main equation. `function` maps the values
    of the operands `invars` to a list of those of the results `outvars`. A power by a
    number has an `exponent`.
    """

    name: str
    equation: Any
    invars: Sequence[Atom]
    outvars: Sequence[Variable]
    function: Callable[..., list[Array]]
    exponent: float | None = None


def is_inlined(equation: Any) -> bool:
    """Says whether an equation is a call of no meaning: `jit` of most functions."""
    primitive = equation.primitive.name
    named = equation.params.get("name") in operations.FUNCTIONS
    return primitive in primitives.INLINED and primitive != "remat2" and not named


def steps(equations: Equations) -> tuple[Step, ...]:
    """Returns the steps of a function in the order of its forward pass."""
    grouped = dict.fromkeys(_Grouping(equations).steps())
    return live_equations([*grouped], equations.results)


class _Grouping:
    """Groups equations into steps. An equation inside of a step can also have one."""

    def __init__(self, equations: Equations):
        # An array that is iterated over can have parts that no result depends on.
        self._equations = replace(equations, equations=tuple(equations.jaxpr.eqns))
        self._users = self._equations.users
        self._producers = self._equations.producers

    def steps(self) -> list[Step]:
        steps = [
            self._mean(e) or self._affine(e) or self._selected(e) or self._single(e)
            for e in self._equations.equations
        ]
        joined = self._unbound(steps)
        return [joined.get(step, step) for step in steps]

    def _produced_by(self, atom: Atom, *names: str, uses: int | None = None) -> Any:
        """Returns the equation of a value if it is one of the primitives."""
        producer = self._producers.get(atom) if is_variable(atom) else None
        if producer is None or producer.primitive.name not in names:
            return None
        return producer if uses in (None, len(self._users[atom])) else None

    def _unbound(self, steps: Sequence[Step]) -> dict[Step, Step]:
        """Returns the step of an iteration over an axis for each of its selections.

        jax 0.10 slices once for each index, and states the strides; an index `x[0]`
        does not state them.
        """
        selects = {id(self._slice(s)): s for s in steps if s.name == "Select"}
        groups: dict[Any, list[Step]] = {}
        for equation in self._equations.equations:
            if id(equation) in selects and equation.params["strides"]:
                step = selects[id(equation)]
                key = step.invars[0], step.equation.params["dimensions"]
                groups.setdefault(key, []).append(step)
        joined: dict[Step, Step] = {}
        for (x, axes), group in groups.items():
            starts = [self._slice(step).params["start_indices"] for step in group]
            sizes = {step.outvars[0].aval.size * len(group) for step in group}
            is_whole = len(axes) == 1 and sizes == {x.aval.size}
            if is_whole and [k[axes[0]] for k in starts] == list(range(len(group))):
                outvars = [v for step in group for v in step.outvars]
                function = partial(_unbind, group)
                unbind = Step("Unbind", group[0].equation, [x], outvars, function)
                joined |= dict.fromkeys(group, unbind)
        return joined

    def _slice(self, step: Step) -> Any:
        return self._producers[step.equation.invars[0]]

    def _mean(self, equation: Any) -> Step | None:
        if equation.primitive.name != "div":
            return None
        total, count = equation.invars
        summed = self._produced_by(total, "reduce_sum", uses=1)
        if summed is None or is_variable(count):
            return None
        shape = summed.invars[0].aval.shape
        is_mean = prod(shape[k] for k in summed.params["axes"]) == count.val
        return _group("Mean", equation, [0], {0: summed}) if is_mean else None

    def _selected(self, equation: Any) -> Step | None:
        if equation.primitive.name != "squeeze":
            return None
        part = self._produced_by(equation.invars[0], "slice", uses=1)
        return part and _group("Select", equation, [0], {0: part})

    def _affine(self, equation: Any) -> Step | None:
        """Returns the step of a product with a bias; PyTorch lists the bias first."""
        if equation.primitive.name != "add":
            return None
        shape = equation.outvars[0].aval.shape
        for k in (0, 1):
            product = self._produced_by(equation.invars[k], "dot_general", uses=1)
            bias = self._promoted(equation.invars[1 - k])
            if product is None or bias is None:
                continue
            (_, (batch, _)) = product.params["dimension_numbers"]
            are_matrices = all(len(v.aval.shape) > 1 for v in product.invars)
            is_row = bias.invars[0].aval.shape == shape[-1:]
            if are_matrices and is_row and not batch:
                producers = {k: product, 1 - k: bias}
                return _group("Addmm", equation, [1 - k, k], producers)
        return None

    def _promoted(self, atom: Atom) -> Any:
        """Returns the equation that gives a value leading axes of size 1, or None."""
        producer = self._produced_by(atom, "broadcast_in_dim", "reshape")
        if producer is None:
            return None
        old, new = producer.invars[0].aval.shape, producer.outvars[0].aval.shape
        added = len(new) - len(old)
        return producer if added > 0 and new == (1,) * added + old else None

    def _single(self, equation: Any) -> Step:
        name, exponent = operations.name_of(equation), None
        primitive, invars = equation.primitive.name, equation.invars
        order = list(range(len(invars)))
        if primitive == "integer_pow":
            exponent = equation.params["y"]
        elif primitive == "square":
            exponent = 2
        elif primitive == "pow" and not is_variable(invars[1]):
            exponent, order = float(invars[1].val), [0]
        elif primitive == "sub" and not is_variable(invars[0]):
            name, order = "Rsub", [1]
        elif primitive in primitives.COMMUTATIVE and not is_variable(invars[0]):
            order = [1, 0]
        elif primitive == "select_n" and len(order) == 3:
            order = [0, 2, 1]
        elif primitive in ("jit", *primitives.CUSTOM):
            order = [k for k in order if is_variable(invars[k])]
        producers = {}
        if primitive in primitives.BINARY:
            producers = {k: self._promoted(invars[k]) for k in order}
            producers = {k: e for k, e in producers.items() if e is not None}
        return _group(name, equation, order, producers, exponent)


def _group(
    name: str,
    equation: Any,
    order: Sequence[int],
    producers: dict[int, Any],
    exponent: float | None = None,
) -> Step:
    """Returns the step of an equation and of those that produce its operands.

    `order` has the numbers of its operands in the order of the step's; the others are
    literals. `producers` are equations of operands, by the number of the operand.
    """
    operands = [
        producers[k].invars if k in producers else [equation.invars[k]] for k in order
    ]

    def function(*values: Array) -> list[Array]:
        remaining = iter(values)
        inputs: list[Any] = [None if is_variable(v) else v.val for v in equation.invars]
        for k, atoms in zip(order, operands, strict=True):
            of_operand = [next(remaining) for _ in atoms]
            if k in producers:
                of_operand = bind(producers[k], of_operand)
            (inputs[k],) = of_operand
        return bind(equation, inputs)

    invars = [v for atoms in operands for v in atoms]
    return Step(name, equation, invars, equation.outvars, function, exponent)


def _unbind(selections: Sequence[Step], x: Array) -> list[Array]:
    return [step.function(x)[0] for step in selections]


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
    stages = equations.stages
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
