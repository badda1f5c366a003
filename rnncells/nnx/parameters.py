"""Variables of a linen module as attributes of NNX modules, and back."""

import keyword
from collections.abc import Mapping
from typing import Any

import chex
from flax import nnx
from flax.core import meta

# Nested dictionaries of arrays, as `module.init` of flax.linen returns them.
Variables = dict[str, Any]
PARAMS = "params"


class Group(nnx.Module):
    """The variables of one linen submodule, such as the kernel and bias of a gate."""


def attribute(name: str) -> str:
    """Returns the attribute of a linen name; `if` becomes `if_`, as in flax.nnx."""
    return f"{name}_" if keyword.iskeyword(name) else name


def linen_name(name: str) -> str:
    """Returns the linen name of an attribute: the inverse of `attribute`."""
    short = name.removesuffix("_")
    return short if keyword.iskeyword(short) else name


def set_variables(module: nnx.Module, variables: Mapping[str, Any]) -> None:
    """Writes arrays into the variables of a module; makes those that do not exist.

    Args:
      module: the module; nested dictionaries become a `Group` each.
      variables: `{collection: nested dictionaries of arrays}`.
    """
    for collection, tree in variables.items():
        for name, value in tree.items():
            own = attribute(name)
            if isinstance(value, Mapping):
                if not hasattr(module, own):
                    setattr(module, own, Group())
                set_variables(getattr(module, own), {collection: value})
            elif isinstance(getattr(module, own, None), nnx.Variable):
                getattr(module, own)[...] = meta.unbox(value)
            else:
                setattr(module, own, _variable(collection, value))


def get_variables(module: nnx.Module) -> Variables:
    """Returns the variables of a module and its groups: `{collection: arrays}`."""
    found: Variables = {}
    for name, value in vars(module).items():
        own = linen_name(name)
        if isinstance(value, nnx.Variable):
            found.setdefault(_collection(value), {})[own] = value.get_value()
        elif isinstance(value, Group):
            for collection, tree in get_variables(value).items():
                found.setdefault(collection, {})[own] = tree
    return found


def _variable(collection: str, value: chex.Array | meta.AxisMetadata) -> nnx.Variable:
    """Returns an NNX variable of the type that belongs to a collection of linen."""
    if isinstance(value, meta.AxisMetadata):
        # Names of sharded axes stay with the variable.
        from flax.nnx.bridge.variables import to_nnx_var

        return to_nnx_var(collection, value)
    return nnx.variable_type_from_name(collection, allow_register=True)(value)


def _collection(variable: nnx.Variable) -> str:
    if isinstance(variable, nnx.Param):
        return PARAMS
    return nnx.variable_name_from_type(type(variable), allow_register=True)
