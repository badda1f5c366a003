"""Everything that reads or changes private parts of a Flax module or scope.

A new version of Flax that changes one of them breaks this file alone.
"""

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from typing import Any, NamedTuple, TypeVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from chex import ArrayTree, PRNGKey
from flax.core import DenyList
from flax.core.scope import CollectionFilter, LazyRng, Scope, subtract_filters
from jax import Array

KeyData = dict[str, Array]
# Numbers of random draws by the names of submodules and of the stream.
DrawCounts = dict[tuple, int]
_Module = TypeVar("_Module", bound=nn.Module)


def run_setup(module: nn.Module) -> None:
    """Runs `setup` of a bound module, unless it has run; binds modules in its fields.

    Flax does so before a wrapped method runs, but not before a `nn.nowrap` method.
    """
    module._try_setup()


def run_setup_for_params(module: nn.Module) -> None:
    """Runs `setup` of a bound module whose parameters are being created.

    It draws keys for biases, so it must run at the same place for all cells.
    """
    if module.scope is not None and module.is_mutable_collection("params"):
        run_setup(module)


def after_setup(method: Callable) -> Callable:
    """Returns a method that runs `setup` of a bound module first, as Flax's wrapper."""

    @nn.nowrap
    @wraps(method)
    def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        run_setup(module)
        return method(module, *args, **kwargs)

    return call


def copy_bound(module: _Module, **fields: Any) -> _Module:
    """Returns a bound copy with other fields and the same scope and submodules.

    A clone would run `setup` again, which draws keys for initial biases again. The
    copy shares submodules and their counters of random draws; `setup` runs before,
    because the copy and the original share the state that says whether it has run.
    """
    run_setup(module)
    bound_copy = copy.copy(module)
    for name, value in fields.items():
        # Flax modules are frozen.
        object.__setattr__(bound_copy, name, value)
    return bound_copy


def with_width_of(cell: _Module, carry: ArrayTree) -> _Module:
    """Returns a bound cell; where `features` is None, a clone with the carry's width.

    The names of the submodules are taken in the scope, so it is rewound.
    """
    if getattr(cell, "features", 0) is not None:
        return cell
    assert cell.scope is not None
    width = jnp.shape(jax.tree.leaves(carry)[-1])[-1]
    return cell.clone(parent=cell.scope.rewound(), features=width)


def with_deterministic(
    cell: _Module, deterministic: bool, cell_type: type[nn.Module]
) -> _Module:
    """Returns a bound copy of a cell whose dropout is off or on.

    Cells inside of it that are instances of `cell_type` are copied in the same way.

    Raises:
      TypeError: `setup` gave another submodule another `deterministic`; the argument
        of a call comes too late for it.
    """
    run_setup(cell)
    fields: dict[str, Any] = {}
    for name, module in vars(cell).items():
        if name == "parent":
            continue
        if isinstance(module, cell_type):
            fields[name] = with_deterministic(module, deterministic, cell_type)
            continue
        is_cell = hasattr(type(module), "project")
        if is_cell or not hasattr(type(module), "deterministic"):
            continue
        if module.deterministic not in (None, deterministic):
            raise TypeError(
                f"`deterministic` of `{name}` in {type(cell).__name__} is "
                f"{module.deterministic}, but the call has {deterministic}. Do not set "
                f"it in `setup`: call self.{name}(x, deterministic=self.deterministic)."
            )
    if hasattr(type(cell), "deterministic"):
        fields["deterministic"] = deterministic
    return copy_bound(cell, **fields) if fields else cell


def writable(module: nn.Module) -> CollectionFilter:
    """Returns a filter of the collections that a step of a bound cell may write to."""
    assert module.scope is not None
    return subtract_filters(module.scope.root.mutable, "params")


def initializing_scope(module: nn.Module) -> Scope:
    """Returns a new scope with the random streams of a bound module, for `init`."""
    assert module.scope is not None
    return Scope(
        {},
        rngs=dict(module.scope.rngs),
        path=module.scope.path,  # so that nn.tabulate shows each module once
        mutable=DenyList("intermediates"),
        flags={"initializing": True},
    )


def put_missing(module: nn.Module, variables: Mapping[str, Any]) -> None:
    """Writes variables that a bound module does not have."""
    assert module.scope is not None
    for collection, tree in variables.items():
        existing = module.scope.variables().get(collection, {})
        for name, value in tree.items():
            if name not in existing:
                module.scope.put_variable(collection, name, value)


class UnboundCell(NamedTuple):
    """A cell for `apply`."""

    module: nn.Module  # unbound
    variables: Mapping[str, Any]
    has_outside_modules: bool  # whether a field has a module that another module owns


def unbound(cell: nn.Module) -> UnboundCell:
    """Returns an unbound copy of a bound cell, and the variables for its `apply`.

    A module that an `nn.compact` method creates belongs to the module of that method,
    also as a field of the cell. `nn.Module.unbind` leaves out its variables. In the
    copy it belongs to the cell, so its variables are put in that place.
    """
    assert cell.scope is not None
    module, variables = cell.unbind()
    if not _submodules(cell):
        return UnboundCell(module, variables, has_outside_modules=False)
    outside = list(_outside_modules(cell, module.bind(variables), cell.scope.path))
    for path, module_variables in outside:
        for collection, values in module_variables.items():
            variables = placed(variables, (collection, *path), values)
    return UnboundCell(module, variables, bool(outside))


def _outside_modules(
    cell: nn.Module, bound_copy: nn.Module, root: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], Mapping[str, Any]]]:
    """Yields place and variables of the modules in fields that other modules own."""
    for module in (cell, bound_copy):
        module._try_setup(shallow=True)  # binds the modules in fields alone
    submodules = zip(_submodules(cell), _submodules(bound_copy), strict=True)
    for original, submodule in submodules:
        assert submodule.scope is not None
        path = submodule.scope.path
        if original.scope is not None and original.scope.path != root + path:
            yield path, original.variables
        yield from _outside_modules(original, submodule, root)


def _submodules(module: nn.Module) -> list[nn.Module]:
    """Returns the modules in the fields of a module."""
    names = [field.name for field in dataclasses.fields(module) if field.init]
    values = [getattr(module, name) for name in names if name not in ("parent", "name")]
    return [leaf for leaf in jax.tree.leaves(values) if isinstance(leaf, nn.Module)]


def placed(tree: Mapping, path: tuple[str, ...], values: Any) -> dict:
    """Returns a copy of a nested dict with `values` at a path."""
    (name, *rest), below = path, tree.get(path[0], {})
    return {**tree, name: placed(below, tuple(rest), values) if rest else values}


class RngStreams(NamedTuple):
    """The available random streams among those that `RNN.rng_streams` names.

    They yield the same keys as `flax.linen.scan`. Keys are stored as raw key data,
    because the arrays of the loop must be numeric.
    """

    fixed: KeyData  # the same at each step
    stepwise: KeyData  # differ at each step, `(time, ...)`
    like: Mapping[str, LazyRng]  # Flax's streams outside the loop, by name

    def rngs(self, *data: KeyData) -> dict[str, LazyRng]:
        """Converts the keys of one step to streams for `apply`."""
        streams = {}
        for keys in data:
            for name, raw in keys.items():
                like = self.like[name]
                streams[name] = LazyRng(key_like(raw, like.rng), like.suffix)
        return streams


def available_streams(cell: Any, names: Mapping[str, bool], steps: int) -> RngStreams:
    """Returns the streams of a cell for `steps` steps, from `RNN.rng_streams`."""
    scope, fixed, stepwise, like = cell.scope, {}, {}, {}
    for name, is_split in names.items():
        if name == "params" or name not in scope.rngs:
            continue
        like[name] = scope.rngs[name]
        key = like[name].rng
        if is_split:
            stepwise[name] = key_data(jax.random.split(key, steps))
        else:
            fixed[name] = key_data(key)
    return RngStreams(fixed, stepwise, like)


def count_draws(
    cell: nn.Module,
    take_step: Callable,
    counts: DrawCounts,
    variables: Any,
    carry: Any,
    inputs: Any,
    rngs: Any,
) -> DrawCounts:
    """Returns the counts of a cell's random draws after one step from `counts`.

    `flax.linen.scan` traces a step twice and keeps counting draws from the first trace
    to the second. Drawing the same numbers needs the same counts.
    """
    counts_after: DrawCounts = {}

    def call(cell: Any, carry: Any, inputs: Any) -> Any:
        set_draw_counts(rng_counters(cell), counts)
        result = take_step(cell, carry, inputs)
        counts_after.update(draw_counts(rng_counters(cell)))
        return result

    def step(variables: Any, carry: Any, inputs: Any) -> Any:
        return cell.apply(variables, carry, inputs, method=call, rngs=rngs)

    jax.eval_shape(step, variables, carry, inputs)
    return counts_after


def rng_counters(module: nn.Module, whole_model: bool = False) -> dict:
    """Returns the counters of random draws of a bound module, or of its model."""
    assert module.scope is not None
    return (module.scope.root if whole_model else module.scope).rng_counters


def draw_counts(counters: dict, scope: tuple = ()) -> DrawCounts:
    """Returns a copy of a scope's counters of random draws."""
    counts: DrawCounts = {}
    for key, value in counters.items():
        if isinstance(value, dict):
            counts |= draw_counts(value, (*scope, key))
        else:
            counts[*scope, key] = value
    return counts


def set_draw_counts(counters: dict, counts: DrawCounts) -> None:
    """Sets a scope's counters in place, because submodules may refer to them."""
    for (*scopes, name), count in counts.items():
        target = counters
        for scope in scopes:
            target = target.setdefault(scope, {})
        target[name] = count


def key_data(keys: PRNGKey) -> Array:
    """Returns the raw data of keys."""
    return jax.random.key_data(keys) if is_key(keys) else keys


def key_like(raw: Array, key: PRNGKey) -> PRNGKey:
    """Returns raw data as a key of the same form as another key."""
    if not is_key(key):
        return raw
    return jax.random.wrap_key_data(raw, impl=jax.random.key_impl(key))


def has_keys(tree: Any) -> bool:
    """Says whether a leaf of a pytree has typed random keys."""
    return any(map(is_key, jax.tree.leaves(tree)))


def is_key(array: Any) -> bool:
    """Says whether an array has typed random keys."""
    return jnp.issubdtype(jnp.result_type(array), jax.dtypes.prng_key)
