"""Checks of arguments that cells, layers and functions have in common."""

import functools
import inspect
import operator
from collections.abc import Sequence
from typing import Any, get_args

import jax
import jax.numpy as jnp
import numpy as np
from flax.errors import InvalidRngError
from flax.typing import Initializer


def check_bool_fields(module: Any) -> None:
    """Raises TypeError unless the fields that are annotated as bools are bools."""
    cls: Any = type(module)
    flags = {name: getattr(module, name) for name in typed_fields(cls, bool)}
    for name in typed_fields(cls, bool | None):
        if getattr(module, name) is not None:
            flags[name] = getattr(module, name)
    check_bools(cls.__name__, **flags)


def check_bools(owner: str, **flags: Any) -> None:
    """Raises TypeError unless every flag is a bool."""
    for name, value in flags.items():
        if not isinstance(value, bool | np.bool_):
            hint = ""
            if name == "time_major" and owner == "RNN":
                hint = (
                    " (Up to Flax 0.6.11, the second argument was `cell_size`. Pass "
                    "the size to the cell: RNN(LSTMCell(features)).)"
                )
            raise TypeError(f"`{name}` of {owner} must be a bool, got {value!r}.{hint}")


@functools.cache
def typed_fields(cls: type, annotation: Any) -> list[str]:
    """Returns the fields that classes of rnncells declare with a type, in order.

    Fields that a user's subclass declares are the user's to check.
    """
    types: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        if base.__module__.startswith("rnncells."):
            types |= inspect.get_annotations(base)
    return [name for name, kind in types.items() if kind == annotation]


def check_dtypes(module: Any) -> None:
    """Raises TypeError unless `dtype` and `param_dtype` are floating or complex."""
    for field in ("dtype", "param_dtype"):
        dtype = getattr(module, field, None)
        if dtype is None:
            continue
        got, hint = repr(dtype), " Write jnp.bfloat16, for example."
        try:
            got, hint = str(jnp.dtype(dtype)), ""
        except TypeError:  # such as "bf16"
            pass
        if hint or not jnp.issubdtype(jnp.dtype(dtype), jnp.inexact):
            raise TypeError(
                f"`{field}` of {type(module).__name__} must be floating or complex, "
                f"got {got}.{hint}"
            )


def check_initializers(module: Any) -> None:
    """Raises TypeError unless the fields of initializers are initializers."""
    cls: Any = type(module)
    for name in typed_fields(cls, Initializer):
        init = getattr(module, name)
        start = f"`{name}` of {type(module).__name__} must be an initializer"
        if not callable(init):
            raise TypeError(
                f"{start}, such as jax.nn.initializers.glorot_uniform(), got {init!r}."
            )
        if _makes_initializers(init):
            name = init.__name__
            raise TypeError(f"{start}, got {name}. Call it: {name}().")
        if hasattr(init, "gates") and "bias" not in name:
            raise TypeError(
                f"{start} of matrices, got a PerGateInit, such as `forget_gate` and "
                "`chrono` return. It is for `bias_init`."
            )


def _makes_initializers(function: Any) -> bool:
    """Says whether a function of JAX, Flax or rnncells returns initializers.

    The functions inside of those functions, which draw, are initializers.
    """
    if not inspect.isfunction(function) or "<locals>" in function.__qualname__:
        return False
    library = function.__module__.partition(".")[0]
    is_known = library in ("jax", "flax", "rnncells")
    return is_known and "key" not in inspect.signature(function).parameters


def check_features(name: str, features: Any, hint: str = "") -> None:
    """Raises an error unless the field `features` is a count, or None."""
    if features is None:
        return
    try:
        is_count = not isinstance(features, bool) and operator.index(features) > 0
    except TypeError as error:
        got, hint = repr(features), hint if callable(features) else ""
        if hasattr(type(features), "setup"):
            got = type(features).__name__
            hint = (
                " To run a cell over sequences, write RNN(cell); for several layers, "
                "Stack([cell, cell_2])."
            )
        raise TypeError(
            f"`features` of {name} must be an int, or None to take the width of the "
            f"carry, got {got}.{hint}"
        ) from error
    if not is_count:
        raise ValueError(f"`features` of {name} must be at least 1, got {features!r}.")


def check_count(name: str, field: str, value: Any, least: int = 1) -> None:
    """Raises an error unless a field or an argument is an int of at least `least`."""
    if not isinstance(value, int | np.integer) or isinstance(value, bool):
        raise TypeError(f"`{field}` of {name} must be an int, got {value!r}.")
    if value < least:
        raise ValueError(f"`{field}` of {name} must be at least {least}, got {value}.")


def check_choice(name: str, field: str, value: Any, choices: Any) -> None:
    """Raises ValueError unless a field is one of the values of a `Literal`."""
    if value not in get_args(choices):
        raise ValueError(
            f"`{field}` of {name} must be one of {list(get_args(choices))}, got "
            f"{value!r}."
        )


def check_rate(name: str, field: str, rate: Any) -> None:
    """Raises an error unless a dropout rate is a number in [0, 1)."""
    if isinstance(rate, bool) or not isinstance(rate, int | float | np.number):
        raise TypeError(f"`{field}` of {name} must be a number, got {rate!r}.")
    if not 0 <= rate < 1:
        raise ValueError(f"`{field}` of {name} must be in [0, 1), got {rate!r}.")


def check_deterministic(name: str, value: Any, rate_name: str, rate: float) -> None:
    """Raises an error unless `deterministic` of a module with dropout is a bool."""
    if value is None:
        raise ValueError(
            f"`deterministic` of {name} must be True or False with {rate_name}={rate}, "
            "got None. Pass it to the call, for example deterministic=False in "
            "training, or set the field."
        )
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"`deterministic` of {name} must be a bool, got {value!r}.")


def check_rng(module: Any, stream: str) -> None:
    """Raises InvalidRngError if a module lacks the key of a random stream.

    If the stream is missing, Flax draws from `params`, if that stream exists.
    """
    if not (module.has_rng(stream) or module.has_rng("params")):
        raise InvalidRngError(
            f"{type(module).__name__} needs a random key for `{stream}`. Pass "
            f'rngs={{"{stream}": key}} to `apply` (or deterministic=True for no '
            "dropout). In flax.linen.RNN and flax.linen.scan, also add the stream to "
            f'`split_rngs`: {{"params": False, "{stream}": ...}}.'
        )


def check_instance(name: str, field: str, module: Any) -> None:
    """Raises TypeError if a field is a class of modules in place of an instance."""
    if isinstance(module, type):
        raise TypeError(
            f"`{field}` of {name} must be an instance such as "
            f"{module.__name__}(features), got the class."
        )


def is_nnx_module(module: Any) -> bool:
    """Says whether an object is of Flax NNX, without importing that."""
    return any(c.__module__.startswith("flax.nnx.") for c in type(module).__mro__)


def check_not_nnx(name: str, field: str, module: Any) -> None:
    """Raises TypeError if a field of a linen module is a module of Flax NNX."""
    if is_nnx_module(module) and not hasattr(module, "scope"):
        raise TypeError(
            f"`{field}` of {name} must be a flax.linen module, got "
            f"{type(module).__name__} of Flax NNX. Use rnncells.nnx.{name}, or "
            "rnncells.nnx.to_linen(nnx_class, ...) as a linen module."
        )


def check_list(name: str, layers: Any) -> None:
    """Raises ValueError unless the field `layers` is a list that is not empty."""
    if not isinstance(layers, Sequence) or not layers:
        raise ValueError(
            f"`layers` of {name} must be a list with at least one layer, got "
            f"{layers!r}."
        )
    for layer in layers:
        check_not_nnx(name, "layers", layer)


def check_not_separate(name: str, args: tuple[Any, ...]) -> None:
    """Raises TypeError if layers are separate arguments, not a list."""
    if not isinstance(args[0], Sequence):
        raise TypeError(
            f"`layers` of {name} must be a list, as in {name}([a, b]), got "
            f"{len(args)} arguments."
        )


def check_key(key: Any, argument: str | None = None) -> None:
    """Raises TypeError unless `key` is a random key or None."""
    dtype: Any = getattr(key, "dtype", None)
    is_raw = dtype is not None and dtype == jnp.uint32
    if key is None or is_raw or jnp.issubdtype(dtype, jax.dtypes.prng_key):
        return
    shape = getattr(key, "shape", None)
    got = repr(key) if shape is None else f"an array {dtype}{shape}"
    hint = ""
    if argument is None:
        argument = "`key` of `initialize_carry`"
        hint = " The arguments are initialize_carry(key, sample_input)."
    raise TypeError(
        f"{argument} must be a random key such as jax.random.key(0), or None, got "
        f"{got}.{hint}"
    )


def check_array(name: str, inputs: Any) -> None:
    """Raises TypeError unless the operand of a product is one array."""
    if not hasattr(inputs, "ndim"):
        raise TypeError(
            f"{name} multiplies one array by its weights, got {type(inputs).__name__}. "
            "Join a list of steps with jnp.stack(steps, axis=-2), and several inputs "
            "with jnp.concatenate(inputs, axis=-1)."
        )


def check_names(method: str, names: tuple[Any, ...]) -> None:
    """Raises an error unless a method of a cell was called with names."""
    if not all(isinstance(name, str) for name in names):
        raise TypeError(
            f"`{method}` takes names as separate arguments, for example "
            f"{method}('i', 'h'), got {names}."
        )
    if not names:
        raise ValueError(f"`{method}` needs at least one name, got none.")
