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

import jax

from rnncells.diagnostics.graph import names
from rnncells.recurrence.jaxprs import (
    INLINED,
    Atom,
    Equations,
    Variable,
    bind,
    is_variable,
)

# Elementwise operations, which broadcast their operands.
_ELEMENTWISE = ("add", "sub", "mul", "div", "max", "min", "pow", "atan2")
_CALLS = ("jit", "custom_jvp_call", "custom_vjp_call")
_COMMUTATIVE = ("add", "mul", "max", "min")


@dataclass(frozen=True, eq=False)
class Step:
    """An operation of the forward pass.

    Attributes:
      name: name of its node.
      equation: its main equation.
      operands: variables and literals.
      results: variables.
      function: maps the values of the operands to a list of those of the results.
      exponent: of a power, if it is a number.
    """

    name: str
    equation: Any
    operands: tuple[Atom, ...]
    results: tuple[Variable, ...]
    function: Callable[..., list[jax.Array]]
    exponent: float | None = None


def is_inlined(equation: Any) -> bool:
    """Says whether an equation is a call of no meaning: `jit` of most functions."""
    primitive = equation.primitive.name
    named = equation.params.get("name") in names.FUNCTIONS
    return primitive in INLINED and primitive != "remat2" and not named


def steps(equations: Equations) -> list[Step]:
    """Returns the steps of a function in the order of its forward pass."""
    return _Grouping(equations).steps()


class _Grouping:
    """Groups the equations of a function into steps."""

    def __init__(self, equations: Equations):
        self._needed = equations.equations
        self._results = equations.results
        self._all = equations.jaxpr.eqns
        self._uses = equations.use_counts()
        self._makers = equations.producers()
        self._grouped: set[int] = set()

    def steps(self) -> list[Step]:
        unbound = self._unbound()
        grouped = [
            unbound.get(id(e)) or self._mean(e) or self._affine(e) or self._selected(e)
            for e in self._needed
        ]
        found = [
            step or self._single(equation)
            for step, equation in zip(grouped, self._needed, strict=True)
            if step or id(equation) not in self._grouped
        ]
        return _needed(found, self._results)

    def _take(self, *equations):
        self._grouped.update(map(id, equations))

    def _made_by(self, atom, *primitives, uses=None):
        """Returns the equation of a value if it is one of the primitives."""
        maker = self._makers.get(atom) if is_variable(atom) else None
        if maker is None or maker.primitive.name not in primitives:
            return None
        return maker if uses in (None, self._uses[atom]) else None

    def _unbound(self) -> dict[int, Step]:
        """Finds iteration over an axis, and returns a step for its first equation.

        jax 0.10 slices once for each index, and states the strides; an index `x[0]`
        does not state them.
        """
        found: dict[int, Step] = {}
        slices: dict[Any, Any] = {}
        squeezes = {e.invars[0]: e for e in self._all if e.primitive.name == "squeeze"}
        for equation in self._all:
            if equation.primitive.name == "slice" and equation.params["strides"]:
                squeeze = squeezes.get(equation.outvars[0])
                axis = squeeze and squeeze.params["dimensions"]
                slices.setdefault((equation.invars[0], axis), []).append(equation)
        for (operand, axis), group in slices.items():
            if axis is None or not _covers(operand, axis, group):
                continue
            pairs = [(e, squeezes[e.outvars[0]]) for e in group]
            inside = [e for pair in pairs for e in pair]
            first = next((e for e in self._needed if id(e) in map(id, inside)), None)
            if first is None:
                continue
            self._take(*inside)
            results = tuple(squeeze.outvars[0] for _, squeeze in pairs)
            function = partial(_unbind, pairs)
            found[id(first)] = Step("Unbind", first, (operand,), results, function)
        return found

    def _mean(self, equation) -> Step | None:
        if equation.primitive.name != "div":
            return None
        total, count = equation.invars
        summed = self._made_by(total, "reduce_sum", uses=1)
        if summed is None or is_variable(count):
            return None
        (operand,) = summed.invars
        if prod(operand.aval.shape[k] for k in summed.params["axes"]) != count.val:
            return None
        self._take(summed, equation)
        return Step(
            "Mean",
            equation,
            (operand,),
            tuple(equation.outvars),
            lambda x: bind(equation, [*bind(summed, [x]), count.val]),
        )

    def _selected(self, equation) -> Step | None:
        if equation.primitive.name != "squeeze" or id(equation) in self._grouped:
            return None
        part = self._made_by(equation.invars[0], "slice", uses=1)
        if part is None or id(part) in self._grouped:
            return None
        self._take(part, equation)
        return Step(
            "Select",
            equation,
            tuple(part.invars),
            tuple(equation.outvars),
            lambda x: bind(equation, bind(part, [x])),
        )

    def _affine(self, equation) -> Step | None:
        """Returns the step of a product with a bias; PyTorch lists the bias first."""
        if equation.primitive.name != "add":
            return None
        for k in (0, 1):
            product = self._made_by(equation.invars[k], "dot_general", uses=1)
            bias = self._promoted(equation.invars[1 - k])
            if product is None or bias is None or _has_batch_axes(product):
                continue
            if bias.invars[0].aval.shape != equation.outvars[0].aval.shape[-1:]:
                continue
            self._take(product, equation)
            return Step(
                "Addmm",
                equation,
                (bias.invars[0], *product.invars),
                tuple(equation.outvars),
                partial(_add_product, equation, product, bias),
            )
        return None

    def _promoted(self, atom):
        """Returns the equation that gives a value leading axes of size 1, or None."""
        maker = self._made_by(atom, "broadcast_in_dim", "reshape")
        if maker is None:
            return None
        old, new = maker.invars[0].aval.shape, maker.outvars[0].aval.shape
        added = len(new) - len(old)
        return maker if added > 0 and new == (1,) * added + old else None

    def _single(self, equation) -> Step:
        name, exponent = names.of_equation(equation), None
        primitive = equation.primitive.name
        order = list(range(len(equation.invars)))
        if primitive == "integer_pow":
            exponent = equation.params["y"]
        elif primitive == "square":
            exponent = 2
        elif primitive == "pow" and not is_variable(equation.invars[1]):
            exponent, order = float(equation.invars[1].val), [0]
        elif primitive == "sub" and not is_variable(equation.invars[0]):
            name, order = "Rsub", [1]
        elif primitive in _COMMUTATIVE and not is_variable(equation.invars[0]):
            order = [1, 0]
        elif primitive == "select_n" and len(order) == 3:
            order = [0, 2, 1]
        elif primitive in _CALLS:
            order = [k for k in order if is_variable(equation.invars[k])]
        operands, prefixes = list(equation.invars), {}
        if primitive in _ELEMENTWISE:
            prefixes = {k: self._promoted(operands[k]) for k in order}
            prefixes = {k: maker for k, maker in prefixes.items() if maker is not None}
            for k, maker in prefixes.items():
                operands[k] = maker.invars[0]
        return Step(
            name,
            equation,
            tuple(operands[k] for k in order),
            tuple(equation.outvars),
            partial(_call, equation, order, prefixes),
            exponent,
        )


def _needed(steps: Sequence[Step], results: Sequence[Atom]) -> list[Step]:
    """Returns the steps that results depend on, in order."""
    read, kept = set(filter(is_variable, results)), []
    for step in reversed(steps):
        if read & set(step.results):
            read |= set(filter(is_variable, step.operands))
            kept.append(step)
    return kept[::-1]


def _covers(operand: Any, axis: tuple[int, ...], group: Sequence[Any]) -> bool:
    """Says whether slices are all indices of an axis, in order."""
    if len(axis) != 1 or operand.aval.shape[axis[0]] != len(group):
        return False
    size = operand.aval.shape
    part = tuple(1 if k in axis else n for k, n in enumerate(size))
    starts = [e.params["start_indices"][axis[0]] for e in group]
    whole = all(e.outvars[0].aval.shape == part for e in group)
    return whole and starts == list(range(len(group)))


def _has_batch_axes(product) -> bool:
    (_, (batch, _)) = product.params["dimension_numbers"]
    return bool(batch) or any(len(v.aval.shape) < 2 for v in product.invars)


def _unbind(pairs, x):
    return [bind(squeeze, bind(part, [x]))[0] for part, squeeze in pairs]


def _add_product(equation, product, bias, b, x, w):
    return bind(equation, [*bind(product, [x, w]), *bind(bias, [b])])


def _call(equation, order, prefixes, *values):
    operands = [None if is_variable(v) else v.val for v in equation.invars]
    for k, value in zip(order, values, strict=True):
        operands[k] = bind(prefixes[k], [value])[0] if k in prefixes else value
    return bind(equation, operands)
