"""One step of input: its shape and dtype, from which a cell makes its initial carry."""

from typing import Any, TypeAlias

import chex
import jax
import jax.numpy as jnp
import numpy as np
from chex import ArrayTree
from flax.typing import Dtype
from jax import export

from rnncells.recurrence.pytrees import StructTree

# One step of input, or its shape.
InputSpec: TypeAlias = ArrayTree | StructTree | chex.Shape


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

    dtype: Dtype

    def __new__(cls, shape: tuple[int, ...], dtype: Dtype) -> "ShapeDtypeTuple":
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

    def __getnewargs__(self) -> tuple[tuple[int, ...], Dtype]:
        return self.shape, self.dtype


def is_shape(value: Any) -> bool:
    """Returns whether `value` is a shape: a tuple or list of sizes, or empty.

    Sizes are integers of Python or NumPy, symbolic dimensions of `jax.export`, or None
    for an unknown size.
    """
    return isinstance(value, tuple | list) and all(
        n is None or isinstance(n, int | np.integer) or export.is_symbolic_dim(n)
        for n in value
    )


def input_structs(sample: InputSpec) -> StructTree:
    """Returns arrays, structs, or a shape (in JAX's default dtype) as structs."""
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


def input_tuples(inputs: StructTree) -> ArrayTree:
    """Returns the shapes and dtypes of one step of input, as every cell gets them."""
    return jax.tree.map(lambda leaf: ShapeDtypeTuple(leaf.shape, leaf.dtype), inputs)
