"""The products of a step with weights, and the ways to compute them.

A product is affine in its left operand, and its weights do not depend on the carry. So
a loop over steps need not form gradients of the weights: one product after the loop
does, from all left operands and all cotangents of the result.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import jax
from chex import ArrayTree
from jax import Array

from rnncells.recurrence.engine.fusion_barrier import step_barrier
from rnncells.recurrence.pytrees import structs, zeros

# Evaluates product `k` of a step: `(k, lhs, addend) -> addend + product of lhs`.
ProductEvaluator = Callable[[int, Array, Array | None], Array]


class ProductFunction:
    """A product as a function of its left operand and its weights."""

    def __call__(self, lhs: Array, weights: ArrayTree) -> Array:
        """Returns the product; `lhs` may have leading axes beside its own."""
        raise NotImplementedError

    def in_loop(self, lhs: jax.ShapeDtypeStruct, weights: ArrayTree) -> Callable:
        """Returns `lhs -> product`; what it needs of the weights is formed here."""
        return lambda lhs: self(lhs, weights)

    def vjp_lhs(
        self, lhs: jax.ShapeDtypeStruct, weights: ArrayTree, cotangent: Array
    ) -> Array:
        return jax.vjp(lambda lhs: self(lhs, weights), zeros(lhs))[1](cotangent)[0]

    def vjp_weights(
        self, lhs: Array, weights: ArrayTree, cotangent: Array
    ) -> ArrayTree:
        """Returns the cotangents of the weights, summed over leading axes."""
        return jax.vjp(lambda weights: self(lhs, weights), weights)[1](cotangent)[0]


class Identity(ProductFunction):
    """The product of a value that is saved, which has no weights."""

    def __call__(self, lhs: Array, weights: tuple) -> Array:
        return lhs


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["weights"],
    meta_fields=["function", "lhs", "result"],
)
@dataclass(frozen=True)
class Product:
    """A product that a step or a projection takes; as a pytree, its weights."""

    weights: ArrayTree
    function: ProductFunction
    lhs: jax.ShapeDtypeStruct  # of its left operand
    result: jax.ShapeDtypeStruct

    def __call__(self, lhs: Array) -> Array:
        return self.function(lhs, self.weights)

    def vjp_weights(self, lhs: Array, cotangent: Array) -> "Product":
        """Returns the product with the cotangents of its weights in their place."""
        d_weights = self.weights
        if jax.tree.leaves(d_weights):
            d_weights = self.function.vjp_weights(lhs, d_weights, cotangent)
        return Product(d_weights, self.function, self.lhs, self.result)


def direct_evaluator(products: list[Product]) -> ProductEvaluator:
    return lambda k, lhs, addend: _add(addend, products[k](lhs))


def loop_evaluator(products: list[Product]) -> ProductEvaluator:
    """Returns an evaluator in the forms that are fast in a loop over steps."""
    forms = [p.function.in_loop(p.lhs, p.weights) for p in products]
    return lambda k, lhs, addend: step_barrier(_add(addend, forms[k](lhs)))


def vjp_evaluator(
    products: list[Product], taps: list[Array], values: list[Array] | None
) -> ProductEvaluator:
    """Returns an evaluator for a function that is differentiated.

    The cotangent of a tap, a zero, is that of the product; weights get none. `values`,
    where known, include what is added to the products.
    """

    def evaluator(k: int, lhs: Array, addend: Array | None) -> Array:
        product = products[k]
        value = _add(addend, product(lhs)) if values is None else values[k]
        terms = (lhs,) if addend is None else (lhs, addend)
        return _linked(product, terms, value, taps[k])

    return evaluator


@jax.custom_vjp
def _linked(product: Product, terms: tuple, value: Array, tap: Array) -> Array:
    return value


def _linked_forward(
    product: Product, terms: tuple, value: Array, tap: Array
) -> tuple[Array, tuple]:
    return value, (product, terms)


def _linked_backward(residuals: tuple[Product, tuple], cotangent: Array) -> tuple:
    product, terms = residuals
    lhs = structs(terms[0])
    d_lhs = product.function.vjp_lhs(lhs, product.weights, cotangent)
    return None, (d_lhs, cotangent)[: len(terms)], None, cotangent


_linked.defvjp(_linked_forward, _linked_backward)


def _add(addend: Array | None, product: Array) -> Array:
    return product if addend is None else addend + product
