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
    """Returns `results`; `vmap` maps all of them if it maps any of the two."""
    leaves, structure = jax.tree.flatten(results)
    others = jax.tree.leaves(operands)
    return jax.tree.unflatten(
        structure, _together.bind(*leaves, *others, count=len(leaves))
    )


def _first(*arrays, count):
    return list(arrays[:count])


def _jvp(primals, tangents, *, count):
    return _together.bind(*primals, count=count), tangents[:count]


def _batch(arrays, axes, *, count):
    (size, *_) = (a.shape[k] for a, k in zip(arrays, axes) if k is not None)
    mapped = [
        jnp.broadcast_to(array, (size, *array.shape))
        if axis is None
        else jnp.moveaxis(array, axis, 0)
        for array, axis in zip(arrays, axes, strict=True)
    ]
    results = mapped[:count]
    return _together.bind(*mapped, count=count), [0] * len(results)


_together = Primitive("batched_together")
_together.multiple_results = True
_together.def_impl(_first)
_together.def_abstract_eval(_first)
ad.primitive_jvps[_together] = _jvp
batching.primitive_batchers[_together] = _batch
mlir.register_lowering(_together, lambda _, *values, count: values[:count])
