"""The VJP of a step, split by what its equations depend on.

The values of the step's products are known, so its VJP is a function of residuals. It
is traced once, and split as the step itself is:

    weights        what depends on the weights alone, as a transposed kernel: once
    linearization  what depends on residuals and cotangents of outputs: of many steps
                   at once
    cotangents     what the cotangent of the carry before the step depends on: the loop
    after          the rest, as the cotangents of a peephole: of many steps at once

The cotangents of a product's weights are formed after the loop, of many steps at once,
from the cotangents of its values.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from chex import ArrayTree
from jax import Array

from rnncells.recurrence.jaxprs import (
    Values,
    Variable,
    evaluate,
    evaluate_all_steps,
    is_variable,
    live_equations,
    multiplies,
    outvars,
    read,
    reads,
    trace,
    variables,
)
from rnncells.recurrence.memory import Residuals
from rnncells.recurrence.primitives import LINEAR_MAPS
from rnncells.recurrence.products import vjp_evaluator
from rnncells.recurrence.pytrees import (
    combine,
    full_precision,
    inexact,
    partition,
    select_leaves,
    structs,
    zeros,
)
from rnncells.recurrence.split_step import SplitStep, StepWeights

WEIGHTS, LINEARIZATION, COTANGENTS = range(3)


class StepCotangents(NamedTuple):
    """Cotangents of every step, `(time, ...)`, and left operands of products.

    Attributes:
      d_z: cotangents of the projected inputs.
      d_values: cotangents of the values of the products; None for save points.
      lhs: left operands of the products; None for save points.
    """

    d_z: ArrayTree
    d_values: list[Any]
    lhs: list[Any]


class StepVJP:
    """The VJP of a step, over the steps of a chunk of time.

    Attributes:
      reads: for each leaf of the residuals, whether the VJP depends on it.
    """

    def __init__(
        self, step: SplitStep, weights: StepWeights, residuals: Residuals
    ) -> None:
        """Traces the VJP; of weights and residuals, shapes and dtypes are enough."""
        invariants = weights.invariants, weights.products
        per_step = residuals, inexact(step.result[1])
        d_new = inexact(residuals.carry)
        self._equations, (_, self._steps_structs, self._d_invariants_structs) = trace(
            partial(_vjp, step), *structs((invariants, per_step, d_new))
        )
        self._invariant_args, self._per_step_args, self._d_new = (
            self._equations.arguments
        )
        self._stages = self._equations.stages()
        tree: Any = jax.tree.structure(residuals)
        use_counts = self._equations.use_counts()
        self.reads = tree.unflatten(
            [v in use_counts for v in self._per_step_args[: tree.num_leaves]]
        )
        self._assign_equations()

    def evaluate_invariants(self, weights: StepWeights) -> Values:
        """Evaluates the equations that depend on the weights alone."""
        leaves = jax.tree.leaves((weights.invariants, weights.products))
        values = dict(zip(self._invariant_args, leaves, strict=True))
        values |= self._equations.constants
        evaluate(self._of_stage(WEIGHTS), values)
        return values

    def over_time(
        self,
        invariants: Values,
        residuals: Residuals,
        d_outputs: ArrayTree,
        d_carry: ArrayTree,
        steps: int,
        unroll: int,
    ) -> tuple[ArrayTree, StepCotangents, list[Array | None]]:
        """Takes the cotangents after a chunk to those before it.

        Args:
          invariants: see `evaluate_invariants`.
          residuals: of its steps, `(time, ...)`, None for those that are not read.
          d_outputs: cotangents of its outputs.
          d_carry: cotangent of the carry after it.
          steps: number of its steps.
          unroll: steps in one iteration of the loop.

        Returns:
          The cotangent of the carry before the chunk; what the VJP gives of its steps;
          and the cotangents of `invariants` of the weights, None for those not read.
        """
        tree: Any = jax.tree.structure(self.reads)
        arrays = tree.flatten_up_to(residuals)
        arrays = [*arrays, *jax.tree.leaves(d_outputs)]
        per_step = dict(zip(self._per_step_args, arrays, strict=True))
        per_step = {v: array for v, array in per_step.items() if array is not None}
        values = evaluate_all_steps(
            self._before, invariants, per_step, steps, self._from_before
        )
        per_step |= dict(zip(self._from_before, values, strict=True))
        d_carry = self._run_loop(invariants, per_step, d_carry, steps, unroll)
        cotangents = evaluate_all_steps(
            self._after, invariants, per_step, steps, self._step_results
        )
        sums = self._sums_over_time(invariants, per_step, steps)
        return (
            d_carry,
            jax.tree.unflatten(jax.tree.structure(self._steps_structs), cotangents),
            jax.tree.unflatten(jax.tree.structure(self._d_invariants_structs), sums),
        )

    def _run_loop(
        self,
        invariants: Values,
        per_step: Values,
        d_carry: ArrayTree,
        steps: int,
        unroll: int,
    ) -> ArrayTree:
        """Returns the cotangent of the carry before the chunk; adds to `per_step`."""
        tree: Any
        d_new, tree = jax.tree.flatten(d_carry)

        def step(d_new: list[Array], x: list[Array]) -> tuple[list[Array], list[Array]]:
            values = invariants | dict(zip(self._d_new, d_new, strict=True))
            values |= dict(zip(self._read_by_loop, x, strict=True))
            evaluate(self._loop, values)
            return read(values, self._d_carry), read(values, self._from_loop)

        xs = read(per_step, self._read_by_loop)
        length = None if xs else steps  # None, because time may be symbolic
        d_new, ys = jax.lax.scan(step, d_new, xs, length, reverse=True, unroll=unroll)
        per_step |= dict(zip(self._from_loop, ys, strict=True))
        return tree.unflatten(d_new)

    def _assign_equations(self) -> None:
        """Assigns equations to before, in or after the loop; finds shared values."""
        results = iter(self._equations.results)
        self._d_carry = [next(results) for _ in self._d_new]
        self._step_results = [
            next(results) for _ in jax.tree.leaves(self._steps_structs)
        ]
        self._d_invariants = list(results)
        self._before = self._of_stage(LINEARIZATION)
        cotangent_equations = self._of_stage(COTANGENTS)
        # An array of one step is repeated in the loop, not read from one of all steps.
        repeats = [e for e in self._before if e.primitive.name == "broadcast_in_dim"]
        self._loop = live_equations([*repeats, *cotangent_equations], self._d_carry)
        repeated = set(outvars(repeats))
        loop_outvars = {*outvars(self._loop), *self._d_new} - repeated
        cotangent_equations = [
            e for e in cotangent_equations if not loop_outvars & set(e.outvars)
        ]
        self._after = live_equations(cotangent_equations, self._step_results)
        self._to_summands = live_equations(cotangent_equations, self._d_invariants)
        sums = list(filter(self._is_read, self._d_invariants))
        self._summands, self._after_sums = _find_summands(self._to_summands, sums)
        by_loop = reads(self._loop, self._d_carry)
        by_after = reads(
            (*self._after, *self._to_summands),
            (*self._step_results, *self._d_invariants),
        )
        by_loop = [v for v in by_loop if v not in repeated]
        self._read_by_loop = [v for v in by_loop if self._stages[v] == LINEARIZATION]
        self._from_loop = [v for v in by_after if v in loop_outvars]
        before_outvars = set(outvars(self._before))
        wanted = dict.fromkeys((*by_loop, *by_after))
        self._from_before = [v for v in wanted if v in before_outvars]

    def _of_stage(self, stage: int) -> list[Any]:
        equations = self._equations.equations
        return [e for e in equations if self._stages[e.outvars[0]] == stage]

    def _sums_over_time(
        self, invariants: Values, per_step: Values, steps: int
    ) -> list[Array | None]:
        """Returns the cotangents of `invariants`, summed over time; None for zeros."""
        summands = self._summands
        equations = live_equations(self._to_summands, summands)
        if any(map(multiplies, equations)):
            # Of all steps at once, such terms would be as large as time x weights.
            totals = _totals_by_loop(equations, invariants, per_step, steps, summands)
        else:
            terms = evaluate_all_steps(equations, invariants, per_step, steps, summands)
            totals = [term.sum(0, dtype=full_precision(term.dtype)) for term in terms]
        values = invariants | dict(zip(summands, totals, strict=True))
        evaluate(self._after_sums, values)
        return [values[v] if self._is_read(v) else None for v in self._d_invariants]

    def _is_read(self, cotangent: Any) -> bool:
        """Says whether a cotangent of `invariants` depends on those of the result."""
        return is_variable(cotangent) and self._stages[cotangent] > WEIGHTS


def _vjp(
    step: SplitStep, fixed: Any, per_step: tuple[Residuals, Any], d_new: ArrayTree
) -> tuple[ArrayTree, StepCotangents, ArrayTree]:
    """Returns cotangents of the carry, of what differs by step, and of `invariants`."""
    (invariants, products), ((carry, z, values), d_output) = fixed, per_step
    diff, nondiff = partition((invariants, carry, z))

    def recur(diff: ArrayTree, taps: list[Array]) -> tuple[ArrayTree, list[Array]]:
        invariants, carry, z = combine(diff, nondiff)
        evaluator = vjp_evaluator(products, taps, values)
        result, evaluated = step.recur(invariants, carry, z, evaluator)
        return inexact(result), evaluated.lhs

    _, vjp, lhs = jax.vjp(recur, diff, zeros(values), has_aux=True)
    (d_invariants, d_carry, d_z), d_values = vjp((d_new, d_output))
    have_weights = [bool(jax.tree.leaves(product)) for product in products]
    d_values, lhs = select_leaves((d_values, lhs), (have_weights, have_weights))
    return d_carry, StepCotangents(d_z, d_values, lhs), d_invariants


def _find_summands(
    equations: Sequence[Any], sums: list[Variable]
) -> tuple[list[Variable], list[Any]]:
    """Returns which variables to sum over time, and what gives `sums` of those.

    A sum over the batch that follows is then one of a sum over time: devices that have
    rows each exchange sums alone.
    """
    summands = dict.fromkeys(sums)
    after: list[Any] = []
    per_step: set[Variable] = set()
    for equation in reversed(equations):
        (result, *_) = equation.outvars
        is_linear = equation.primitive.name in LINEAR_MAPS
        if is_linear and result in summands and result not in per_step:
            del summands[result]
            summands[equation.invars[0]] = None
            after.insert(0, equation)
        else:
            per_step |= set(variables(equation))
    return list(summands), after


def _totals_by_loop(
    equations: Sequence[Any],
    invariants: Values,
    per_step: Values,
    steps: int,
    summands: list[Variable],
) -> list[Array]:
    """Returns the sums over time of variables, by a loop."""

    def step(totals: list[Array], operands: list[Array]) -> tuple[list[Array], None]:
        values = invariants | dict(zip(per_step, operands, strict=True))
        evaluate(equations, values)
        terms = zip(totals, read(values, summands), strict=True)
        return [total + term.astype(total.dtype) for total, term in terms], None

    totals = [jnp.zeros(v.aval.shape, full_precision(v.aval.dtype)) for v in summands]
    length = None if per_step else steps
    return jax.lax.scan(step, totals, list(per_step.values()), length)[0]
