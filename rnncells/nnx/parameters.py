"""Variables of a linen module as attributes of NNX modules, and back."""

import dataclasses
import keyword
from collections.abc import Callable, Mapping
from typing import Any

from flax import nnx
from flax.core import meta
from flax.nnx.bridge.variables import NNXMeta, to_nnx_var

# Nested dictionaries of arrays, as `module.init` of flax.linen returns them.
Variables = dict[str, Any]
PARAMS = "params"


class Group(nnx.Module):
    """The variables of one linen submodule, such as the kernel and bias of a gate."""


def set_variables(module: nnx.Module, variables: Mapping[str, Any]) -> None:
    """Writes `{collection: arrays}` into a module and `Group`s; `if` becomes `if_`."""
    for collection, tree in variables.items():
        for name, value in tree.items():
            attr = f"{name}_" if _is_reserved(module, name) else name
            if isinstance(value, Mapping):
                if not hasattr(module, attr):
                    setattr(module, attr, Group())
                set_variables(getattr(module, attr), {collection: value})
            elif isinstance(variable := getattr(module, attr, None), nnx.Variable):
                if _collection(variable) != collection:
                    raise ValueError(
                        f"A module of NNX has one variable of each name, but {name!r} "
                        f"is in the collections {_collection(variable)!r} and "
                        f"{collection!r}."
                    )
                variable[...] = meta.unbox(value)
            elif isinstance(value, meta.AxisMetadata):
                # Names of sharded axes stay with the variable.
                setattr(module, attr, to_nnx_var(collection, value))
            else:
                kind = nnx.variable_type_from_name(collection, allow_register=True)
                setattr(module, attr, kind(value))


def get_variables(module: nnx.Module) -> Variables:
    """Returns the variables of a module and its groups: `{collection: arrays}`."""
    variables: Variables = {}
    for attr, value in vars(module).items():
        name = attr.removesuffix("_") if _is_reserved(module, attr) else attr
        if isinstance(value, nnx.Variable):
            variables.setdefault(_collection(value), {})[name] = value.get_value()
        elif isinstance(value, Group):
            for collection, tree in get_variables(value).items():
                variables.setdefault(collection, {})[name] = tree
    return variables


@dataclasses.dataclass(frozen=True)
class WithMetadata:
    """An initializer whose metadata of NNX reach the variables through linen."""

    init: Callable

    def __call__(self, *args: Any) -> Any:
        value = self.init(*args)
        if not isinstance(value, nnx.VariableMetadata):
            return value
        hooks = {
            field.name: getattr(value, field.name)
            for field in dataclasses.fields(value)
            if field.name.startswith("on_") and getattr(value, field.name)
        }
        return Metadata(nnx.Param, value.raw_value, {**value.metadata, **hooks})


class Metadata(NNXMeta):
    """Metadata of NNX in linen, which follow a new axis of the array."""

    def add_axis(self, index: int, params: dict[Any, Any]) -> "Metadata":
        names = [*(self.metadata.get("out_sharding") or ())]
        if not names:
            return self
        names.insert(index, params.get(meta.PARTITION_NAME))
        return self.replace(metadata={**self.metadata, "out_sharding": tuple(names)})


def _is_reserved(module: nnx.Module, name: str) -> bool:
    """Says whether Python or the class uses a name: attributes get an underscore."""
    stem = name.rstrip("_")
    return keyword.iskeyword(stem) or hasattr(type(module), stem)


def _collection(variable: nnx.Variable) -> str:
    if isinstance(variable, nnx.Param):
        return PARAMS
    return nnx.variable_name_from_type(type(variable), allow_register=True)
