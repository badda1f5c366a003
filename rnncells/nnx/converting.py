"""Linen models with their variables as NNX modules, and checks of NNX cells."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
from chex import PRNGKey
from flax import nnx
from flax.core import meta

from rnncells import testing
from rnncells.cells.contract.carry import InputSpec
from rnncells.nnx.construction import has_modules
from rnncells.nnx.from_linen import NNX_CLASSES, FromLinen, from_linen, update
from rnncells.nnx.to_linen import NNXLayer, linen_of


def convert(
    module: nn.Module, variables: Mapping[str, Any], rngs: nnx.Rngs | None = None
) -> FromLinen:
    """Returns a linen model as an NNX module with the same values.

    >>> import flax.linen as nn, jax, jax.numpy as jnp, rnncells, rnncells.nnx
    >>> stack = rnncells.Stack([rnncells.GRUCell(4), nn.Dense(2)])
    >>> x = jnp.ones((2, 5, 3))
    >>> variables = stack.init(jax.random.key(0), x)
    >>> model = rnncells.nnx.convert(stack, variables)
    >>> model.layers[0].hn.kernel.shape
    (4, 4)
    >>> bool((model(x) == stack.apply(variables, x)).all())
    True

    Args:
      module: a cell, a layer, or a model of your own with submodules in fields, in
        `setup` or in a compact method.
      variables: its variables, `{"params": ...}`.
      rngs: random streams, for example for dropout and zoneout.

    Raises:
      TypeError: `module` is not of flax.linen, or has a part from
        `flax.nnx.bridge.to_linen`; `variables` are not a dictionary.
    """
    if not isinstance(module, nn.Module):
        raise TypeError(
            "`module` of convert must be a module of flax.linen such as GRU(4), got "
            f"{module if isinstance(module, type) else type(module)}."
        )
    if not isinstance(variables, Mapping):
        raise TypeError(
            "`variables` of convert must be those of the module, such as "
            f'{{"params": ...}}, got {type(variables).__name__}.'
        )
    converted = _converted(module, rngs, {})
    update(converted, meta.unbox(dict(variables)))
    return converted


def _converted(
    value: Any, rngs: nnx.Rngs | None, modules: dict[int, nnx.Module]
) -> Any:
    """Converts linen modules in a field, each once; `modules` has them by identity."""
    if isinstance(value, list | tuple):
        return type(value)(_converted(item, rngs, modules) for item in value)
    if not isinstance(value, nn.Module):
        return value
    if id(value) not in modules:
        modules[id(value)] = (
            # A copy, because `create` may return a module that others use.
            nnx.clone(value.create(rngs or nnx.Rngs(0)))
            if isinstance(value, NNXLayer)
            else _converted_fields(value, rngs, modules)
        )
    return modules[id(value)]


def _converted_fields(
    module: nn.Module, rngs: nnx.Rngs | None, modules: dict[int, nnx.Module]
) -> FromLinen:
    if isinstance(module, nnx.bridge.ToLinen):
        raise TypeError(
            f"convert cannot take {module.nnx_class.__name__} out of flax.nnx.bridge. "
            "Use rnncells.nnx.to_linen to put an NNX module into a linen module."
        )
    kind = NNX_CLASSES.get(type(module)) or from_linen(type(module))
    names = [f.name for f in dataclasses.fields(module) if f.init]
    fields = {name: _converted(getattr(module, name), rngs, modules) for name in names}
    del fields["parent"], fields["name"]
    if not any(map(has_modules, fields.values())):
        fields["in_features"] = None
    return kind(**fields, rngs=rngs, _is_converted=True)


def check_cell(
    cell: nnx.Module, sample_input: InputSpec, key: PRNGKey | None = None
) -> testing.CellReport:
    """Checks an NNX cell as `rnncells.check_cell` checks a linen cell.

    >>> import rnncells.nnx
    >>> from flax import nnx
    >>> cell = nnx.GRUCell(3, 4, rngs=nnx.Rngs(0))
    >>> rnncells.nnx.check_cell(cell, (2, 3)).ok
    True

    Cells that have variables other than `nnx.Param`, such as random streams and counts,
    are not checked: the report has one finding of the kind `'skipped'`. The parameters
    of the cell do not change.

    Raises:
      TypeError: `cell` is not an NNX cell; `sample_input` is no array, struct or shape.
    """
    if not isinstance(cell, nnx.Module):
        raise TypeError(
            "`cell` of rnncells.nnx.check_cell must be an NNX module, got "
            f"{cell if isinstance(cell, type) else type(cell)}. For a cell of "
            "flax.linen, use rnncells.check_cell."
        )
    linen = cell.linen if isinstance(cell, FromLinen) else linen_of(cell)
    return testing.check_cell(linen, sample_input, key)
