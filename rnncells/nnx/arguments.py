"""Arguments of the constructors of NNX modules that are made from linen modules."""

import dataclasses
import inspect
import itertools
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
from flax import nnx
from flax.core import FrozenDict

_POSITIONAL = inspect.Parameter.POSITIONAL_OR_KEYWORD
_KEYWORD = inspect.Parameter.KEYWORD_ONLY


def signature(
    linen: type[nn.Module], is_outer: bool | None = None
) -> inspect.Signature:
    """Returns the signature of the constructor of the NNX class of a linen class.

    Without `in_features` if `is_outer`: other modules are arguments. None: as the types
    of the required fields say.
    """
    fields = [
        field
        for field in dataclasses.fields(linen)
        if field.init and field.name not in ("parent", "name")
    ]
    if is_outer is None:
        required = (f for f in fields if f.default is dataclasses.MISSING)
        is_outer = any("Module" in str(field.type) for field in required)
    parameters = [] if is_outer else [inspect.Parameter("in_features", _POSITIONAL)]
    for field in fields:
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        if default is dataclasses.MISSING:
            default = inspect.Parameter.empty
        kind = _KEYWORD if field.kw_only else _POSITIONAL
        parameters.append(inspect.Parameter(field.name, kind, default=default))
    parameters.append(inspect.Parameter("rngs", _KEYWORD, default=None))
    return inspect.Signature(sorted(parameters, key=lambda p: p.kind))


def bound(
    name: str, linen: type[nn.Module], args: tuple, kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the value of each argument of the constructor `name`, without `rngs`.

    Raises:
      TypeError: an argument is missing or unknown, or is a linen module.
    """
    kwargs = dict(kwargs)
    values = [*args, *kwargs.values()]
    lists = [v if isinstance(v, list | tuple) else [v] for v in values]
    for item in itertools.chain(*lists):
        if isinstance(item, nn.Module):
            raise TypeError(
                f"Modules in the arguments of rnncells.nnx.{name} must be NNX modules, "
                f"got {type(item).__name__} of flax.linen. Use the class of "
                "rnncells.nnx, or rnncells.nnx.from_linen for your own class."
            )
    if "hidden_features" in kwargs and "features" in linen.__dataclass_fields__:
        kwargs.setdefault("features", kwargs.pop("hidden_features"))
    expected = signature(linen, any(map(has_modules, values)) or None)
    try:
        arguments = expected.bind(*args, **kwargs)
    except TypeError as error:
        unknown = kwargs.keys() - expected.parameters.keys()
        for width in unknown & {"input_size", "in_size", "input_dim"}:
            raise TypeError(
                f"`{width}` of {linen.__name__} is called `in_features`."
            ) from None
        # Classes of rnncells explain arguments that they do not have.
        linen.__new__(linen, **dict.fromkeys(unknown))
        raise TypeError(
            f"rnncells.nnx.{name}: {error}. Its arguments are "
            f"{', '.join(expected.parameters)}."
        ) from None
    arguments.apply_defaults()
    del arguments.arguments["rngs"]
    return arguments.arguments


def has_modules(value: Any) -> bool:
    """Says whether a value is an NNX module, or a list or tuple with one."""
    if isinstance(value, list | tuple | nnx.List):
        return any(map(has_modules, value))
    return isinstance(value, nnx.Module)


def frozen(value: Any) -> Any:
    """Returns a value with tuples for lists and frozen dictionaries for dictionaries.

    Static attributes of NNX modules must have a hash.
    """
    if isinstance(value, list):
        return tuple(map(frozen, value))
    return FrozenDict(value) if isinstance(value, dict) else value
