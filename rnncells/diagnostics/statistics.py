"""Statistics of recorded values over rows and time, under `jax.jit` too."""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from rnncells.recurrence.masks import expand_right
from rnncells.recurrence.pytrees import euclidean, upcast


class Saturation(NamedTuple):
    """How often each unit of a gate is near one of its bounds.

    Attributes:
      left: share of the valid steps at which the unit is below the lower threshold,
        `(*features)`, in [0, 1].
      right: the same above the upper threshold.
    """

    left: jax.Array
    right: jax.Array


class Drift(NamedTuple):
    """How states change over time, over the rows that are valid at each step.

    Attributes:
      mean: mean over rows and features, `(time,)`; NaN at a step that no row reaches.
      std: standard deviation over rows and features, `(time,)`.
      norm: mean over rows of the Euclidean norm of the features, `(time,)`.
    """

    mean: jax.Array
    std: jax.Array
    norm: jax.Array


def norms(tree: chex.ArrayTree, num_feature_dims: int = 1) -> jax.Array:
    """Returns Euclidean norms over features, `(*batch, time)`.

    For the carry of `cotangents`, they are the norms of dL/dh_t.

    >>> import jax.numpy as jnp
    >>> from rnncells import diagnostics
    >>> c, h = jnp.full((2, 5, 4), 3.0), jnp.full((2, 5, 4), 4.0)
    >>> diagnostics.norms((c, h))[0, 0]
    Array(10., dtype=float32)

    Args:
      tree: an array `(*batch, time, *features)`, or a pytree of them, such as a carry,
        which is taken as one vector.
      num_feature_dims: number of feature axes, of the array with the fewest axes if
        they differ, as in the carry of `MLSTMCell`.

    Raises:
      ValueError: an array has no time axis.
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
    gate: jax.Array,
    mask: jax.Array | None = None,
    *,
    low: float = 0.1,
    high: float = 0.9,
) -> Saturation:
    """Returns how often each unit of a gate is saturated on the left and on the right.

    The default thresholds are those of the paper, for gates in (0, 1). Use
    `low=-0.8, high=0.8` for the same margins of a tanh.

    >>> import jax.numpy as jnp
    >>> from rnncells import diagnostics
    >>> gate = jnp.array([[[0.05], [0.5], [0.95], [0.99]]])  # one row, one unit
    >>> left, right = diagnostics.saturation(gate)
    >>> left.tolist(), right.tolist()
    ([0.25], [0.5])

    Args:
      gate: real values `(*batch, time, *features)`.
      mask: true at valid steps, `(*batch, time)`; None: all steps, and one batch axis.
      low: lower threshold.
      high: upper threshold, above `low`.

    Raises:
      ValueError: `low` is not below `high`; the mask does not fit.

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


def drift(states: jax.Array, mask: jax.Array | None = None) -> Drift:
    """Returns mean, standard deviation and norm of states at each step.

    States that grow with time saturate the gates and activations that read them.

    >>> import jax.numpy as jnp
    >>> from rnncells import diagnostics
    >>> c = jnp.arange(3.0)[None, :, None] * jnp.ones((2, 3, 4))
    >>> diagnostics.drift(c).norm.tolist()
    [0.0, 2.0, 4.0]

    Args:
      states: real values `(*batch, time, *features)`.
      mask: true at valid steps, `(*batch, time)`; None: all steps, and one batch axis.

    Raises:
      ValueError: the mask does not fit.
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


def _mask(array: chex.Array, mask: chex.Array | None) -> jax.Array:
    """Returns a mask, checked; without one, true at all steps of `(batch, time)`."""
    if mask is None:
        if array.ndim < 2:
            raise ValueError(
                "Without `mask`, values must be (batch, time, *features), got the "
                f"shape {array.shape}."
            )
        return jnp.ones(array.shape[:2], bool)
    if mask.dtype != bool or mask.ndim < 1 or array.shape[: mask.ndim] != mask.shape:
        raise ValueError(
            "`mask` must be booleans of the first axes of the values, (*batch, time); "
            f"got {mask.dtype} of the shape {mask.shape} for values of the shape "
            f"{array.shape}."
        )
    return mask
