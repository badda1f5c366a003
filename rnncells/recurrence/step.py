"""The step of any cell, taken apart by what depends on what.

    weights     what depends on the parameters alone: formed once, before the loop
    projection  what depends on the inputs, but not on the carry: of many steps at once
    recurrence  what depends on the carry: the body of the loop

A product of something with weights is found as such (linear.py); products of one left
operand are joined, and what is only added to a product is added in the projection.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import chex
import jax

from rnncells.recurrence.jaxprs import (
    evaluate,
    inner_jaxprs,
    is_variable,
    read,
    traced,
    variables,
)
from rnncells.recurrence.linear import (
    PRODUCTS,
    PROJECTION,
    RECURRENCE,
    WEIGHTS,
    Joined,
    find_products,
)
from rnncells.recurrence.products import Product, Take


class Weights(NamedTuple):
    """What depends on the parameters alone.

    Attributes:
      projections: products of the projection, with their weights.
      products: products of the recurrence, with theirs.
      others: everything else that is read.
    """

    projections: list[Product]
    products: list[Product]
    others: list[jax.Array]


class Taken(NamedTuple):
    """The products that a projection or a recurrence has taken, in order.

    Attributes:
      lefts: their left operands.
      values: their values.
    """

    lefts: list[jax.Array]
    values: list[jax.Array]


class Step:
    """The step of a cell as three functions, `weights`, `project` and `recur`.

    Attributes:
      result: shapes and dtypes of what the step returns.
      jaxpr: of the step.
      varying: for each operand of `jaxpr`, whether it differs from step to step.
      projections: products of the projection, in order.
      products: products of the recurrence, in order.
      has_inputs: whether anything of the recurrence depends on the inputs.
    """

    def __init__(
        self,
        step: Callable,
        given: chex.ArrayTree,
        carry: chex.ArrayTree,
        inputs: chex.ArrayTree,
    ):
        """Traces `step(given, carry, inputs) -> (carry, output)`.

        Args:
          step: a pure function.
          given: parameters, and all else that is the same at each step.
          carry: carry before a step.
          inputs: of one step.
        """
        self._equations, self.result = traced(step, given, carry, inputs)
        leaves = iter(self._equations.inputs)
        self._given, self._carry, self._inputs = (
            [next(leaves) for _ in jax.tree.leaves(tree)]
            for tree in (given, carry, inputs)
        )
        self._stages = self._find_stages()
        self.jaxpr = self._equations.jaxpr
        self.varying = [self._stages[v] > WEIGHTS for v in self.jaxpr.invars]
        self._joined = find_products(self._equations, self._stages)
        self._order = self._find_order()
        self.projections, self.products = (
            [item for item in self._order[stage] if isinstance(item, Joined)]
            for stage in (PROJECTION, RECURRENCE)
        )
        self._added = [joined for joined in self.products if joined.is_added_to]
        read_by_projection = self._reads(PROJECTION)
        read_by_recurrence = self._reads(RECURRENCE)
        read = dict.fromkeys(read_by_projection + read_by_recurrence)
        self._others = [v for v in read if self._stages[v] == WEIGHTS]
        self._projected = [
            v for v in read_by_recurrence if self._stages[v] == PROJECTION
        ]
        self.has_inputs = bool(self._projected or self._added)

    def weights(self, given: chex.ArrayTree) -> Weights:
        """Returns what depends on the parameters alone."""
        values = dict(zip(self._given, jax.tree.leaves(given), strict=True))
        values |= self._equations.constants
        evaluate(self._order[WEIGHTS], values)
        return Weights(
            [joined.product(values) for joined in self.projections],
            [joined.product(values) for joined in self.products],
            read(values, self._others),
        )

    def project(
        self, others: list[jax.Array], inputs: chex.ArrayTree, take: Take
    ) -> tuple[list[jax.Array], Taken]:
        """Returns what depends on the inputs, but not on the carry.

        Args:
          others: of `Weights`.
          inputs: of one step, or of many, `(time, ...)`.
          take: takes the products.
        """
        leaves = jax.tree.leaves(inputs)
        is_sequence = leaves[0].ndim > len(self._inputs[0].aval.shape)
        values = dict(zip(self._others, others, strict=True))
        values |= dict(zip(self._inputs, leaves, strict=True))
        run, taken = [], Taken([], [])
        for item in self._order[PROJECTION]:
            if not isinstance(item, Joined):
                run.append(item)
                continue
            made = [v for equation in run for v in equation.outvars]
            read_made = partial(read, atoms=made)
            results = self._evaluate(run, values, is_sequence, read_made)
            values |= dict(zip(made, results, strict=True))
            run = []
            _take_product(item, values, None, take, taken)
        z = self._evaluate(run, values, is_sequence, self._leaves_of_projection)
        return z, taken

    def _leaves_of_projection(self, values):
        added = [joined.added(values) for joined in self._added]
        return added + read(values, self._projected)

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
        count, taken = len(self._added), Taken([], [])
        values = dict(zip(self._others, others, strict=True))
        values |= dict(zip(self._projected, projected[count:], strict=True))
        values |= dict(zip(self._carry, jax.tree.leaves(carry), strict=True))
        added = iter(projected[:count])
        for item in self._order[RECURRENCE]:
            if isinstance(item, Joined):
                onto = next(added) if item.is_added_to else None
                _take_product(item, values, onto, take, taken)
            else:
                evaluate([item], values)
        results = read(values, self._equations.results)
        return jax.tree.unflatten(jax.tree.structure(self.result), results), taken

    def used_outside(self) -> list[bool]:
        """Returns, for each given leaf, whether it is multiplied outside of `products`.

        That is, in a product that is none of them, or in an inner function, such as the
        body of a loop.
        """
        used = set()
        for equation in self._order[RECURRENCE]:
            if not isinstance(equation, Joined):
                is_product = equation.primitive.name in PRODUCTS
                if is_product or inner_jaxprs(equation):
                    used |= set(variables(equation))
        for equation in reversed(self._order[WEIGHTS]):
            if used & set(equation.outvars):
                used |= set(variables(equation))
        return [v in used for v in self._given]

    def _evaluate(self, equations, values, is_sequence, results):
        """Returns `results` of the values with those of equations of the projection.

        Of one step, or of all steps at once.
        """
        mapped = [v for v in values if self._stages[v] == PROJECTION]

        def of_step(operands):
            own = values | dict(zip(mapped, operands, strict=True))
            evaluate(equations, own)
            return results(own)

        operands = read(values, mapped)
        return jax.vmap(of_step)(operands) if is_sequence else of_step(operands)

    def _find_stages(self):
        own = self._equations
        stages = dict.fromkeys((*own.inputs, *own.constants), WEIGHTS)
        stages |= dict.fromkeys(self._inputs, PROJECTION)
        stages |= dict.fromkeys(self._carry, RECURRENCE)
        for equation in own.equations:
            stage = max((stages[v] for v in variables(equation)), default=WEIGHTS)
            stages |= dict.fromkeys(equation.outvars, stage)
        return stages

    def _find_order(self):
        """Returns, for each stage, its equations and products in order."""
        joined_of = {
            id(equation): joined
            for joined in self._joined
            for member in joined.members
            for equation in member.taken
        }
        order, placed = {WEIGHTS: [], PROJECTION: [], RECURRENCE: []}, set()
        for equation in self._equations.equations:
            stage = self._stages[equation.outvars[0]]
            joined = joined_of.get(id(equation))
            if joined is None:
                order[stage].append(equation)
            elif id(joined) not in placed:
                placed.add(id(joined))
                order[stage].append(joined)
        return order

    def _reads(self, stage):
        """Returns the variables of earlier stages that a stage reads."""
        found = []
        for item in self._order[stage]:
            found += [item.left] if isinstance(item, Joined) else variables(item)
        if stage == PROJECTION:
            found += [v for j in self._added for p in j.pieces for v in p.addends]
        else:
            found += filter(is_variable, self._equations.results)
        return list(dict.fromkeys(v for v in found if self._stages[v] < stage))


def _take_product(joined, values, onto, take, taken):
    """Takes the next product: adds it to `values` and to `taken`."""
    left = values[joined.left]
    if getattr(left, "weak_type", False):
        left = jax.lax.convert_element_type(left, left.dtype)
    value, result = take(len(taken.lefts), left, onto)
    taken.lefts.append(left)
    taken.values.append(value)
    values.update(joined.split(result))
