"""Convolutions by weights, in the forms that XLA on CPU computes fast."""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from rnncells.recurrence.engine.products import ProductFunction
from rnncells.recurrence.mesh import may_be_sharded
from rnncells.recurrence.pytrees import zeros


@dataclasses.dataclass(frozen=True, eq=False)
class Convolution(ProductFunction):
    """A convolution of a step, with the `params` of its equation."""

    params: dict[str, Any]
    convolve: Callable = jax.lax.conv_general_dilated

    def __call__(self, lhs: Array, weights: tuple[Array]) -> Array:
        """Returns the convolution of `(*leading, *image)` with one kernel."""
        (kernel,) = weights

        def convolve(lhs: Array) -> Array:
            return self.convolve(lhs, kernel, **self.params)

        rank = len(self.params["dimension_numbers"].lhs_spec)
        if lhs.ndim == rank:
            return convolve(lhs)
        if not self.is_plain or lhs.ndim != rank + 1:
            return jax.vmap(lambda lhs: self(lhs, weights))(lhs)
        # With the batch first, each device keeps its rows if the batch is sharded.
        is_sharded = may_be_sharded()
        lhs = jnp.swapaxes(lhs, 0, 1) if is_sharded else lhs
        result = convolve(lhs.reshape(-1, *lhs.shape[2:]))
        result = result.reshape(*lhs.shape[:2], *result.shape[1:])
        return jnp.swapaxes(result, 0, 1) if is_sharded else result

    @property
    def is_plain(self) -> bool:
        """Whether images are `(batch, ..., channels)` and kernels `(..., in, out)`."""
        lhs, rhs, out = self.params["dimension_numbers"]
        *spatial, last = range(1, len(lhs))
        kernel = (last, last - 1, *range(last - 1))
        groups = self.params["feature_group_count"], self.params["batch_group_count"]
        return lhs == out == (0, last, *spatial) and rhs == kernel and groups == (1, 1)

    def vjp_lhs(
        self, lhs: jax.ShapeDtypeStruct, weights: tuple[Array], cotangent: Array
    ) -> Array:
        # XLA on CPU has a fast convolution only for kernels `(..., in, out)`, so the
        # cotangent is formed by one with such a kernel there.

        def linear(form: Convolution) -> Callable:
            vjp = partial(ProductFunction.vjp_lhs, form, lhs, weights)
            # The linear map has a flipped kernel in it that is formed already.
            return jax.linearize(vjp, zeros(cotangent))[1]

        return self._by_platform(convolve_by_transposed, linear)(cotangent)

    def vjp_weights(
        self, lhs: Array, weights: tuple[Array], cotangent: Array
    ) -> tuple[Array]:
        # On CPU by a matrix product: XLA would compute it by a convolution with a
        # kernel of the size of the image, which is up to 40 times slower.

        def by(form: Convolution) -> Callable:
            return partial(ProductFunction.vjp_weights, form)

        return self._by_platform(convolve_by_patches, by)(lhs, weights, cotangent)

    def _by_platform(self, convolve: Callable, make: Callable) -> Callable:
        """Returns `make(self)`; in a program for CPU, that with `convolve`."""
        if not self.is_plain:
            return make(self)
        default, on_cpu = make(self), make(dataclasses.replace(self, convolve=convolve))
        return partial(jax.lax.platform_dependent, cpu=on_cpu, default=default)


def convolve_by_transposed(
    lhs: Array, rhs: Array, *, dimension_numbers: Any, **options: Any
) -> Array:
    """Computes `jax.lax.conv_general_dilated` with a transposed kernel."""
    out, into, *spatial = dimension_numbers.rhs_spec
    exchanged = dimension_numbers._replace(rhs_spec=(into, out, *spatial))
    return jax.lax.conv_general_dilated(
        *(lhs, jnp.swapaxes(rhs, -1, -2)), dimension_numbers=exchanged, **options
    )


def convolve_by_patches(
    lhs: Array,
    rhs: Array,
    *,
    window_strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    lhs_dilation: Sequence[int],
    rhs_dilation: Sequence[int],
    precision: jax.lax.PrecisionLike = None,
    **options: Any,
) -> Array:
    """Computes a convolution of plain images, see `is_plain`, as a matrix product."""
    *kernel, channels, features = rhs.shape
    zero = jnp.zeros((), lhs.dtype)
    extents = [(k - 1) * d + 1 for k, d in zip(kernel, rhs_dilation, strict=True)]
    between = [n - 1 for n in lhs_dilation]
    pads = [(*pad, n) for pad, n in zip(padding, between, strict=True)]
    lhs = jax.lax.pad(lhs, zero, [(0, 0, 0), *pads, (0, 0, 0)])
    room = [n - extent for n, extent in zip(lhs.shape[1:-1], extents, strict=True)]

    def shifted(corner: tuple[int, ...]) -> Array:
        starts = [i * d for i, d in zip(corner, rhs_dilation, strict=True)]
        windows = zip(starts, room, window_strides, strict=True)
        return lhs[:, *(slice(k, k + n + 1, step) for k, n, step in windows)]

    corners = itertools.product(*map(range, kernel))
    patches = jnp.concatenate([shifted(corner) for corner in corners], axis=-1)
    return jnp.matmul(patches, rhs.reshape(-1, features), precision=precision)
