"""The products with weights in a step: found in its equations, and joined."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rnncells.recurrence.affine import Affine, side_by_side, stacked
from rnncells.recurrence.convolution import Convolution
from rnncells.recurrence.jaxprs import (
    Atom,
    Equations,
    Stages,
    Values,
    Variable,
    bind,
    is_variable,
    read,
)
from rnncells.recurrence.mesh import may_be_sharded
from rnncells.recurrence.products import Product, ProductFunction
from rnncells.recurrence.pytrees import is_inexact, structs

# The arguments of a step: what depends on the first alone, on no later one than the
# second, and on the third.
WEIGHTS, PROJECTION, RECURRENCE = range(3)
PRODUCTS = "dot_general", "conv_general_dilated"


class Piece(NamedTuple):
    """Some features of a product, and what is added to them.

    Attributes:
      addends: formed in the projection, or of weights alone beside such; empty without.
      result: the sum.
    """

    addends: tuple[Variable, ...]
    result: Variable

    @property
    def width(self) -> int:
        return self.result.aval.shape[-1]


class Member(NamedTuple):
    """A product in a step.

    Attributes:
      equation: the product.
      kernel: its weight, before it is cast.
      bias: `(features,)`, what is added to it first; None without.
      pieces: of its features, in order; one, if the step does not split it.
      replaced: the equations that it stands for.
    """

    equation: Any
    kernel: Variable
    bias: Variable | None
    pieces: tuple[Piece, ...]
    replaced: tuple[Any, ...]


class Joined(NamedTuple):
    """Products of one left operand, taken as one.

    Attributes:
      lhs: the operand.
      members: the products; of more than one, the kernels are matrices.
    """

    lhs: Variable
    members: tuple[Member, ...]

    @property
    def pieces(self) -> list[Piece]:
        """The pieces of all products."""
        return [piece for member in self.members for piece in member.pieces]

    @property
    def equations(self) -> list[Any]:
        """The equations of the products."""
        return [member.equation for member in self.members]

    @property
    def is_added_to(self) -> bool:
        """Whether something is added to each of the products."""
        return all(piece.addends for piece in self.pieces)

    @property
    def addends(self) -> list[Variable]:
        """What is added, in the projection."""
        return [v for piece in self.pieces for v in piece.addends]

    @property
    def is_stacked(self) -> bool:
        """Whether the features of each product have an axis of their own.

        They can then be sharded over devices; one device has no use for it.
        """
        members = [member.pieces for member in self.members]
        are_whole = len(members) > 1 and all(len(pieces) == 1 for pieces in members)
        widths = {piece.width for piece in self.pieces} if are_whole else ()
        return may_be_sharded() and len(widths) == 1

    @property
    def function(self) -> ProductFunction:
        """The product as a function of the left operand and the weights."""
        equation = self.members[0].equation
        if _is_matrix_product(equation, self.lhs):
            return Affine(equation.invars[1].aval.dtype)
        if equation.primitive.name == "conv_general_dilated":
            return Convolution(equation.params)
        return Linear(equation, equation.invars[0] is not self.lhs)

    def product(self, values: Values) -> Product:
        """Returns the product with its weights."""
        function, weights = self.function, self.weights(values)
        lhs = jax.ShapeDtypeStruct(self.lhs.aval.shape, self.lhs.aval.dtype)
        result = jax.eval_shape(function, lhs, weights)
        return Product(weights, function, lhs, *structs([result]))

    def weights(self, values: Values) -> tuple[jax.Array | None, ...]:
        """Returns kernels and biases, stacked or side by side."""
        if not isinstance(self.function, Affine):
            return (values[self.members[0].kernel],)
        join = stacked if self.is_stacked else side_by_side
        return join([(values[m.kernel], values.get(m.bias)) for m in self.members])

    def added(self, values: Values) -> jax.Array:
        """Returns what is added to the products of a step, joined as they are."""
        sums = []
        for piece in self.pieces:
            first, *others = read(values, piece.addends)
            shape = piece.result.aval.shape
            sums.append(jnp.broadcast_to(sum(others, first), shape))
        if self.is_stacked:
            return jnp.stack(sums, -2)
        # A product of vectors is a number, which has no axis.
        return sums[0] if len(sums) == 1 else jnp.concatenate(sums, -1)

    def split(self, value: jax.Array) -> Values:
        """Returns the results of the products."""
        if len(self.pieces) == 1:
            return {self.pieces[0].result: value}
        if self.is_stacked:
            parts = jnp.split(value, len(self.pieces), -2)
            parts = [part.squeeze(-2) for part in parts]
        else:
            widths = [piece.width for piece in self.pieces]
            ends = [sum(widths[: k + 1]) for k in range(len(widths) - 1)]
            parts = jnp.split(value, ends, -1)
        return {p.result: part for p, part in zip(self.pieces, parts, strict=True)}


@dataclass(frozen=True, eq=False)
class Linear(ProductFunction):
    """A product as its equation writes it.

    Attributes:
      equation: the product.
      is_swapped: whether the weight is its first operand.
    """

    equation: Any
    is_swapped: bool

    def __call__(self, lhs: jax.Array, weights: tuple[jax.Array]) -> jax.Array:
        def one(lhs):
            operands = [*weights, lhs] if self.is_swapped else [lhs, *weights]
            return bind(self.equation, operands)[0]

        own = self.equation.invars[int(self.is_swapped)].aval
        for _ in range(lhs.ndim - len(own.shape)):
            one = jax.vmap(one)
        return one(lhs)


def find_products(equations: Equations, stages: Stages) -> list[Joined]:
    """Returns the products with weights, those of one left operand together."""
    finder = _Finder(stages, equations.makers(), equations.uses(), equations.users())
    groups: dict[Any, tuple[Variable, list[Member]]] = {}
    for equation in equations.equations:
        operands = finder.operands(equation)
        if operands is None:
            continue
        lhs, weight = operands
        is_matrix = _is_matrix_product(equation, lhs)
        member = finder.member(equation, weight, is_matrix)
        dtype = member.kernel.aval.dtype
        is_added_to = all(piece.addends for piece in member.pieces)
        key = (lhs, dtype, is_added_to) if is_matrix else equation.outvars[0]
        groups.setdefault(key, (lhs, []))[1].append(member)
    return [Joined(lhs, tuple(members)) for lhs, members in groups.values()]


class _Finder(NamedTuple):
    """Finds what belongs to a product.

    Attributes:
      stages: of each variable.
      makers: the equation whose result a variable is.
      uses: how often a variable is an operand or a result.
      users: an equation of which it is an operand.
    """

    stages: Stages
    makers: dict[Variable, Any]
    uses: dict[Variable, int]
    users: dict[Variable, Any]

    def _stage(self, atom: Atom) -> int | None:
        """Returns the stage of a variable, None for a literal."""
        return self.stages[atom] if is_variable(atom) else None

    def operands(self, equation):
        """Returns the left operand and the weight of a product; None of another."""
        name = equation.primitive.name
        operands = equation.invars
        if name not in PRODUCTS or not all(is_inexact(v.aval) for v in operands):
            return None
        first, second = map(self._stage, operands)
        if second == WEIGHTS and first is not None and first > WEIGHTS:
            return tuple(operands)
        is_swapped = first == WEIGHTS and second is not None and second > WEIGHTS
        return operands[::-1] if is_swapped and name == "dot_general" else None

    def member(self, equation, weight, is_matrix) -> Member:
        (result,), bias, replaced = equation.outvars, None, [equation]
        if is_matrix and (add := self._sum(result)) is not None:
            bias = self._bias(_other(add, result), equation)
            if bias is not None:
                replaced.append(add)
                (result,) = add.outvars
        pieces, own = self._pieces(result)
        kernel = self._uncast(weight, weight.aval.dtype) if is_matrix else weight
        return Member(equation, kernel, bias, pieces, (*replaced, *own))

    def _pieces(self, result):
        """Returns the pieces of a product, and the equations that they stand for."""
        whole = Piece((), result)
        if self.stages[result] != RECURRENCE:
            return (whole,), ()
        results, replaced = [result], []
        split = self.users.get(result) if self.uses[result] == 1 else None
        last = len(result.aval.shape) - 1
        if split is not None and split.primitive.name == "split":
            if split.params["axis"] == last:
                results, replaced = split.outvars, [split]
        pieces = []
        for part in results:
            addends, sum_, sums = self._addends(part)
            pieces.append(Piece(addends, sum_))
            replaced += sums
        if not all(piece.addends for piece in pieces):
            return (whole,), ()
        return tuple(pieces), tuple(replaced)

    def _addends(self, result):
        """Returns what is added in the projection, the sum, and the equations."""
        addends, replaced = [], []
        while (add := self._sum(result)) is not None:
            term = _other(add, result)
            if self._stage(term) in (RECURRENCE, None):
                break
            addends.append(term)
            replaced.append(add)
            (result,) = add.outvars
        if all(self.stages[v] == WEIGHTS for v in addends):
            return (), None, []
        return tuple(addends), result, replaced

    def _sum(self, result):
        """Returns the sum that is the only use of a result; None without."""
        if self.uses[result] != 1 or result not in self.users:
            return None
        user = self.users[result]
        is_sum = user.primitive.name in ("add", "add_any")
        return user if is_sum and user.outvars[0].aval == result.aval else None

    def _uncast(self, weight, dtype):
        """Returns a weight before it was cast, so that its gradient is not rounded."""
        maker = self.makers.get(weight)
        if maker is None or not _is_cast(maker, dtype):
            return weight
        (source,) = maker.invars
        return source if is_variable(source) else weight

    def _bias(self, term, equation):
        """Returns the vector that is broadcast to a term; None without."""
        result = equation.outvars[0].aval
        features, dtype = result.shape[-1], result.dtype
        while self._stage(term) == WEIGHTS:
            if term.aval.shape == (features,):
                return self._uncast(term, dtype) if is_inexact(term.aval) else None
            maker = self.makers.get(term)
            if maker is None or not _broadcasts_rows(maker, features, dtype):
                return None
            term = maker.invars[0]
        return None


def _other(add, term):
    """Returns the operand of a sum that is not `term`."""
    first, second = add.invars
    return second if first is term else first


def _is_cast(maker, dtype):
    """Says whether an equation casts, and a cast to `dtype` alone gives the same."""
    if maker.primitive.name != "convert_element_type":
        return False
    source, result = (v.aval.dtype for v in (*maker.invars, *maker.outvars))
    is_exact = result == dtype or jnp.promote_types(source, result) == result
    return jnp.issubdtype(source, jnp.floating) and is_exact


def _broadcasts_rows(maker, features, dtype):
    """Says whether an equation repeats a vector for each row, or casts it."""
    operand, shape = maker.invars[0].aval.shape, maker.outvars[0].aval.shape
    size = 1
    for n in operand:
        size = size * n
    if not (operand and operand[-1] == size == features == shape[-1]):
        return False
    name, last = maker.primitive.name, len(shape) - 1
    if name == "broadcast_in_dim":
        return maker.params["broadcast_dimensions"][-1] == last
    is_row = name == "reshape" and all(n == 1 for n in shape[:-1])
    return is_row or _is_cast(maker, dtype)


def _is_matrix_product(equation, lhs):
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
