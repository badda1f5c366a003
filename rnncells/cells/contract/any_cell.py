"""Functions for any cell: of rnncells, of Flax or of a user."""

import inspect
from collections.abc import Callable, Iterable
from typing import Any, TypeGuard

import flax.linen as nn
import jax
import jax.numpy as jnp
from chex import ArrayTree, PRNGKey

from rnncells._checks import check_key, is_nnx_module
from rnncells._user_warning import warn
from rnncells.cells.contract.base import RNNCellBase, split_axes
from rnncells.cells.contract.carry import (
    Carry,
    InputSpec,
    carry_dtype,
    cast_like,
    check_returned,
    describe,
    dtype_of,
    input_structs,
    input_tuples,
    is_alike,
    is_shape,
)
from rnncells.flax_internals import with_deterministic
from rnncells.recurrence.pytrees import StructTree


def is_cell(module: Any) -> TypeGuard[nn.Module]:
    """Says whether an object has the attributes that all cells have in common."""
    return has_feature_dims(module) and has_attribute(module, "initialize_carry")


def has_feature_dims(module: Any) -> bool:
    """Says whether an object has `num_feature_dims` or its name in Flax."""
    names = "num_feature_dims", "num_feature_axes"
    return any(has_attribute(module, name) for name in names)


def has_attribute(module: Any, name: str) -> bool:
    """Says whether a module has an attribute before its `setup`, which may fail.

    `hasattr` of a bound module without the attribute would run its `setup`.
    """
    return name in getattr(module, "__dict__", {}) or hasattr(type(module), name)


def warn_shared_layers(owner: str, layers: Iterable[Any]) -> None:
    """Warns if one instance is listed twice."""
    layers = list(layers)
    shared = [m for k, m in enumerate(layers) if any(m is n for n in layers[:k])]
    if shared:
        warn(
            f"`layers` of {owner} has one instance of {type(shared[0]).__name__} more "
            "than once, so these layers share their parameters. For separate "
            "parameters, create one for each layer: [Cell(64) for _ in range(3)]."
        )


def feature_dims(cell: nn.Module) -> int:
    """Returns the number of feature axes of any cell, including Flax's cells."""
    for name in ("num_feature_dims", "num_feature_axes"):
        if has_attribute(cell, name):
            return getattr(cell, name)
    name = type(cell).__name__
    advice = ""
    if is_nnx_module(cell):
        advice = f" In place of flax.nnx.bridge.{name}, use rnncells.nnx.to_linen."
    raise TypeError(
        f"{name} is not a cell: it defines neither `num_feature_dims` nor "
        f"`num_feature_axes`.{advice}"
    )


def split_shape(
    cell: nn.Module, shape: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the batch axes and the feature axes of one step's input shape."""
    return split_axes(type(cell).__name__, shape, feature_dims(cell))


def initialize_carry(cell: nn.Module, key: PRNGKey | None, sample: StructTree) -> Carry:
    """Returns the initial carry of any cell; complex if the sample is complex."""
    method = getattr(type(cell), "initialize_carry", None)
    is_ours = method is RNNCellBase.initialize_carry
    if key is None:
        key = jax.random.key(0)
    elif is_ours:
        check_key(key)
    if is_ours:
        carry = cell._initial_carry(key, sample)
        if not any(map(jnp.iscomplexobj, jax.tree.leaves(sample))):
            return carry
    else:
        carry = cell.initialize_carry(key, input_tuples(sample))

    def complex_if_sample_is(leaf: Any) -> Any:
        dtype = dtype_of(leaf)
        is_number = jnp.issubdtype(dtype, jnp.inexact)
        return jnp.asarray(leaf, carry_dtype(dtype, sample)) if is_number else leaf

    return jax.tree.map(complex_if_sample_is, carry)


def resolve_input_spec(
    layer: str,
    carry_of: Callable[[StructTree], Carry],
    sample: InputSpec | None,
    batch_shape: tuple[int, ...] | None,
    widths: tuple[int, ...] = (1, 2),
) -> StructTree:
    """Returns one step of input, from a sample or from the batch axes alone.

    Inputs of all `widths` must have the same carry.
    """
    if (sample is None) == (batch_shape is None):
        raise TypeError("Pass exactly one of `sample_input` and `batch_shape`.")
    if batch_shape is None:
        return input_structs(sample)
    if not is_shape(batch_shape):
        raise TypeError(f"`batch_shape` must be a tuple of sizes, got {batch_shape!r}.")
    samples = [input_structs((*batch_shape, width)) for width in widths]
    reason = "its carry depends on the width of the input."
    try:
        carries = {str(jax.eval_shape(carry_of, sample)) for sample in samples}
        if len(carries) == 1:
            return samples[0]
    except ValueError as error:  # such as too few axes
        reason = str(error)
    raise ValueError(
        f"`batch_shape` is not enough for {layer}: {reason} Pass `sample_input`, one "
        "step of input."
    )


def declared_streams(cell: nn.Module) -> dict[str, bool]:
    """Returns the random streams that a cell declares, and whether time splits them."""
    return cell.rng_streams if has_attribute(cell, "rng_streams") else {}


def apply_step(
    cell: nn.Module, carry: Carry, inputs: ArrayTree, deterministic: bool | None = None
) -> tuple[Carry, ArrayTree]:
    """Applies one step of any cell; casts the new carry to the dtypes of the old.

    `deterministic` overrides the field of our cells. Other cells get it if their call
    takes this argument.
    """
    name = type(cell).__name__
    if deterministic is not None and isinstance(cell, RNNCellBase):
        cell = with_deterministic(cell, deterministic, RNNCellBase)
        if hasattr(type(cell), "deterministic"):
            deterministic = None  # under `nn.remat`, an argument would be an array
    options = {}
    if deterministic is not None:
        options = deterministic_option(cell, deterministic)
    new, output = check_returned("__call__", name, cell(carry, inputs, **options))
    if not is_alike(new, carry):
        raise ValueError(
            f"{name} got the carry {describe(carry)} and returned {describe(new)}. A "
            "step must keep the carry's structure, its shapes, and whether it is real "
            "or complex. If you passed `initial_carry`, check that it fits the inputs."
        )
    return cast_like(new, carry), output


def deterministic_option(module: Any, deterministic: bool | None) -> dict[str, bool]:
    """Returns `deterministic` as an argument of a call, if the callee takes it."""
    if deterministic is None or not isinstance(module, nn.Module):
        return {}
    call = type(module).__call__
    # A cell with `**kwargs` wraps another cell. (`nn.Sequential` has them, too, but its
    # layers need not take the argument.)
    is_wrapper = is_cell(module) and takes_any_keyword(call)
    if is_wrapper or "deterministic" in inspect.signature(call).parameters:
        return {"deterministic": deterministic}
    if hasattr(type(module), "deterministic"):
        name = type(module).__name__
        raise TypeError(
            f"`deterministic` was passed to a layer of {name}, which has a field "
            "`deterministic`, but does not take it in its call. Add the argument "
            f"`deterministic=None` to `{name}.__call__`, or set only the field."
        )
    return {}


def takes_any_keyword(function: Callable) -> bool:
    """Says whether a function has a parameter such as `**kwargs`."""
    parameters = inspect.signature(function).parameters.values()
    return any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)


def without_dropout(function: Callable) -> dict[str, bool]:
    """Returns deterministic=True for a function, unless its own field decides."""
    is_decided = getattr(function, "deterministic", None) is not None
    return {} if is_decided else deterministic_option(function, True)
