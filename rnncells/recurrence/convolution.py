"""Convolutions by weights, in the forms that XLA on CPU computes fast."""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from rnncells.recurrence.settling import on_cpu


@dataclasses.dataclass(frozen=True, eq=False)
class Convolution:
    """A convolution of a step, as a function of images and weights.

    Attributes:
      params: of the equation, see `jax.lax.conv_general_dilated`.
      convolve: computes it.
    """

    params: dict[str, Any]
    convolve: Callable = jax.lax.conv_general_dilated

    def __str__(self) -> str:
        return "Convolution"

    def __call__(self, left: jax.Array, weights: tuple[jax.Array]) -> jax.Array:
        """Returns the convolution of `(*leading, *image)` with one kernel."""
        (kernel,) = weights

        def one(left):
            return self.convolve(left, kernel, **self.params)

        rank = len(self.params["dimension_numbers"].lhs_spec)
        if left.ndim == rank:
            return one(left)
        if not self.is_plain or left.ndim != rank + 1:
            return jax.vmap(lambda left: self(left, weights))(left)
        # With the batch first, each device keeps its rows if the batch is sharded.
        is_sharded = jax.device_count() > 1
        left = jnp.swapaxes(left, 0, 1) if is_sharded else left
        result = one(left.reshape(-1, *left.shape[2:]))
        result = result.reshape(*left.shape[:2], *result.shape[1:])
        return jnp.swapaxes(result, 0, 1) if is_sharded else result

    @property
    def is_plain(self) -> bool:
        """Whether images are `(batch, ..., channels)` and kernels `(..., in, out)`."""
        lhs, rhs, out = self.params["dimension_numbers"]
        *spatial, last = range(1, len(lhs))
        kernel = (last, last - 1, *range(last - 1))
        groups = self.params["feature_group_count"], self.params["batch_group_count"]
        return lhs == out == (0, last, *spatial) and rhs == kernel and groups == (1, 1)

    @property
    def to_pull(self) -> "Convolution":
        """The same function, whose derivative by the images is fast in a loop.

        XLA on CPU has a fast convolution only for kernels `(..., in, out)`. Here the
        derivative has a kernel of this layout.
        """
        return self._by(convolve_by_transposed)

    def pull_weights(
        self, left: jax.Array, weights: tuple[jax.Array], gradient: jax.Array
    ) -> tuple[jax.Array]:
        """Returns the gradient of the kernel, computed by a matrix product.

        XLA on CPU would compute the gradient of a kernel as a convolution with a kernel
        of the size of the image, which is up to 40 times slower.
        """
        function = self._by(convolve_by_patches)
        _, pull = jax.vjp(lambda weights: function(left, weights), weights)
        return pull(gradient)[0]

    def _by(self, convolve: Callable) -> "Convolution":
        if not (on_cpu() and self.is_plain):
            return self
        return dataclasses.replace(self, convolve=convolve)


def convolve_by_transposed(
    lhs: jax.Array, rhs: jax.Array, *, dimension_numbers, **options
) -> jax.Array:
    """Computes `jax.lax.conv_general_dilated` with a transposed kernel."""
    out, into, *spatial = dimension_numbers.rhs_spec
    exchanged = dimension_numbers._replace(rhs_spec=(into, out, *spatial))
    return jax.lax.conv_general_dilated(
        *(lhs, jnp.swapaxes(rhs, -1, -2)), dimension_numbers=exchanged, **options
    )


def convolve_by_patches(
    lhs: jax.Array,
    rhs: jax.Array,
    *,
    window_strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    lhs_dilation: Sequence[int],
    rhs_dilation: Sequence[int],
    precision: jax.lax.PrecisionLike = None,
    **options,
) -> jax.Array:
    """Computes `jax.lax.conv_general_dilated` as one matrix product.

    Args:
      lhs: `(batch, *spatial, channels)`.
      rhs: `(*kernel, channels, features)`.
      window_strides: see `jax.lax.conv_general_dilated`, also for the other arguments.
    """
    *kernel, channels, features = rhs.shape
    zero = jnp.zeros((), lhs.dtype)
    extents = [(k - 1) * d + 1 for k, d in zip(kernel, rhs_dilation, strict=True)]
    between = [n - 1 for n in lhs_dilation]
    pads = [(*pad, n) for pad, n in zip(padding, between, strict=True)]
    lhs = jax.lax.pad(lhs, zero, [(0, 0, 0), *pads, (0, 0, 0)])
    room = [n - extent for n, extent in zip(lhs.shape[1:-1], extents, strict=True)]

    def shifted(corner):
        starts = [i * d for i, d in zip(corner, rhs_dilation, strict=True)]
        windows = zip(starts, room, window_strides, strict=True)
        return lhs[:, *(slice(at, at + left + 1, step) for at, left, step in windows)]

    corners = itertools.product(*map(range, kernel))
    patches = jnp.concatenate([shifted(corner) for corner in corners], axis=-1)
    return jnp.matmul(patches, rhs.reshape(-1, features), precision=precision)
