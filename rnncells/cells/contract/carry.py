"""Shapes and dtypes of carries, and of one step of input, from which they follow."""

from typing import Any, TypeAlias

import chex
import jax
import jax.numpy as jnp
import numpy as np
from chex import ArrayTree
from flax.typing import Dtype
from jax import export

from rnncells.recurrence.pytrees import StructTree

# The state of a cell.
Carry: TypeAlias = ArrayTree
# The shapes of a carry without batch axes: a pytree, whose leaves are tuples of sizes,
# or structs where the dtype is fixed.
ShapeTree: TypeAlias = Any
# One step of input, or its shape.
InputSpec: TypeAlias = ArrayTree | StructTree | chex.Shape


def dtype_of(leaf: Any) -> Dtype:
    """Returns the dtype of an array, a random key, or a Python number."""
    return leaf.dtype if hasattr(leaf, "dtype") else jnp.result_type(leaf)


def strongly_typed(leaf: Any, params: ArrayTree = ()) -> Any:
    """Returns an array that is not weakly typed.

    The dtype of Python numbers and of weakly typed arrays depends on the operations on
    them, which differ between loops. Floats take the dtype of `params`.
    """
    leaf = leaf if hasattr(leaf, "dtype") else jnp.asarray(leaf)
    if not getattr(leaf, "weak_type", False):
        return leaf
    dtypes = [leaf.dtype]
    if jnp.issubdtype(leaf.dtype, jnp.floating):
        param_dtypes = [p.dtype for p in jax.tree.leaves(params)]
        dtypes = [d for d in param_dtypes if jnp.issubdtype(d, jnp.floating)] or dtypes
    return jax.lax.convert_element_type(leaf, jnp.result_type(*dtypes))


def carry_dtype(param_dtype: Dtype, sample: StructTree) -> Dtype:
    """Returns the dtype of a carry: `param_dtype`, or complex if the sample is."""
    dtypes = [leaf.dtype for leaf in jax.tree.leaves(sample)]
    wider = [d for d in dtypes if jnp.issubdtype(d, jnp.complexfloating)]
    return jnp.result_type(param_dtype, *wider)


def cast_like(new: ArrayTree, old: ArrayTree) -> ArrayTree:
    """Casts each leaf of `new` to the precision of the leaf of `old`.

    Real leaves stay real, and complex leaves stay complex. Other leaves (counters,
    random keys) do not change. A Python number gets the dtype of `old`.
    """

    def cast(new_leaf: Any, old_leaf: Any) -> Any:
        if not hasattr(new_leaf, "dtype"):
            return jnp.asarray(new_leaf, dtype_of(old_leaf))
        old_dtype = dtype_of(old_leaf)
        is_real = jnp.issubdtype(old_dtype, jnp.floating)
        if is_real and not jnp.issubdtype(new_leaf.dtype, jnp.floating):
            return new_leaf
        is_number = jnp.issubdtype(old_dtype, jnp.inexact)
        return jnp.asarray(new_leaf, old_dtype) if is_number else new_leaf

    return jax.tree.map(cast, new, old)


def describe(carry: Carry) -> Any:
    """Returns, for each leaf of a carry, its shape and whether it is complex."""

    def kind(leaf: Any) -> str:
        return ("complex" if jnp.iscomplexobj(leaf) else "real") + str(jnp.shape(leaf))

    return jax.tree.map(kind, carry)


def is_alike(carry: Carry, other: Carry) -> bool:
    """Says whether two carries differ only in values and precision."""
    form, other_form = [
        (structure, [(jnp.shape(leaf), jnp.iscomplexobj(leaf)) for leaf in leaves])
        for leaves, structure in map(jax.tree.flatten, (carry, other))
    ]
    return form == other_form


def has_form(carry: Carry, shapes: ShapeTree, batch: tuple[int, ...]) -> bool:
    """Says whether a carry has the shapes of `carry_shape` after its batch axes.

    Its parts must be floating or complex, unless `carry_shape` fixes their dtypes.
    """
    specs, structure = jax.tree.flatten(shapes, is_leaf=is_shape)
    leaves, carry_structure = jax.tree.flatten(carry)
    if structure != carry_structure:  # type: ignore[operator]
        return False
    for spec, leaf in zip(specs, leaves, strict=True):
        expected, sizes = batch + tuple(getattr(spec, "shape", spec)), jnp.shape(leaf)
        # A size of None is any size.
        filled = [size if n is None else n for n, size in zip(expected, sizes)]
        if len(expected) != len(sizes) or filled != [*sizes]:
            return False
        is_counter = not jnp.issubdtype(getattr(spec, "dtype", float), jnp.inexact)
        if not (is_counter or jnp.issubdtype(dtype_of(leaf), jnp.inexact)):
            return False
    return True


def check_returned(method: str, name: str, returned: Any) -> tuple[Any, Any]:
    """Returns the result of a step, or raises TypeError unless it is a pair."""
    if isinstance(returned, tuple) and len(returned) == 2:
        return returned
    shapes = jax.tree.map(jnp.shape, returned)
    is_array = hasattr(returned, "shape")
    got = "an array of shape" if is_array else type(returned).__name__
    raise TypeError(
        f"`{method}` of {name} must return (new_carry, output), got {got} {shapes}."
    )


class ShapeDtypeTuple(tuple):
    """The shape and dtype of one step of input; `initialize_carry` of a cell gets it.

    It is a tuple of sizes, which is what `flax.linen.RNN` passes, and it has the
    attributes of an array, which is what Flax's proposal for cells passes. A pytree of
    inputs is a pytree of these tuples.
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
    if not isinstance(value, tuple | list):
        return False
    for n in value:
        is_size = n is None or isinstance(n, int | np.integer)
        if not (is_size or export.is_symbolic_dim(n)):
            return False
    return True


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
