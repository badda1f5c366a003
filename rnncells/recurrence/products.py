"""The products of a step with weights, and the ways to take them.

A product is affine in its left operand, and its weights do not depend on the carry. So
a loop over steps need not form gradients of the weights: one product after the loop
does, from all left operands and all gradients of the result.
"""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import chex
import jax
from jax.tree_util import Partial

from rnncells.recurrence.affine import Affine, add_bias, cast_gradient
from rnncells.recurrence.settling import on_cpu, settled
from rnncells.recurrence.trees import zeros

# A product as a function of its left operand and its weights. Where it has a method
# `pull_weights(left, weights, gradient)`, that gives the gradients by weights, summed
# over leading axes; where it has an attribute `to_pull`, that is the same function, of
# which JAX takes the derivative by the left operand.
Apply = Callable[[jax.Array, chex.ArrayTree], jax.Array]
# `(left, onto) -> (value, result)`: the value to keep, and the product added to `onto`.
Form = Callable[[jax.Array, jax.Array | None], tuple[jax.Array, jax.Array]]
# The same for product `k`: what a step takes its products by.
Take = Callable[[int, jax.Array, jax.Array | None], tuple[jax.Array, jax.Array]]

# As measured on CPU, the form with weights first is the faster for so many bytes of
# weights, and rows so few that packing weights is much of the work.
_MUCH_TO_PACK = 2**19
_FEW_ROWS = 64


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["weights"],
    meta_fields=["apply", "left", "result"],
)
@dataclass(frozen=True)
class Product:
    """A product that a step or a projection takes; as a pytree, its weights.

    Attributes:
      weights: its weights.
      apply: its function.
      left: shape and dtype of its left side.
      result: shape and dtype of its result.
    """

    weights: chex.ArrayTree
    apply: Apply
    left: jax.ShapeDtypeStruct
    result: jax.ShapeDtypeStruct


def formed_by(forms: list[Form]) -> Take:
    """Returns what takes each product in its own form."""
    return lambda k, left, onto: forms[k](left, onto)


def known(values: list[jax.Array]) -> Take:
    """Returns what takes known values for products."""

    def take(k, left, onto):
        value = values[k]
        return value, value if _is_part(onto, value) else _add(onto, value)

    return take


def tapped(forms: list[Form], taps: list[jax.Array]) -> Take:
    """Returns what takes products in their forms, and adds taps to them.

    The derivative by a tap is that by the product itself.
    """

    def take(k, left, onto):
        value, _ = forms[k](left, None)
        return value, _add(onto, value + taps[k])

    return take


def linked(
    values: list[jax.Array], taps: list[jax.Array], pulls: list[Callable]
) -> Take:
    """Returns what takes known values for products, to be differentiated.

    The residuals contain no weights but those of `pulls`, which are the same at each
    step, so the residuals of many steps can be stacked.

    Args:
      values: the products' values.
      taps: zeros of the same shapes: their derivative is that by the product itself.
        One of them at least must be differentiated wherever the step is, or else
        derivatives of second order miss that the value is a product.
      pulls: of each product, see `loop_pull`.
    """

    def take(k, left, onto):
        value = values[k]
        if _is_part(onto, value):
            return value, _link((left, onto), value, taps[k], pulls[k])
        return value, _add(onto, _link((left,), value, taps[k], pulls[k]))

    return take


@jax.custom_vjp
def _link(terms, value, tap, pull):
    return value


def _link_forward(terms, value, tap, pull):
    return value, (pull, [() for _ in terms])


def _link_backward(residuals, gradient):
    pull, terms = residuals
    return (pull(gradient), gradient)[: len(terms)], None, gradient, None


_link.defvjp(_link_forward, _link_backward)


def loop_form(found: Product) -> Callable:
    """Returns the product as a loop over steps forms it best.

    `(left, onto) -> (value, result)`: the value to keep, which has `onto` in it if that
    is of the product's shape and dtype, and the product added to `onto`. What is needed
    of the weights alone is formed here, once.
    """
    apply, weights = found.apply, found.weights
    if isinstance(apply, Affine):
        kernel, bias = apply.cast_weights(found.left, weights)
        if _is_better_first(kernel, found.left):
            transposed = kernel.T

            def form(left):
                rows = left.astype(kernel.dtype)
                return add_bias(_weights_first(transposed, rows), bias)

        else:

            def form(left):
                return apply(left, (kernel, bias))

    else:

        def form(left):
            return apply(left, weights)

    return partial(_formed, form, settled)


def pulled_form(found: Product) -> Callable:
    """Returns the product as it is best differentiated, see `plain_form`."""
    return plain_form(dataclasses.replace(found, apply=_to_pull(found)))


def plain_form(found: Product) -> Callable:
    """Returns the product as it is written, `(left, onto) -> (value, result)`."""
    return partial(
        _formed, lambda left: found.apply(left, found.weights), lambda value: value
    )


def _formed(form, settle, left, onto):
    value = form(left)
    if _is_part(onto, value):
        value = settle(onto + value)
        return value, value
    value = settle(value)
    return value, _add(onto, value)


def loop_pull(found: Product) -> Partial:
    """Returns the map from the derivative by a product to that by its left side.

    As a pytree, it is what the map needs of the weights, formed once.
    """
    apply, weights = found.apply, found.weights
    if isinstance(apply, Affine):
        kernel, _ = apply.cast_weights(found.left, weights)
        dtype = found.left.dtype
        if _is_better_first(kernel, found.left):
            return Partial(partial(_pull_weights_first, dtype), kernel)
        return Partial(partial(_pull_matrix, dtype), kernel.T)
    apply = _to_pull(found)
    _, pull = jax.vjp(lambda left: apply(left, weights), zeros(found.left))
    # The derivative of a linear map is the map, with what depends on the weights alone
    # (a transposed or flipped kernel) already formed.
    _, pull = jax.linearize(lambda gradient: pull(gradient)[0], zeros(found.result))
    return pull


def _pull_weights_first(dtype, kernel, gradient):
    return cast_gradient(_weights_first(kernel, gradient), dtype)


def _pull_matrix(dtype, transposed, gradient):
    return cast_gradient(gradient @ transposed, dtype)


def _to_pull(found: Product) -> Apply:
    return getattr(found.apply, "to_pull", found.apply)


def _is_part(onto: jax.Array | None, value: Any) -> bool:
    """Says whether what a product is added to is in the value that is kept of it."""
    return onto is not None and (onto.shape, onto.dtype) == (value.shape, value.dtype)


def _is_better_first(kernel: jax.Array, left: jax.ShapeDtypeStruct) -> bool:
    rows = math.prod(left.shape[:-1])
    is_few = isinstance(rows, int) and rows <= _FEW_ROWS
    return on_cpu() and is_few and kernel.nbytes >= _MUCH_TO_PACK


def _weights_first(matrix: jax.Array, rows: jax.Array) -> jax.Array:
    """Returns `rows @ matrix.T` as the product with the matrix on the left.

    On CPU XLA packs the right side anew at each call: with 16 MiB of weights there it
    takes more than twice the time. The barriers keep XLA from turning it around.
    """
    flat = rows.reshape(-1, rows.shape[-1])
    barrier = jax.lax.optimization_barrier
    result = barrier(matrix @ barrier(flat).T).T
    return result.reshape(*rows.shape[:-1], matrix.shape[0])


def _add(onto: jax.Array | None, result: jax.Array) -> jax.Array:
    return result if onto is None else onto + result


def with_weights(found: Product, weights: chex.ArrayTree) -> Product:
    """Returns the product with other weights, or with gradients in their place."""
    return dataclasses.replace(found, weights=weights)
