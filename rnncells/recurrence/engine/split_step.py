"""The step of any cell, split by what its equations depend on.

    weights     what depends on the parameters alone: formed once, before the loop
    projection  what depends on the inputs, but not on the carry: of many steps at once
    recurrence  what depends on the carry: the body of the loop

A product of something with weights is found as such (product_search.py). Products of
one left operand are joined. What the projection adds to a product is summed in the
projection, and the loop adds the sum to the product.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import Any, NamedTuple

import jax
from chex import ArrayTree
from jax import Array

from rnncells.recurrence import jaxprs
from rnncells.recurrence.engine import product_search
from rnncells.recurrence.engine.affine import Concatenation
from rnncells.recurrence.engine.gates_apart import split_gates
from rnncells.recurrence.engine.memory import Policy, is_chosen
from rnncells.recurrence.engine.product_search import (
    PROJECTION,
    RECURRENCE,
    WEIGHTS,
    FusedProduct,
)
from rnncells.recurrence.engine.products import Product, ProductEvaluator
from rnncells.recurrence.jaxprs import Equations, Part, Values, Variable
from rnncells.recurrence.mesh import may_be_sharded


class StepWeights(NamedTuple):
    """Products with their weights, and other values that depend on parameters alone."""

    projections: list[Product]  # of the projection
    products: list[Product]  # of the recurrence, in the order of `SplitStep.saveable`
    invariants: list[Array]  # all other values that are read


class EvaluatedProducts(NamedTuple):
    """The products that a projection or a recurrence has evaluated, in order."""

    lhs: list[Array]  # their left operands
    values: list[Array]  # with what they are added to

    def add(
        self,
        products: Iterable[FusedProduct],
        values: Values,
        evaluator: ProductEvaluator,
        addends: Iterator[Array],
    ) -> None:
        """Evaluates products, and adds their results to `values`."""
        for product in products:
            lhs = values[product.lhs]
            if getattr(lhs, "weak_type", False):
                lhs = jax.lax.convert_element_type(lhs, lhs.dtype)
            addend = next(addends) if product.has_addends else None
            value = evaluator(len(self.lhs), lhs, addend)
            self.lhs.append(lhs)
            self.values.append(value)
            values.update(zip(product.outvars, product.split(value), strict=True))


class SplitStep:
    """The step of a cell as three functions, `weights`, `project` and `recur`.

    Attributes:
      result: shapes and dtypes of what the step returns.
      varying: for each operand of `jaxpr`, whether it differs from step to step.
      projections: products of the projection; `products` are those of the recurrence.
      saveable: products and save points of the recurrence, in order; `chosen` says
        which of them a policy saves.
      read_by_projection: for each of the invariants, whether `project` reads it.
      outputs_in_carry: for each leaf of the output, the number of the leaf of the new
        carry that it is, or -1.
    """

    def __init__(
        self,
        step: Callable,
        consts: ArrayTree,
        carry: ArrayTree,
        inputs: ArrayTree,
        policy: Policy | None = None,
    ) -> None:
        """Traces a pure function, `step(consts, carry, inputs) -> (carry, output)`."""
        args = consts, inputs, carry
        self._equations, self.result = jaxprs.trace(
            lambda consts, inputs, carry: step(consts, carry, inputs), *args
        )
        # One device computes gates faster side by side.
        if may_be_sharded():
            split_function = split_gates(self._equations, RECURRENCE)
            if split_function is not None:
                self._equations, _ = jaxprs.trace(split_function, *args)
        self._consts, self._inputs, self._carry = self._equations.arguments
        self._stages = self._equations.stages
        self.jaxpr = self._equations.jaxpr
        self.varying = [self._stages[v] > WEIGHTS for v in self.jaxpr.invars]
        self._order = _ordered(self._equations, policy)
        self._find_saveable(policy)
        self._find_reads()

    @property
    def captured_arrays(self) -> list[Array]:
        return list(self._equations.constants.values())

    def weights(self, consts: ArrayTree) -> StepWeights:
        """Evaluates the equations that depend on the parameters alone."""
        values = dict(zip(self._consts, jax.tree.leaves(consts), strict=True))
        values |= self._equations.constants
        concatenate = Concatenation()
        jaxprs.evaluate(self._order[WEIGHTS], values, concatenate.rule)
        return StepWeights(
            [item.product(values, concatenate) for item in self.projections],
            [item.product(values, concatenate) for item in self.saveable],
            jaxprs.read(values, self._invariants),
        )

    def project(
        self, invariants: list[Array], inputs: ArrayTree, evaluator: ProductEvaluator
    ) -> tuple[list[Array], EvaluatedProducts]:
        """Evaluates what does not depend on the carry, of all steps, `(time, ...)`."""
        invariant = dict(zip(self._invariants, invariants, strict=True))
        per_step = dict(zip(self._inputs, jax.tree.leaves(inputs), strict=True))
        steps = jax.tree.leaves(inputs)[0].shape[0]
        evaluated = EvaluatedProducts([], [])
        for is_fused, items in self._groups(PROJECTION):
            if is_fused:
                evaluated.add(items, per_step, evaluator, iter(()))
                continue
            part = Part(items, jaxprs.outvars(items))
            values = part.of_all_steps(invariant, per_step, steps)
            per_step |= zip(part.results, values, strict=True)

        def projected(operands: list[Array]) -> list[Array]:
            values = invariant | dict(zip(per_step, operands, strict=True))
            sums = [item.sum_addends(values) for item in self._with_addends]
            return sums + jaxprs.read(values, self._projected)

        xs = list(per_step.values())
        return jax.vmap(projected, axis_size=steps)(xs), evaluated

    def recur(
        self,
        invariants: list[Array],
        carry: ArrayTree,
        projected: list[Array],
        evaluator: ProductEvaluator,
    ) -> tuple[ArrayTree, EvaluatedProducts]:
        """Returns the result of one step, and its products."""
        count = len(self._with_addends)
        values = dict(zip(self._invariants, invariants, strict=True))
        values |= zip(self._projected, projected[count:], strict=True)
        values |= zip(self._carry, jax.tree.leaves(carry), strict=True)
        evaluated, addends = EvaluatedProducts([], []), iter(projected)
        for is_fused, items in self._groups(RECURRENCE):
            if is_fused:
                evaluated.add(items, values, evaluator, addends)
            else:
                jaxprs.evaluate(items, values)
        results = jaxprs.read(values, self._equations.results)
        return jax.tree.unflatten(jax.tree.structure(self.result), results), evaluated

    def _groups(self, stage: int) -> list[tuple[bool, list[Any]]]:
        """Returns the products of a stage, and the equations between them, in order."""
        groups = groupby(self._order[stage], _is_fused)
        return [(is_fused, list(items)) for is_fused, items in groups]

    def used_outside(self) -> list[bool]:
        """Says which leaves of `consts` the recurrence reads outside of `products`."""
        outside = [e for e in self._order[RECURRENCE] if not _is_fused(e)]
        used = jaxprs.reads(filter(jaxprs.multiplies, outside))
        used += jaxprs.reads(jaxprs.live_equations(self._order[WEIGHTS], used))
        return [v in used for v in self._consts]

    def feeds_carry(self) -> list[bool]:
        """Says for each of `saveable` whether it is a product that the carry reads."""
        count = len(jax.tree.leaves(self.result[0]))
        equations, results = self._equations.equations, self._equations.results
        live = jaxprs.live_equations(equations, results[:count])
        read_by_carry = set(jaxprs.outvars(live))
        return [
            bool(item.kernels)
            and not read_by_carry.isdisjoint(jaxprs.outvars(item.equations))
            for item in self.saveable
        ]

    def _find_saveable(self, policy: Policy | None) -> None:
        self.projections, self.saveable = (
            list(filter(_is_fused, self._order[stage]))
            for stage in (PROJECTION, RECURRENCE)
        )
        self.products = [item for item in self.saveable if item.kernels]
        self.chosen = [
            policy is not None and any(is_chosen(e, policy) for e in item.equations)
            for item in self.saveable
        ]
        self._with_addends = [item for item in self.saveable if item.has_addends]

    def _find_reads(self) -> None:
        by_projection, by_recurrence = map(self._reads, (PROJECTION, RECURRENCE))
        by_either = dict.fromkeys(by_projection + by_recurrence)
        self._invariants = [v for v in by_either if self._stages[v] == WEIGHTS]
        self._projected = [v for v in by_recurrence if self._stages[v] == PROJECTION]
        self.read_by_projection = [v in by_projection for v in self._invariants]
        results, count = self._equations.results, len(jax.tree.leaves(self.result[0]))
        carry = {v: k for k, v in enumerate(results[:count]) if jaxprs.is_variable(v)}
        self.outputs_in_carry = [
            carry.get(v, -1) if jaxprs.is_variable(v) else -1 for v in results[count:]
        ]

    def _reads(self, stage: int) -> list[Variable]:
        """Returns the variables of earlier stages that a stage reads."""
        results = self._equations.results
        if stage == PROJECTION:
            results = [v for item in self._with_addends for v in item.addends]
        operands = jaxprs.reads(self._order[stage], results)
        return [v for v in operands if self._stages[v] < stage]


def _ordered(equations: Equations, policy: Policy | None) -> dict[int, list[Any]]:
    """Returns equations, products and save points of each stage in order."""
    fused_of = {
        equation.outvars[0]: fused
        for fused in product_search.find_products(equations)
        for equation in fused.replaced
    }
    sum_points = product_search.find_sum_points(equations)
    order: dict[int, list[Any]] = {WEIGHTS: [], PROJECTION: [], RECURRENCE: []}
    for equation in equations.equations:
        (result, *_) = equation.outvars
        stage = equations.stages[result]
        fused = fused_of.get(result)
        if fused is not None:
            order[stage] += [fused] if fused.equations[0] is equation else []
            continue
        order[stage].append(sum_points.get(result, equation))
        is_open = stage == RECURRENCE and result not in sum_points
        if is_open and policy is not None and is_chosen(equation, policy):
            order[stage] += [
                product_search.save_point(equation, v, v) for v in equation.outvars
            ]
    return order


def _is_fused(item: Any) -> bool:
    return isinstance(item, FusedProduct)
