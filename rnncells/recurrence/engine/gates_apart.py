"""Gates that are computed side by side, taken apart: each gate on arrays of its own.

A cell multiplies by the kernels of its gates side by side and splits the result:

    i, f, g, o = jnp.split(h @ jnp.concatenate([ki, kf, kg, ko], -1) + z, 4, -1)

If features are sharded over devices, a device holds a part of each kernel, and needs a
part of each gate. The concatenation and the split then move data between devices, the
split at every step. The same step with the gates apart moves nothing but `h`:

    i, f, g, o = h @ ki + zi, h @ kf + zf, h @ kg + zg, h @ ko + zo

The engine joins these products again, with the gates on an axis of their own (see
`affine.stacked`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
from chex import ArrayTree
from jax import Array

from rnncells.recurrence import jaxprs
from rnncells.recurrence.jaxprs import Atom, Equations, Stages, Variable
from rnncells.recurrence.primitives import ELEMENTWISE

# Where gates side by side can begin.
_PASSES_ON = ELEMENTWISE | {"broadcast_in_dim", "dot_general", "reshape"}


def split_gates(equations: Equations, recurrence: int) -> Callable | None:
    """Returns a step with its gates apart, as a function of its arguments.

    None if the step does not split an array into gates of equal width. `recurrence` is
    the stage of what depends on the carry.
    """
    counts = _gates_of(equations)
    if not counts:
        return None
    splitter = _GateSplitter(counts, equations.stages, recurrence)

    def step(*args: ArrayTree) -> list[Array]:
        return [_concatenated(value) for value in equations(*args, rule=splitter)]

    return step


def _gates_of(equations: Equations) -> dict[Variable, int]:
    """Returns how many gates are side by side in each variable that is split."""
    counts = {}
    for equation in reversed(equations.equations):
        (result, *_) = equation.outvars
        if equation.primitive.name == "split":
            (operand,) = equation.invars
            sizes = equation.params["sizes"]
            is_of_gates = equation.params["axis"] == len(operand.aval.shape) - 1
            if is_of_gates and len(set(sizes)) == 1 < len(sizes):
                counts[operand] = len(sizes)
        elif result in counts and equation.primitive.name in _PASSES_ON:
            width = result.aval.shape[-1]
            is_product = equation.primitive.name == "dot_general"
            counts |= {
                v: counts[result]
                for v in equation.invars[int(is_product) :]
                if jaxprs.is_variable(v) and v.aval.shape[-1:] == (width,)
            }
    return counts


@dataclass(eq=False)
class _Gates:
    """An array as one array for each gate."""

    arrays: list[Array]

    @cached_property
    def concatenated(self) -> Array:
        return jnp.concatenate(self.arrays, -1)


@dataclass
class _GateSplitter:
    """A rule that evaluates equations gate by gate, where values are `_Gates`."""

    counts: dict[Variable, int]
    stages: Stages
    recurrence: int

    def __call__(self, equation: Any, operands: list[Any]) -> list[Any]:
        name, results = equation.primitive.name, equation.outvars
        gates = next((x.arrays for x in operands if isinstance(x, _Gates)), [])
        if gates and name == "split":
            if [v.aval.shape for v in results] == [gate.shape for gate in gates]:
                return gates
        if gates and name == "reduce_sum":
            if len(equation.invars[0].aval.shape) - 1 in equation.params["axes"]:
                first, *terms = [jaxprs.bind(equation, [gate])[0] for gate in gates]
                return [sum(terms, first)]
        count = len(gates) or self.counts.get(results[0], 0)
        if count and name in _RULES:
            in_loop = [
                jaxprs.is_variable(v) and self.stages[v] >= self.recurrence
                for v in equation.invars
            ]
            rule_operands = _Operands(operands, equation.invars, in_loop, count)
            by_gate = _RULES[name](equation, rule_operands)
            if by_gate is not None:
                return [_Gates(by_gate)]
        return jaxprs.bind(equation, list(map(_concatenated, operands)))


@dataclass
class _Operands:
    """The operands of an equation, to be read whole or as `count` gates."""

    values: list[Any]
    atoms: list[Atom]
    in_loop: list[bool]  # whether they depend on the carry
    count: int

    def whole(self, k: int) -> Array:
        return _concatenated(self.values[k])

    def gates(self, k: int) -> list[Array] | None:
        """Returns an array for each gate; None if they are not known.

        What does not depend on the carry can be sliced, outside of the loop over steps.
        """
        operand = self.values[k]
        if isinstance(operand, _Gates):
            return operand.arrays if len(operand.arrays) == self.count else None
        if self.in_loop[k] or self.atoms[k].aval.shape[-1] % self.count:
            return None
        return jnp.split(operand, self.count, -1)


def _concatenate(equation: Any, operands: _Operands) -> list[Array] | None:
    shapes = [v.aval.shape for v in operands.atoms]
    is_last = equation.params["dimension"] == len(shapes[0]) - 1
    are_gates = len({shape[-1] for shape in shapes}) == 1
    if not is_last or not are_gates or len(shapes) != operands.count:
        return None
    return list(map(operands.whole, range(operands.count)))


def _product(equation: Any, operands: _Operands) -> list[Array] | None:
    (_, contracted), (_, batch) = equation.params["dimension_numbers"]
    if len(operands.atoms[1].aval.shape) - 1 in (*contracted, *batch):
        return None
    gates = operands.gates(1)
    lhs = operands.whole(0)
    return gates and [jaxprs.bind(equation, [lhs, gate])[0] for gate in gates]


def _elementwise(equation: Any, operands: _Operands) -> list[Array] | None:
    width = equation.outvars[0].aval.shape[-1:]
    parts = [
        operands.gates(k)
        if v.aval.shape[-1:] == width
        else [operands.whole(k)] * operands.count
        for k, v in enumerate(operands.atoms)
    ]
    if len(equation.outvars) > 1 or None in parts:
        return None
    by_gate = zip(*parts, strict=True)
    return [jaxprs.bind(equation, list(gate))[0] for gate in by_gate]


def _reshaped(equation: Any, operands: _Operands) -> list[Array] | None:
    """Returns the gates of a reshaped or repeated array, whose features stay last."""
    *leading, width = shape = equation.outvars[0].aval.shape
    part = *leading, width // operands.count
    last = len(leading)
    axes = equation.params.get("broadcast_dimensions", (last,))
    is_last = operands.atoms[0].aval.shape[-1:] == shape[-1:] and axes[-1:] == (last,)
    gates = operands.gates(0) if is_last else None
    if equation.primitive.name == "reshape":
        return gates and [gate.reshape(part) for gate in gates]
    if not is_last:
        gates = [operands.whole(0)] * operands.count
    return gates and [jax.lax.broadcast_in_dim(gate, part, axes) for gate in gates]


# From an equation to its result for each gate; None if it is not known.
_RULES: dict[str, Callable] = {
    **dict.fromkeys(ELEMENTWISE, _elementwise),
    "concatenate": _concatenate,
    "dot_general": _product,
    "broadcast_in_dim": _reshaped,
    "reshape": _reshaped,
}


def _concatenated(value: Any) -> Any:
    return value.concatenated if isinstance(value, _Gates) else value
