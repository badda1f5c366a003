"""The products with weights in a step: found in its equations, and joined.

Other values of a step can be saved beside those of its products. Such a save point is
saved as a product's value is, so that its operands need not be recomputed.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import accumulate
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from rnncells.recurrence import jaxprs
from rnncells.recurrence.engine.affine import Affine, side_by_side, stacked
from rnncells.recurrence.engine.convolution import Convolution
from rnncells.recurrence.engine.products import Identity, Product, ProductFunction
from rnncells.recurrence.jaxprs import Atom, Equations, Values, Variable
from rnncells.recurrence.mesh import may_be_sharded
from rnncells.recurrence.primitives import PRODUCTS, SUMS
from rnncells.recurrence.pytrees import is_inexact, structs

# The arguments of a step: what depends on the first alone, on no later one than the
# second, and on the third.
WEIGHTS, PROJECTION, RECURRENCE = range(3)


class ProductSlice(NamedTuple):
    """Some features of a product, and what the projection adds to them."""

    addends: tuple[Variable, ...]  # at least one depends on inputs; or empty
    result: Variable  # the sum

    @property
    def width(self) -> int:
        return self.result.aval.shape[-1]


@dataclass(frozen=True, eq=False)
class FusedProduct:
    """Products of one left operand, taken as one; or a save point, without kernels."""

    lhs: Variable
    equations: list[Any]
    kernels: list[Variable]  # before they are cast; if several, matrices
    biases: list[Variable | None]  # each `(features,)`, added first
    slices: list[ProductSlice]  # at least one for each equation
    replaced: list[Any]  # the equations that it stands for

    @cached_property
    def invars(self) -> list[Variable]:
        return [self.lhs]

    @cached_property
    def outvars(self) -> list[Variable]:
        return [slice_.result for slice_ in self.slices]

    def joined(self, other: "FusedProduct") -> "FusedProduct":
        """Returns both products as one; its lists are those of both, in order."""
        names = [field.name for field in fields(self) if field.name != "lhs"]
        both = {k: getattr(self, k) + getattr(other, k) for k in names}
        return FusedProduct(self.lhs, **both)

    @cached_property
    def has_addends(self) -> bool:
        return all(slice_.addends for slice_ in self.slices)

    @property
    def addends(self) -> list[Variable]:
        return [v for slice_ in self.slices for v in slice_.addends]

    @cached_property
    def has_gate_axis(self) -> bool:
        """Whether gates have an axis, so that devices can share their features."""
        are_unsplit = len(self.equations) == len(self.slices) > 1
        widths = {slice_.width for slice_ in self.slices} if are_unsplit else ()
        return len(widths) == 1 and may_be_sharded()

    @cached_property
    def function(self) -> ProductFunction:
        equation = self.equations[0]
        if not self.kernels:
            return Identity()
        if _is_matrix_product(equation, self.lhs):
            return Affine(equation.invars[1].aval.dtype)
        if equation.primitive.name == "conv_general_dilated":
            return Convolution(equation.params)
        return EquationProduct(equation, equation.invars[0] is not self.lhs)

    def product(self, values: Values, concatenate: Callable) -> Product:
        """Returns the product with its weights, stacked or side by side."""
        function, weights = self.function, tuple(values[v] for v in self.kernels)
        if isinstance(function, Affine):
            pairs = list(zip(weights, map(values.get, self.biases), strict=True))
            is_stacked = self.has_gate_axis
            weights = stacked(pairs) if is_stacked else side_by_side(pairs, concatenate)
        lhs = jax.ShapeDtypeStruct(self.lhs.aval.shape, self.lhs.aval.dtype)
        result = jax.eval_shape(function, lhs, weights)
        return Product(weights, function, lhs, *structs([result]))

    def sum_addends(self, values: Values) -> Array:
        """Returns the sums of the addends of all products, joined as the products."""
        sums = []
        for slice_ in self.slices:
            first, *terms = [values[v] for v in slice_.addends]
            sums.append(jnp.broadcast_to(sum(terms, first), slice_.result.aval.shape))
        if self.has_gate_axis:
            return jnp.stack(sums, -2)
        # A product of vectors is a number, which has no axis.
        return sums[0] if len(sums) == 1 else jnp.concatenate(sums, -1)

    def split(self, value: Array) -> list[Array]:
        if len(self.slices) == 1:
            return [value]
        if self.has_gate_axis:
            parts = jnp.split(value, len(self.slices), -2)
            return [part.squeeze(-2) for part in parts]
        ends = list(accumulate(slice_.width for slice_ in self.slices))
        return jnp.split(value, ends[:-1], -1)


@dataclass(frozen=True, eq=False)
class EquationProduct(ProductFunction):
    """A product as in its equation; `is_swapped`: its first operand is the weight."""

    equation: Any
    is_swapped: bool

    def __call__(self, lhs: Array, weights: tuple[Array]) -> Array:
        def multiply(lhs: Array) -> Array:
            operands = [*weights, lhs] if self.is_swapped else [lhs, *weights]
            return jaxprs.bind(self.equation, operands)[0]

        lhs_aval = self.equation.invars[int(self.is_swapped)].aval
        for _ in range(lhs.ndim - len(lhs_aval.shape)):
            multiply = jax.vmap(multiply)
        return multiply(lhs)


def find_products(equations: Equations) -> list[FusedProduct]:
    """Returns the products with weights, those of one left operand together."""
    finder = _Finder(equations)
    fused: dict[Any, FusedProduct] = {}
    for equation in equations.equations:
        operands = finder.operands(equation)
        if operands is None:
            continue
        lhs, weight = operands
        is_matrix = _is_matrix_product(equation, lhs)
        product = finder.product(equation, lhs, weight, is_matrix)
        key = lhs, product.kernels[0].aval.dtype, product.has_addends
        key = key if is_matrix else equation.outvars[0]
        before = fused.get(key)
        fused[key] = product if before is None else before.joined(product)
    return list(fused.values())


def save_point(
    equation: Any, result: Variable, lhs: Variable, *addends: Variable
) -> FusedProduct:
    """Returns the save point of a value, or of its sum with a projected input."""
    slices = [ProductSlice(addends, result)]
    return FusedProduct(lhs, [equation], [], [], slices, [equation])


def find_sum_points(equations: Equations) -> dict[Variable, FusedProduct]:
    """Returns sums to save in place of a projected input that nothing else reads.

    Sums with a product of two values are skipped.
    """
    stages, producers = equations.stages, equations.producers
    points = {}
    for equation in equations.equations:
        if equation.primitive.name not in SUMS:
            continue
        (result,), operands = equation.outvars, jaxprs.variables(equation)
        if [v.aval for v in operands] != [result.aval] * 2:
            continue
        addend, lhs = sorted(operands, key=stages.__getitem__)
        is_only_use = len(equations.users[addend]) == 1
        if not is_only_use or (stages[addend], stages[lhs]) != (PROJECTION, RECURRENCE):
            continue
        if lhs not in producers or producers[lhs].primitive.name != "mul":
            points[result] = save_point(equation, result, lhs, addend)
    return points


class _Finder:
    """Finds the weight, the bias and the addends of a product."""

    def __init__(self, equations: Equations) -> None:
        self._stage, self._stages = equations.stage, equations.stages
        self._producers = equations.producers
        self._users = equations.users

    def operands(self, equation: Any) -> tuple[Variable, ...] | None:
        """Returns the left operand and the weight of a product; None of another."""
        name, operands = equation.primitive.name, equation.invars
        if name not in PRODUCTS or not all(map(is_inexact, [v.aval for v in operands])):
            return None
        first, second = map(self._stage, operands)
        if first > WEIGHTS and second == WEIGHTS:
            return tuple(operands)
        is_swapped = first == WEIGHTS and second > WEIGHTS and name == "dot_general"
        return operands[::-1] if is_swapped else None

    def product(
        self, equation: Any, lhs: Variable, weight: Variable, is_matrix: bool
    ) -> FusedProduct:
        (result,) = equation.outvars
        bias, kernel, replaced = None, weight, [equation]
        if is_matrix:
            kernel = self._uncast(weight, weight.aval.dtype)
            add = self._sum(result)
            bias = add and self._bias(_other(add, result), equation)
            if bias is not None:
                replaced.append(add)
                (result,) = add.outvars
        slices, sums = self._slices(result)
        replaced += sums
        return FusedProduct(lhs, [equation], [kernel], [bias], slices, replaced)

    def _slices(self, result: Variable) -> tuple[list[ProductSlice], list[Any]]:
        """Returns the pieces of a product, and the equations that they stand for."""
        unsplit = ProductSlice((), result)
        if self._stages[result] != RECURRENCE:
            return [unsplit], []
        results, replaced = [result], []
        slices = []
        user = self._only_user(result)
        if user is not None and user.primitive.name == "split":
            if user.params["axis"] == len(result.aval.shape) - 1:
                results, replaced = user.outvars, [user]
        for part in results:
            sums = list(self._sums_with_addends(part))
            addends = tuple(addend for addend, _ in sums)
            # Without addends, or if none depends on inputs.
            if all(self._stages[v] == WEIGHTS for v in addends):
                return [unsplit], []
            replaced += [add for _, add in sums]
            slices.append(ProductSlice(addends, replaced[-1].outvars[0]))
        return slices, replaced

    def _sums_with_addends(self, result: Variable) -> Iterator[tuple[Variable, Any]]:
        """Yields what the projection adds to a result, and the equations that do."""
        while (add := self._sum(result)) is not None:
            addend = _other(add, result)
            if self._stage(addend) in (RECURRENCE, -1):
                break
            yield addend, add
            (result,) = add.outvars

    def _sum(self, result: Variable) -> Any:
        """Returns the sum that is the only use of a result; None without."""
        user = self._only_user(result)
        is_sum = user is not None and user.primitive.name in SUMS
        return user if is_sum and user.outvars[0].aval == result.aval else None

    def _only_user(self, result: Variable) -> Any:
        """Returns the equation that is the only use of a variable; None without."""
        users = self._users[result]
        return users[0] if len(users) == 1 else None

    def _uncast(self, weight: Variable, dtype: Any) -> Variable:
        """Returns a weight before it was cast, so that its gradient is not rounded."""
        producer = self._producers.get(weight)
        if producer is None or not _is_cast(producer, dtype):
            return weight
        (source,) = producer.invars
        return source if jaxprs.is_variable(source) else weight

    def _bias(self, term: Atom, equation: Any) -> Variable | None:
        """Returns the vector that is broadcast to a term; None without."""
        result = equation.outvars[0].aval
        features, dtype = result.shape[-1], result.dtype
        while self._stage(term) == WEIGHTS:
            if term.aval.shape == (features,):
                return self._uncast(term, dtype) if is_inexact(term.aval) else None
            producer = self._producers.get(term)
            if producer is None or not _broadcasts_rows(producer, features, dtype):
                return None
            term = producer.invars[0]
        return None


def _other(add: Any, term: Atom) -> Atom:
    first, second = add.invars
    return second if first is term else first


def _is_cast(producer: Any, dtype: Any) -> bool:
    """Says whether an equation casts, and a cast to `dtype` alone gives the same."""
    if producer.primitive.name != "convert_element_type":
        return False
    source, result = (v.aval.dtype for v in (*producer.invars, *producer.outvars))
    is_exact = result == dtype or jnp.promote_types(source, result) == result
    return jnp.issubdtype(source, jnp.floating) and is_exact


def _broadcasts_rows(producer: Any, features: int, dtype: Any) -> bool:
    """Says whether an equation repeats a vector for each row, or casts it."""
    operand, shape = producer.invars[0].aval.shape, producer.outvars[0].aval.shape
    if not (operand and operand[-1] == math.prod(operand) == features == shape[-1]):
        return False
    name, last = producer.primitive.name, len(shape) - 1
    if name == "broadcast_in_dim":
        return producer.params["broadcast_dimensions"][-1] == last
    is_row = name == "reshape" and all(n == 1 for n in shape[:-1])
    return is_row or _is_cast(producer, dtype)


def _is_matrix_product(equation: Any, lhs: Variable) -> bool:
    """Says whether a product is `lhs @ matrix`, in one dtype."""
    first, second = equation.invars
    if equation.primitive.name != "dot_general" or first is not lhs:
        return False
    last = len(first.aval.shape) - 1
    dtypes = {v.aval.dtype for v in (first, second, *equation.outvars)}
    numbers = ((last,), (0,)), ((), ())
    return (
        len(dtypes) == 1
        and len(second.aval.shape) == 2
        and equation.params["dimension_numbers"] == numbers
        and equation.params["precision"] is None
    )
