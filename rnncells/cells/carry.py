"""Shapes and dtypes of carries."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
from flax.typing import Dtype
from jax import export

from rnncells.recurrence.pytrees import StructTree

# The state of a cell.
Carry = chex.ArrayTree
# The shapes of a carry without batch axes. A leaf is a tuple of sizes, or a struct
# where the dtype is fixed.
ShapeTree = (
    tuple[int | None, ...]
    | jax.ShapeDtypeStruct
    | Iterable["ShapeTree"]
    | Mapping[Any, "ShapeTree"]
)
# One step of input, or its shape.
Sample = chex.ArrayTree | StructTree | chex.Shape


class ShapeDtypeTuple(tuple):
    """The shape and dtype of one step of input; `initialize_carry` of a cell gets it.

    It is a tuple of sizes, which is what `flax.linen.RNN` passes, and it has the
    attributes of an array, which is what Flax's proposal for cells passes. A pytree of
    inputs is a pytree of these tuples.

    Attributes:
      shape: the sizes, a plain tuple.
      dtype: the dtype of the input.
      ndim: the number of axes.
    """

    def __new__(cls, shape: tuple[int, ...], dtype: Dtype):
        self = super().__new__(cls, shape)
        # Extended dtypes, as of random keys, are no dtypes of NumPy.
        self.dtype = dtype
        return self

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self)

    @property
    def ndim(self) -> int:
        return len(self)

    def __getnewargs__(self):
        return self.shape, self.dtype


class LSTMStates(NamedTuple):
    """The states of the layer `LSTM`, in PyTorch's order.

    A cell's carry is a plain tuple in Flax's order, (c, h). Cells refuse this class, so
    that the two cannot be mistaken for each other.

    Attributes:
      h: hidden states, `(layers * directions, *batch, features)`.
      c: cell states, the same shape, or another width if h is projected.
    """

    h: jax.Array
    c: jax.Array


# So that `jax.export` can serialize programs that take or return states.
export.register_namedtuple_serialization(
    LSTMStates, serialized_name="rnncells.LSTMStates"
)


def is_shape(value: Any) -> bool:
    """Returns whether `value` is a shape: a tuple or list of sizes, or empty.

    Sizes are integers of Python or NumPy, symbolic dimensions of `jax.export`, or None
    for an unknown size.
    """
    return isinstance(value, tuple | list) and all(
        n is None or isinstance(n, int | np.integer) or export.is_symbolic_dim(n)
        for n in value
    )


def sample_structs(sample: Sample) -> StructTree:
    """Returns a sample as a pytree of `jax.ShapeDtypeStruct`.

    Args:
      sample: an array, a `jax.ShapeDtypeStruct`, a pytree of them, or a shape. A shape
        gets JAX's default floating dtype.

    Raises:
      TypeError: `sample` is none of these.
    """
    if is_shape(sample) and not isinstance(sample, ShapeDtypeTuple):
        return jax.ShapeDtypeStruct(tuple(sample), jnp.result_type(float))
    leaves = jax.tree.leaves(sample)
    if not leaves or not all(hasattr(leaf, "shape") for leaf in leaves):
        raise TypeError(
            "`sample_input` must be one step of input, (*batch, *features): an array, "
            f"a jax.ShapeDtypeStruct or a shape such as (2, 3), got {sample!r}."
        )
    if any(jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) for leaf in leaves):
        raise TypeError(
            "`sample_input` must be one step of input, got a random key. The key is "
            "the first argument: initialize_carry(key, sample_input)."
        )
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), sample)


def as_samples(inputs: StructTree) -> chex.ArrayTree:
    """Returns the shapes and dtypes of one step of input, as every cell gets them."""
    return jax.tree.map(lambda leaf: ShapeDtypeTuple(leaf.shape, leaf.dtype), inputs)


def dtype_of(leaf: Any) -> Dtype:
    """Returns the dtype of an array, a random key, or a Python number."""
    return leaf.dtype if hasattr(leaf, "dtype") else jnp.result_type(leaf)


def with_own_dtype(leaf: Any, params: chex.ArrayTree = ()) -> Any:
    """Returns an array that is not weakly typed.

    The dtype of Python numbers and of weakly typed arrays depends on the operations on
    them, which differ between loops.

    Args:
      leaf: an array or a number.
      params: parameters, whose dtype a weakly typed floating array takes.
    """
    leaf = leaf if hasattr(leaf, "dtype") else jnp.asarray(leaf)
    if not getattr(leaf, "weak_type", False):
        return leaf
    dtypes = [leaf.dtype]
    if jnp.issubdtype(leaf.dtype, jnp.floating):
        of_params = [p.dtype for p in jax.tree.leaves(params)]
        dtypes = [d for d in of_params if jnp.issubdtype(d, jnp.floating)] or dtypes
    return jax.lax.convert_element_type(leaf, jnp.result_type(*dtypes))


def carry_dtype(param_dtype: Dtype, sample: StructTree) -> Dtype:
    """Returns the dtype of a carry: `param_dtype`, or complex if the sample is complex.

    Args:
      param_dtype: dtype of the parameters.
      sample: pytree of `jax.ShapeDtypeStruct`.
    """
    dtypes = [leaf.dtype for leaf in jax.tree.leaves(sample)]
    wider = [d for d in dtypes if jnp.issubdtype(d, jnp.complexfloating)]
    return jnp.result_type(param_dtype, *wider)


def cast_like(new: chex.ArrayTree, old: chex.ArrayTree) -> chex.ArrayTree:
    """Casts each leaf of `new` to the precision of the leaf of `old`.

    Real leaves stay real, and complex leaves stay complex. Other leaves (counters,
    random keys) do not change. A Python number gets the dtype of `old`.
    """

    def cast(new_leaf, old_leaf):
        if not hasattr(new_leaf, "dtype"):
            return jnp.asarray(new_leaf, dtype_of(old_leaf))
        was, is_now = dtype_of(old_leaf), dtype_of(new_leaf)
        for kind in (jnp.floating, jnp.complexfloating):
            if jnp.issubdtype(was, kind) and jnp.issubdtype(is_now, kind):
                return jnp.asarray(new_leaf, was)
        if jnp.issubdtype(was, jnp.complexfloating):
            return jnp.asarray(new_leaf, was)
        return new_leaf

    return jax.tree.map(cast, new, old)
