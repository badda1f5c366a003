"""The products of a step with weights, and the ways to compute them.

A product is affine in its left operand, and its weights do not depend on the carry. So
a loop over steps need not form gradients of the weights: one product after the loop
does, from all left operands and all cotangents of the result.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import chex
import jax

from rnncells.recurrence.fusion_barrier import step_barrier
from rnncells.recurrence.pytrees import structs, zeros

# What a step takes its product `k` by: `(k, lhs, add_to) -> add_to + product of lhs`.
Take = Callable[[int, jax.Array, jax.Array | None], jax.Array]


class ProductFunction:
    """A product as a function of its left operand and its weights.

    A subclass overrides the methods that have a faster form.
    """

    def __call__(self, lhs: jax.Array, weights: chex.ArrayTree) -> jax.Array:
        """Returns the product; `lhs` may have leading axes beside its own."""
        raise NotImplementedError

    def in_loop(self, lhs: jax.ShapeDtypeStruct, weights: chex.ArrayTree) -> Callable:
        """Returns `lhs -> product`; what it needs of the weights is formed here."""
        return lambda lhs: self(lhs, weights)

    def vjp_lhs(
        self, lhs: jax.ShapeDtypeStruct, weights: chex.ArrayTree, cotangent: jax.Array
    ) -> jax.Array:
        """Returns the cotangent of the left operand."""
        return jax.vjp(lambda lhs: self(lhs, weights), zeros(lhs))[1](cotangent)[0]

    def vjp_weights(
        self, lhs: jax.Array, weights: chex.ArrayTree, cotangent: jax.Array
    ) -> chex.ArrayTree:
        """Returns the cotangents of the weights, summed over leading axes."""
        return jax.vjp(lambda weights: self(lhs, weights), weights)[1](cotangent)[0]


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["weights"],
    meta_fields=["function", "lhs", "result"],
)
@dataclass(frozen=True)
class Product:
    """A product that a step or a projection takes; as a pytree, its weights.

    Attributes:
      weights: its weights.
      function: the function.
      lhs: shape and dtype of its left operand.
      result: shape and dtype of its result.
    """

    weights: chex.ArrayTree
    function: ProductFunction
    lhs: jax.ShapeDtypeStruct
    result: jax.ShapeDtypeStruct

    def __call__(self, lhs: jax.Array) -> jax.Array:
        return self.function(lhs, self.weights)

    def vjp_weights(self, lhs: jax.Array, cotangent: jax.Array) -> "Product":
        """Returns the product with the cotangents of its weights in their place."""
        d_weights = self.weights
        if jax.tree.leaves(d_weights):
            d_weights = self.function.vjp_weights(lhs, d_weights, cotangent)
        return Product(d_weights, self.function, self.lhs, self.result)


def as_written(products: list[Product]) -> Take:
    """Returns what takes products as they are written."""
    return lambda k, lhs, add_to: _add(add_to, products[k](lhs))


def in_loop(products: list[Product]) -> Take:
    """Returns what takes products as a loop over steps forms them best."""
    forms = [p.function.in_loop(p.lhs, p.weights) for p in products]
    return lambda k, lhs, add_to: step_barrier(_add(add_to, forms[k](lhs)))


def known(values: list[jax.Array | None], others: Take) -> Take:
    """Returns what takes known values, which have `add_to` in them; None: `others`."""

    def take(k, lhs, add_to):
        return others(k, lhs, add_to) if values[k] is None else values[k]

    return take


def differentiated(
    products: list[Product], taps: list[jax.Array], values: list[jax.Array] | None
) -> Take:
    """Returns what takes products in a function that is differentiated.

    The cotangent of a tap is that of the product; weights get none. The residuals
    contain the weights, but nothing that is formed of values of many steps and weights.

    Args:
      products: the products.
      taps: zeros of the shapes of their results, to be differentiated.
      values: their values where they are known, with what they are added to.
    """

    def take(k, lhs, add_to):
        product = products[k]
        value = _add(add_to, product(lhs)) if values is None else values[k]
        terms = (lhs,) if add_to is None else (lhs, add_to)
        return _linked(product.function, terms, value, taps[k], product.weights)

    return take


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _linked(function, terms, value, tap, weights):
    return value


def _linked_forward(function, terms, value, tap, weights):
    return value, (terms, weights)


def _linked_backward(function, residuals, cotangent):
    terms, weights = residuals
    d_lhs = function.vjp_lhs(structs(terms[0]), weights, cotangent)
    return (d_lhs, cotangent)[: len(terms)], None, cotangent, None


_linked.defvjp(_linked_forward, _linked_backward)


def _add(add_to: jax.Array | None, product: jax.Array) -> jax.Array:
    return product if add_to is None else add_to + product
