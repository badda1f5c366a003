"""The VJP of a step, split by what its equations depend on.

The values of the step's products are known, so its VJP is a function of residuals. It
is traced once, and split as the step itself is:

    once     what depends on the weights alone, as a transposed kernel
    before   what depends on residuals and cotangents of outputs: of many steps at once
    loop     what the cotangent of the carry before the step depends on
    after    the rest, as the cotangents of a peephole: of many steps at once

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
    Equations,
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

# The arguments of the VJP: weights, what differs by step, the cotangent of the carry.
WEIGHTS, LINEARIZATION, COTANGENTS = range(3)


class StepCotangents(NamedTuple):
    """Cotangents of every step, `(time, ...)`, and left operands of its products."""

    d_z: ArrayTree
    d_values: list[Any]  # None for save points
    lhs: list[Any]  # None for save points


class _Parts(NamedTuple):
    """The equations of a VJP by when they are evaluated, and variables they share."""

    once: Sequence[Any]
    before: Sequence[Any]
    loop: Sequence[Any]
    after: Sequence[Any]
    to_summands: Sequence[Any]  # evaluated after the loop, too
    after_sums: Sequence[Any]  # from sums over time to `d_invariants`
    summands: list[Variable]  # to sum over time
    d_carry: list[Variable]
    step_results: list[Variable]  # the leaves of `StepCotangents`
    d_invariants: list[Variable | None]  # None for zeros
    from_before: list[Variable]  # read by later parts
    read_by_loop: list[Variable]
    from_loop: list[Variable]  # read by later parts


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
        args = structs((invariants, per_step, inexact(residuals.carry)))
        self._equations, (_, self._step_structs, d_invariants) = trace(
            partial(_vjp, step), *args
        )
        self._d_invariants_tree = jax.tree.structure(d_invariants)
        count = len(jax.tree.leaves(self._step_structs))
        self._parts = _split(self._equations, count)
        tree: Any = jax.tree.structure(residuals)
        used, (_, leaves, _) = self._equations.use_counts(), self._equations.arguments
        self.reads = tree.unflatten([v in used for v in leaves[: tree.num_leaves]])

    def evaluate_invariants(self, weights: StepWeights) -> Values:
        """Evaluates the equations that depend on the weights alone."""
        leaves = jax.tree.leaves((weights.invariants, weights.products))
        arguments, *_ = self._equations.arguments
        values = dict(zip(arguments, leaves, strict=True)) | self._equations.constants
        evaluate(self._parts.once, values)
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

        Residuals that are not read are None. Returns the cotangents of the carry before
        the chunk, of its steps, and of invariants.
        """
        parts, (_, arguments, d_new) = self._parts, self._equations.arguments
        tree: Any = jax.tree.structure(self.reads)
        arrays = [*tree.flatten_up_to(residuals), *jax.tree.leaves(d_outputs)]
        pairs = zip(arguments, arrays, strict=True)
        per_step = {v: array for v, array in pairs if array is not None}

        def all_steps(equations: Sequence[Any], results: list[Variable]) -> list[Array]:
            return evaluate_all_steps(equations, invariants, per_step, steps, results)

        def step(d_after: list[Array], x: list[Array]) -> tuple[list, list]:
            values = invariants | dict(zip(d_new, d_after, strict=True))
            values |= zip(parts.read_by_loop, x, strict=True)
            evaluate(parts.loop, values)
            return read(values, parts.d_carry), read(values, parts.from_loop)

        values = all_steps(parts.before, parts.from_before)
        per_step |= zip(parts.from_before, values, strict=True)
        xs = read(per_step, parts.read_by_loop)
        length = None if xs else steps  # None, because time may be symbolic
        d_leaves, d_carry_tree = jax.tree.flatten(d_carry)
        d_leaves, ys = jax.lax.scan(
            step, d_leaves, xs, length, reverse=True, unroll=unroll
        )
        per_step |= zip(parts.from_loop, ys, strict=True)
        cotangents = all_steps(parts.after, parts.step_results)
        return (
            jax.tree.unflatten(d_carry_tree, d_leaves),
            jax.tree.unflatten(jax.tree.structure(self._step_structs), cotangents),
            self._sums_over_time(invariants, per_step, steps),
        )

    def _sums_over_time(self, invariants: Values, per_step: Values, steps: int) -> Any:
        """Returns the cotangents of `invariants`, summed over time; None for zeros."""
        parts, xs = self._parts, list(per_step.values())

        def terms_of(operands: list[Array]) -> list[Array]:
            values = invariants | dict(zip(per_step, operands, strict=True))
            evaluate(parts.to_summands, values)
            return read(values, parts.summands)

        def step(
            totals: list[Array], operands: list[Array]
        ) -> tuple[list[Array], None]:
            terms = zip(totals, terms_of(operands), strict=True)
            return [total + term.astype(total.dtype) for total, term in terms], None

        dtypes = [full_precision(v.aval.dtype) for v in parts.summands]
        if any(map(multiplies, parts.to_summands)):
            # Of all steps at once, such terms would be as large as time x weights.
            pairs = zip(parts.summands, dtypes, strict=True)
            totals = [jnp.zeros(v.aval.shape, dtype) for v, dtype in pairs]
            totals, _ = jax.lax.scan(step, totals, xs, None if xs else steps)
        else:
            pairs = zip(jax.vmap(terms_of, axis_size=steps)(xs), dtypes, strict=True)
            totals = [term.sum(0, dtype=dtype) for term, dtype in pairs]
        values = invariants | dict(zip(parts.summands, totals, strict=True))
        evaluate(parts.after_sums, values)
        sums = [None if v is None else values[v] for v in parts.d_invariants]
        return jax.tree.unflatten(self._d_invariants_tree, sums)


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


def _split(equations: Equations, count: int) -> _Parts:
    """Returns the parts of a VJP; `count` is the number of its `step_results`."""
    stages, results = equations.stages(), iter(equations.results)
    d_new = equations.arguments[COTANGENTS]
    d_carry = [next(results) for _ in d_new]
    step_results = [next(results) for _ in range(count)]
    d_invariants = [
        v if is_variable(v) and stages[v] > WEIGHTS else None for v in results
    ]
    sums = [v for v in d_invariants if v is not None]
    once, before, rest = (
        [e for e in equations.equations if stages[e.outvars[0]] == stage]
        for stage in (WEIGHTS, LINEARIZATION, COTANGENTS)
    )
    # An array of one step is repeated in the loop, not read from one of all steps.
    repeats = [e for e in before if e.primitive.name == "broadcast_in_dim"]
    loop, repeated = live_equations([*repeats, *rest], d_carry), set(outvars(repeats))
    by_loop = [v for v in reads(loop, d_carry) if v not in repeated]
    loop_outvars = {*outvars(loop), *d_new} - repeated
    rest = [e for e in rest if loop_outvars.isdisjoint(e.outvars)]
    after, to_sums = live_equations(rest, step_results), live_equations(rest, sums)
    by_after = reads((*after, *to_sums), (*step_results, *sums))
    shared, from_here = dict.fromkeys(by_loop + by_after), set(outvars(before))
    summands, after_sums = _find_summands(to_sums, sums)
    to_summands = live_equations(to_sums, summands)
    return _Parts(
        *(once, before, loop, after, to_summands, after_sums, summands),
        *(d_carry, step_results, d_invariants),
        from_before=[v for v in shared if v in from_here],
        read_by_loop=[v for v in by_loop if stages[v] == LINEARIZATION],
        from_loop=[v for v in by_after if v in loop_outvars],
    )


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
