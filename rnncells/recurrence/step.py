"""The step of any cell, taken apart by what depends on what.

    weights     what depends on the parameters alone: formed once, before the loop
    projection  what depends on the inputs, but not on the carry: of many steps at once
    recurrence  what depends on the carry: the body of the loop

A product of something with weights is found as such (product_search.py). Products of
one left operand are joined. What the projection adds to a product is summed in the
projection, and the loop adds the sum to the product.
"""

from collections.abc import Callable
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

import chex
import jax

from rnncells.recurrence.gates_apart import with_gates_apart
from rnncells.recurrence.jaxprs import (
    evaluate,
    evaluate_over_time,
    inner_jaxprs,
    is_variable,
    needed,
    read,
    traced,
    variables,
)
from rnncells.recurrence.mesh import may_be_sharded
from rnncells.recurrence.product_search import (
    PRODUCTS,
    PROJECTION,
    RECURRENCE,
    WEIGHTS,
    Joined,
    find_products,
)
from rnncells.recurrence.products import Product, Take
from rnncells.recurrence.save_points import Policy, SavePoint, is_chosen, sum_point


class Weights(NamedTuple):
    """What depends on the parameters alone.

    Attributes:
      projections: products of the projection, with their weights.
      products: products of the recurrence with theirs, and save points, which have
        none, in the order of `Step.taken`.
      others: everything else that is read.
    """

    projections: list[Product]
    products: list[Product]
    others: list[jax.Array]


class Taken(NamedTuple):
    """The products that a projection or a recurrence has taken, in order.

    Attributes:
      lhs: their left operands.
      values: their values, with what they are added to.
    """

    lhs: list[jax.Array]
    values: list[jax.Array]


class Step:
    """The step of a cell as three functions, `weights`, `project` and `recur`.

    Attributes:
      result: shapes and dtypes of what the step returns.
      jaxpr: of the step.
      varying: for each operand of `jaxpr`, whether it differs from step to step.
      projections: products of the projection, in order.
      products: products of the recurrence, in order.
      taken: products and save points of the recurrence, in order.
      chosen: for each of `taken`, whether a policy chooses to save it.
      read_by_projection: for each of the others of `Weights`, whether `project`
        reads it.
      outputs_in_carry: for each leaf of the output, the number of the leaf of the new
        carry that it is, or -1.
    """

    def __init__(
        self,
        step: Callable,
        given: chex.ArrayTree,
        carry: chex.ArrayTree,
        inputs: chex.ArrayTree,
        policy: Policy | None = None,
    ):
        """Traces `step(given, carry, inputs) -> (carry, output)`.

        Args:
          step: a pure function.
          given: parameters, and all else that is the same at each step.
          carry: carry before a step.
          inputs: of one step.
          policy: chooses what to save, as one of `jax.checkpoint` does.
        """
        args = given, inputs, carry
        self._equations, self.result = traced(
            lambda given, inputs, carry: step(given, carry, inputs), *args
        )
        # One device computes gates faster side by side.
        if may_be_sharded():
            apart = with_gates_apart(self._equations, RECURRENCE)
            if apart is not None:
                self._equations, _ = traced(apart, *args)
        self._given, self._inputs, self._carry = self._equations.arguments
        self._stages = self._equations.stages()
        self.jaxpr = self._equations.jaxpr
        self.varying = [self._stages[v] > WEIGHTS for v in self.jaxpr.invars]
        self._order = self._find_order(policy)
        self._find_taken(policy)
        self._find_reads()

    @property
    def constants(self) -> list[jax.Array]:
        """The arrays that the step closes over."""
        return list(self._equations.constants.values())

    def weights(self, given: chex.ArrayTree) -> Weights:
        """Returns what depends on the parameters alone."""
        values = dict(zip(self._given, jax.tree.leaves(given), strict=True))
        values |= self._equations.constants
        evaluate(self._order[WEIGHTS], values)
        return Weights(
            [item.product(values) for item in self.projections],
            [item.product(values) for item in self.taken],
            read(values, self._others),
        )

    def project(
        self, others: list[jax.Array], inputs: chex.ArrayTree, take: Take
    ) -> tuple[list[jax.Array], Taken]:
        """Returns what depends on the inputs, but not on the carry, `(time, ...)`.

        Args:
          others: of `Weights`.
          inputs: `(time, ...)`.
          take: takes the products.
        """
        once = dict(zip(self._others, others, strict=True))
        each = dict(zip(self._inputs, jax.tree.leaves(inputs), strict=True))
        steps, taken = jax.tree.leaves(inputs)[0].shape[0], Taken([], [])
        for is_taken, items in groupby(self._order[PROJECTION], _is_taken):
            if is_taken:
                for item in items:
                    _take(item, each, None, take, taken)
                continue
            equations = list(items)
            made = [v for equation in equations for v in equation.outvars]
            results = partial(read, atoms=made)
            found = evaluate_over_time(equations, once, each, steps, results)
            each |= dict(zip(made, found, strict=True))

        def projected(values):
            added = [item.added(values) for item in self._added_to]
            return added + read(values, self._projected)

        return evaluate_over_time((), once, each, steps, projected), taken

    def recur(
        self,
        others: list[jax.Array],
        carry: chex.ArrayTree,
        projected: list[jax.Array],
        take: Take,
    ) -> tuple[chex.ArrayTree, Taken]:
        """Returns the result of a step, and the products that it has taken.

        Args:
          others: of `Weights`.
          carry: carry before the step.
          projected: as `project` returns it, of one step.
          take: takes the products.
        """
        count, taken = len(self._added_to), Taken([], [])
        values = dict(zip(self._others, others, strict=True))
        values |= dict(zip(self._projected, projected[count:], strict=True))
        values |= dict(zip(self._carry, jax.tree.leaves(carry), strict=True))
        added = iter(projected[:count])
        for item in self._order[RECURRENCE]:
            if _is_taken(item):
                add_to = next(added) if item.is_added_to else None
                _take(item, values, add_to, take, taken)
            else:
                evaluate([item], values)
        results = read(values, self._equations.results)
        return jax.tree.unflatten(jax.tree.structure(self.result), results), taken

    def used_outside(self) -> list[bool]:
        """Returns, for each given leaf, whether it is multiplied outside of `products`.

        That is, in a product that is none of them, or in an inner function, such as the
        body of a loop.
        """
        inner = [
            equation
            for equation in self._order[RECURRENCE]
            if not _is_taken(equation)
            and (equation.primitive.name in PRODUCTS or inner_jaxprs(equation))
        ]
        used = {v for equation in inner for v in variables(equation)}
        for equation in needed(self._order[WEIGHTS], used):
            used |= set(variables(equation))
        return [v in used for v in self._given]

    def feeds_carry(self) -> list[bool]:
        """Returns, for each of `taken`, whether it is a product that the carry reads.

        Other products are read by the outputs alone.
        """
        count = len(jax.tree.leaves(self.result[0]))
        results = self._equations.results[:count]
        read_by_carry = needed(self._equations.equations, results)
        made = {v for equation in read_by_carry for v in equation.outvars}
        return [
            isinstance(item, Joined)
            and any(v in made for e in item.equations for v in e.outvars)
            for item in self.taken
        ]

    def _find_taken(self, policy):
        """Finds products and save points, and what each of them is."""
        self.projections, self.taken = (
            list(filter(_is_taken, self._order[stage]))
            for stage in (PROJECTION, RECURRENCE)
        )
        self.products = [item for item in self.taken if isinstance(item, Joined)]
        self.chosen = [
            any(is_chosen(equation, policy) for equation in item.equations)
            for item in self.taken
        ]
        self._added_to = [item for item in self.taken if item.is_added_to]

    def _find_reads(self):
        """Finds what the stages read of earlier ones, and outputs in the carry."""
        by_projection, by_recurrence = map(self._reads, (PROJECTION, RECURRENCE))
        by_either = dict.fromkeys(by_projection + by_recurrence)
        self._others = [v for v in by_either if self._stages[v] == WEIGHTS]
        self._projected = [v for v in by_recurrence if self._stages[v] == PROJECTION]
        self.read_by_projection = [v in by_projection for v in self._others]
        results, count = self._equations.results, len(jax.tree.leaves(self.result[0]))
        carry = {v: k for k, v in enumerate(results[:count]) if is_variable(v)}
        self.outputs_in_carry = [
            carry.get(v, -1) if is_variable(v) else -1 for v in results[count:]
        ]

    def _find_order(self, policy):
        """Returns, for each stage, its equations, products and save points in order."""
        found = {
            equation.outvars[0]: joined
            for joined in find_products(self._equations, self._stages)
            for member in joined.members
            for equation in member.replaced
        }
        uses, makers = self._equations.uses(), self._equations.makers()
        order = {WEIGHTS: [], PROJECTION: [], RECURRENCE: []}
        for equation in self._equations.equations:
            (result, *_) = equation.outvars
            stage = self._stages[result]
            joined = found.get(result)
            if joined is not None:
                is_first = joined.members[0].equation is equation
                order[stage] += [joined] if is_first else []
            elif stage == RECURRENCE:
                point = sum_point(equation, self._stages, uses, makers)
                order[stage].append(equation if point is None else point)
                if point is None and is_chosen(equation, policy):
                    order[stage] += [
                        SavePoint(v, (), v, (equation,)) for v in equation.outvars
                    ]
            else:
                order[stage].append(equation)
        return order

    def _reads(self, stage):
        """Returns the variables of earlier stages that a stage reads."""
        found = []
        for item in self._order[stage]:
            found += [item.lhs] if _is_taken(item) else variables(item)
        if stage == PROJECTION:
            found += [v for item in self._added_to for v in item.addends]
        else:
            found += filter(is_variable, self._equations.results)
        return list(dict.fromkeys(v for v in found if self._stages[v] < stage))


def _is_taken(item: Any) -> bool:
    return isinstance(item, Joined | SavePoint)


def _take(item, values, add_to, take, taken):
    """Takes the next product or save point: adds it to `values` and to `taken`."""
    lhs = values[item.lhs]
    if getattr(lhs, "weak_type", False):
        lhs = jax.lax.convert_element_type(lhs, lhs.dtype)
    value = take(len(taken.lhs), lhs, add_to)
    taken.lhs.append(lhs)
    taken.values.append(value)
    values.update(item.split(value))
