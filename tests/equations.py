"""NumPy's side of the tests of equations: parameters as float64 arrays."""

import jax
import numpy as np


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def arrays(tree):
    """Returns a pytree in double precision; of parameters, the inner dict."""
    tree = jax.tree.map(
        lambda leaf: np.asarray(leaf, np.result_type(leaf.dtype, np.float64)), tree
    )
    return tree["params"] if isinstance(tree, dict) else tree


def affine(x, gate):
    """Returns `x W + b` of one gate's parameters; `b` may be missing."""
    return x @ gate["kernel"] + gate.get("bias", 0)
