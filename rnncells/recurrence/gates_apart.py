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
from typing import Any

import chex
import jax
import jax.numpy as jnp

from rnncells.recurrence.jaxprs import (
    Atom,
    Equations,
    Stages,
    Values,
    Variable,
    bind,
    is_variable,
)

# Functions of one element of each operand.
_ELEMENTWISE = (
    *("add", "add_any", "sub", "mul", "div", "neg", "max", "min", "select_n"),
    *("exp", "tanh", "logistic", "sqrt", "rsqrt", "square", "integer_pow"),
    *("convert_element_type", "name"),
)
# Where gates side by side can begin.
_PASSES_ON = (*_ELEMENTWISE, "broadcast_in_dim", "dot_general", "reshape")


def split_gates(equations: Equations, recurrence: int) -> Callable | None:
    """Returns a step with its gates apart, as a function of its arguments.

    None if the step does not split an array into gates of equal width.

    Args:
      equations: the step.
      recurrence: the stage of what depends on the carry.
    """
    counts = _gates_of(equations)
    if not counts:
        return None
    stages = equations.stages()

    def step(*args: chex.ArrayTree) -> list[jax.Array]:
        arguments = [v for leaves in equations.arguments for v in leaves]
        values = dict(zip(arguments, jax.tree.leaves(args), strict=True))
        splitter = _GateSplitter(
            values | equations.constants, counts, stages, recurrence
        )
        for equation in equations.equations:
            splitter.evaluate(equation)
        return [splitter.concatenated(v) for v in equations.results]

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


class _GateSplitter:
    """Evaluates the equations of a step, of some variables gate by gate."""

    def __init__(
        self, values: Values, counts: dict, stages: Stages, recurrence: int
    ) -> None:
        self._values = values
        self._gates: dict[Variable, list[jax.Array]] = {}
        self._counts = counts
        self._stages = stages
        self._recurrence = recurrence

    def evaluate(self, equation: Any) -> None:
        """Adds the results of an equation."""
        name, (result, *_) = equation.primitive.name, equation.outvars
        operand_gates = [self._gates[v] for v in equation.invars if self._has_gates(v)]
        is_split = name == "split" and bool(operand_gates)
        if is_split and _are_gates(equation.outvars, operand_gates[0]):
            self._values |= zip(equation.outvars, operand_gates[0], strict=True)
            return
        if name == "reduce_sum" and operand_gates and self._sums_gates(equation):
            terms = [bind(equation, [gate])[0] for gate in operand_gates[0]]
            self._values[result] = sum(terms[1:], terms[0])
            return
        count = len(operand_gates[0]) if operand_gates else self._counts.get(result, 0)
        gates = self._by_gate(equation, count) if count else None
        if gates is not None:
            self._gates[result] = gates
            return
        results = bind(equation, [self.concatenated(v) for v in equation.invars])
        self._values |= zip(equation.outvars, results, strict=True)

    def concatenated(self, atom: Atom) -> jax.Array:
        """Returns the value of a variable or a literal; gates side by side."""
        if not is_variable(atom):
            return atom.val
        if atom not in self._values:
            self._values[atom] = jnp.concatenate(self._gates[atom], -1)
        return self._values[atom]

    def _has_gates(self, atom: Atom) -> bool:
        return is_variable(atom) and atom in self._gates

    def _sums_gates(self, equation: Any) -> bool:
        (operand,) = equation.invars
        return len(operand.aval.shape) - 1 in equation.params["axes"]

    def _by_gate(self, equation: Any, count: int) -> list[jax.Array] | None:
        """Returns the result of an equation for each gate; None if it has no such."""
        if len(equation.outvars) > 1:
            return None
        name, (result,) = equation.primitive.name, equation.outvars
        shape = result.aval.shape
        if name == "concatenate":
            widths = {v.aval.shape[-1] for v in equation.invars}
            if equation.params["dimension"] != len(shape) - 1 or len(widths) > 1:
                return None
            is_one_each = len(equation.invars) == count
            return (
                [self.concatenated(v) for v in equation.invars] if is_one_each else None
            )
        if name == "dot_general":
            gates = _is_last_free(equation) and self._gates_in(
                equation.invars[1], count
            )
            lhs = self.concatenated(equation.invars[0])
            return [bind(equation, [lhs, gate])[0] for gate in gates] if gates else None
        if name in _ELEMENTWISE:
            operands = [
                self._gates_in(v, count)
                if v.aval.shape[-1:] == shape[-1:]
                else [self.concatenated(v)] * count
                for v in equation.invars
            ]
            if None in operands:
                return None
            return [
                bind(equation, list(gate))[0] for gate in zip(*operands, strict=True)
            ]
        if name in ("broadcast_in_dim", "reshape"):
            return self._reshaped(equation, count)
        return None

    def _reshaped(self, equation: Any, count: int) -> list[jax.Array] | None:
        operand, shape = equation.invars[0], equation.outvars[0].aval.shape
        part = (*shape[:-1], shape[-1] // count)
        operand_shape = operand.aval.shape
        axes = equation.params.get("broadcast_dimensions", (len(shape) - 1,))
        last = len(shape) - 1
        has_features = operand_shape[-1:] == shape[-1:] and axes[-1:] == (last,)
        gates = self._gates_in(operand, count) if has_features else None
        if equation.primitive.name == "reshape":
            return gates and [gate.reshape(part) for gate in gates]
        if not has_features:
            gates = [self.concatenated(operand)] * count
        return gates and [jax.lax.broadcast_in_dim(gate, part, axes) for gate in gates]

    def _gates_in(self, atom: Atom, count: int) -> list[jax.Array] | None:
        """Returns an array for each gate; None if they are not known.

        What does not depend on the carry can be sliced, because that is done outside of
        the loop over steps.
        """
        if self._has_gates(atom):
            gates = self._gates[atom]
            return gates if len(gates) == count else None
        is_of_loop = is_variable(atom) and self._stages[atom] >= self._recurrence
        if is_of_loop or atom.aval.shape[-1] % count:
            return None
        return jnp.split(self.concatenated(atom), count, -1)


def _are_gates(variables: list[Variable], gates: list[jax.Array]) -> bool:
    return [v.aval.shape for v in variables] == [gate.shape for gate in gates]


def _is_last_free(equation: Any) -> bool:
    """Says whether the last axis of the second operand is the last of the result."""
    (_, contracted), (_, batch) = equation.params["dimension_numbers"]
    last = len(equation.invars[1].aval.shape) - 1
    return last not in contracted and last not in batch
