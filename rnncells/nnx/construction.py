"""Constructors of NNX modules made from linen modules: arguments and initial values."""

import dataclasses
import inspect
import itertools
import re
from collections.abc import Mapping
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import nnx
from flax.core import FrozenDict
from flax.errors import InvalidRngError
from jax import Array

from rnncells._argument_hints import explanation
from rnncells.cells.contract.any_cell import feature_dims, initialize_carry, is_cell
from rnncells.cells.contract.carry import is_shape
from rnncells.layers.multi_layer import MultiLayerRNN
from rnncells.nnx.parameters import PARAMS, Variables
from rnncells.recurrence.pytrees import zeros

Shape = tuple[int, ...]
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
    """Returns the value of each argument of the constructor `name`, without `rngs`."""
    kwargs = dict(kwargs)
    values = [*args, *kwargs.values()]
    lists = [v if isinstance(v, list | tuple) else [v] for v in values]
    for item in itertools.chain(*lists):
        if isinstance(item, nn.Module):
            raise TypeError(
                f"Modules in the arguments of rnncells.nnx.{name} must be NNX modules, "
                f"got {type(item).__name__} of flax.linen. Use rnncells.nnx.from_linen."
            )
    if "hidden_features" in kwargs and "features" in linen.__dataclass_fields__:
        kwargs.setdefault("features", kwargs.pop("hidden_features"))
    expected = signature(linen, any(map(has_modules, values)) or None)
    try:
        arguments = expected.bind(*args, **kwargs)
    except TypeError as error:
        unknown = kwargs.keys() - expected.parameters.keys()
        for width in unknown & {"input_size", "in_size", "input_dim"}:
            text = f"`{width}` of {linen.__name__} is called `in_features`."
            raise TypeError(text) from None
        fields = linen.__dataclass_fields__
        texts = [explanation(linen.__name__, n, fields) for n in sorted(unknown)]
        default = f"{error}. Its arguments are {', '.join(expected.parameters)}."
        text = " ".join(filter(None, texts)) or f"rnncells.nnx.{name}: {default}"
        raise TypeError(text) from None
    arguments.apply_defaults()
    del arguments.arguments["rngs"]
    return arguments.arguments


def has_modules(value: Any) -> bool:
    """Says whether a value is an NNX module, or a list or tuple with one."""
    if isinstance(value, list | tuple | nnx.List):
        return any(map(has_modules, value))
    return isinstance(value, nnx.Module)


def frozen(value: Any) -> Any:
    """Returns a list as a tuple, and a dictionary as a FrozenDict: NNX hashes them."""
    if isinstance(value, list):
        return tuple(map(frozen, value))
    return FrozenDict(value) if isinstance(value, dict) else value


def step_shapes(linen: nn.Module, in_features: int | Shape) -> list[Shape]:
    """Returns shapes that one step of input can have, without batch axes.

    `in_features` has the sizes of all feature axes; or of the last one, and then there
    are two shapes, which differ in the other axes.
    """
    if not is_shape(in_features) and not is_shape((in_features,)):
        raise TypeError(
            f"`in_features` of {type(linen).__name__} must be the number of features "
            f"of the inputs, or a tuple of sizes, got {in_features!r}."
        )
    cell = linen.cell() if isinstance(linen, MultiLayerRNN) else linen
    dims = feature_dims(cell) if is_cell(cell) else 1
    if isinstance(in_features, int):
        if dims == 1:
            return [(in_features,)]
        # A kernel fits into the smaller one.
        size = max(getattr(cell, "kernel_size", (1,)))
        return [(size + k,) * (dims - 1) + (in_features,) for k in range(2)]
    if len(in_features) != dims:
        raise ValueError(
            f"`in_features` of {type(linen).__name__} must be a size or a tuple of "
            f"{dims} sizes, one for each feature axis of the inputs, got {in_features}."
        )
    return [tuple(in_features)]


def initial_variables(
    linen: nn.Module, shape: Shape, key: Array, variables: Variables
) -> Variables:
    """Returns the variables of a linen module; `variables` replace initial values."""
    arguments, options = _arguments(linen, shape), _dropout(linen, is_off=True)
    rngs = {PARAMS: key}
    if not variables:
        return dict(linen.lazy_init(rngs, *arguments, **options))
    options |= {"rngs": rngs, "mutable": True}
    result: Any = linen.apply(variables, *zeros(arguments), **options)
    return result[1]


def drawn_streams(
    linen: nn.Module, shape: Shape, variables: Variables
) -> tuple[str, ...]:
    """Returns the random streams that a call of a linen module draws from."""
    arguments, options = _arguments(linen, shape), _dropout(linen, is_off=False)

    def call(variables: Variables, keys: dict, arguments: tuple) -> Any:
        return linen.apply(variables, *arguments, rngs=keys, mutable=True, **options)

    drawn: list[str] = []
    while True:
        keys = {name: jax.random.key(0) for name in drawn}
        try:
            jax.eval_shape(call, variables, keys, arguments)
        except InvalidRngError as error:
            missing = missing_stream(error)
            if missing and missing not in drawn:
                drawn.append(missing)
                continue
        except Exception:  # which the user's own call will raise again
            pass
        return tuple(drawn)


def missing_stream(error: InvalidRngError) -> str | None:
    """Returns the random stream that linen misses; None if the error has no name."""
    name = re.search(r'PRNG for "(\w+)"', str(error))
    return name[1] if name else None


def _arguments(linen: nn.Module, shape: Shape) -> tuple[Any, ...]:
    """Returns shapes and dtypes of the arguments of a call."""
    if not is_cell(linen):
        return (jax.ShapeDtypeStruct((1, *shape), jnp.float32),)
    x = jax.ShapeDtypeStruct(shape, jnp.float32)
    return jax.eval_shape(partial(initialize_carry, linen, None, x)), x


def _dropout(linen: nn.Module, is_off: bool) -> dict[str, Any]:
    takes = inspect.signature(type(linen).__call__).parameters
    return {"deterministic": is_off} if "deterministic" in takes else {}
