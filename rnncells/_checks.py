"""Checks of fields and arguments that cells, layers and functions share."""

import dataclasses
import functools
import inspect
import operator
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal, Self, get_args, get_origin

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.errors import InvalidRngError
from flax.typing import Initializer

from rnncells._argument_hints import missing_attribute, wrong_arguments

# The least value of a count, where it is not 1.
_LEAST = {"input_dims": 0, "kernel_size": 2, "num_feature_dims": 0}


class ChecksArguments:
    """Base of modules that check their fields and explain wrong arguments.

    It is a base because Python takes the signature of a class from its first `__new__`
    or `__init__`, and dataclasses define `__init__` in the class itself.
    """

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field]]

    def __init_subclass__(cls, **options: Any) -> None:
        for name in ("__call__", "step", "decode", "run", "initialize_carry"):
            method = vars(cls).get(name)
            if inspect.isfunction(method):
                setattr(cls, name, _explain_arguments(name, method))
        super().__init_subclass__(**options)

    def __new__(cls, *args: Any, **fields: Any) -> Self:
        if len(args) > 1 or fields.keys() - cls.__dataclass_fields__.keys():
            # A subclass may have an `__init__` of its own.
            signature = inspect.signature(cls.__init__)
            of_flax = ("parent", "name")
            parameters = signature.parameters.items()
            signature = signature.replace(
                parameters=[p for name, p in parameters if name not in of_flax]
            )
            kwargs = {k: v for k, v in fields.items() if k not in of_flax}
            try:
                signature.bind(None, *args, **kwargs)
            except TypeError as error:
                raise wrong_arguments(
                    cls, "__init__", signature, args, kwargs, error
                ) from None
        return super().__new__(cls)

    def __post_init__(self) -> None:
        """Raises an error unless the fields fit their annotations.

        Fields that a user's subclass declares are the user's to check.
        """
        cls: Any = type(self)
        name = cls.__name__
        if isinstance(self, nn.RNNCellBase):
            check_count(name, "num_heads", getattr(self, "num_heads", 1))
        for field, kind in _field_types(cls).items():
            value = getattr(self, field)
            if kind is not Any and value is getattr(cls, field, dataclasses.MISSING):
                continue  # our default
            if value is None and (kind is Any or type(None) in get_args(kind)):
                continue
            if field == "features" and value is not None:
                _check_features(self, value)
            elif kind in (bool, bool | None):
                check_bools(name, **{field: value})
            elif kind in (int, int | None):
                check_count(name, field, value, _LEAST.get(field, 1))
            elif kind == Initializer:
                _check_initializer(name, field, value)
            elif get_origin(kind) is Literal:
                check_choice(name, field, value, kind)
            elif get_origin(kind) is Callable and not callable(value):
                got = f"got {value!r}"
                raise TypeError(f"`{field}` of {name} must be a function, {got}.")
            elif field in ("dtype", "param_dtype") and value is not None:
                _check_dtype(name, field, value)
        super().__post_init__()  # type: ignore[misc]  # flax.linen has it

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)  # type: ignore[misc]  # flax.linen has it
        except AttributeError as error:
            # Flax names the attribute first; other errors come from `setup`.
            if f'object has no attribute "{name}"' not in str(error):
                raise
            explained = missing_attribute(type(self), name)
            if explained is None:
                raise
            raise AttributeError(explained) from None


def _explain_arguments(name: str, method: Callable) -> Callable:
    """Returns a method that explains arguments that it does not take."""
    signature = inspect.signature(method)

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            signature.bind(self, *args, **kwargs)
        except TypeError as error:
            raise wrong_arguments(
                type(self), name, signature, args, kwargs, error
            ) from None
        return method(self, *args, **kwargs)

    return call


@functools.cache
def _field_types(cls: type) -> dict[str, Any]:
    """Returns the annotations of the fields that classes of rnncells declare.

    Fields of a user's class, and properties in place of fields, have Any.
    """
    types: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        annotations = inspect.get_annotations(base)
        is_ours = base.__module__.startswith("rnncells.")
        types |= annotations if is_ours else dict.fromkeys(annotations, Any)
    fields = cls.__dataclass_fields__  # type: ignore[attr-defined]
    # These mean the same in all cells.
    meant = {n: Any for n in ("features", "dtype", "param_dtype") if hasattr(cls, n)}
    return meant | {name: kind for name, kind in types.items() if name in fields}


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


def _check_dtype(name: str, field: str, dtype: Any) -> None:
    """Raises TypeError unless a dtype is floating or complex."""
    got, hint = repr(dtype), " Write jnp.bfloat16, for example."
    try:
        got, hint = str(jnp.dtype(dtype)), ""
    except TypeError:  # such as "bf16"
        pass
    if hint or not jnp.issubdtype(jnp.dtype(dtype), jnp.inexact):
        raise TypeError(
            f"`{field}` of {name} must be floating or complex, got {got}.{hint}"
        )


def _check_initializer(name: str, field: str, init: Any) -> None:
    """Raises TypeError unless a field is an initializer."""
    start = f"`{field}` of {name} must be an initializer"
    if not callable(init):
        raise TypeError(
            f"{start}, such as jax.nn.initializers.glorot_uniform(), got {init!r}."
        )
    # A function of these libraries without a key returns an initializer, except for
    # functions inside of such functions, which draw.
    if (
        inspect.isfunction(init)
        and init.__module__.partition(".")[0] in ("jax", "flax", "rnncells")
        and "<locals>" not in init.__qualname__
        and "key" not in inspect.signature(init).parameters
    ):
        raise TypeError(f"{start}, got {init.__name__}. Call it: {init.__name__}().")
    if hasattr(init, "gates") and "bias" not in field:
        raise TypeError(
            f"{start} of matrices, got a PerGateInit, such as `forget_gate` and "
            "`chrono` return. It is for `bias_init`."
        )


def _check_features(module: Any, features: Any) -> None:
    """Raises an error unless `features` is a count that the heads of a cell divide."""
    name, hint = type(module).__name__, ""
    if hasattr(module, "gate_fn"):
        hint = (
            " Up to Flax 0.6.11, the first argument of a cell was `gate_fn`: "
            f"write {name}(features, gate_fn=...)."
        )
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
    heads = getattr(module, "num_heads", 1)
    if isinstance(module, nn.RNNCellBase) and features % heads:
        raise ValueError(
            f"`num_heads` of {name} must divide `features` {features}, got {heads}."
        )


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
    check_bools(name, deterministic=value)


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
    if not hasattr(module, "scope") and is_nnx_module(module):
        raise TypeError(
            f"`{field}` of {name} must be a flax.linen module, got "
            f"{type(module).__name__} of Flax NNX. Use rnncells.nnx.{name}, or "
            "rnncells.nnx.to_linen(nnx_class, ...) as a linen module."
        )


def check_list(name: str, layers: Any) -> None:
    """Raises an error unless the field `layers` is a list of layers, not empty."""
    if not isinstance(layers, Sequence) or not layers:
        raise ValueError(
            f"`layers` of {name} must be a list with at least one layer, as in "
            f"{name}([a, b]), got {layers!r}."
        )
    for layer in layers:
        check_not_nnx(name, "layers", layer)
        is_layer = callable(layer) or hasattr(type(layer), "run")
        if isinstance(layer, type) or not is_layer:
            raise TypeError(
                f"`layers` of {name} must be cells, modules and functions, got "
                f"{layer!r}. Pass instances, such as LSTMCell(features)."
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
