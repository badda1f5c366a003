"""A function as the steps of PyTorch's size, each of one or a few equations of JAX.

JAX records smaller operations than PyTorch. These equations become one step:

* a product and the addition of a bias, a row that is the same for all rows: `Addmm`;
* the sum over elements divided by their number: `Mean`;
* a slice of one index whose axis is dropped: `Select`;
* slices of all indices of an axis, when an array is iterated over: `Unbind`;
* new leading axes of size 1 with the elementwise operation that reads them, because
  broadcasting is no operation of its own.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

from jax import Array

from rnncells.diagnostics.graph import operations
from rnncells.recurrence import primitives
from rnncells.recurrence.jaxprs import (
    Atom,
    Equations,
    Variable,
    bind,
    is_variable,
    live_equations,
)


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
    """Groups the equations of a function into steps.

    Equations that are a part of another one's step can have a step, too.
    """

    def __init__(self, equations: Equations):
        # An array that is iterated over can have parts that no result depends on.
        self._equations = equations._replace(equations=tuple(equations.jaxpr.eqns))
        self._users = self._equations.users()
        self._producers = self._equations.producers()

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
