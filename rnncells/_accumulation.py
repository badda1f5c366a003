"""Gradients that are summed over micro-batches or over windows of time."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from chex import ArrayTree
from jax import Array

from rnncells.recurrence.pytrees import add, tree_text, upcast, zeros


class Accumulated(NamedTuple):
    """A mean loss and its gradient.

    Attributes:
      loss: sum of the losses of all micro-batches, divided by `count`, a scalar.
      gradient: of `loss`, in the form of the parameters.
      count: sum of the counts of all micro-batches, a scalar.
      carry: what the last window returned; None without a carry.
    """

    loss: Array
    gradient: ArrayTree
    count: Array  # type: ignore[assignment]  # tuples have a method `count`
    carry: Any


def accumulate(
    losses: Callable,
    params: ArrayTree,
    batches: ArrayTree,
    *,
    carry: Any = None,
    cotangent: Array | None = None,
    truncate_gradient: bool = True,
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
    >>> mean = jax.jit(rnncells.accumulate, static_argnums=0)(losses, params, micro)
    >>> mean.count.item()
    15

    For windows of time, `losses` takes the carry before a window and returns the carry
    after it. By default no gradient flows from window to window, so the result equals
    `RNN(cell, gradient=TruncatedBptt(steps of a window))` on the whole sequence. With
    `truncate_gradient=False`, it equals exact backpropagation through the whole
    sequence. Memory is that of one window and of the carries between windows, and each
    window is computed twice. If only the RNN needs to save memory, and not what follows
    it, use `RNN(cell, memory=Chunk(steps))`.

    Args:
      losses: `(params, batch) -> (sum of losses, count)`; with a carry,
        `(params, batch, carry) -> (sum of losses, count, carry)`. The count is the
        number of terms of the sum, such as valid steps, or the sum of their weights, a
        scalar. It can be 0, and is not differentiated.
      params: parameters; the gradient has their form.
      batches: arrays with a leading axis of micro-batches or windows, `(count, ...)`,
        at least 1. Random keys, one for each micro-batch, can be among them.
      carry: carry before the first window, which gets no gradient; None: micro-batches.
        Default: None.
      cotangent: weights of the sums of losses, if these are an array: the derivative
        of what you minimize with respect to each element. Default: 1 for a scalar.
      truncate_gradient: whether the gradient is truncated at the borders of windows.
        Default: True.

    Raises:
      ValueError: the sum of losses is no scalar and there is no `cotangent`, or
        `cotangent` has another shape; `losses` returns something else; the arrays of
        `batches` have different leading axes; `truncate_gradient=False` without a
        carry.
    """
    params, batches, carry = jax.tree.map(jnp.asarray, (params, batches, carry))
    _check_batches(batches)
    if carry is None and not truncate_gradient:
        raise ValueError(
            "truncate_gradient=False needs windows of time, got micro-batches. Pass "
            "the carry before the first window as `carry`."
        )

    def total(
        params: ArrayTree, batch: ArrayTree, carry: Any
    ) -> tuple[Array, tuple[Array, Any]]:
        result = losses(params, batch, *([] if carry is None else [carry]))
        loss, count, carry = _checked(result, carry)
        return _weighted(loss, cotangent), (count, carry)

    first = jax.tree.map(lambda leaf: leaf[0], batches)
    loss, (count, _) = jax.eval_shape(total, params, first, carry)
    zero_sums = jax.tree.map(lambda leaf: upcast(zeros(leaf)), (loss, count))
    run = _window_by_window if truncate_gradient else _through_windows
    (loss, (count, carry)), gradient = run(total, params, batches, carry, zero_sums)
    terms = jnp.where(count == 0, 1, count)
    gradient = jax.tree.map(
        lambda g, p: (g / terms.astype(g.dtype)).astype(p.dtype), gradient, params
    )
    return Accumulated(loss / terms.astype(loss.dtype), gradient, count, carry)


def _window_by_window(
    total: Callable, params: ArrayTree, batches: ArrayTree, carry: Any, zero_sums: tuple
) -> tuple[Any, ArrayTree]:
    """Adds up the gradients of micro-batches, or of windows, each by itself."""

    def one(state: tuple, batch: ArrayTree) -> tuple[tuple, None]:
        sums, carry = state
        (loss, (count, carry)), gradient = jax.value_and_grad(total, has_aux=True)(
            params, batch, carry
        )
        return (add(sums, (loss, count, gradient)), carry), None

    sums = *zero_sums, upcast(zeros(params))
    ((loss, count, gradient), carry), _ = jax.lax.scan(one, (sums, carry), batches)
    return (loss, (count, carry)), gradient


def _through_windows(
    total: Callable, params: ArrayTree, batches: ArrayTree, carry: Any, zero_sums: tuple
) -> tuple[Any, ArrayTree]:
    """Differentiates the loop over windows; each is computed again for its gradient."""

    def mean_loss(upcast_params: ArrayTree) -> tuple[Array, tuple]:
        def one(state: tuple, batch: ArrayTree) -> tuple[tuple, None]:
            sums, carry = state
            # Cast in each window, so that gradients are added up in float32.
            cast = jax.tree.map(lambda u, p: u.astype(p.dtype), upcast_params, params)
            loss, (count, carry) = total(cast, batch, carry)
            return (add(sums, (loss, count)), carry), None

        one = jax.checkpoint(one, prevent_cse=False)
        ((loss, count), last), _ = jax.lax.scan(one, (zero_sums, carry), batches)
        return loss, (count, last)

    return jax.value_and_grad(mean_loss, has_aux=True)(upcast(params))


def _check_batches(batches: ArrayTree) -> None:
    shapes = [leaf.shape for leaf in jax.tree.leaves(batches)]
    counts = {shape[0] if shape else 0 for shape in shapes}
    if len(counts) != 1 or 0 in counts:
        raise ValueError(
            "`batches` must be arrays with equal leading axes, at least one "
            f"micro-batch, got the shapes {shapes}."
        )


def _checked(result: Any, carry: Any) -> tuple[Any, Array, Any]:
    """Returns the checked result of `losses`, and None without a carry."""
    form = ["sum of losses", "count", *([] if carry is None else ["carry"])]
    values = len(result) if isinstance(result, tuple | list) else 1
    if values != len(form):
        raise ValueError(
            f"`losses` must return {len(form)} values, ({', '.join(form)}), got "
            f"{values}. With `carry`, `losses` also returns the new carry."
        )
    loss, count, *rest = result
    if jnp.shape(count) != ():
        raise ValueError(
            f"`losses` must return a scalar as its count, got shape {jnp.shape(count)}."
        )
    after = jax.tree.map(jnp.asarray, rest[0]) if rest else None
    expected_carry, got_carry = map(tree_text, (carry, after))
    if expected_carry != got_carry:
        raise ValueError(
            "`losses` must return a carry of the structure, shapes and dtypes of its "
            f"argument, {expected_carry}, got {got_carry}."
        )
    # The sum of a boolean is an integer.
    return loss, jnp.sum(count), after


def _weighted(losses: Any, cotangent: Any) -> Array:
    shape = jnp.shape(losses)
    if cotangent is None:
        if shape != ():
            raise ValueError(
                f"The sum of losses must be a scalar to be minimized, got {shape}. Sum "
                "it, or pass `cotangent`, an array of this shape, as to `jax.vjp`."
            )
        return losses
    if jnp.shape(cotangent) != shape:
        raise ValueError(
            f"`cotangent` must have the shape of the sum of losses, {shape}, got "
            f"{jnp.shape(cotangent)}."
        )
    return jnp.sum(losses * cotangent)
