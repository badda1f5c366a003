"""NNX modules as linen modules, so that the layers of rnncells run them."""

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import flax.linen as nn
import jax
from chex import PRNGKey
from flax import nnx, traverse_util

from rnncells.cells.contract.any_cell import feature_dims, has_attribute
from rnncells.cells.contract.carry import Carry, InputSpec, input_structs
from rnncells.nnx.parameters import PARAMS
from rnncells.recurrence.pytrees import structs

# The collection of everything that is no parameter: statistics, counts, random keys.
STATE = "nnx"
# Names and positions.
Path = tuple[Any, ...]


@dataclasses.dataclass(frozen=True)
class Parts:
    """An NNX module without its arrays: its class's name, and its static part.

    `structs` has shape and dtype of each variable, by its collection and path.
    """

    name: str
    graphdef: nnx.GraphDef = dataclasses.field(repr=False)
    structs: tuple = dataclasses.field(repr=False)

    @classmethod
    def of(cls, module: nnx.Module) -> "Parts":
        """Returns the parts of a module; its arrays may be abstract."""
        shapes = structs(_arrays(module))
        return cls(type(module).__name__, nnx.graphdef(module), tuple(shapes.items()))

    def merge(self, variables: Mapping[str, Any] | None) -> Any:
        """Returns a module with these variables; None: with shapes in their place."""
        leaves = {path: struct for (_, path), struct in self.structs}
        if variables is not None:
            leaves = _by_path(variables, [name for name, _ in self.structs])
        return nnx.merge(self.graphdef, nnx.from_flat_state(leaves))


def variables_of(module: nnx.Module) -> dict[str, Any]:
    """Returns an NNX module's arrays by path: `{"params": ..., "nnx": ...}`."""
    return traverse_util.unflatten_dict(
        {(name, *map(str, path)): x for (name, path), x in _arrays(module).items()}
    )


def update_module(module: nnx.Module, variables: Mapping[str, Any]) -> None:
    """Writes arrays into an NNX module, by the names of `variables_of`."""
    names = [name for name in _arrays(module) if name[0] in variables]
    nnx.update(module, nnx.from_flat_state(_by_path(variables, names)))


def _arrays(module: nnx.Module) -> dict[tuple[str, Path], Any]:
    """Returns the arrays of a module by collection and path."""
    arrays = {}
    for path, leaf in nnx.to_flat_state(nnx.state(module)):
        collection = PARAMS if isinstance(leaf, nnx.Param) else STATE
        # An attribute may be an array without a variable around it.
        array = leaf.get_value() if isinstance(leaf, nnx.Variable) else leaf
        arrays[collection, path] = array
    return arrays


def _by_path(
    variables: Mapping[str, Any], names: list[tuple[str, Path]]
) -> dict[Path, Any]:
    flat = traverse_util.flatten_dict(dict(variables))
    return {path: flat[name, *map(str, path)] for name, path in names}


class NNXLayer(nn.Module):
    """An NNX module as a linen module, with its parameters in `params`.

    `parts` is the NNX module without its arrays; `create(rngs)` returns the module with
    its initial values, for `init`.
    """

    parts: Parts
    create: Callable[[nnx.Rngs], nnx.Module]

    @nn.compact
    def __call__(
        self, *args: Any, deterministic: bool | None = None, **kwargs: Any
    ) -> Any:
        module = self._module()
        if deterministic is not None:
            # What `module.train()` and `module.eval()` set.
            modes = dict.fromkeys(
                ("deterministic", "use_running_average"), deterministic
            )
            module.set_attributes(**modes, raise_if_not_found=False)
        result = module(*args, **kwargs)
        if self.is_mutable_collection(STATE):
            for name, value in variables_of(module).get(STATE, {}).items():
                self.put_variable(STATE, name, value)
        return result

    @nn.nowrap
    def _module(self) -> Any:
        """Returns the NNX module; if this one is not bound, with initial values."""
        if self.scope is None:
            return self.create(nnx.Rngs(0))
        if self.is_initializing() and not self.variables:
            streams = {name: self.make_rng(name) for name in self.scope.rngs}
            rngs = nnx.Rngs(streams.get(PARAMS, 0), **streams)
            for collection, tree in variables_of(self.create(rngs)).items():
                for name, value in tree.items():
                    self.put_variable(collection, name, value)
        return self.parts.merge(self.variables)


class NNXCell(NNXLayer):
    """An NNX cell as a linen cell, for `RNN` and the other layers of rnncells."""

    @property
    def num_feature_axes(self) -> int:
        """Number of feature axes, the last axes of the input."""
        return feature_dims(self.parts.merge(None))

    @nn.nowrap
    def initialize_carry(self, key: PRNGKey, sample_input: InputSpec) -> Carry:
        """Returns the carry before the first step, for a step of input."""
        shape = jax.tree.leaves(input_structs(sample_input))[0].shape
        return self._module().initialize_carry(shape, nnx.Rngs(carry=key))


def linen_of(
    module: nnx.Module, create: Callable[[nnx.Rngs], nnx.Module] | None = None
) -> NNXLayer:
    """Returns the linen module of an NNX module, whose arrays may be abstract.

    Without `create`, see `NNXLayer`, `init` returns the values of the module.
    """
    if isinstance(module, nnx.RNN | nnx.Bidirectional):
        name = type(module).__name__
        raise TypeError(
            f"flax.nnx.{name} cannot be a part of a layer of rnncells: it takes no "
            f"masks and no resets. Use rnncells.nnx.{name} with the same cells."
        )
    kind: Any = NNXCell if _is_cell(module) else NNXLayer
    if create is None:
        kind = _named(kind, type(module).__name__)
    return kind(Parts.of(module), create or (lambda rngs: module), parent=None)


@cache
def _named(kind: Any, name: str) -> Any:
    """Returns a subclass under the name of a user's class, for errors.

    Not for `to_linen`, because linen names parameters after classes.
    """
    return type(name, (kind,), {"__module__": kind.__module__})


def to_linen(
    nnx_class: Callable[..., nnx.Module], *args: Any, **kwargs: Any
) -> NNXLayer:
    """Returns an NNX cell or module as a linen module, as `flax.nnx.bridge.to_linen`.

    In addition, a cell has `num_feature_axes` and `initialize_carry`, so the linen
    layers of rnncells run it, on the fast loop and with lengths, masks and resets:

    >>> import jax, jax.numpy as jnp, rnncells
    >>> from flax import nnx
    >>> from rnncells.nnx import to_linen
    >>> rnn = rnncells.RNN(to_linen(nnx.GRUCell, 3, 4), return_carry=True)
    >>> x, lengths = jnp.ones((2, 5, 3)), jnp.array([5, 0])
    >>> params = rnn.init(jax.random.key(0), x)
    >>> h, y = rnn.apply(params, x, seq_lengths=lengths)
    >>> y.shape, float(abs(h[1]).max())
    ((2, 5, 4), 0.0)

    Parameters have their paths in the NNX module. All other variables, such as
    statistics and random keys, are the collection `nnx`: pass `variable_carry="nnx"` to
    `RNN`, and `mutable=["nnx"]` to `apply` to get their new values.

    `nnx_class` is the class of the module, or a function that returns a module; the
    other arguments are those of the class, without `rngs`.

    Raises:
      TypeError: the class is a layer of flax.nnx over sequences.
    """
    is_class = isinstance(nnx_class, type)
    callee = nnx_class.__init__ if is_class else nnx_class
    takes_rngs = "rngs" in inspect.signature(callee).parameters

    def create(rngs: nnx.Rngs) -> nnx.Module:
        return nnx_class(*args, **kwargs, **({"rngs": rngs} if takes_rngs else {}))

    abstract = nnx.eval_shape(lambda: create(nnx.Rngs(0)))
    return linen_of(abstract, create)


def _is_cell(module: nnx.Module) -> bool:
    names = "num_feature_axes", "num_feature_dims"
    has_axes = any(has_attribute(module, name) for name in names)
    return has_axes and hasattr(module, "initialize_carry")
