"""The VJP of a step, taken apart by what depends on what.

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

from functools import partial
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp

from rnncells.recurrence.jaxprs import (
    Values,
    Variable,
    evaluate,
    evaluate_over_time,
    inner_jaxprs,
    is_variable,
    needed,
    read,
    traced,
    variables,
)
from rnncells.recurrence.product_search import PRODUCTS
from rnncells.recurrence.products import differentiated
from rnncells.recurrence.pytrees import (
    combine,
    inexact,
    partition,
    structs,
    sum_dtype,
    zeros,
)
from rnncells.recurrence.residuals import Residuals, select_leaves
from rnncells.recurrence.step import Step, Weights

WEIGHTS, LINEARIZATION, COTANGENTS = range(3)
# Linear functions of one operand.
_LINEAR = ("reduce_sum", "reshape", "squeeze", "broadcast_in_dim", "transpose", "neg")


class OfSteps(NamedTuple):
    """What the VJP gives of every step, `(time, ...)`.

    Attributes:
      d_z: cotangents of the projected inputs.
      d_values: cotangents of the values of the products; None for save points.
      lhs: left operands of the products; None for save points.
    """

    d_z: chex.ArrayTree
    d_values: list[jax.Array | None]
    lhs: list[jax.Array | None]


class StepVJP:
    """The VJP of a step, over the steps of a chunk of time.

    Attributes:
      reads: for each leaf of the residuals, whether the VJP depends on it.
    """

    def __init__(self, step: Step, weights: Weights, residuals: Residuals):
        """Traces the VJP.

        Args:
          step: the step.
          weights: its weights, or their shapes and dtypes.
          residuals: shapes and dtypes of those of a step.
        """
        given = weights.others, weights.products
        of_step = residuals, inexact(step.result[1])
        d_new = inexact(residuals.carry)
        self._equations, (_, self._steps_structs, self._others_structs) = traced(
            partial(_vjp, step), *structs((given, of_step, d_new))
        )
        self._given, self._of_step, self._d_new = self._equations.arguments
        self._stages = self._equations.stages()
        tree: Any = jax.tree.structure(residuals)
        uses = self._equations.uses()
        self.reads = tree.unflatten(
            [v in uses for v in self._of_step[: tree.num_leaves]]
        )
        self._split()

    def formed(self, weights: Weights) -> Values:
        """Returns what depends on the weights alone."""
        leaves = jax.tree.leaves((weights.others, weights.products))
        values = dict(zip(self._given, leaves, strict=True))
        values |= self._equations.constants
        evaluate(self._of_stage(WEIGHTS), values)
        return values

    def over_time(
        self,
        formed: Values,
        residuals: Residuals,
        d_outputs: chex.ArrayTree,
        d_carry: chex.ArrayTree,
        steps: int,
        unroll: int,
    ) -> tuple[chex.ArrayTree, OfSteps, list[jax.Array | None]]:
        """Takes the cotangents after a chunk to those before it.

        Args:
          formed: see `formed`.
          residuals: of its steps, `(time, ...)`, None for those that are not read.
          d_outputs: cotangents of its outputs.
          d_carry: cotangent of the carry after it.
          steps: number of its steps.
          unroll: steps in one iteration of the loop.

        Returns:
          The cotangent of the carry before the chunk; what the VJP gives of its steps;
          and the cotangents of `others` of the weights, None for those not read.
        """
        tree: Any = jax.tree.structure(self.reads)
        arrays = tree.flatten_up_to(residuals)
        each = dict(
            zip(self._of_step, [*arrays, *jax.tree.leaves(d_outputs)], strict=True)
        )
        each = {v: array for v, array in each.items() if array is not None}
        results = partial(read, atoms=self._made_before)
        found = evaluate_over_time(self._before, formed, each, steps, results)
        each |= dict(zip(self._made_before, found, strict=True))
        d_carry = self._run_loop(formed, each, d_carry, steps, unroll)
        results = partial(read, atoms=self._of_every_step)
        of_steps = evaluate_over_time(self._after, formed, each, steps, results)
        sums = self._sums_over_time(formed, each, steps)
        return (
            d_carry,
            jax.tree.unflatten(jax.tree.structure(self._steps_structs), of_steps),
            jax.tree.unflatten(jax.tree.structure(self._others_structs), sums),
        )

    def _run_loop(self, formed, each, d_carry, steps, unroll):
        """Returns the cotangent of the carry before the chunk; adds to `each`."""
        d_new, tree = jax.tree.flatten(d_carry)

        def step(d_new, now):
            values = formed | dict(zip(self._d_new, d_new, strict=True))
            values |= dict(zip(self._read_by_loop, now, strict=True))
            evaluate(self._loop, values)
            return read(values, self._d_carry), read(values, self._made_by_loop)

        xs = read(each, self._read_by_loop)
        length = None if xs else steps  # None, because time may be symbolic
        d_new, found = jax.lax.scan(
            step, d_new, xs, length, reverse=True, unroll=unroll
        )
        each |= dict(zip(self._made_by_loop, found, strict=True))
        return tree.unflatten(d_new)

    def _split(self):
        """Finds what is formed before, in and after the loop, and what passes over."""
        results = iter(self._equations.results)
        self._d_carry = [next(results) for _ in self._d_new]
        self._of_every_step = [
            next(results) for _ in jax.tree.leaves(self._steps_structs)
        ]
        self._d_others = list(results)
        self._before = self._of_stage(LINEARIZATION)
        late = self._of_stage(COTANGENTS)
        # An array of one step is repeated in the loop, not read from one of all steps.
        repeats = [e for e in self._before if e.primitive.name == "broadcast_in_dim"]
        self._loop = needed([*repeats, *late], self._d_carry)
        repeated = {v for e in repeats for v in e.outvars}
        in_loop = {v for e in self._loop for v in e.outvars} | set(self._d_new)
        in_loop -= repeated
        late = [e for e in late if not in_loop & set(e.outvars)]
        self._after = needed(late, self._of_every_step)
        self._to_summands = needed(late, self._d_others)
        sums = list(filter(self._is_read, self._d_others))
        self._summands, self._after_sums = _find_summands(self._to_summands, sums)
        by_loop = self._reads(self._loop, self._d_carry)
        by_after = self._reads(
            (*self._after, *self._to_summands), (*self._of_every_step, *self._d_others)
        )
        by_loop = [v for v in by_loop if v not in repeated]
        self._read_by_loop = [v for v in by_loop if self._stages[v] == LINEARIZATION]
        self._made_by_loop = [v for v in by_after if v in in_loop]
        made = {v for e in self._before for v in e.outvars}
        wanted = dict.fromkeys((*by_loop, *by_after))
        self._made_before = [v for v in wanted if v in made]

    def _of_stage(self, stage):
        equations = self._equations.equations
        return [e for e in equations if self._stages[e.outvars[0]] == stage]

    def _reads(self, equations, results):
        """Returns the variables that equations and results read, each once."""
        operands = (v for equation in equations for v in variables(equation))
        return list(dict.fromkeys((*operands, *filter(is_variable, results))))

    def _sums_over_time(self, formed, each, steps):
        """Returns the cotangents of `others`, summed over time; None for zeros."""
        summands = self._summands
        equations = needed(self._to_summands, summands)
        terms = partial(read, atoms=summands)
        if any(map(_is_large, equations)):
            # Of all steps at once, such terms would be as large as time x weights.
            totals = _totals_by_loop(equations, formed, each, steps, summands)
        else:
            found = evaluate_over_time(equations, formed, each, steps, terms)
            totals = [term.sum(0, dtype=sum_dtype(term.dtype)) for term in found]
        values = formed | dict(zip(summands, totals, strict=True))
        evaluate(self._after_sums, values)
        return [values[v] if self._is_read(v) else None for v in self._d_others]

    def _is_read(self, cotangent):
        """Says whether a cotangent of `others` depends on those of the result."""
        return is_variable(cotangent) and self._stages[cotangent] > WEIGHTS


def _vjp(
    step: Step, given: Any, of_step: tuple[Residuals, Any], d_new: chex.ArrayTree
) -> tuple[chex.ArrayTree, OfSteps, chex.ArrayTree]:
    """Returns cotangents of the carry, of what differs by step, and of `others`."""
    (others, products), ((carry, z, values), d_output) = given, of_step
    varied, rest = partition((others, carry, z))

    def at(varied, taps):
        others, carry, z = combine(varied, rest)
        take = differentiated(products, taps, values)
        result, taken = step.recur(others, carry, z, take)
        return inexact(result), taken.lhs

    _, vjp, lhs = jax.vjp(at, varied, zeros(values), has_aux=True)
    (d_others, d_carry, d_z), d_values = vjp((d_new, d_output))
    have_weights = [bool(jax.tree.leaves(product)) for product in products]
    d_values, lhs = select_leaves((d_values, lhs), (have_weights, have_weights))
    return d_carry, OfSteps(d_z, d_values, lhs), d_others


def _find_summands(
    equations: list[Any], sums: list[Variable]
) -> tuple[list[Variable], list[Any]]:
    """Returns which variables to sum over time, and what gives `sums` of those.

    A sum over the batch that follows is then one of a sum over time: devices that have
    rows each exchange sums alone.
    """
    summands = dict.fromkeys(sums)
    after: list[Any] = []
    of_steps: set[Variable] = set()
    for equation in reversed(equations):
        (result, *_) = equation.outvars
        is_linear = equation.primitive.name in _LINEAR
        if is_linear and result in summands and result not in of_steps:
            del summands[result]
            summands[equation.invars[0]] = None
            after.insert(0, equation)
        else:
            of_steps |= set(variables(equation))
    return list(summands), after


def _totals_by_loop(equations, formed, each, steps, summands):
    """Returns the sums over time of variables, by a loop."""

    def step(totals, operands):
        values = formed | dict(zip(each, operands, strict=True))
        evaluate(equations, values)
        terms = zip(totals, read(values, summands), strict=True)
        return [total + term.astype(total.dtype) for total, term in terms], None

    totals = [jnp.zeros(v.aval.shape, sum_dtype(v.aval.dtype)) for v in summands]
    length = None if each else steps
    return jax.lax.scan(step, totals, list(each.values()), length)[0]


def _is_large(equation):
    return equation.primitive.name in PRODUCTS or bool(inner_jaxprs(equation))
