"""Spectra, gradients over time and Lyapunov exponents from the Jacobians of steps.

The functions take Jacobians dh_t/dh_{t-1}, `(*batch, time, size, size)`, as
`record(..., jacobians=True)` returns them, and run under `jax.jit`. They raise
ValueError if the last two axes differ in size, or a mask does not fit.
"""

from typing import Any, Literal

import chex
import jax
import jax.numpy as jnp

from rnncells.recurrence.pytrees import euclidean


def singular_values(jacobians: jax.Array) -> jax.Array:
    """Returns the singular values of each step, `(*batch, time, size)`, descending.

    A step with all singular values below 1 shrinks every gradient that flows back
    through it. `jacobians` are `(*batch, time, size, size)`.

    >>> import jax.numpy as jnp
    >>> from rnncells import diagnostics
    >>> steps = jnp.array([[[0.0, 2.0], [0.5, 0.0]]])  # one step
    >>> diagnostics.singular_values(steps).tolist()
    [[2.0, 0.5]]
    """
    _check(jacobians)
    return jnp.linalg.svd(jacobians, compute_uv=False)


def eigenvalues(jacobians: jax.Array) -> jax.Array:
    """Returns the eigenvalues of each step, complex `(*batch, time, size)`, unordered.

    JAX computes them on CPU, and on some GPUs. See `singular_values` for `jacobians`.

    >>> import jax.numpy as jnp
    >>> from rnncells import diagnostics
    >>> steps = jnp.array([[[0.0, -1.0], [1.0, 0.0]]])  # one rotation
    >>> sorted(diagnostics.eigenvalues(steps).imag.ravel().tolist())
    [-1.0, 1.0]
    """
    _check(jacobians)
    return jnp.linalg.eigvals(jacobians)


def carry_gradients(
    jacobians: jax.Array,
    *,
    reverse: bool = False,
    norm: Literal["spectral", "frobenius"] = "spectral",
) -> jax.Array:
    """Returns the norms of dh_T/dh_t, `(*batch, time)`; T is the last step.

    Entry t is the norm of the product of the Jacobians of all later steps: how much a
    change of the carry after step t changes the final carry. The last entry is the norm
    of the identity. Use `by_lag` to align rows of different lengths.

    >>> import jax.numpy as jnp
    >>> from rnncells import diagnostics
    >>> steps = jnp.full((4, 1, 1), 0.5)
    >>> diagnostics.carry_gradients(steps).tolist()
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

    def step(product: jax.Array, jacobian: jax.Array) -> tuple[Any, Any]:
        if norm == "spectral":
            size = jnp.linalg.svd(product, compute_uv=False)[..., 0]
        else:
            size = euclidean(jax.lax.collapse(product, product.ndim - 2))
        return product @ jacobian, size

    _, norms = jax.lax.scan(step, _identities(steps), steps, reverse=not reverse)
    return jnp.moveaxis(norms, 0, -1)


def lyapunov_exponents(
    jacobians: jax.Array, mask: jax.Array | None = None, *, reverse: bool = False
) -> jax.Array:
    """Returns the Lyapunov exponents of each row, `(*batch, size)`, about descending.

    Exponent k is the mean growth of a disturbance of the carry in nats per step, along
    the k-th of the directions that QR decompositions keep orthogonal. A positive first
    exponent means chaos; exponents far below 0 mean that memory fades. They are the
    limit for many steps: leave out the steps before the carry has settled.

    >>> import jax.numpy as jnp
    >>> from rnncells import diagnostics
    >>> steps = jnp.broadcast_to(jnp.diag(jnp.array([2.0, 0.5])), (10, 2, 2))
    >>> diagnostics.lyapunov_exponents(steps).round(3).tolist()
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

    def step(state: tuple, jacobian: jax.Array) -> tuple[Any, Any]:
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


def by_lag(
    array: jax.Array, mask: jax.Array | None = None, *, reverse: bool = False
) -> jax.Array:
    """Returns values at valid steps by the distance to the last one, `(*batch, time)`.

    Entry k is the value k valid steps before the last valid step; NaN where a row has
    no such step. So rows of different lengths can be averaged with `jnp.nanmean`.

    >>> import jax.numpy as jnp
    >>> from rnncells import diagnostics
    >>> norms = jnp.array([1.0, 2.0, 3.0, 4.0])
    >>> mask = jnp.array([True, True, True, False])
    >>> diagnostics.by_lag(norms, mask).tolist()
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


def _identities(steps: jax.Array) -> jax.Array:
    """Returns the identity for each row of Jacobians `(time, *batch, size, size)`."""
    return jnp.broadcast_to(
        jnp.eye(steps.shape[-1], dtype=steps.dtype), steps.shape[1:]
    )


def _check(jacobians: chex.Array) -> None:
    shape = jnp.shape(jacobians)
    if len(shape) < 3 or shape[-1] != shape[-2] or shape[-1] == 0:
        raise ValueError(
            f"`jacobians` must be (*batch, time, size, size), got the shape {shape}. "
            "Pass `record(..., jacobians=True)[path].jacobians`."
        )


def _check_mask(mask: chex.Array | None, shape: tuple[int, ...]) -> None:
    if mask is not None and (mask.shape != shape or mask.dtype != bool):
        raise ValueError(
            f"`mask` must be booleans of the shape (*batch, time) = {shape}, got "
            f"{mask.dtype} of the shape {mask.shape}."
        )
