"""Values of a step that are saved beside those of its products.

A save point is taken like a product: its value can be known, and then what it is formed
of need not be formed again.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from rnncells.recurrence.jaxprs import Stages, Values, Variable, is_variable
from rnncells.recurrence.primitives import SUMS
from rnncells.recurrence.product_search import PROJECTION, RECURRENCE
from rnncells.recurrence.products import Product, ProductFunction

# As `jax.checkpoint` takes it: `(primitive, *avals, **params)` to whether to save.
Policy = Callable[..., Any]


class Identity(ProductFunction):
    """The function of a save point, which has no weights."""

    def __call__(self, lhs: jax.Array, weights: tuple) -> jax.Array:
        return lhs


class SavePoint(NamedTuple):
    """A value of a step.

    Attributes:
      lhs: the value; of a sum, the operand that depends on the carry.
      addends: the other operand of a sum, which the projection forms; empty without.
      result: the value, or the sum.
      equations: the one of the result.
    """

    lhs: Variable
    addends: tuple[Variable, ...]
    result: Variable
    equations: tuple[Any]

    @property
    def has_addends(self) -> bool:
        """Whether something is added to the value."""
        return bool(self.addends)

    def product(self, values: Values) -> Product:
        """Returns the save point as a product without weights."""
        aval = self.lhs.aval
        struct = jax.ShapeDtypeStruct(aval.shape, aval.dtype)
        return Product((), Identity(), struct, struct)

    def sum_addends(self, values: Values) -> jax.Array:
        """Returns the addend of a step."""
        return values[self.addends[0]]

    def split(self, value: jax.Array) -> Values:
        """Returns the result."""
        return {self.result: value}


def sum_point(
    equation: Any,
    stages: Stages,
    use_counts: dict[Variable, int],
    producers: dict[Variable, Any],
) -> SavePoint | None:
    """Returns the sum of something with a projected input that nothing else reads.

    It is saved in place of the projected input, and what it is a sum of is not formed
    again. None for other equations, and where that is a multiplication.

    Args:
      equation: perhaps a sum.
      stages: of each variable, see `product_search`.
      use_counts: how often a variable is an operand or a result.
      producers: the equation whose result a variable is.
    """
    if equation.primitive.name not in SUMS:
        return None
    (result,), operands = equation.outvars, equation.invars
    if any(not is_variable(v) or v.aval != result.aval for v in operands):
        return None
    addend, lhs = sorted(operands, key=lambda v: stages[v])
    is_only_use = use_counts[addend] == 1
    if not is_only_use or (stages[addend], stages[lhs]) != (PROJECTION, RECURRENCE):
        return None
    if lhs in producers and producers[lhs].primitive.name == "mul":
        return None
    return SavePoint(lhs, (addend,), result, (equation,))


def is_chosen(equation: Any, policy: Policy | None) -> bool:
    """Says whether a policy chooses to save the results of an equation.

    Raises:
      ValueError: the policy moves them to other memory.
    """
    if policy is None:
        return False
    avals = [v.aval for v in equation.invars]
    case = policy(equation.primitive, *avals, **equation.params)
    if hasattr(case, "dst"):
        raise ValueError(
            "`memory` of RNN must be a policy that saves or recomputes, got one that "
            f"moves arrays from {case.src!r} to {case.dst!r}."
        )
    return case is True or type(case).__name__ == "SaveableType"
