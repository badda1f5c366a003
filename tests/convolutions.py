"""Convolutions of `(batch, *spatial, channels)`, written without Flax."""

import string

import jax
import numpy as np


def padding(size, kernel, stride, how):
    """Returns (low, high) zeros on one axis, as TensorFlow defines SAME and VALID."""
    if how == "VALID":
        return 0, 0
    total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
    return total // 2, total - total // 2


def convolve(x, params, strides=None, pads="SAME"):
    """Returns the convolution in NumPy, a sum per pixel."""
    kernel = params["kernel"]
    sizes = kernel.shape[:-2]
    strides = strides or (1,) * len(sizes)
    wraps = pads == "CIRCULAR"
    if wraps:
        pads = "SAME"
    if isinstance(pads, str):
        pads = [
            padding(n, k, s, pads)
            for n, k, s in zip(x.shape[1:-1], sizes, strides, strict=True)
        ]
    x = np.pad(x, [(0, 0), *pads, (0, 0)], mode="wrap" if wraps else "constant")
    shape = [
        (n - k) // s + 1 for n, k, s in zip(x.shape[1:-1], sizes, strides, strict=True)
    ]
    y = np.zeros((len(x), *shape, kernel.shape[-1]))
    axes = len(sizes) + 1
    for pixel in np.ndindex(*shape):
        corner = np.multiply(pixel, strides)
        window = tuple(slice(a, a + k) for a, k in zip(corner, sizes, strict=True))
        patch = x[(slice(None), *window)]
        axes_of_patch = range(1, axes + 1)
        y[(slice(None), *pixel)] = np.tensordot(
            patch, kernel, (axes_of_patch, range(axes))
        )
    return y + params.get("bias", 0)


def convolve_in_jax(x, params, strides=None, pads="SAME"):
    """Returns the same, to be differentiated; `pads` is SAME or VALID."""
    axes = params["kernel"].ndim - 2
    spatial = string.ascii_lowercase[:axes]
    dimensions = f"N{spatial}C", f"{spatial}IO", f"N{spatial}C"
    y = jax.lax.conv_general_dilated(
        *(x, params["kernel"], strides or (1,) * axes, pads),
        dimension_numbers=dimensions,
    )
    return y + params.get("bias", 0)
