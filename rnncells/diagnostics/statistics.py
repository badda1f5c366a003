"""Statistics of recorded values and of the Jacobians of steps, under `jax.jit` too."""

from typing import Any, Literal, NamedTuple

import chex
import jax
import jax.numpy as jnp
from chex import ArrayTree
from jax import Array

from rnncells.recurrence.masks import expand_right
from rnncells.recurrence.pytrees import euclidean, upcast


class Saturation(NamedTuple):
    """Shares of the valid steps, in [0, 1], at which each unit of a gate is saturated.

    `left` is the share below the lower threshold, `right` that above the upper one;
    both are `(*features)`.
    """

    left: Array
    right: Array


class Drift(NamedTuple):
    """How states change over time, over the rows that are valid at each step.

    `mean` and `std` are the mean and the standard deviation over rows and features,
    `(time,)`; NaN at a step that no row reaches. `norm` is the mean over rows of the
    Euclidean norm of the features.
    """

    mean: Array
    std: Array
    norm: Array


def norms(tree: ArrayTree, num_feature_dims: int = 1) -> Array:
    """Returns Euclidean norms over features, `(*batch, time)`.

    For the carry of `cotangents`, they are the norms of dL/dh_t.

    >>> import jax.numpy as jnp, rnncells
    >>> c, h = jnp.full((2, 5, 4), 3.0), jnp.full((2, 5, 4), 4.0)
    >>> rnncells.diagnostics.norms((c, h))[0, 0]
    Array(10., dtype=float32)

    Args:
      tree: an array `(*batch, time, *features)`, or a pytree of them, such as a carry,
        which is taken as one vector.
      num_feature_dims: number of feature axes, of the array with the fewest axes if
        they differ, as in the carry of `MLSTMCell`.
    """
    leaves = jax.tree.leaves(upcast(tree))
    for leaf in leaves:
        if leaf.ndim <= num_feature_dims:
            raise ValueError(
                f"`tree` must have arrays (*batch, time, *features) with "
                f"{num_feature_dims} feature axes, got the shape {leaf.shape}."
            )
    lead = min(leaf.ndim for leaf in leaves) - num_feature_dims
    flat = [jax.lax.collapse(leaf, lead) for leaf in leaves]
    return euclidean(jnp.concatenate(flat, -1))


def saturation(
    gate: Array, mask: Array | None = None, *, low: float = 0.1, high: float = 0.9
) -> Saturation:
    """Returns how often each unit of a gate is saturated on the left and on the right.

    The default thresholds are those of the paper, for gates in (0, 1). Use
    `low=-0.8, high=0.8` for the same margins of a tanh.

    >>> import jax.numpy as jnp, rnncells
    >>> gate = jnp.array([[[0.05], [0.5], [0.95], [0.99]]])  # one row, one unit
    >>> left, right = rnncells.diagnostics.saturation(gate)
    >>> left.tolist(), right.tolist()
    ([0.25], [0.5])

    Args:
      gate: values `(*batch, time, *features)`, real. Without a mask there is one batch
        axis.
      mask: true at valid steps, `(*batch, time)`; None: all steps of `(batch, time,
        *features)`.
      low: lower threshold.
      high: upper threshold; ValueError if it is not above `low`.

    Reference: Karpathy, Johnson and Li, 2016, https://arxiv.org/abs/1506.02078.
    """
    is_known = isinstance(low, int | float) and isinstance(high, int | float)
    if is_known and not low < high:
        raise ValueError(f"`low` must be below `high`, got {low} and {high}.")
    mask = _mask(gate, mask)
    axes = tuple(range(mask.ndim))
    where = jnp.broadcast_to(expand_right(mask, gate.ndim), gate.shape)
    return Saturation(
        jnp.mean(gate < low, axes, where=where),
        jnp.mean(gate > high, axes, where=where),
    )


def drift(states: Array, mask: Array | None = None) -> Drift:
    """Returns mean, standard deviation and norm of states at each step.

    States that grow with time saturate the gates and activations that read them.

    >>> import jax.numpy as jnp, rnncells
    >>> c = jnp.arange(3.0)[None, :, None] * jnp.ones((2, 3, 4))
    >>> rnncells.diagnostics.drift(c).norm.tolist()
    [0.0, 2.0, 4.0]

    Args:
      states: `(*batch, time, *features)`, real. Without a mask there is one batch axis.
      mask: true at valid steps, `(*batch, time)`; None: all steps.
    """
    states, mask = upcast(states), _mask(states, mask)
    rows = tuple(range(mask.ndim - 1))
    features = tuple(range(mask.ndim, states.ndim))
    where = jnp.broadcast_to(expand_right(mask, states.ndim), states.shape)
    axes = rows + features
    norm = euclidean(jax.lax.collapse(states, mask.ndim))
    # Scaled, because squares of tiny states underflow, and of huge ones overflow.
    size = jnp.abs(states).max(axes, keepdims=True, initial=0, where=where)
    size = jnp.where(size > 0, size, 1)
    return Drift(
        jnp.mean(states, axes, where=where),
        jnp.std(states / size, axes, where=where) * size.squeeze(axes),
        jnp.mean(norm, rows, where=mask),
    )


def carry_gradients(
    jacobians: Array,
    *,
    reverse: bool = False,
    norm: Literal["spectral", "frobenius"] = "spectral",
) -> Array:
    """Returns the norms of dh_T/dh_t, `(*batch, time)`; T is the last step.

    Entry t is the norm of the product of the Jacobians of all later steps: how much a
    change of the carry after step t changes the final carry. The last entry is the norm
    of the identity. Use `by_lag` to align rows of different lengths.

    >>> import jax.numpy as jnp, rnncells
    >>> steps = jnp.full((4, 1, 1), 0.5)
    >>> rnncells.diagnostics.carry_gradients(steps).tolist()
    [0.125, 0.25, 0.5, 1.0]

    Args:
      jacobians: `(*batch, time, size, size)`.
      reverse: whether the layer ran from the last step to the first; then T is the
        first step.
      norm: `'spectral'`: the largest singular value. `'frobenius'`: the root of the sum
        of squares.

    Reference: Pascanu, Mikolov and Bengio, 2013, https://arxiv.org/abs/1211.5063.
    """
    _check(jacobians)
    if norm not in ("spectral", "frobenius"):
        raise ValueError(f"`norm` must be 'spectral' or 'frobenius', got {norm!r}.")
    steps = jnp.moveaxis(jacobians, -3, 0)

    def step(product: Array, jacobian: Array) -> tuple[Any, Any]:
        if norm == "spectral":
            size = jnp.linalg.svd(product, compute_uv=False)[..., 0]
        else:
            size = euclidean(jax.lax.collapse(product, product.ndim - 2))
        return product @ jacobian, size

    _, norms = jax.lax.scan(step, _identities(steps), steps, reverse=not reverse)
    return jnp.moveaxis(norms, 0, -1)


def lyapunov_exponents(
    jacobians: Array, mask: Array | None = None, *, reverse: bool = False
) -> Array:
    """Returns the Lyapunov exponents of each row, `(*batch, size)`, about descending.

    Exponent k is the mean growth of a disturbance of the carry in nats per step, along
    the k-th of the directions that QR decompositions keep orthogonal. A positive first
    exponent means chaos; exponents far below 0 mean that memory fades. They are the
    limit for many steps: leave out the steps before the carry has settled.

    >>> import jax.numpy as jnp, rnncells
    >>> steps = jnp.broadcast_to(jnp.diag(jnp.array([2.0, 0.5])), (10, 2, 2))
    >>> rnncells.diagnostics.lyapunov_exponents(steps).round(3).tolist()
    [0.6930000185966492, -0.6930000185966492]

    Args:
      jacobians: `(*batch, time, size, size)`, with the identity outside of the mask, as
        `record` returns them. A singular Jacobian, such as that of a reset, gives -inf.
      mask: true at valid steps, `(*batch, time)`. A row without one gives NaN.
      reverse: whether the layer ran from the last step to the first.

    Reference: Benettin et al., 1980, https://doi.org/10.1007/BF02128236; for recurrent
    networks Vogt et al., 2022, https://arxiv.org/abs/2006.14123.
    """
    _check(jacobians)
    _check_mask(mask, jacobians.shape[:-2])
    steps = jnp.moveaxis(jacobians, -3, 0)

    def step(state: tuple, jacobian: Array) -> tuple[Any, Any]:
        directions, total = state
        directions, triangle = jnp.linalg.qr(jacobian @ directions)
        growth = jnp.abs(jnp.diagonal(triangle, axis1=-2, axis2=-1))
        return (directions, total + jnp.log(growth)), None

    start = _identities(steps)
    zeros = jnp.zeros(start.shape[:-1], jnp.abs(steps[:1]).dtype)
    (_, total), _ = jax.lax.scan(step, (start, zeros), steps, reverse=reverse)
    if mask is None:
        return total / steps.shape[0]
    return total / jnp.sum(mask, -1, dtype=total.dtype)[..., None]


def by_lag(array: Array, mask: Array | None = None, *, reverse: bool = False) -> Array:
    """Returns values at valid steps by the distance to the last one, `(*batch, time)`.

    Entry k is the value k valid steps before the last valid step; NaN where a row has
    no such step. So rows of different lengths can be averaged with `jnp.nanmean`.

    >>> import jax.numpy as jnp, rnncells
    >>> norms = jnp.array([1.0, 2.0, 3.0, 4.0])
    >>> mask = jnp.array([True, True, True, False])
    >>> rnncells.diagnostics.by_lag(norms, mask).tolist()
    [3.0, 2.0, 1.0, nan]

    Args:
      array: real numbers, `(*batch, time)`, such as norms of gradients.
      mask: true at valid steps, `(*batch, time)`; None: all are valid.
      reverse: whether the layer ran from the last step to the first.
    """
    _check_mask(mask, array.shape)
    if not reverse:
        array = jnp.flip(array, -1)
        mask = None if mask is None else jnp.flip(mask, -1)
    if mask is None:
        return array
    # Valid steps first; the sort is stable.
    order = jnp.argsort(~mask, axis=-1, stable=True)
    mask, array = (jnp.take_along_axis(x, order, -1) for x in (mask, array))
    return jnp.where(mask, array, jnp.nan)


def _identities(steps: Array) -> Array:
    """Returns the identity for each row of Jacobians `(time, *batch, size, size)`."""
    return jnp.broadcast_to(
        jnp.eye(steps.shape[-1], dtype=steps.dtype), steps.shape[1:]
    )


def _mask(array: chex.Array, mask: chex.Array | None) -> Array:
    """Returns a mask, checked; without one, true at all steps of `(batch, time)`."""
    if mask is None:
        if array.ndim < 2:
            raise ValueError(
                "Without `mask`, values must be (batch, time, *features), got the "
                f"shape {array.shape}."
            )
        return jnp.ones(array.shape[:2], bool)
    _check_mask(mask, array.shape[: max(1, mask.ndim)])
    return mask


def _check_mask(mask: chex.Array | None, shape: tuple[int, ...]) -> None:
    if mask is not None and (mask.shape != shape or mask.dtype != bool):
        raise ValueError(
            f"`mask` must be booleans of the shape (*batch, time) = {shape}, got "
            f"{mask.dtype} of the shape {mask.shape}."
        )


def _check(jacobians: chex.Array) -> None:
    shape = jnp.shape(jacobians)
    if len(shape) < 3 or shape[-1] != shape[-2] or shape[-1] == 0:
        raise ValueError(
            f"`jacobians` must be (*batch, time, size, size), got the shape {shape}. "
            "Pass `record(..., jacobians=True)[path].jacobians`."
        )
