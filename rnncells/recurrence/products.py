"""Products with weights, which steps and projections mark so that they can be found.

A step that writes `product(parts, left)` for `apply(left, weights)`, the parts being
`apply` and `weights`, tells that the result is affine in `left` and that `weights` do
not depend on the carry. Then a loop over steps need not form gradients of the weights:
one product after the loop does, from all `left` and all gradients of the result.
Outside the functions of this file that replace products, `product` is the plain call;
so it is inside a transformation (`vmap`, `scan`, `checkpoint`) within the step, whose
arrays must not leave it.
"""

import contextlib
import contextvars
import dataclasses
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import chex
import jax
import jax.numpy as jnp
from jax.extend.core import get_opaque_trace_state

from rnncells.recurrence.affine import Affine, add_bias, cast_gradient
from rnncells.recurrence.settling import on_cpu, settled
from rnncells.recurrence.traced import Traced
from rnncells.recurrence.trees import structs, zeros

Apply = Callable[[jax.Array, chex.ArrayTree], jax.Array]

# As measured on CPU, the form with weights first is the faster for so many bytes of
# weights, and rows so few that packing weights is much of the work.
_MUCH_TO_PACK = 2**19
_FEW_ROWS = 64

# What is called in place of products, and the trace in which it is.
_replacement: contextvars.ContextVar[tuple[Callable | None, Any]] = (
    contextvars.ContextVar("replacement of products", default=(None, None))
)


def product(
    parts: Callable[[], tuple[Apply, chex.ArrayTree]],
    left: jax.Array,
    onto: jax.Array | None = None,
) -> jax.Array:
    """Returns `apply(left, weights)`, added to `onto` where that is given.

    Args:
      parts: returns `(apply, weights)`: a pure function, affine in `left`, and a pytree
        of arrays that depend neither on the carry nor on inputs. Where `apply` has a
        method `pull_weights(left, weights, gradient)`, that gives the gradients by
        weights, summed over leading axes; where it has an attribute `to_pull`, that is
        the same function, of which JAX takes the derivative by `left`.
      left: what is made of the carry, or of inputs.
      onto: what the product is added to.
    """
    replacement, trace = _replacement.get()
    is_replaced = replacement is not None and trace == get_opaque_trace_state()
    if is_replaced and not getattr(left, "weak_type", False):
        return replacement(parts, left, onto)
    apply, weights = parts()
    if is_replaced:
        # The weights decide the dtype of a weakly typed left side.
        dtype = jnp.result_type(left, *jax.tree.leaves(weights))
        return replacement(parts, jax.lax.convert_element_type(left, dtype), onto)
    return _add(onto, apply(left, weights))


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


def find(step: Callable[[], Any]) -> list[Product]:
    """Returns the products that `step` takes, in order; forms none of them."""
    found = []

    def record(parts, left, onto):
        apply, weights = parts()
        left, result = structs((left, jax.eval_shape(apply, left, weights)))
        found.append(Product(weights, apply, left, result))
        return zeros(result) if _is_part(onto, result) else _add(onto, zeros(result))

    with _replaced(record):
        step()
    return found


def check_affine(found: Product) -> None:
    """Raises unless the function of a product is affine in its left side.

    What its derivative keeps would then depend on the weights alone.
    """
    if isinstance(found.apply, Affine):
        return

    def kept(left):
        _, pull = jax.vjp(lambda left: found.apply(left, found.weights), left)
        return jax.tree.leaves(pull)

    # Of a compiled function inside, all results depend on all arguments.
    with jax.disable_jit():
        depends = any(Traced(kept, found.left).depending())
    if depends:
        raise ValueError(
            "what `product` applies in `recur` must be affine in its inputs (weights "
            f"times inputs plus bias), and this is not: {found.apply}. Write the plain "
            "call, layer(inputs), in its place."
        )


def formed_by(
    forms: list[Callable], step: Callable[[], Any]
) -> tuple[Any, list[jax.Array]]:
    """Returns `step()`, its products formed by `forms`, and the products' values."""
    values = []

    def form(parts, left, onto):
        added, values_onto = forms[len(values)](left, onto)
        values.append(added)
        return values_onto

    with _replaced(form):
        result = step()
    if len(values) != len(forms):
        raise ValueError(
            f"a step took {len(forms)} products once and {len(values)} now: is one in "
            "a function with a derivative of its own (jax.custom_vjp, jax.custom_jvp)? "
            "Use RNN(..., implementation='scan')."
        )
    return result, values


def given(
    values: list[jax.Array], step: Callable[[], Any]
) -> tuple[Any, list[jax.Array]]:
    """Returns `step()` with known values of its products, and their left sides."""
    lefts = []

    def look_up(parts, left, onto):
        lefts.append(left)
        value = values[len(lefts) - 1]
        return value if _is_part(onto, value) else _add(onto, value)

    with _replaced(look_up):
        return step(), lefts


def tapped(
    forms: list[Callable], taps: list[jax.Array], step: Callable[[], Any]
) -> tuple[Any, list[jax.Array]]:
    """Returns `step()`, with taps added to its products, and their left sides.

    The derivative by a tap is that by the product itself.
    """
    lefts = []

    def form(parts, left, onto):
        k = len(lefts)
        lefts.append(left)
        value, _ = forms[k](left, None)
        return _add(onto, value + taps[k])

    with _replaced(form):
        return step(), lefts


def linked(
    values: list[jax.Array], taps: list[jax.Array], step: Callable[[], Any]
) -> Any:
    """Returns `step()` with known values of its products, to be differentiated.

    The VJPs from a product's cotangent to its left operand's come from `pulling_by`
    when the derivative is computed. The residuals contain no weights, so the residuals
    of many steps can be stacked.

    Args:
      values: the products' values.
      taps: zeros of the same shapes: their derivative is that by the product itself.
        One of them at least must be differentiated wherever the step is, or else
        derivatives of second order miss that the value is a product.
      step: the step.
    """
    count = 0

    def link(parts, left, onto):
        nonlocal count
        k = count
        count += 1
        value = values[k]
        if _is_part(onto, value):
            return _link(k, (left, onto), value, taps[k])
        return _add(onto, _link(k, (left,), value, taps[k]))

    with _replaced(link):
        return step()


_pulls: contextvars.ContextVar[list[Callable]] = contextvars.ContextVar("pulls")


@contextlib.contextmanager
def pulling_by(pulls: list[Callable]) -> Iterator[None]:
    """Gives, for each product, the map that `loop_pull` returns."""
    token = _pulls.set(pulls)
    try:
        yield
    finally:
        _pulls.reset(token)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _link(k, terms, value, tap):
    return value


def _link_forward(k, terms, value, tap):
    return value, [() for _ in terms]


def _link_backward(k, terms, gradient):
    of_left = _pulls.get()[k](gradient)
    return (of_left, gradient)[: len(terms)], None, gradient


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


def loop_pull(found: Product) -> Callable:
    """Returns the map from the derivative by a product to that by its left side."""
    apply, weights = found.apply, found.weights
    if isinstance(apply, Affine):
        kernel, _ = apply.cast_weights(found.left, weights)
        is_first = _is_better_first(kernel, found.left)
        transposed = kernel.T

        def pull_affine(gradient):
            if is_first:
                return cast_gradient(_weights_first(kernel, gradient), found.left.dtype)
            return cast_gradient(gradient @ transposed, found.left.dtype)

        return pull_affine
    apply = _to_pull(found)
    _, pull = jax.vjp(lambda left: apply(left, weights), zeros(found.left))
    # The derivative of a linear map is the map, with what depends on the weights alone
    # (a transposed or flipped kernel) already formed.
    _, pull = jax.linearize(lambda gradient: pull(gradient)[0], zeros(found.result))
    return pull


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


@contextlib.contextmanager
def _replaced(replacement: Callable) -> Iterator[None]:
    token = _replacement.set((replacement, get_opaque_trace_state()))
    try:
        yield
    finally:
        _replacement.reset(token)


def _add(onto: jax.Array | None, result: jax.Array) -> jax.Array:
    return result if onto is None else onto + result


def with_weights(found: Product, weights: chex.ArrayTree) -> Product:
    """Returns the product with other weights, or with gradients in their place."""
    return dataclasses.replace(found, weights=weights)
