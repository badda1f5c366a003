"""Linen cells and layers as NNX modules, with their parameters as `nnx.Param`."""

import dataclasses
import inspect
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, partial
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import nnx
from flax.core import meta
from flax.errors import InvalidRngError
from flax.traverse_util import flatten_dict, unflatten_dict
from jax import Array

from rnncells.cells.contract.any_cell import declared_streams, is_cell
from rnncells.cells.contract.carry import Carry, InputSpec, input_structs, input_tuples
from rnncells.flax_internals import is_key
from rnncells.interop.loading import (
    check_arrays,
    flatten,
    plain,
    shapes,
    without_nnx_spelling,
)
from rnncells.layers.contract.states import LSTMStates
from rnncells.nnx.construction import (
    bound,
    drawn_streams,
    frozen,
    has_modules,
    initial_variables,
    missing_stream,
    signature,
    step_shapes,
)
from rnncells.nnx.parameters import (
    PARAMS,
    Variables,
    WithMetadata,
    get_variables,
    set_variables,
)
from rnncells.nnx.to_linen import STATE, linen_of, update_module, variables_of

Rngs = nnx.Rngs | nnx.RngStream | Array | None
# What the methods of linen modules use among themselves.
_INNER = {"affine", "carry_shape", "cell", "gates", "options", "scope", "setup"}
# The NNX class of each linen class.
NNX_CLASSES: dict[type[nn.Module], type["FromLinen"]] = {}


class FromLinen(nnx.Module):
    """Base of NNX modules that run a linen cell or layer.

    A subclass names the linen class. It is constructed as NNX modules are:

    >>> import jax.numpy as jnp, rnncells
    >>> from flax import nnx
    >>> from rnncells.nnx import FromLinen
    >>> class MGUCell(FromLinen, linen=rnncells.MGUCell):
    ...     pass
    >>> cell = MGUCell(3, 4, rngs=nnx.Rngs(0))  # features of the inputs, of the cell
    >>> cell.if_.kernel.shape, cell.reset_gate
    ((3, 4), True)
    >>> h = cell.initialize_carry((2, 3))
    >>> h, y = cell(h, jnp.ones((2, 3)))
    >>> y.shape
    (2, 4)

    The fields of the linen class are attributes and arguments of the constructor, and
    its methods are methods. Parameters are attributes with their linen names; a name
    that is a keyword of Python or a method of the class gets a trailing underscore:
    `if` is `if_`, as in flax.nnx, and `if_` is `if__`.

    Args:
      in_features: number of features of the inputs; or the sizes of all feature axes,
        such as `(rows, columns, channels)`. Do not pass it if another argument is a
        module, as in `RNN(cell)`. None: the module has no parameters before `load`.
      *args: fields of the linen class, in their order. Modules among them must be NNX
        modules.
      rngs: `flax.nnx.Rngs`. Initial values use the stream `params`. The module keeps a
        copy of the streams that the linen class declares in `rng_streams`, such as
        those of dropout and zoneout. Of a class of yours that declares none, it keeps
        those that a call draws from, and draws new keys at each step.
      **kwargs: fields of the linen class; `hidden_features` is `features`.

    Raises:
      TypeError: an argument is missing, unknown, or a linen module.
      ValueError: `in_features` does not fit the feature axes of the cell.
    """

    linen_class: ClassVar[type[nn.Module]]
    __signature__: ClassVar[inspect.Signature]
    in_features: Any
    features: Any

    def __init_subclass__(cls, linen: type[nn.Module] | None = None, **options: Any):
        super().__init_subclass__(**options)
        if linen is None:
            return
        cls.linen_class = linen
        NNX_CLASSES.setdefault(linen, cls)
        cls.__signature__ = signature(linen)
        if cls.__doc__ is None:
            first = (linen.__doc__ or "").partition("\n")[0]
            name = f"{linen.__module__}.{linen.__name__}"
            cls.__doc__ = (
                f"{first}\n\nThe NNX class of `{name}`, whose\ndocumentation has the "
                "equations and fields; see also `rnncells.nnx.FromLinen`.\n"
            )
        for name in sorted({*dir(linen)} - {*dir(nn.Module)} - _INNER):
            is_field = name in linen.__dataclass_fields__
            if not (is_field or name.startswith("_") or hasattr(cls, name)):
                setattr(cls, name, _forwarded(linen, name))

    def __init__(self, *args: Any, rngs: nnx.Rngs | None = None, **kwargs: Any):
        name = type(self).__name__
        if not isinstance(rngs, nnx.Rngs | None):
            raise TypeError(
                f"`rngs` of {name} must be flax.nnx.Rngs, such as nnx.Rngs(0), got "
                f"{type(rngs).__name__}."
            )
        # `convert` sets the variables itself.
        is_converted = kwargs.pop("_is_converted", False)
        fields = bound(name, self.linen_class, args, kwargs)
        for field, value in fields.items():
            is_list = isinstance(value, list | tuple) and has_modules(value)
            setattr(self, field, nnx.List(value) if is_list else frozen(value))
        if not hasattr(self, "in_features"):
            widths = (getattr(c, "in_features", None) for c in self._children.values())
            self.in_features = next((n for n in widths if n is not None), None)
        streams = self._own_streams(rngs if is_converted else None)
        if streams and getattr(self, "deterministic", True) is None:
            self.deterministic = False
        if streams and rngs is not None:
            self.rngs = nnx.Rngs(**{stream: rngs[stream]() for stream in streams})
        if not is_converted:
            set_variables(self, self._initial(rngs))
            self._keep_drawn_streams(rngs)

    @property
    def hidden_features(self) -> int:
        """`features` under its name in flax.nnx."""
        return self.features

    @property
    def linen(self) -> nn.Module:
        """The linen module; `module.linen.apply(module.variables, ...)` runs it."""
        return _linen(self, {})

    @property
    def variables(self) -> Variables:
        """The arrays in the nested dictionaries that `linen.init` returns."""
        flat = flatten_dict(get_variables(self))
        for path, child in self._placed():
            read = get_variables if isinstance(child, FromLinen) else variables_of
            for (collection, *name), array in flatten_dict(read(child)).items():
                flat[collection, *path, *name] = array
        return unflatten_dict(flat)

    def load(self, variables: Mapping[str, Any]) -> None:
        """Sets the values of the parameters.

        >>> import jax, jax.numpy as jnp, rnncells, rnncells.nnx
        >>> from flax import nnx
        >>> variables = rnncells.GRU(4).init(jax.random.key(0), jnp.ones((2, 5, 3)))
        >>> gru = rnncells.nnx.GRU(3, 4, rngs=nnx.Rngs(1))
        >>> gru.load(variables)
        >>> kernel = variables["params"]["layers_0"]["cell"]["hn"]["kernel"]
        >>> bool((gru.layers_0.cell.hn.kernel == kernel).all())
        True

        `variables` are `{"params": ...}` of the linen module: from its `init`, from a
        checkpoint, or from a function of `rnncells.interop`. Or the `nnx.State` of such
        a module. Other collections keep their values if they are left out; random
        streams always do.

        Raises:
          ValueError: the error lists arrays that are missing, unknown, or have another
            shape.
        """
        if isinstance(variables, nnx.State):
            updated = nnx.clone(self)
            nnx.update(updated, variables)
            variables = updated.variables
        arrays = flatten(meta.unbox(plain(dict(variables))))
        # The state of NNX modules, such as their random keys, may be left out.
        required = {PARAMS, *variables}
        old = flatten({k: v for k, v in self.variables.items() if k in required})
        if old:
            arrays = {
                n if n in old else without_nnx_spelling(n): a for n, a in arrays.items()
            }
            check_arrays("`variables`", arrays, shapes(old))
            arrays = {name: jnp.asarray(arrays[name], old[name].dtype) for name in old}
        self._update(unflatten_dict(arrays, sep="/"))

    def __call__(self, *args: Any, rngs: Rngs = None, **kwargs: Any) -> Any:
        """Calls the linen module with its arguments.

        `rngs` are random keys for dropout, zoneout and random initial carries; without
        them, the module draws from the streams that it keeps.
        """
        return self._apply("__call__", args, kwargs, rngs)

    def initialize_carry(
        self, sample_input: InputSpec | None = None, rngs: Rngs = None, **kwargs: Any
    ) -> Carry:
        """Returns the carry before the first step; arguments are those of flax.nnx.

        `sample_input` is the shape of one step of input, `(*batch, *features)`, or an
        array or `jax.ShapeDtypeStruct` of this shape; `rngs` are random keys for random
        initial carries, from the stream `carry`.
        """
        is_array = hasattr(sample_input, "dtype")
        if isinstance(sample_input, nnx.Rngs) or (is_array and is_key(sample_input)):
            raise TypeError(
                f"`sample_input` of {type(self).__name__}.initialize_carry must be one "
                "step of input or its shape, got random keys. In NNX the order is "
                "initialize_carry(sample_input, rngs)."
            )
        if is_cell(self.linen) and sample_input is not None:
            # What `RNN` passes to any cell: shapes with dtypes.
            sample_input = input_tuples(input_structs(sample_input))
        arguments = (_carry_key(rngs), sample_input)
        return self._apply("initialize_carry", arguments, kwargs, None)

    def _initial(self, rngs: nnx.Rngs | None) -> Variables:
        """Returns the initial variables of this module, without its children's."""
        linen = self.linen
        variables = self.variables
        key = jax.random.key(0)
        children = self._children.keys()
        shapes = self._step_shapes()
        structs = [
            jax.eval_shape(partial(initial_variables, linen, shape), key, variables)
            for shape in shapes
        ]
        if all(tree.keys() <= children for s in structs[:1] for tree in s.values()):
            return {}
        name = type(self).__name__
        if structs[0] != structs[-1]:
            raise ValueError(
                f"Parameters of {name} depend on the sizes of all feature axes: pass "
                "`in_features` as a tuple of sizes, such as (rows, columns, channels), "
                f"got {self.in_features}."
            )
        if rngs is None:
            raise TypeError(
                f"{name} needs `rngs` for the initial values of its parameters: pass "
                "rngs=nnx.Rngs(0)."
            )
        initial = initial_variables(linen, shapes[0], rngs.params(), variables)
        return {
            collection: {k: v for k, v in tree.items() if k not in children}
            for collection, tree in initial.items()
        }

    def _step_shapes(self) -> list[tuple[int, ...]]:
        """Returns shapes that one step of input can have; empty: unknown."""
        children = self._children.values()
        if not children and self.in_features is not None:
            return step_shapes(self.linen, self.in_features)
        for child in children:
            if isinstance(child, FromLinen):
                return child._step_shapes()
            in_features = getattr(child, "in_features", None)
            if isinstance(in_features, int):
                return [(in_features,)]
        return []

    def _apply(self, method: str, args: tuple, kwargs: dict, rngs: Rngs) -> Any:
        linen, variables = self.linen, self.variables
        takes = inspect.signature(getattr(linen, method)).parameters
        if rngs is not None and "init_key" in takes:
            kwargs.setdefault("init_key", _carry_key(rngs))
        keys = self._keys(kwargs.get("deterministic"), rngs)
        mutable = [name for name in variables if name != PARAMS]
        options: dict[str, Any] = {"method": method, "mutable": mutable or False}
        try:
            result = linen.apply(variables, *args, rngs=keys, **options, **kwargs)
        except InvalidRngError as error:
            stream = missing_stream(error) or "dropout"
            raise InvalidRngError(
                f"{type(self).__name__} has no random keys for the stream {stream!r}: "
                "pass `rngs` to the constructor of the module that draws from it, or "
                "to this call, and name the stream, as in "
                f"rngs=nnx.Rngs(0, {stream}=1). (In flax.linen: {error})"
            ) from error
        if mutable:
            result, updates = result
            self._update(updates)
        # An attribute that `nnx.tabulate` sets.
        return _listed(result) if hasattr(self, "_nnx_tabulate_id") else result

    def _keys(self, deterministic: bool | None, rngs: Rngs) -> dict[str, Array]:
        """Returns a key for each random stream that a call needs."""
        if isinstance(rngs, nnx.Rngs):
            names = {*rngs, *declared_streams(self.linen)}
            return {name: rngs[name]() for name in names if _has_stream(rngs, name)}
        keys: dict[str, Array] = {}
        for module in [self, *(child for _, child in self._placed())]:
            is_off = deterministic
            if is_off is None:
                is_off = getattr(module, "deterministic", False)
            if isinstance(module, FromLinen) and not is_off:
                for name in getattr(module, "rngs", ()):
                    if name not in keys:
                        keys[name] = module.rngs[name]()
        return keys

    def _keep_drawn_streams(self, rngs: nnx.Rngs | None) -> None:
        """Keeps the streams that a user's class draws from without declaring them."""
        shapes = self._step_shapes() if _declares_no_streams(self) else []
        if not shapes:
            return
        drawn = drawn_streams(self.linen, shapes[0], self.variables)
        if drawn:
            self._drawn = drawn
        if drawn and rngs is not None:
            streams = [stream for stream in drawn if _has_stream(rngs, stream)]
            self.rngs = nnx.Rngs(**{stream: rngs[stream]() for stream in streams})

    def _own_streams(self, rngs: nnx.Rngs | None) -> list[str]:
        """Returns the random streams of this module itself, without its children's.

        `rngs` are those of a converted module, whose draws are not known.
        """
        of_children = {PARAMS}
        for child in self._children.values():
            of_children |= {*declared_streams(_linen(child, {}))}
        streams = {*declared_streams(self.linen)}
        if rngs is not None and _declares_no_streams(self):
            streams |= {*rngs} - {"carry", "default"}
        # A cell may use the same stream as the cell inside it.
        of_cell = {getattr(self, "rng_collection", PARAMS)} - {PARAMS}
        return sorted((streams - of_children) | of_cell)

    @property
    def _children(self) -> dict[str, nnx.Module]:
        """The modules in the fields, by the names that linen gives them."""
        return {n: child for field in self._by_field() for n, child in field.items()}

    def _by_field(self) -> Iterator[dict[str, nnx.Module]]:
        for field in self.linen_class.__dataclass_fields__:
            value = getattr(self, field, None)
            items = {field: value}
            if isinstance(value, nnx.List):
                items = {f"{field}_{k}": item for k, item in enumerate(value)}
            yield {n: v for n, v in items.items() if isinstance(v, nnx.Module)}

    def _placed(
        self, path: tuple[str, ...] = (), seen: set[int] | None = None
    ) -> Iterator[tuple[tuple[str, ...], nnx.Module]]:
        """Yields each module below this one once, with the path of its variables.

        A module that is used several times is where linen names it first: linen names
        all modules of a field before those inside them.
        """
        seen = set() if seen is None else seen
        for field in self._by_field():
            placed = []
            for name, child in field.items():
                if id(child) not in seen:
                    seen.add(id(child))
                    placed.append(((*path, name), child))
            for child_path, child in placed:
                yield child_path, child
                if isinstance(child, FromLinen):
                    yield from child._placed(child_path, seen)

    def _update(self, variables: Mapping[str, Any]) -> None:
        """Writes arrays of linen's collections into this module and its children."""
        children = self._children
        for collection, tree in variables.items():
            rest = {name: v for name, v in tree.items() if name not in children}
            set_variables(self, {collection: rest})
            for name in tree.keys() & children.keys():
                update(children[name], {collection: tree[name]})


def from_linen(linen_class: type[nn.Module]) -> type[FromLinen]:
    """Returns the NNX class of a linen cell or layer; see `FromLinen`.

    >>> import rnncells, rnncells.nnx
    >>> from flax import nnx
    >>> class Leaky(rnncells.SimpleCell):
    ...     def recur(self, carry, projected):
    ...         new, _ = super().recur(carry, projected)
    ...         carry = 0.9 * carry + 0.1 * new
    ...         return carry, carry
    >>> cell = rnncells.nnx.from_linen(Leaky)(3, 4, rngs=nnx.Rngs(0))
    >>> cell.i.kernel.shape
    (3, 4)

    Raises:
      TypeError: `linen_class` is no class of flax.linen modules.
    """
    if not (isinstance(linen_class, type) and issubclass(linen_class, nn.Module)):
        raise TypeError(
            "`linen_class` of from_linen must be a class of flax.linen modules, got "
            f"{linen_class!r}."
        )
    kind: Any = type(FromLinen)
    namespace = {"__module__": linen_class.__module__}
    return kind(linen_class.__name__, (FromLinen,), namespace, linen=linen_class)


def update(module: nnx.Module, variables: Mapping[str, Any]) -> None:
    if isinstance(module, FromLinen):
        module._update(variables)
    else:
        update_module(module, variables)


def _linen(value: Any, linen_modules: dict[int, nn.Module]) -> Any:
    """Converts an NNX module, once by its identity; keeps a value that is no module."""
    if isinstance(value, nnx.List):
        return [_linen(item, linen_modules) for item in value]
    if not isinstance(value, nnx.Module):
        return value
    if id(value) not in linen_modules:
        linen_modules[id(value)] = (
            _linen_of_fields(value, linen_modules)
            if isinstance(value, FromLinen)
            else linen_of(value)
        )
    return linen_modules[id(value)]


def _linen_of_fields(
    module: FromLinen, linen_modules: dict[int, nn.Module]
) -> nn.Module:
    kind: Any = module.linen_class
    fields = {}
    for field in dataclasses.fields(kind):
        if field.init and hasattr(module, field.name):
            value = _linen(getattr(module, field.name), linen_modules)
            is_set = value is not field.default and callable(value)
            is_init = is_set and field.name.endswith("_init")
            fields[field.name] = WithMetadata(value) if is_init else value
    if not fields.get("variable_carry", True) and STATE in module.variables:
        # `RNN` carries the state of an NNX cell from step to step.
        fields["variable_carry"] = STATE
    if drawn := getattr(module, "_drawn", ()):
        kind = _declaring(kind, drawn)
    return kind(**fields, parent=None)


def _declares_no_streams(module: FromLinen) -> bool:
    """Says whether a linen class is a user's, and does not name its random streams."""
    kind = module.linen_class
    is_ours = kind.__module__.startswith("rnncells.")
    return not (is_ours or hasattr(kind, "rng_streams"))


@cache
def _declaring(kind: Any, streams: tuple[str, ...]) -> type[nn.Module]:
    """Returns a linen class that declares random streams; each step draws new keys."""
    declared = {"rng_streams": dict.fromkeys(streams, True)}
    return type(kind.__name__, (kind,), declared | {"__module__": kind.__module__})


def _forwarded(linen: type[nn.Module], name: str) -> Any:
    """Returns a method or property that uses the one of the linen module."""
    member = getattr(linen, name)
    if not callable(member):
        return property(lambda self: getattr(self.linen, name))

    def method(self: Any, *args: Any, rngs: Rngs = None, **kwargs: Any) -> Any:
        return self._apply(name, args, kwargs, rngs)

    method.__name__, first = name, (member.__doc__ or "").partition("\n")[0]
    method.__doc__ = f"{first}\n\nSee `{linen.__module__}.{linen.__name__}.{name}`."
    return method


class ListedStates(LSTMStates):
    """States whose paths in a pytree are numbers, as `nnx.tabulate` needs them."""


def _unlisted(_: None, arrays: Iterable[Array]) -> ListedStates:
    return ListedStates(*arrays)


jax.tree_util.register_pytree_node(ListedStates, lambda x: (tuple(x), None), _unlisted)


def _listed(result: Any) -> Any:
    return jax.tree.map(
        lambda x: ListedStates(*x) if isinstance(x, LSTMStates) else x,
        result,
        is_leaf=lambda x: isinstance(x, LSTMStates),
    )


def _carry_key(rngs: Rngs) -> Array | None:
    if isinstance(rngs, nnx.Rngs):
        return rngs.carry() if _has_stream(rngs, "carry") else None
    return rngs() if isinstance(rngs, nnx.RngStream) else rngs


def _has_stream(rngs: nnx.Rngs, name: str) -> bool:
    return name in rngs or "default" in rngs
