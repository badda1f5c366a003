"""Checks of the arguments of layers over sequences, which return them resolved."""

import inspect
import itertools
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from types import FrameType
from typing import Any

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from chex import ArrayTree, PRNGKey
from flax.errors import CallCompactUnboundModuleError
from jax import Array

from rnncells._checks import (
    check_bools,
    check_choice,
    check_instance,
    check_not_nnx,
)
from rnncells._user_warning import warn
from rnncells.cells.contract.any_cell import has_attribute
from rnncells.cells.contract.carry import (
    Carry,
    describe,
    dtype_of,
    is_alike,
    strongly_typed,
)
from rnncells.gradients import ForwardGradient
from rnncells.layers.contract.states import LSTMStates
from rnncells.recurrence.newton import Newton
from rnncells.recurrence.pytrees import StructTree, structs
from rnncells.recurrence.schedule import Call, PaddedOutputs

_DIRECTIONS = ("forward", "backward")
_FLAGS = ("return_carry", "return_all_carries", "return_certificate")
_FLAGS += ("time_major", "reverse", "keep_order")


def cell_error(owner: str, cell: Any) -> TypeError:
    """Returns the error of a `cell` that is no instance of a flax.linen module."""
    check_instance(owner, "cell", cell)
    check_not_nnx(owner, "cell", cell)
    description = repr(cell)
    if isinstance(cell, Sequence) and not isinstance(cell, str):
        description = f"a {type(cell).__name__}. Make one cell of several: "
        description += "StackedCell([LSTMCell(features), LSTMCell(features)])"
    return TypeError(
        f"`cell` of {owner} must be a flax.linen module such as LSTMCell(features), "
        f"got {description}."
    )


def check_call(
    layer: nn.Module, deterministic: bool | None, **flags: bool | None
) -> dict[str, bool]:
    """Returns the flags of a call, checked: None takes the layer's field, or False."""
    if layer.scope is None:
        raise CallCompactUnboundModuleError()
    if deterministic is not None:
        check_bools(type(layer).__name__, deterministic=deterministic)
    resolved = {
        name: getattr(layer, name, False) if flag is None else flag
        for name, flag in flags.items()
    }
    check_bools(type(layer).__name__, **resolved)
    return resolved


def resolve_call(
    rnn: Any,
    inputs: Any,
    *,
    seq_lengths: Any = None,
    mask: Any = None,
    resets: Any = None,
    padded_outputs: PaddedOutputs | None = None,
    deterministic: bool | None = None,
    **flags: bool | None,
) -> Call:
    """Returns the arguments of a call of an RNN; None takes the layer's field."""
    flags = {**dict.fromkeys(_FLAGS), **flags}
    resolved: Any = check_call(rnn, deterministic, **flags)
    if resolved["return_certificate"]:
        check_certificate(rnn)
    if padded_outputs is not None:
        check_choice("RNN", "padded_outputs", padded_outputs, PaddedOutputs)
    inputs, dims = as_arrays(rnn, inputs), rnn._feature_dims()
    sizes = check_layout(inputs, dims)
    warn_layout(jax.tree.leaves(inputs)[0], dims)
    axis = 0 if resolved.pop("time_major") else len(sizes) - 1
    batch = sizes[:axis] + sizes[axis + 1 :]
    return Call(
        *(inputs, sizes, axis, batch),
        seq_lengths=check_lengths(seq_lengths, batch, sizes[axis]),
        mask=check_steps("mask", mask, sizes),
        resets=check_steps("resets", resets, sizes),
        padded_outputs=padded_outputs or rnn.padded_outputs,
        deterministic=deterministic,
        sample=structs(inputs, drop_axis=axis),
        **resolved,
    )


def resolve_step(
    rnn: Any, inputs: Any, deterministic: bool | None, **per_row: Any
) -> Call:
    """Returns one step of an RNN, with `mask` and `resets` per row, as a call on it."""
    inputs = jax.tree.map(lambda leaf: leaf[None], as_arrays(rnn, inputs))
    sizes = check_layout(inputs, rnn._feature_dims())
    for name, rows in per_row.items():
        rows = check_steps(name, rows, sizes[1:], "batch axes")
        per_row[name] = None if rows is None else rows[None]
    call = Call(inputs, sizes, 0, sizes[1:], structs(inputs, drop_axis=0), **per_row)
    return call._replace(padded_outputs=rnn.padded_outputs, deterministic=deterministic)


def check_certificate(rnn: Any) -> None:
    """Raises ValueError unless the loop of a layer has a certificate."""
    implementation = rnn.implementation
    if not (implementation == "newton" or isinstance(implementation, Newton)):
        raise ValueError(
            "`return_certificate` of RNN needs implementation='newton' or "
            f"Newton(...), got {implementation!r}."
        )


def as_arrays(rnn: Any, inputs: Any) -> ArrayTree:
    """Returns checked inputs of an RNN; weakly typed ones get the dtype of params."""
    check_inputs(inputs)
    inputs = jax.tree.map(jnp.asarray, inputs)
    is_weak = [getattr(leaf, "weak_type", False) for leaf in jax.tree.leaves(inputs)]
    if rnn.is_initializing() or not any(is_weak):
        return inputs
    params = rnn.cell.variables.get("params", {})
    return jax.tree.map(lambda leaf: strongly_typed(leaf, params), inputs)


def check_inputs(inputs: Any) -> None:
    """Raises TypeError if the inputs of a layer are not arrays."""
    if inputs is None:
        raise TypeError("`inputs` must be (*batch, time, *features), got None.")
    if isinstance(inputs, list):
        raise TypeError(
            f"`inputs` must be an array, (*batch, time, *features), got a list of "
            f"{len(inputs)}. Join steps with jnp.stack(steps, axis=1), or convert "
            "numbers with jnp.asarray. For a cell with several inputs, pass a tuple."
        )
    if hasattr(inputs, "batch_sizes"):
        raise TypeError(
            "`inputs` must be an array, got a PackedSequence of PyTorch. Convert it "
            "with `pad_packed_sequence` and pass the lengths as `seq_lengths`."
        )
    if {"inputs", "plan"} <= set(getattr(inputs, "_fields", ())):
        raise TypeError(
            "`inputs` must be an array, got a Packed batch. Pass packed.inputs with "
            "resets=packed.resets and mask=packed.mask."
        )
    for leaf in jax.tree.leaves(inputs):
        if isinstance(leaf, np.ndarray) and leaf.dtype.kind in "OSUMm":
            raise TypeError(
                "`inputs` must be an array of numbers, got an array of dtype "
                f"{leaf.dtype}."
            )


def one_array(layer: str, arguments: str, inputs: Any) -> Array:
    """Returns the inputs of a layer as an array; raises TypeError for a pytree."""
    check_inputs(inputs)
    if isinstance(inputs, tuple | Mapping):  # such as states
        raise TypeError(
            f"`inputs` of {layer} must be one array, got {type(inputs).__name__}. The "
            f"first arguments are {arguments}."
        )
    return jnp.asarray(inputs)


def warn_sequence_input(batch: tuple[int, ...]) -> None:
    """Warns if the input of a first step may be a sequence."""
    if len(batch) > 1:
        warn(
            "`inputs` of `step` are one time step, (*batch, *features). These inputs "
            f"have the batch axes {batch}. For a sequence, call the layer. If the "
            "batch axes are right, pass the carry of `initialize_carry`, not None."
        )


def warn_narrow_carry(cell: nn.Module, carry: Carry, sample: StructTree) -> None:
    """Warns if the initial carry has less precision than the cell computes in."""
    # Cells around another one do not know the dtype of its computation.
    if not (has_attribute(cell, "param_dtype") and has_attribute(cell, "dtype")):
        return
    params = cell.variables.get("params") or cell.param_dtype
    leaves = [params, sample] if cell.dtype is None else [cell.dtype]
    # `result_type` is the dtype of arrays: float is float32, unless x64 is enabled.
    dtypes = [jnp.result_type(leaf) for leaf in jax.tree.leaves(leaves)]
    floating = [dtype for dtype in dtypes if jnp.issubdtype(dtype, jnp.floating)]
    if not floating:
        return
    computed, stored = jnp.result_type(*floating), jnp.result_type(cell.param_dtype)
    bits = min(jnp.finfo(computed).bits, jnp.finfo(stored).bits)
    for dtype in {dtype_of(leaf) for leaf in jax.tree.leaves(carry)}:
        if jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits < bits:
            warn(
                f"`initial_carry` of {type(cell).__name__} is {dtype}, so the state is "
                f"rounded to {dtype} after each step, although a step computes in "
                f"{computed}. Convert the carry with `astype`, or pass dtype={dtype} "
                "to the cell if you want that."
            )


def warn_layout(inputs: Array, feature_dims: int) -> None:
    """Warns about inputs whose shape and dtype suggest that an axis is missing."""
    shape, has_batch = inputs.shape, inputs.ndim > feature_dims + 1
    is_integer = jnp.issubdtype(inputs.dtype, jnp.integer)
    if feature_dims == 1 and is_integer and not has_batch:
        warn(
            f"`inputs` are integers of shape {shape}, read as (time, features). "
            "Tokens of shape (batch, time) need an embedding such as nn.Embed "
            "first. If the shape is right, convert the inputs to a floating dtype."
        )
    # `jax.export` has sizes that are no numbers.
    if feature_dims != 3 or not all(isinstance(size, int) for size in shape[-3:]):
        return
    height, width, channels = shape[-3:]
    # Few images have as many channels as columns, but another number of rows.
    lacks_channels = width == channels > 4 and height != width
    # Few images have one or three rows, and many columns and channels.
    is_channels_first = height in (1, 3) and min(width, channels) >= 8
    if is_channels_first or (lacks_channels and (height in (1, 3) or not has_batch)):
        warn(
            f"`inputs` of shape {shape} are read as (*batch, time, height, width, "
            f"channels), with {channels} channels. If the last axes are (time, height, "
            "width), add the axis of channels: inputs[..., None]. If they are "
            "(channels, height, width), move it: jnp.moveaxis(inputs, -3, -1)."
        )


def check_layout(inputs: ArrayTree, feature_dims: int) -> tuple[int, ...]:
    """Returns the sizes of the batch and time axes; all inputs must share them."""
    leaves = jax.tree.leaves(inputs)
    if not leaves:
        raise ValueError("`inputs` must have at least one array, got none.")
    count = leaves[0].ndim - feature_dims
    if count < 1:
        raise ValueError(
            f"`inputs` must have a time axis and {feature_dims} feature axes, got the "
            f"shape {leaves[0].shape}."
        )
    sizes = leaves[0].shape[:count]
    for leaf in leaves:
        if leaf.shape[:count] != sizes:
            raise ValueError(
                f"All `inputs` must have the same batch and time axes {sizes}, got the "
                f"shape {leaf.shape}."
            )
    return sizes


def check_steps(
    name: str, steps: Any, sizes: tuple[int, ...], axes: str = "batch and time axes"
) -> Array | None:
    """Returns a boolean mask as an array, after checking it."""
    if steps is None:
        return None
    steps = jnp.asarray(steps)
    if steps.dtype != jnp.bool_:
        raise TypeError(f"`{name}` must be boolean, got {steps.dtype}.")
    if steps.shape != sizes:
        raise ValueError(
            f"`{name}` must have the {axes} of the inputs, {sizes}, got the shape "
            f"{steps.shape}."
        )
    return steps


def check_lengths(seq_lengths: Any, batch: tuple[int, ...], steps: int) -> Array | None:
    """Returns lengths as an array in `[0, steps]`.

    A known length outside the range raises an error. Under a transformation such as
    `jit` values are not known, and lengths are clipped to the range; with
    `jax.enable_checks(True)` while tracing, they are checked when the program runs.
    """
    if seq_lengths is None:
        return None
    try:
        # NumPy keeps 64-bit integers, so a large length cannot wrap around.
        lengths, is_known = np.asarray(seq_lengths), True
    except jax.errors.TracerArrayConversionError:  # also of the items of a list
        lengths, is_known = jnp.asarray(seq_lengths), False
    if not jnp.issubdtype(lengths.dtype, jnp.integer):
        raise TypeError(f"`seq_lengths` must be integers, got {lengths.dtype}.")
    if lengths.shape != batch:
        hint = ""
        if lengths.shape == (steps,) and len(batch) == 1:
            hint = " This is the size of the time axis, so check `time_major`."
        raise ValueError(
            f"`seq_lengths` must have the batch axes of the inputs, {batch}, got the "
            f"shape {lengths.shape}.{hint}"
        )
    if is_known:
        _raise_if_out_of_range(lengths, steps)
    elif jax.config.jax_enable_checks:
        jax.debug.callback(partial(_raise_if_out_of_range, steps=steps), lengths)
    # Narrow integers could not hold the number of steps.
    return jnp.clip(jnp.asarray(lengths, jnp.int32), 0, steps)


def _raise_if_out_of_range(lengths: chex.Array, steps: int) -> None:
    lengths = np.asarray(lengths)
    wrong = np.argwhere((lengths < 0) | (lengths > steps))
    if len(wrong):
        index = tuple(wrong[0].tolist())
        raise ValueError(
            f"`seq_lengths` must be in [0, {steps}] (the time axis), got "
            f"{lengths[index]} at index {index}."
        )


def check_carries(owner: str, name: str, carries: Any, count: int) -> None:
    """Raises ValueError unless there is one carry for each recurrent layer."""
    is_one_each = isinstance(carries, tuple | list) and len(carries) == count
    if not is_one_each or isinstance(carries, LSTMStates):
        hint = " They are (forward, backward)." if owner == "Bidirectional" else ""
        hints = {"carries": " The arguments of `step` are (carries, inputs)."}
        raise ValueError(
            f"`{name}` of {owner} must be a tuple with one carry for each of the "
            f"{count} recurrent layers, got {type(carries).__name__} "
            f"{jax.tree.map(jnp.shape, carries)}.{hints.get(name, hint)}"
        )


def arguments_by_layer(
    owner: str, count: int, init_key: PRNGKey | None, **carries: Any
) -> list[dict[str, Any]]:
    """Returns the arguments that differ by recurrent layer, without those of None."""
    arguments = {name: carry for name, carry in carries.items() if carry is not None}
    for name, carry in arguments.items():
        check_carries(owner, name, carry, count)
    if init_key is not None:
        arguments["init_key"] = jax.random.split(init_key, count)
    return [{name: v[k] for name, v in arguments.items()} for k in range(count)]


def check_reset_carry(reset_carry: Carry, carry: Carry, has_resets: bool) -> None:
    """Raises ValueError unless `reset_carry` has the form of the initial carry."""
    if not has_resets:
        raise ValueError(
            "`reset_carry` needs `resets`, got None. Pass `resets` too, or omit "
            "`reset_carry`."
        )
    if not is_alike(reset_carry, carry):
        raise ValueError(
            "`reset_carry` must have the structure and shapes of the initial carry, "
            f"{describe(carry)}, got {describe(reset_carry)}."
        )


def check_depth(owner: str, layer: nn.Module) -> None:
    """Raises ValueError if the gradient of a layer is carried forward in time."""
    directions = [getattr(layer, f"{side}_rnn", None) for side in _DIRECTIONS]
    for rnn in filter(None, (layer, *directions)):
        gradient = getattr(rnn, "gradient", None)
        if isinstance(gradient, ForwardGradient):
            raise ValueError(
                f"gradient={gradient} needs {owner} to have one recurrent layer: the "
                "layers below would get a biased gradient. Put all cells into one "
                f"cell, RNN(StackedCell([...]), gradient={gradient}), or use Bptt()."
            )


def check_not_in_sequential(layer: nn.Module) -> None:
    """Raises TypeError if the next layer would get the states of a layer as arguments.

    `nn.Sequential` and `nnx.Sequential` unpack tuples: after `LSTM`, which returns
    (outputs, states), another one would start from these states without an error.
    """
    current: Any = layer
    for caller, is_sequential in _callers():
        if getattr(type(caller), "linen_class", None) is type(layer):
            current = caller
        if not is_sequential:
            continue
        layers = [*getattr(caller, "layers", ())]
        for preceding, following in itertools.pairwise(layers):
            if preceding is current and not _takes_both(following):
                name = getattr(following, "__name__", None) or type(following).__name__
                raise TypeError(
                    f"{type(layer).__name__} returns (outputs, states), and Sequential "
                    f"passes both to the next layer, {name}, as separate arguments. "
                    "Use rnncells.Stack (rnncells.nnx.Stack), which passes on only "
                    "the outputs, or put `lambda outputs, states: outputs` between "
                    "the two layers."
                )
        if not layers or layers[-1] is not current:
            return
        current = caller  # it returns the same, perhaps in another Sequential


def _callers() -> Iterator[tuple[Any, bool]]:
    """Yields the modules on Python's stack, and whether each is a Sequential."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "__call__" and "self" in frame.f_locals:
            is_flax = frame.f_globals.get("__name__", "").startswith("flax.")
            is_sequential = frame.f_code.co_qualname == "Sequential.__call__"
            yield frame.f_locals["self"], is_flax and is_sequential
        frame = frame.f_back


def _takes_both(function: Any) -> bool:
    """Says whether a function or layer of a user takes two positional arguments.

    Layers of Flax and rnncells mean something else by their second argument.
    """
    kind = type(function)
    is_module = isinstance(function, nn.Module) or hasattr(kind, "linen_class")
    if kind.__module__.partition(".")[0] in ("flax", "rnncells"):
        return False
    try:
        inspect.signature(
            partial(kind.__call__, function) if is_module else function
        ).bind(None, None)
    except TypeError:
        return False
    except ValueError:  # functions without a signature
        return True
    return True
