"""Layers of flax.linen as pure functions of inputs and variables."""

import dataclasses
import itertools
from collections.abc import Callable, Sequence

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp

from rnncells.recurrence.settling import on_cpu


def applied(layer: nn.Module) -> "Applied":
    """Returns an unbound layer as a function `(inputs, variables) -> outputs`."""
    return (Convolution if type(layer) is nn.Conv else Applied)(layer)


@dataclasses.dataclass(frozen=True, eq=False)
class Applied:
    """A layer as a pure function.

    Attributes:
      layer: an unbound module.
    """

    layer: nn.Module

    def __str__(self) -> str:
        return type(self.layer).__name__

    def __call__(self, inputs: jax.Array, variables: chex.ArrayTree) -> jax.Array:
        return self.layer.apply(variables, inputs)


@dataclasses.dataclass(frozen=True, eq=False)
class Convolution(Applied):
    """A `flax.linen.Conv`."""

    layer: nn.Conv

    def __call__(self, inputs: jax.Array, variables: chex.ArrayTree) -> jax.Array:
        leading = inputs.ndim - len(self.layer.kernel_size) - 1
        if leading < 2 or jax.device_count() == 1:
            return self.layer.apply(variables, inputs)
        # Conv merges time and batch to one axis. With the batch first, each device
        # keeps its rows if the batch is sharded.
        outputs = self.layer.apply(variables, jnp.swapaxes(inputs, 0, 1))
        return jnp.swapaxes(outputs, 0, 1)

    @property
    def to_pull(self) -> "Convolution":
        """The same function, whose derivative by the inputs is fast in a loop.

        XLA on CPU has a fast convolution only for kernels `(..., in, out)`. Here the
        derivative has a kernel of this layout.
        """
        return self._by(convolve_by_transposed)

    def pull_weights(
        self, left: jax.Array, weights: chex.ArrayTree, gradient: jax.Array
    ) -> chex.ArrayTree:
        """Returns the gradients of the weights, computed by a matrix product.

        XLA on CPU would compute the gradient of a kernel as a convolution with a kernel
        of the size of the image, which is up to 40 times slower.
        """
        function = self._by(convolve_by_patches)
        _, pull = jax.vjp(lambda weights: function(left, weights), weights)
        return pull(gradient)[0]

    def _by(self, convolve: Callable) -> "Convolution":
        own = self.layer.conv_general_dilated, self.layer.conv_general_dilated_cls
        is_plain = own == (None, None) and self.layer.feature_group_count == 1
        if not (on_cpu() and is_plain):
            return self
        return Convolution(self.layer.clone(conv_general_dilated=convolve))


def convolve_by_transposed(
    lhs: jax.Array, rhs: jax.Array, *at, dimension_numbers, **options
) -> jax.Array:
    """Computes `jax.lax.conv_general_dilated` with a transposed kernel."""
    out, into, *spatial = dimension_numbers.rhs_spec
    exchanged = dimension_numbers._replace(rhs_spec=(into, out, *spatial))
    return jax.lax.conv_general_dilated(
        *(lhs, jnp.swapaxes(rhs, -1, -2), *at), dimension_numbers=exchanged, **options
    )


def convolve_by_patches(
    lhs: jax.Array,
    rhs: jax.Array,
    window_strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    *,
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
    if isinstance(padding, str):
        padding = jax.lax.padtype_to_pads(
            lhs.shape[1:-1], extents, window_strides, padding
        )
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
