"""Products of the carry with weights, which a step marks so that they can be found.

A step that writes `product(apply, left, weights)` for `apply(left, weights)` tells that
the result is affine in `left` and that `weights` do not depend on the carry. Then a
loop over steps need not form gradients of the weights: one product after the loop does,
from all `left` and all gradients of the result. Outside the functions of this file that
replace products, `product` is the plain call.
"""

import contextlib
import contextvars
import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax

from rnncells.recurrence.trees import structs, zeros

PyTree = Any
Apply = Callable[[jax.Array, PyTree], jax.Array]

_replacement: contextvars.ContextVar[Callable | None] = contextvars.ContextVar(
    "replacement of products", default=None
)


def product(
    apply: Apply, left: jax.Array, weights: PyTree, onto: jax.Array | None = None
) -> jax.Array:
    """Returns `apply(left, weights)`, added to `onto` where that is given.

    Args:
      apply: a pure function, affine in `left`; the same object each time.
      left: what is made of the carry.
      weights: pytree of arrays that do not depend on carry or inputs.
      onto: `(*batch, ...)` of the result's shape.
    """
    replacement = _replacement.get()
    if replacement is None:
        return _add(onto, apply(left, weights))
    result = jax.eval_shape(apply, left, weights)
    if onto is None or (onto.shape, onto.dtype) != (result.shape, result.dtype):
        return _add(onto, replacement(apply, left, weights, None))
    return replacement(apply, left, weights, onto)


def affine(left: jax.Array, weights: tuple[jax.Array, jax.Array | None]) -> jax.Array:
    """Returns `left @ kernel + bias`: `(*leading, features)`."""
    kernel, bias = weights
    result = left @ kernel
    return result if bias is None else result + _expand_left(bias, result.ndim)


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["weights"],
    meta_fields=["apply", "left", "result"],
)
@dataclass(frozen=True)
class Product:
    """A product that a step takes; as a pytree, its weights.

    Attributes:
      weights: its weights.
      apply: its function.
      left: shape and dtype of its left side.
      result: shape and dtype of its result.
    """

    weights: PyTree
    apply: Apply
    left: jax.ShapeDtypeStruct
    result: jax.ShapeDtypeStruct


def find(step: Callable[[], Any]) -> list[Product]:
    """Returns the products that `step` takes, in order; forms none of them."""
    found = []

    def record(apply, left, weights, onto):
        left, result = structs((left, jax.eval_shape(apply, left, weights)))
        found.append(Product(weights, apply, left, result))
        return zeros(result)

    with _replaced(record):
        step()
    return found


def formed_by(
    forms: list[Callable], step: Callable[[], Any]
) -> tuple[Any, list[jax.Array]]:
    """Returns `step()`, its products formed by `forms`, and the products' values."""
    values = []

    def form(apply, left, weights, onto):
        value = forms[len(values)](left, onto)
        values.append(value)
        return value

    with _replaced(form):
        return step(), values


def given(values: list[jax.Array], step: Callable[[], Any]) -> tuple[Any, list[PyTree]]:
    """Returns `step()` with known values of its products, and their left sides."""
    lefts = []

    def look_up(apply, left, weights, onto):
        lefts.append(left)
        return values[len(lefts) - 1]

    with _replaced(look_up):
        return step(), lefts


def linked(
    values: list[jax.Array],
    taps: list[jax.Array],
    pulls: list[Callable],
    step: Callable[[], Any],
) -> Any:
    """Returns `step()` with known values of its products, to be differentiated.

    Args:
      values: the products' values.
      taps: zeros of the same shapes: their derivative is that by the product itself.
        One of them at least must be differentiated wherever the step is, or else
        derivatives of second order miss that the value is a product.
      pulls: for each product, `jax.tree_util.Partial`s that take the derivative by the
        product to that by its left side.
      step: the step.
    """
    count = 0

    def link(apply, left, weights, onto):
        nonlocal count
        k = count
        count += 1
        terms = (left,) if onto is None else (left, onto)
        return _link(terms, values[k], taps[k], pulls[k])

    with _replaced(link):
        return step()


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
    """Returns the product as a loop over steps forms it best: `(left, onto) -> value`.

    What it needs of the weights alone is formed here, once.
    """
    apply, weights = found.apply, found.weights
    if apply is affine and _on_cpu():
        kernel, bias = weights
        transposed = kernel.T
        return lambda left, onto: settled(
            _add(onto, _add_bias(_weights_first(transposed, left), bias))
        )
    return lambda left, onto: settled(_add(onto, apply(left, weights)))


def loop_pull(found: Product) -> jax.tree_util.Partial:
    """Returns the map from the derivative by a product to that by its left side."""
    apply, weights = found.apply, found.weights
    if apply is affine and _on_cpu():
        kernel, _ = weights
        return jax.tree_util.Partial(_pull_affine, kernel)
    _, pull = jax.vjp(lambda left: apply(left, weights), zeros(found.left))
    # The derivative of a linear map is the map, with what depends on the weights alone
    # (a transposed or flipped kernel) already formed.
    _, pull = jax.linearize(lambda gradient: pull(gradient)[0], zeros(found.result))
    return jax.tree_util.Partial(pull)


def _pull_affine(kernel: jax.Array, gradient: jax.Array) -> jax.Array:
    return _weights_first(kernel, gradient)


def _weights_first(matrix: jax.Array, rows: jax.Array) -> jax.Array:
    """Returns `rows @ matrix.T` as the product with the matrix on the left.

    On CPU XLA packs the right side anew at each call: with 16 MiB of weights there it
    takes more than twice the time. The barrier keeps XLA from turning it around.
    """
    flat = rows.reshape(-1, rows.shape[-1])
    result = jax.lax.optimization_barrier(matrix @ flat.T).T
    return result.reshape(*rows.shape[:-1], matrix.shape[0])


def settled(tree: PyTree) -> PyTree:
    """Returns arrays that are formed before they are used.

    XLA on CPU otherwise reads a slice of a sequence anew, and slower, in every fused
    operation of a step.
    """
    return jax.lax.optimization_barrier(tree) if _on_cpu() else tree


def _on_cpu() -> bool:
    return jax.default_backend() == "cpu"


@contextlib.contextmanager
def _replaced(replacement: Callable) -> Iterator[None]:
    token = _replacement.set(replacement)
    try:
        yield
    finally:
        _replacement.reset(token)


def _add(onto: jax.Array | None, result: jax.Array) -> jax.Array:
    return result if onto is None else onto + result


def _add_bias(result: jax.Array, bias: jax.Array | None) -> jax.Array:
    return result if bias is None else result + _expand_left(bias, result.ndim)


def _expand_left(bias: jax.Array, ndim: int) -> jax.Array:
    return bias.reshape((1,) * (ndim - bias.ndim) + bias.shape)


def plain_form(found: Product) -> Callable:
    """Returns the product as it is written: `(left, onto) -> value`."""
    return lambda left, onto: _add(onto, found.apply(left, found.weights))


def with_weights(found: Product, weights: PyTree) -> Product:
    """Returns the product with other weights, or with gradients in their place."""
    return dataclasses.replace(found, weights=weights)
