"""Parts of equations, for arrays of NumPy and of JAX; parameters as float64 arrays."""

import jax
import jax.numpy as jnp
import numpy


class Namespace:
    """Functions of NumPy, and those of `jax.numpy` for arrays of JAX."""

    def __getattr__(self, name):
        def function(*args, **kwargs):
            in_jax = any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(args))
            return getattr(jnp if in_jax else numpy, name)(*args, **kwargs)

        return function


np = Namespace()


def arrays(tree):
    """Returns a pytree in double precision; of parameters, the inner dict."""
    tree = jax.tree.map(
        lambda leaf: numpy.asarray(leaf, numpy.result_type(leaf.dtype, float)), tree
    )
    return tree["params"] if isinstance(tree, dict) else tree


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softplus(x):
    return np.log1p(np.exp(x))


def soft_sign(x):
    """A squashing function in (-1, 1) that is not tanh."""
    return x / (1 + abs(x))


def soft_gate(x):
    """A gate in (0, 1) that is not logistic."""
    return (1 + soft_sign(x)) / 2


def relu(x):
    return np.maximum(x, 0)


def stop_gradient(x):
    return jax.lax.stop_gradient(x) if isinstance(x, jax.Array) else x


def affine(x, gate):
    """Returns `x W + b` of one gate's parameters; `b` may be missing.

    A kernel with an axis of blocks is block-diagonal.
    """
    kernel, bias = gate["kernel"], gate.get("bias", 0)
    if kernel.ndim == 2:
        return x @ kernel + bias
    blocks = zip(np.split(x, len(kernel), -1), kernel, strict=True)
    return np.concatenate([part @ block for part, block in blocks], -1) + bias


def side_by_side(x, p, *names):
    """Returns `x W + b` of several gates as one array."""
    return np.concatenate([affine(x, p[name]) for name in names], -1)


def heads(x, num_heads):
    """Returns `(*batch, num_heads, features)`."""
    return x.reshape(*x.shape[:-1], num_heads, -1)


def outer(v, k):
    """Returns v k^T, for each head."""
    return np.einsum("...i,...j->...ij", v, k)


def read(S, q):
    """Returns S q, the heads side by side."""
    y = np.einsum("...ij,...j->...i", S, q)
    return y.reshape(*y.shape[:-2], -1)


def padding(size, kernel, stride, how):
    """Returns (low, high) pads of one axis, as TensorFlow defines them."""
    if how == "VALID":
        return 0, 0
    if how == "CAUSAL":
        return kernel - 1, 0
    total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
    return total // 2, total - total // 2


def convolve(x, params, strides=None, pads="SAME"):
    """Returns the convolution of `(batch, *spatial, channels)`: a sum over pixels."""
    kernel = params["kernel"]
    sizes = kernel.shape[:-2]
    strides = strides or (1,) * len(sizes)
    mode = "wrap" if pads == "CIRCULAR" else "constant"
    axes = list(zip(x.shape[1:-1], sizes, strides, strict=True))
    if isinstance(pads, str):
        pads = [padding(*axis, pads) for axis in axes]
    shape = [
        (n + sum(pad) - k) // s + 1 for (n, k, s), pad in zip(axes, pads, strict=True)
    ]
    x = np.pad(x, [(0, 0), *pads, (0, 0)], mode=mode)
    y = params.get("bias", 0)
    for pixel in numpy.ndindex(*sizes):
        window = (
            slice(start, start + (n - 1) * stride + 1, stride)
            for start, n, stride in zip(pixel, shape, strides, strict=True)
        )
        y = y + x[(slice(None), *window)] @ kernel[pixel]
    return y
