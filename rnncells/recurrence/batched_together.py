"""Results of which `vmap` maps all or none.

Where `vmap` maps only some of the results of a `jax.custom_vjp`, JAX sums the
cotangents of the others over the mapped axis before the backward pass (0.10), or raises
(0.12).
"""

import chex
import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir


def batched_together(
    results: chex.ArrayTree, operands: chex.ArrayTree
) -> chex.ArrayTree:
    """Returns `results` of `operands`; `vmap` maps each if it maps any operand."""
    others = jax.tree.leaves(operands)
    # One by one, so that results that nothing uses are not computed.
    return jax.tree.map(lambda leaf: _together.bind(leaf, *others), results)


def _first(array, *others):
    return array


def _jvp(primals, tangents):
    return _together.bind(*primals), tangents[0]


def _batch(arrays, axes):
    (size, *_) = (a.shape[k] for a, k in zip(arrays, axes) if k is not None)
    mapped = [
        jnp.broadcast_to(array, (size, *array.shape))
        if axis is None
        else jnp.moveaxis(array, axis, 0)
        for array, axis in zip(arrays, axes, strict=True)
    ]
    return _together.bind(*mapped), 0


_together = Primitive("batched_together")
_together.def_impl(_first)
_together.def_abstract_eval(_first)
ad.primitive_jvps[_together] = _jvp
batching.primitive_batchers[_together] = _batch
mlir.register_lowering(_together, lambda _, value, *others: [value])
