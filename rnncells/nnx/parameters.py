"""Variables of a linen module as attributes of NNX modules, and back."""

import dataclasses
import keyword
from collections.abc import Callable, Mapping
from typing import Any

import chex
from flax import nnx
from flax.core import meta
from flax.nnx.bridge.variables import NNXMeta, to_nnx_var

# Nested dictionaries of arrays, as `module.init` of flax.linen returns them.
Variables = dict[str, Any]
PARAMS = "params"


class Group(nnx.Module):
    """The variables of one linen submodule, such as the kernel and bias of a gate."""


def attribute(module: nnx.Module, name: str) -> str:
    """Returns the attribute of a linen name; `if` becomes `if_`, as in flax.nnx.

    Keywords of Python and names of the class's own attributes get an underscore, also
    if they end in underscores already.
    """
    return f"{name}_" if _is_taken(module, name) else name


def linen_name(module: nnx.Module, name: str) -> str:
    """Returns the linen name of an attribute: the inverse of `attribute`."""
    return name.removesuffix("_") if _is_taken(module, name) else name


def set_variables(module: nnx.Module, variables: Mapping[str, Any]) -> None:
    """Writes arrays into the variables of a module; makes those that do not exist.

    Args:
      module: the module; nested dictionaries become a `Group` each.
      variables: `{collection: nested dictionaries of arrays}`.

    Raises:
      ValueError: a name is in two collections.
    """
    for collection, tree in variables.items():
        for name, value in tree.items():
            own = attribute(module, name)
            if isinstance(value, Mapping):
                if not hasattr(module, own):
                    setattr(module, own, Group())
                set_variables(getattr(module, own), {collection: value})
            elif isinstance(variable := getattr(module, own, None), nnx.Variable):
                if _collection(variable) != collection:
                    raise ValueError(
                        f"A module of NNX has one variable of each name, but {name!r} "
                        f"is in the collections {_collection(variable)!r} and "
                        f"{collection!r}. Rename one of them."
                    )
                variable[...] = meta.unbox(value)
            else:
                setattr(module, own, _variable(collection, value))


def get_variables(module: nnx.Module) -> Variables:
    """Returns the variables of a module and its groups: `{collection: arrays}`."""
    found: Variables = {}
    for name, value in vars(module).items():
        own = linen_name(module, name)
        if isinstance(value, nnx.Variable):
            found.setdefault(_collection(value), {})[own] = value.get_value()
        elif isinstance(value, Group):
            for collection, tree in get_variables(value).items():
                found.setdefault(collection, {})[own] = tree
    return found


@dataclasses.dataclass(frozen=True)
class WithMetadata:
    """An initializer whose metadata of NNX reach the variables through linen.

    Attributes:
      init: an initializer, such as `nnx.with_partitioning` returns.
    """

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
        names = self.metadata.get("out_sharding")
        if not names:
            return self
        names = list(names)
        names.insert(index, params.get(meta.PARTITION_NAME))
        return self.replace(metadata={**self.metadata, "out_sharding": tuple(names)})


def _variable(collection: str, value: chex.Array | meta.AxisMetadata) -> nnx.Variable:
    """Returns an NNX variable of the type that belongs to a collection of linen."""
    if isinstance(value, meta.AxisMetadata):
        # Names of sharded axes stay with the variable.
        return to_nnx_var(collection, value)
    return nnx.variable_type_from_name(collection, allow_register=True)(value)


def _is_taken(module: nnx.Module, name: str) -> bool:
    stem = name.rstrip("_")
    return keyword.iskeyword(stem) or hasattr(type(module), stem)


def _collection(variable: nnx.Variable) -> str:
    if isinstance(variable, nnx.Param):
        return PARAMS
    return nnx.variable_name_from_type(type(variable), allow_register=True)
