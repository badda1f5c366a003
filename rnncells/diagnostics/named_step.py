"""The jaxpr of a step, evaluated with all its named values and with taps on them."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp

from rnncells.cells.any_step import apply_step
from rnncells.diagnostics.names import mark, marked_variables, name_of
from rnncells.recurrence.jaxprs import (
    bind,
    evaluate,
    is_variable,
    live_equations,
    read,
    trace,
)

# Names of marks that no variable in Python can have.
_BEFORE, _AFTER = "<", ">"


class StepValues(NamedTuple):
    """The values of a step, or the taps on it: arrays that are added to each.

    Attributes:
      values: arrays by name.
      carry: leaves of the new carry.
    """

    values: Mapping[str, jax.Array | None]
    carry: list[jax.Array | None]


def marked(step: Callable = apply_step) -> Callable:
    """Returns `step(cell, carry, inputs)` with marks on its variables."""

    def marked_step(cell, carry, inputs):
        carry = _mark_leaves(carry, _BEFORE)
        with marked_variables():
            new, output = step(cell, carry, inputs)
        return _mark_leaves(new, _AFTER), output

    return marked_step


def _mark_leaves(tree, name):
    leaves, treedef = jax.tree.flatten(tree)
    leaves = [mark(leaf, f"{name}{k}") for k, leaf in enumerate(leaves)]
    return jax.tree.unflatten(treedef, leaves)


class NamedStep:
    """A step as a jaxpr with marks.

    Args:
      function: `(consts, inputs, carry) -> result`, a pure function; it calls a step
        that `marked` returns, once.
      consts: pytree of parameters, and all else that is the same at each step.
      inputs: pytree of what differs.
      carry: carry before the step.

    Attributes:
      result: shapes and dtypes of the result of the function.
    """

    def __init__(
        self,
        function: Callable,
        consts: chex.ArrayTree,
        inputs: chex.ArrayTree,
        carry: chex.ArrayTree,
    ):
        # A cached trace of a jitted function would run no Python code.
        with jax.disable_jit():
            self._traced, self.result = trace(function, consts, inputs, carry)
        equations = tuple(self._traced.jaxpr.eqns)
        names = ((name_of(e), e) for e in equations)
        marks = {name: e for name, e in names if name is not None}
        passed = {e.outvars[0] for name, e in marks.items() if name.startswith(_BEFORE)}
        self._after = []
        for name, equation in marks.items():
            if name.startswith(_AFTER):
                leaf = equation.invars[0]
                # A leaf that the step did not change is tapped after the step.
                is_new = is_variable(leaf) and leaf not in passed
                self._after.append(leaf if is_new else equation.outvars[0])
        stages = self._traced._replace(equations=equations).stages()
        self._named = {
            name: e.invars[0]
            for name, e in marks.items()
            if name[0] not in (_BEFORE, _AFTER)
            and is_variable(e.invars[0])
            and stages[e.invars[0]] > 0  # depends on more than `consts`
            and not jnp.issubdtype(e.invars[0].aval.dtype, jax.dtypes.extended)
        }
        wanted = [*self._traced.results, *self._named.values(), *self._after]
        self._equations = live_equations(equations, wanted)

    def __call__(
        self,
        consts: chex.ArrayTree,
        inputs: chex.ArrayTree,
        carry: chex.ArrayTree,
        taps: StepValues | None = None,
    ) -> tuple[chex.ArrayTree, StepValues]:
        """Returns the result of the function, and the values of the step."""
        added = {} if taps is None else self._added(taps)

        def add_taps(equation, operands):
            results = bind(equation, operands)
            return [
                sum(added.get(v, ()), r)
                for v, r in zip(equation.outvars, results, strict=True)
            ]

        values = self._traced.initial_values(consts, inputs, carry)
        values |= {v: sum(taps, values[v]) for v, taps in added.items() if v in values}
        evaluate(self._equations, values, add_taps)
        result = jax.tree.unflatten(
            jax.tree.structure(self.result), read(values, self._traced.results)
        )
        named = {name: values[v] for name, v in self._named.items()}
        return result, StepValues(named, [values[v] for v in self._after])

    def _added(self, taps: StepValues) -> dict[Any, list[jax.Array]]:
        """Returns the taps of each variable; names of one variable share its place."""
        added: dict[Any, list[jax.Array]] = {}
        places = [(self._named[name], tap) for name, tap in taps.values.items()]
        for variable, tap in [*places, *zip(self._after, taps.carry, strict=True)]:
            if tap is not None:
                added.setdefault(variable, []).append(tap)
        return added
