"""Gradients that are summed over micro-batches or over windows of time."""

from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp

from rnncells.recurrence.pytrees import structs, sum_dtype


class Accumulated(NamedTuple):
    """A mean loss and its gradient.

    Attributes:
      loss: sum of the losses of all micro-batches, divided by `count`, a scalar.
      gradient: of `loss`, in the form of the parameters.
      count: sum of the counts of all micro-batches, a scalar.
      carry: what the last window returned; None without a carry.
    """

    loss: jax.Array
    gradient: chex.ArrayTree
    count: jax.Array
    carry: Any


def accumulate(
    losses: Callable,
    params: chex.ArrayTree,
    batches: chex.ArrayTree,
    *,
    carry: Any = None,
    cotangent: jax.Array | None = None,
) -> Accumulated:
    """Returns the mean loss over micro-batches and its gradient.

    The result equals that of one large batch to rounding, with the memory of one
    micro-batch. Micro-batches count by their numbers of valid steps. A mean of the
    means of micro-batches would be another number.

    >>> import jax, jax.numpy as jnp, rnncells
    >>> rnn = rnncells.RNN(rnncells.GRUCell(4))
    >>> x, lengths = jnp.ones((6, 5, 3)), jnp.array([5, 1, 0, 2, 3, 4])
    >>> params = rnn.init(jax.random.key(0), x)
    >>> def losses(params, batch):
    ...     x, lengths = batch
    ...     y = rnn.apply(params, x, seq_lengths=lengths, padded_outputs="zero")
    ...     return (y**2).sum(), lengths.sum()
    >>> micro = x.reshape(3, 2, 5, 3), lengths.reshape(3, 2)  # 3 of 2 rows
    >>> found = jax.jit(rnncells.accumulate, static_argnums=0)(losses, params, micro)
    >>> found.count.item()
    15

    For windows of time, `losses` takes the carry before a window and returns the carry
    after it. No gradient flows from window to window, so the result equals
    `RNN(cell, gradient=TruncatedBptt(steps of a window))` on the whole sequence. To let
    it flow, run the whole sequence with `RNN(cell, memory=Chunk(steps))`.

    Args:
      losses: `(params, batch) -> (sum of losses, count)`; with a carry,
        `(params, batch, carry) -> (sum of losses, count, carry)`. The count is the
        number of terms of the sum, such as valid steps; it can be 0.
      params: parameters; the gradient has their form.
      batches: arrays with a leading axis of micro-batches or windows, `(count, ...)`.
      carry: carry before the first window; None: micro-batches.
      cotangent: weights of the sums of losses, if these are an array: the derivative
        of what you minimize with respect to each element. Default: 1 for a scalar.

    Returns:
      `loss`, `gradient`, `count` and `carry` as an `Accumulated`.

    Raises:
      TypeError: `losses` does not return a tuple of this form.
      ValueError: there is no micro-batch; the count is no scalar; the sum of losses is
        no scalar and there is no `cotangent`, or `cotangent` has another shape.
    """

    def total(params, batch, carry):
        given = (params, batch) if carry is None else (params, batch, carry)
        found = losses(*given)
        words = ("sum of losses", "count") + (() if carry is None else ("carry",))
        if not isinstance(found, tuple) or len(found) != len(words):
            raise TypeError(
                f"`losses` must return a tuple ({', '.join(words)}), got "
                f"{jax.tree.map(jnp.shape, found)}."
            )
        losses_, count, *rest = found
        if jnp.shape(count) != ():
            raise ValueError(
                "The count of `losses` must be a scalar, the number of terms of the "
                f"sum, got the shape {jnp.shape(count)}."
            )
        # Counts in small integers or booleans would overflow.
        wide = jnp.asarray(count, jnp.promote_types(jnp.result_type(count), jnp.int32))
        return _weighted(losses_, cotangent), (wide, rest[0] if rest else None)

    def one(so_far, batch):
        sums, carry = so_far
        (loss, (count, carry)), gradient = jax.value_and_grad(total, has_aux=True)(
            params, batch, carry
        )
        terms = loss, jnp.asarray(count), gradient
        sums = jax.tree.map(lambda a, b: a + b.astype(a.dtype), sums, terms)
        return (sums, carry), None

    if not jnp.shape(jax.tree.leaves(batches)[0])[0]:
        raise ValueError("`batches` must have at least one micro-batch, got none.")
    first = jax.tree.map(lambda leaf: leaf[0], batches)
    loss, (count, _) = jax.eval_shape(total, params, first, carry)
    sums = jax.tree.map(
        lambda leaf: jnp.zeros(leaf.shape, sum_dtype(leaf.dtype)),
        (loss, structs(count), params),
    )
    (sums, carry), _ = jax.lax.scan(one, (sums, carry), batches)
    loss, count, gradient = sums
    scale = jnp.where(count == 0, 0, 1 / jnp.where(count == 0, 1, count))
    gradient = jax.tree.map(lambda g, p: (g * scale).astype(p.dtype), gradient, params)
    return Accumulated(loss * scale, gradient, count, carry)


def _weighted(losses: Any, cotangent: Any) -> jax.Array:
    """Returns the scalar whose gradient is wanted."""
    shape = jnp.shape(losses)
    if cotangent is None:
        if shape != ():
            raise ValueError(
                "The sum of losses must be a scalar to have a gradient, got the shape "
                f"{shape}. Sum it, or pass `cotangent`, an array of this shape: the "
                "derivative of what you minimize by each element."
            )
        return losses
    if jnp.shape(cotangent) != shape:
        raise ValueError(
            f"`cotangent` must have the shape of the sum of losses, {shape}, got "
            f"{jnp.shape(cotangent)}."
        )
    return jnp.sum(losses * cotangent)
