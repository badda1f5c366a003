"""Gates that are computed side by side, taken apart: each gate on arrays of its own.

A cell multiplies by the kernels of its gates side by side and splits the result:

    i, f, g, o = jnp.split(h @ jnp.concatenate([ki, kf, kg, ko], -1) + z, 4, -1)

This is one product of the right size for one device. But if features are sharded over
devices, a device holds a part of each kernel, and needs a part of each gate. The
concatenation and the split then move data between devices, the split at every step.
The same step with the gates apart moves nothing but `h`:

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

from rnncells.recurrence.jaxprs import (
    Atom,
    Equations,
    Stages,
    Variable,
    bind,
    is_variable,
)
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
    splitter = _GateSplitter(counts, equations.stages(), recurrence)

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
                if is_variable(v) and v.aval.shape[-1:] == (width,)
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
        name, (result, *rest) = equation.primitive.name, equation.outvars
        gates = [operand.arrays for operand in operands if isinstance(operand, _Gates)]
        if gates and name == "split":
            shapes = [v.aval.shape for v in equation.outvars]
            if shapes == [gate.shape for gate in gates[0]]:
                return gates[0]
        if gates and name == "reduce_sum":
            last = len(equation.invars[0].aval.shape) - 1
            if last in equation.params["axes"]:
                terms = [bind(equation, [gate])[0] for gate in gates[0]]
                return [sum(terms[1:], terms[0])]
        count = len(gates[0]) if gates else self.counts.get(result, 0)
        if count and not rest:
            by_gate = self._by_gate(equation, operands, count)
            if by_gate is not None:
                return [_Gates(by_gate)]
        return bind(equation, list(map(_concatenated, operands)))

    def _by_gate(
        self, equation: Any, operands: list[Any], count: int
    ) -> list[Array] | None:
        """Returns the result of an equation for each gate; None if it has no such."""
        name, shape = equation.primitive.name, equation.outvars[0].aval.shape
        if name == "concatenate":
            widths = [v.aval.shape[-1] for v in equation.invars]
            is_last = equation.params["dimension"] == len(shape) - 1
            are_gates = len(widths) == count and len(set(widths)) == 1
            return list(map(_concatenated, operands)) if is_last and are_gates else None
        if name == "dot_general":
            lhs, rhs = operands
            (_, contracted), (_, batch) = equation.params["dimension_numbers"]
            if len(equation.invars[1].aval.shape) - 1 in (*contracted, *batch):
                return None
            gates = self._gates_in(equation.invars[1], rhs, count)
            lhs = _concatenated(lhs)
            return gates and [bind(equation, [lhs, gate])[0] for gate in gates]
        if name in ELEMENTWISE:
            parts = [
                self._gates_in(v, operand, count)
                if v.aval.shape[-1:] == shape[-1:]
                else [_concatenated(operand)] * count
                for v, operand in zip(equation.invars, operands, strict=True)
            ]
            if None in parts:
                return None
            return [bind(equation, list(gate))[0] for gate in zip(*parts, strict=True)]
        if name in ("broadcast_in_dim", "reshape"):
            return self._reshaped(equation, operands[0], count)
        return None

    def _reshaped(self, equation: Any, operand: Any, count: int) -> list[Array] | None:
        (atom, *_), shape = equation.invars, equation.outvars[0].aval.shape
        part, last = (*shape[:-1], shape[-1] // count), len(shape) - 1
        axes = equation.params.get("broadcast_dimensions", (last,))
        has_features = atom.aval.shape[-1:] == shape[-1:] and axes[-1:] == (last,)
        gates = self._gates_in(atom, operand, count) if has_features else None
        if equation.primitive.name == "reshape":
            return gates and [gate.reshape(part) for gate in gates]
        if not has_features:
            gates = [_concatenated(operand)] * count
        return gates and [jax.lax.broadcast_in_dim(gate, part, axes) for gate in gates]

    def _gates_in(self, atom: Atom, operand: Any, count: int) -> list[Array] | None:
        """Returns an array for each gate; None if they are not known.

        What does not depend on the carry can be sliced, outside of the loop over steps.
        """
        if isinstance(operand, _Gates):
            return operand.arrays if len(operand.arrays) == count else None
        is_of_loop = is_variable(atom) and self.stages[atom] >= self.recurrence
        if is_of_loop or atom.aval.shape[-1] % count:
            return None
        return jnp.split(operand, count, -1)


def _concatenated(value: Any) -> Any:
    return value.concatenated if isinstance(value, _Gates) else value
