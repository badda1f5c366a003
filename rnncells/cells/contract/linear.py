"""The base class of cells whose step is linear in the carry, element by element."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from chex import ArrayTree
from flax.typing import Initializer
from jax import Array

from rnncells.cells.contract.base import RNNCellBase
from rnncells.cells.contract.carry import Carry
from rnncells.cells.contract.fields import CellFields
from rnncells.recurrence.pytrees import expand_left


class LinearRNNCellBase(RNNCellBase):
    """Base of the cells whose step is linear in the carry, element by element.

    One step computes::

        c_t = a_t ⊙ c_{t-1} + b_t
        y_t = output(c_t, x_t)

    where a_t and b_t depend on the inputs only. A subclass defines `coefficients`
    instead of `recur`; `RNN` then computes the coefficients and the outputs of all
    steps at once. Only the line above is sequential: a loop of its own on CPU, an
    associative scan on GPU and TPU. Lengths, masks, resets and all other options work
    as for other cells.

    >>> import flax.linen as nn, jax, jax.numpy as jnp, rnncells
    >>> class AverageCell(rnncells.LinearRNNCellBase):
    ...     features: int
    ...     num_feature_dims = 1
    ...     def carry_shape(self, input_shape):
    ...         return (self.features,)
    ...     def setup(self):
    ...         self.gates("f", "i")
    ...     def project(self, inputs):
    ...         return self.affine(inputs, "f"), self.affine(inputs, "i")
    ...     def coefficients(self, projected):
    ...         f, i = projected
    ...         f = nn.sigmoid(f)
    ...         return f, (1 - f) * i
    >>> rnn = rnncells.RNN(AverageCell(features=4))
    >>> outputs, _ = rnn.init_with_output(jax.random.key(0), jnp.ones((2, 5, 3)))
    >>> outputs.shape
    (2, 5, 4)

    The fields are those of `RNNCellBase`. If a subclass also overrides `recur`, both
    must agree; `check_cell` compares them.
    """

    _methods = (*RNNCellBase._methods, "coefficients", "output")

    @nn.nowrap
    def coefficients(self, projected: ArrayTree) -> tuple[ArrayTree, ArrayTree]:
        """Returns a_t and b_t of one step, each a pytree like the carry.

        A leaf may have any shape that broadcasts to that of the carry's leaf.

        Args:
          projected: as `project` returns it.
        """
        raise NotImplementedError(f"{type(self).__name__} must define `coefficients`.")

    @nn.nowrap
    def output(self, carry: Carry, projected: ArrayTree) -> ArrayTree:
        """Returns the output of one step. Default: the carry.

        Args:
          carry: carry after the step.
          projected: as `project` returns it.
        """
        return carry

    def recur(self, carry: Carry, projected: ArrayTree) -> tuple[Carry, ArrayTree]:
        a, b = check_coefficients(self, self.coefficients(projected), carry)

        def step(a: Array, c: Array, b: Array) -> Array:
            return expand_left(a, c) * c + expand_left(b, c)

        carry = jax.tree.map(step, a, carry, b)
        return carry, self.output(carry, projected)


class LinearGatedCell(LinearRNNCellBase, CellFields):
    """Base of the linear cells with gates; it has their shared fields.

    Attributes, in addition to those of `rnncells.cells.contract.fields.CellFields`:
      kernel_init: initializer of the kernels, each `(features_in, features)`.
        Default: LeCun normal.
      bias_init: initializer of the biases. Default: zeros.
      use_bias: whether the gates have biases. Default: True.
    """

    kernel_init: Initializer = nn.initializers.lecun_normal()
    bias_init: Initializer = nn.initializers.zeros_init()
    use_bias: bool = True

    @nn.nowrap
    def _input_gates(self, *names: str, **options: Any) -> None:
        super()._input_gates(*names, **{"use_bias": self.use_bias, **options})


def check_coefficients(
    cell: LinearRNNCellBase, coefficients: Any, carry: Carry
) -> tuple[ArrayTree, ArrayTree]:
    """Returns a_t and b_t, or raises an error unless they fit the carry."""
    name = f"`coefficients` of {type(cell).__name__}"
    if not isinstance(coefficients, tuple) or len(coefficients) != 2:
        raise TypeError(
            f"{name} must return (a, b), got {jax.tree.map(jnp.shape, coefficients)}."
        )
    for part in coefficients:
        is_alike = jax.tree.structure(part) == jax.tree.structure(carry)  # type: ignore
        pairs = zip(jax.tree.leaves(part), jax.tree.leaves(carry), strict=is_alike)
        if not is_alike or not all(_broadcasts(leaf, c) for leaf, c in pairs):
            raise ValueError(
                f"{name} must return (a, b), each like the carry or with shapes that "
                f"broadcast to its shapes, {jax.tree.map(jnp.shape, carry)}, got "
                f"{jax.tree.map(jnp.shape, coefficients)}."
            )
    return coefficients


def _broadcasts(leaf: Any, carry: Any) -> bool:
    """Says whether a coefficient broadcasts to the shape of the carry."""
    try:
        return jnp.broadcast_shapes(jnp.shape(leaf), jnp.shape(carry)) == carry.shape
    except ValueError:
        return False
