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


def in_blocks(np, x, gate):
    """Multiplies by a block-diagonal kernel, one block after the other."""
    parts = np.split(x, len(gate["kernel"]), -1)
    blocks = [part @ block for part, block in zip(parts, gate["kernel"], strict=True)]
    return np.concatenate(blocks, -1) + gate.get("bias", 0)
