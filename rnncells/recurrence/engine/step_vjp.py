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

from rnncells.recurrence import jaxprs, pytrees
from rnncells.recurrence.engine.memory import Residuals
from rnncells.recurrence.engine.products import vjp_evaluator
from rnncells.recurrence.engine.split_step import SplitStep, StepWeights
from rnncells.recurrence.jaxprs import Equations, Part, Values, Variable
from rnncells.recurrence.primitives import LINEAR_MAPS

# The arguments of the VJP: weights, what differs by step, the cotangent of the carry.
WEIGHTS, LINEARIZATION, COTANGENTS = range(3)


class StepCotangents(NamedTuple):
    """Cotangents of every step, `(time, ...)`, and left operands of its products."""

    d_z: ArrayTree
    d_values: list[Any]  # None for save points
    lhs: list[Any]  # None for save points


class _Parts(NamedTuple):
    """The equations of a VJP by when they are evaluated."""

    once: Part  # results are not listed: later parts read all values
    before: Part
    loop: Part  # to the cotangent of the carry, and to what `after` and `terms` read
    after: Part  # to the leaves of `StepCotangents`
    terms: Part  # of each step, to be summed over time
    sums: Part  # from sums of `terms` to the cotangents of invariants


class StepVJP:
    """The VJP of a step, over the steps of a chunk of time."""

    def __init__(
        self, step: SplitStep, weights: StepWeights, residuals: Residuals
    ) -> None:
        """Traces the VJP; of weights and residuals, shapes and dtypes are enough."""
        invariants = weights.invariants, weights.products
        per_step = residuals, pytrees.inexact(step.result[1])
        args = pytrees.structs((invariants, per_step, pytrees.inexact(residuals.carry)))
        self._equations, (d_carry, cotangents, d_invariants) = jaxprs.trace(
            partial(_vjp, step), *args
        )
        self._cotangents_tree = jax.tree.structure(cotangents)
        self._d_invariants_tree = jax.tree.structure(d_invariants)
        stages, results = self._equations.stages, iter(self._equations.results)
        d_carry, step_results = (
            [next(results) for _ in jax.tree.leaves(tree)]
            for tree in (d_carry, cotangents)
        )
        # Cotangents of invariants: None for zeros.
        self._d_invariants = [
            v if jaxprs.is_variable(v) and stages[v] > WEIGHTS else None
            for v in results
        ]
        d_invariants = [v for v in self._d_invariants if v is not None]
        self._parts = _split(self._equations, d_carry, step_results, d_invariants)
        # For each leaf of the residuals, whether the VJP depends on it.
        tree: Any = jax.tree.structure(residuals)
        leaves = self._equations.arguments[LINEARIZATION][: tree.num_leaves]
        users = self._equations.users
        self.reads = tree.unflatten([v in users for v in leaves])

    def evaluate_invariants(self, weights: StepWeights) -> Values:
        """Evaluates the equations that depend on the weights alone."""
        leaves = jax.tree.leaves((weights.invariants, weights.products))
        arguments, *_ = self._equations.arguments
        values = dict(zip(arguments, leaves, strict=True)) | self._equations.constants
        jaxprs.evaluate(self._parts.once.equations, values)
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
        _, before, loop, after, terms, _ = self._parts
        _, arguments, d_new = self._equations.arguments
        tree: Any = jax.tree.structure(self.reads)
        arrays = [*tree.flatten_up_to(residuals), *jax.tree.leaves(d_outputs)]
        pairs = zip(arguments, arrays, strict=True)
        per_step = {v: array for v, array in pairs if array is not None}
        values = before.of_all_steps(invariants, per_step, steps)
        per_step |= zip(before.results, values, strict=True)
        xs = {v: per_step[v] for v in loop.operands if v in per_step}

        def step(d_after: list[Array], x: list[Array]) -> tuple[list, list]:
            values = invariants | dict(zip(d_new, d_after, strict=True))
            results = loop(values | dict(zip(xs, x, strict=True)))
            return results[: len(d_new)], results[len(d_new) :]

        length = None if xs else steps  # None, because time may be symbolic
        d_leaves, d_carry_tree = jax.tree.flatten(d_carry)
        d_leaves, ys = jax.lax.scan(
            step, d_leaves, list(xs.values()), length, reverse=True, unroll=unroll
        )
        per_step |= zip(loop.results[len(d_new) :], ys, strict=True)
        cotangents = after.of_all_steps(invariants, per_step, steps)
        sums = _sums(terms, invariants, per_step, steps)
        return (
            jax.tree.unflatten(d_carry_tree, d_leaves),
            jax.tree.unflatten(self._cotangents_tree, cotangents),
            self._d_invariants_of(invariants, sums),
        )

    def _d_invariants_of(self, invariants: Values, sums: list[Array]) -> Any:
        """Returns the cotangents of invariants from sums over time; None for zeros."""
        values = invariants | dict(zip(self._parts.terms.results, sums, strict=True))
        jaxprs.evaluate(self._parts.sums.equations, values)
        leaves = [None if v is None else values[v] for v in self._d_invariants]
        return jax.tree.unflatten(self._d_invariants_tree, leaves)


def _sums(terms: Part, invariants: Values, per_step: Values, steps: int) -> list[Array]:
    """Returns the sums of terms over time."""
    dtypes = [pytrees.full_precision(v.aval.dtype) for v in terms.results]
    if not any(map(jaxprs.multiplies, terms.equations)):
        values = terms.of_all_steps(invariants, per_step, steps)
        return [x.sum(0, dtype=dtype) for x, dtype in zip(values, dtypes, strict=True)]

    # Of all steps at once, such terms would be as large as time x weights.
    def add(totals: list[Array], x: list[Array]) -> tuple[list[Array], None]:
        values = invariants | dict(zip(per_step, x, strict=True))
        pairs = zip(totals, terms(values), strict=True)
        return [total + term.astype(total.dtype) for total, term in pairs], None

    pairs = zip(terms.results, dtypes, strict=True)
    zeros = [jnp.zeros(v.aval.shape, dtype) for v, dtype in pairs]
    xs = list(per_step.values())
    return jax.lax.scan(add, zeros, xs, None if xs else steps)[0]


def _vjp(
    step: SplitStep, fixed: Any, per_step: tuple[Residuals, Any], d_new: ArrayTree
) -> tuple[ArrayTree, StepCotangents, ArrayTree]:
    """Returns cotangents of the carry, of what differs by step, and of `invariants`."""
    (invariants, products), ((carry, z, values), d_output) = fixed, per_step
    diff, nondiff = pytrees.partition((invariants, carry, z))

    def recur(diff: ArrayTree, taps: list[Array]) -> tuple[ArrayTree, list[Array]]:
        invariants, carry, z = pytrees.combine(diff, nondiff)
        evaluator = vjp_evaluator(products, taps, values)
        result, evaluated = step.recur(invariants, carry, z, evaluator)
        return pytrees.inexact(result), evaluated.lhs

    _, vjp, lhs = jax.vjp(recur, diff, pytrees.zeros(values), has_aux=True)
    (d_invariants, d_carry, d_z), d_values = vjp((d_new, d_output))
    have_weights = [bool(jax.tree.leaves(product)) for product in products]
    d_values, lhs = pytrees.select_leaves((d_values, lhs), (have_weights, have_weights))
    return d_carry, StepCotangents(d_z, d_values, lhs), d_invariants


def _split(
    equations: Equations,
    d_carry: list[Variable],
    step_results: list[Variable],
    d_invariants: list[Variable],
) -> _Parts:
    stages, d_new = equations.stages, equations.arguments[COTANGENTS]
    once, before, of_cotangents = (
        [e for e in equations.equations if stages[e.outvars[0]] == stage]
        for stage in (WEIGHTS, LINEARIZATION, COTANGENTS)
    )
    # An array of one step is repeated in the loop, not read from one of all steps.
    repeats = [e for e in before if e.primitive.name == "broadcast_in_dim"]
    repeated = set(jaxprs.outvars(repeats))
    loop = jaxprs.live_equations([*repeats, *of_cotangents], d_carry)
    computed_by_loop = {*jaxprs.outvars(loop), *d_new} - repeated
    later = [e for e in of_cotangents if computed_by_loop.isdisjoint(e.outvars)]
    after = jaxprs.live_equations(later, step_results)
    to_sums = jaxprs.live_equations(later, d_invariants)
    read_later = jaxprs.reads((*after, *to_sums), (*step_results, *d_invariants))
    read_of_before = dict.fromkeys(Part(loop, d_carry).operands + read_later)
    computed_before = set(jaxprs.outvars(before))
    terms, sums = _split_sums(to_sums, d_invariants)
    return _Parts(
        Part(once, ()),
        Part(before, [v for v in read_of_before if v in computed_before]),
        Part(loop, [*d_carry, *(v for v in read_later if v in computed_by_loop)]),
        Part(after, step_results),
        terms,
        sums,
    )


def _split_sums(equations: Sequence[Any], results: list[Variable]) -> tuple[Part, Part]:
    """Splits equations whose results are summed over time: terms, what follows of sums.

    A sum over the batch that follows is then one of a sum over time: devices that have
    rows each exchange sums alone.
    """
    summands = dict.fromkeys(results)
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
            per_step |= set(jaxprs.variables(equation))
    terms = Part(jaxprs.live_equations(equations, summands), list(summands))
    return terms, Part(after, results)
