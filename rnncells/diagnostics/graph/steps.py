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
    return live_equations(_Grouping(equations).steps(), equations.results)


class _Grouping:
    """Groups the equations of a function into steps.

    Equations that are a part of another one's step can have a step, too.
    """

    def __init__(self, equations: Equations):
        self._equations = equations
        self._users = equations.users()
        self._producers = equations.producers()

    def steps(self) -> list[Step]:
        unbound, inside = self._unbound()
        return [
            unbound.get(id(e))
            or self._mean(e)
            or self._affine(e)
            or self._selected(e)
            or self._single(e)
            for e in self._equations.equations
            if id(e) in unbound or id(e) not in inside
        ]

    def _produced_by(self, atom: Atom, *names: str, uses: int | None = None) -> Any:
        """Returns the equation of a value if it is one of the primitives."""
        producer = self._producers.get(atom) if is_variable(atom) else None
        if producer is None or producer.primitive.name not in names:
            return None
        return producer if uses in (None, len(self._users[atom])) else None

    def _unbound(self) -> tuple[dict[int, Step], set[int]]:
        """Returns the steps of iterations over an axis, and the equations inside.

        The key of a step is its first equation. jax 0.10 slices once for each index,
        and states the strides; an index `x[0]` does not state them.
        """
        slices: dict[Any, Any] = {}
        every = self._equations.jaxpr.eqns
        squeezes = {e.invars[0]: e for e in every if e.primitive.name == "squeeze"}
        for equation in every:
            squeeze = squeezes.get(equation.outvars[0]) if equation.outvars else None
            if equation.primitive.name == "slice" and equation.params["strides"]:
                axis = squeeze and squeeze.params["dimensions"]
                slices.setdefault((equation.invars[0], axis), []).append(equation)
        first, inside = {}, set()
        for (operand, axis), group in slices.items():
            if axis is None or not _covers(operand, axis, group):
                continue
            pairs = [(part, squeezes[part.outvars[0]]) for part in group]
            ids = {id(e) for pair in pairs for e in pair}
            live = [e for e in self._equations.equations if id(e) in ids]
            if live:
                inside |= ids
                outvars = [squeeze.outvars[0] for _, squeeze in pairs]
                function = partial(_unbind, pairs)
                first[id(live[0])] = Step(
                    "Unbind", live[0], [operand], outvars, function
                )
        return first, inside

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


def _covers(operand: Any, axis: tuple[int, ...], group: Sequence[Any]) -> bool:
    """Says whether slices are all indices of an axis, in order."""
    if len(axis) != 1 or operand.aval.shape[axis[0]] != len(group):
        return False
    size = operand.aval.shape
    part = tuple(1 if k in axis else n for k, n in enumerate(size))
    starts = [e.params["start_indices"][axis[0]] for e in group]
    whole = all(e.outvars[0].aval.shape == part for e in group)
    return whole and starts == list(range(len(group)))


def _unbind(pairs: Sequence[tuple[Any, Any]], x: Array) -> list[Array]:
    return [bind(squeeze, bind(part, [x]))[0] for part, squeeze in pairs]
