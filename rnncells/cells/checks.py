"""Checks of the arguments and results of cells."""

import functools
import inspect
import operator
from collections.abc import Sequence
from typing import Any, get_args

import chex
import jax
import jax.numpy as jnp
import numpy as np
from flax.errors import InvalidRngError
from flax.typing import Initializer

from rnncells.cells.carry import Carry, ShapeTree, describe, is_alike
from rnncells.cells.input_spec import is_shape


def check_fields(cell: Any) -> None:
    """Raises an error unless the fields that cells have in common are valid."""
    name = type(cell).__name__
    features, hint = getattr(cell, "features", None), ""
    if hasattr(cell, "gate_fn"):
        hint = (
            " Up to Flax 0.6.11, the first argument of a cell was `gate_fn`: "
            f"write {name}(features, gate_fn=...)."
        )
    check_features(name, features, hint)
    check_heads(cell)
    check_dtypes(cell)
    check_initializers(cell)
    check_bool_fields(cell)
    for field in ("gate_fn", "activation_fn"):
        function = getattr(cell, field, len)
        if not callable(function):
            raise TypeError(
                f"`{field}` of {name} must be a function, got {function!r}. The width "
                "of the inputs is not an argument: cells read it from the inputs."
            )


def check_bool_fields(module: Any) -> None:
    """Raises TypeError unless the fields that are annotated as bools are bools."""
    cls: Any = type(module)
    flags = {name: getattr(module, name) for name in typed_fields(cls, bool)}
    for name in typed_fields(cls, bool | None):
        if getattr(module, name) is not None:
            flags[name] = getattr(module, name)
    check_bools(cls.__name__, **flags)


def check_bools(owner: str, **flags: Any) -> None:
    """Raises TypeError unless every flag is a bool.

    Args:
      owner: name of the cell or layer.
      **flags: its fields or arguments.
    """
    for name, value in flags.items():
        if not isinstance(value, bool | np.bool_):
            hint = ""
            if name == "time_major" and owner == "RNN":
                hint = (
                    " (Up to Flax 0.6.11, the second argument was `cell_size`. Pass "
                    "the size to the cell: RNN(LSTMCell(features)).)"
                )
            raise TypeError(f"`{name}` of {owner} must be a bool, got {value!r}.{hint}")


@functools.cache
def typed_fields(cls: type, annotation: Any) -> list[str]:
    """Returns the fields that classes of rnncells declare with a type, in order.

    Fields that a user's subclass declares are the user's to check.
    """
    types: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        if base.__module__.startswith("rnncells."):
            types |= inspect.get_annotations(base)
    return [name for name, kind in types.items() if kind == annotation]


def check_dtypes(module: Any) -> None:
    """Raises TypeError unless `dtype` and `param_dtype` are floating or complex."""
    for field in ("dtype", "param_dtype"):
        dtype = getattr(module, field, None)
        if dtype is None:
            continue
        got, hint = repr(dtype), " Write jnp.bfloat16, for example."
        try:
            got, hint = str(jnp.dtype(dtype)), ""
        except TypeError:  # such as "bf16"
            pass
        if hint or not jnp.issubdtype(jnp.dtype(dtype), jnp.inexact):
            raise TypeError(
                f"`{field}` of {type(module).__name__} must be floating or complex, "
                f"got {got}.{hint}"
            )


def check_initializers(module: Any) -> None:
    """Raises TypeError unless the fields of initializers are initializers."""
    cls: Any = type(module)
    for name in typed_fields(cls, Initializer):
        init = getattr(module, name)
        start = f"`{name}` of {type(module).__name__} must be an initializer"
        if not callable(init):
            raise TypeError(
                f"{start}, such as jax.nn.initializers.glorot_uniform(), got {init!r}."
            )
        if _makes_initializers(init):
            name = init.__name__
            raise TypeError(f"{start}, got {name}. Call it: {name}().")
        if hasattr(init, "gates") and "bias" not in name:
            raise TypeError(
                f"{start} of matrices, got a PerGateInit, such as `forget_gate` and "
                "`chrono` return. It is for `bias_init`."
            )


def _makes_initializers(function: Any) -> bool:
    """Says whether a function of JAX, Flax or rnncells returns initializers.

    The functions inside of those functions, which draw, are initializers.
    """
    if not inspect.isfunction(function) or "<locals>" in function.__qualname__:
        return False
    library = function.__module__.partition(".")[0]
    is_known = library in ("jax", "flax", "rnncells")
    return is_known and "key" not in inspect.signature(function).parameters


def check_features(name: str, features: Any, hint: str = "") -> None:
    """Raises an error unless the field `features` is a count, or None.

    Args:
      name: name of the cell or layer.
      features: the field.
      hint: added to the error for a function.
    """
    if features is None:
        return
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


def check_heads(cell: Any) -> None:
    """Raises an error unless `num_heads` of a cell is a count that divides `features`.

    Cells without this field have one head.
    """
    name, heads = type(cell).__name__, getattr(cell, "num_heads", 1)
    check_count(name, "num_heads", heads)
    features = getattr(cell, "features", None)
    if features is not None and features % heads:
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


def check_projection(name: str, proj_features: Any, features: Any) -> None:
    """Raises an error unless `proj_features` is less than `features`."""
    if features is None:
        raise TypeError(f"`features` of {name} must be an int, got None.")
    check_features(name, features)
    check_count(name, "proj_features", proj_features)
    if proj_features >= features:
        raise ValueError(
            f"`proj_features` of {name} must be less than `features` {features}, got "
            f"{proj_features}."
        )


def check_rate(name: str, field: str, rate: Any) -> None:
    """Raises an error unless a dropout rate is a number in [0, 1)."""
    if isinstance(rate, bool) or not isinstance(rate, int | float | np.number):
        raise TypeError(f"`{field}` of {name} must be a number, got {rate!r}.")
    if not 0 <= rate < 1:
        raise ValueError(f"`{field}` of {name} must be in [0, 1), got {rate!r}.")


def check_deterministic(name: str, value: Any, rate_name: str, rate: float) -> None:
    """Raises an error unless `deterministic` of a module with dropout is a bool.

    Args:
      name: name of the module.
      value: `deterministic`, from the call or from the field.
      rate_name: name of the dropout rate.
      rate: the dropout rate, which is not 0.
    """
    if value is None:
        raise ValueError(
            f"`deterministic` of {name} must be True or False with {rate_name}={rate}, "
            "got None. Pass it to the call, for example deterministic=False in "
            "training, or set the field."
        )
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"`deterministic` of {name} must be a bool, got {value!r}.")


def check_set_up(cell: Any, deterministic: bool) -> None:
    """Raises TypeError if `setup` gave a submodule another `deterministic`.

    The argument of a call comes too late for it.
    """
    for name, module in vars(cell).items():
        is_cell = hasattr(type(module), "project")
        if name == "parent" or is_cell or not hasattr(type(module), "deterministic"):
            continue
        if module.deterministic not in (None, deterministic):
            raise TypeError(
                f"`deterministic` of `{name}` in {type(cell).__name__} is "
                f"{module.deterministic}, but the call has {deterministic}. Do not set "
                f"it in `setup`: call self.{name}(x, deterministic=self.deterministic)."
            )


def check_rng(module: Any, stream: str) -> None:
    """Raises InvalidRngError if a module lacks the key of a random stream.

    In place of a stream that is not given, Flax draws from `params`, if that is.
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
    if is_nnx_module(module) and not hasattr(module, "scope"):
        raise TypeError(
            f"`{field}` of {name} must be a flax.linen module, got "
            f"{type(module).__name__} of Flax NNX. Use rnncells.nnx.{name}, or "
            "rnncells.nnx.to_linen(nnx_class, ...) as a linen module."
        )


def check_list(name: str, layers: Any) -> None:
    """Raises ValueError unless the field `layers` is a list that is not empty."""
    if not isinstance(layers, Sequence) or not layers:
        raise ValueError(
            f"`layers` of {name} must be a list with at least one layer, got "
            f"{layers!r}."
        )
    for layer in layers:
        check_not_nnx(name, "layers", layer)


def check_not_separate(name: str, args: tuple[Any, ...]) -> None:
    """Raises TypeError if layers are separate arguments, not a list."""
    if not isinstance(args[0], Sequence):
        raise TypeError(
            f"`layers` of {name} must be a list, as in {name}([a, b]), got "
            f"{len(args)} arguments."
        )


def check_key(key: Any, argument: str | None = None) -> None:
    """Raises TypeError unless `key` is a random key or None.

    Args:
      key: the key.
      argument: what it is, in the message; None: the key of `initialize_carry`.
    """
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


def check_array(name: str, inputs: Any) -> None:
    """Raises TypeError unless the operand of a product is one array."""
    if not hasattr(inputs, "ndim"):
        raise TypeError(
            f"{name} multiplies one array by its weights, got {type(inputs).__name__}. "
            "Join a list of steps with jnp.stack(steps, axis=-2), and several inputs "
            "with jnp.concatenate(inputs, axis=-1)."
        )


def check_names(method: str, names: tuple[Any, ...]) -> None:
    """Raises an error unless a method of a cell was called with names."""
    if not all(isinstance(name, str) for name in names):
        raise TypeError(
            f"`{method}` takes names as separate arguments, for example "
            f"{method}('i', 'h'), got {names}."
        )
    if not names:
        raise ValueError(f"`{method}` needs at least one name, got none.")


def check_carry_arguments(
    cell: Any, old_args: tuple[Any, ...], old_kwargs: dict[str, Any]
) -> None:
    """Raises TypeError if `initialize_carry` is called as before Flax 0.7."""
    is_class = not hasattr(type(cell), "initialize_carry")
    if not (is_class or old_args or old_kwargs):
        return
    if set(old_kwargs) - {"batch_dims", "size", "init_fn"}:
        raise TypeError(
            "`initialize_carry` takes `key` and `sample_input`, got "
            f"{sorted(old_kwargs)}."
        )
    got = "on the class" if is_class else "with (key, batch_dims, size)"
    raise TypeError(
        "`initialize_carry` must be called on an instance, as "
        "cell.initialize_carry(key, sample_input), where sample_input is one step of "
        f"input or its shape (*batch_dims, features_in). It was called {got}, as up to "
        "Flax 0.6.11. `import rnncells.legacy` runs such code, and the command "
        "`rnncells-migrate` rewrites it."
    )


def check_carry_shape(name: str, shape: Any) -> ShapeTree:
    """Returns the result of `carry_shape`; raises TypeError if it has a bare size."""
    for leaf in jax.tree.leaves(shape, is_leaf=is_shape):
        if not is_shape(leaf) and not hasattr(leaf, "shape"):
            raise TypeError(
                f"`carry_shape` of {name} must return shapes, which are tuples of "
                f"sizes, got {shape!r}. A tuple of one size needs a comma: ({leaf!r},)."
            )
    return shape


def check_not_states(name: str, carry: Carry) -> None:
    """Raises TypeError if a cell gets the states of a layer as its carry."""
    # The class is one of layers, which cells do not import.
    if type(carry).__name__ == "LSTMStates":
        raise TypeError(
            f"`carry` of {name} must be the carry of a cell, got LSTMStates(h, c), the "
            "states of a layer. For LSTM cells, the carry of layer and direction k is "
            "(states.c[k], states.h[k])."
        )


def check_carry_shapes(
    cell: Any, carry: Carry, expected: ShapeTree, inputs: chex.ArrayTree
) -> None:
    """Raises ValueError unless a carry has the expected shapes.

    Args:
      cell: the cell.
      carry: the carry.
      expected: pytree of shapes; None in a shape stands for any size.
      inputs: one step of input, for the message.
    """
    carry_shapes = jax.tree.map(jnp.shape, carry)

    def fits(shape: tuple, leaf_shape: tuple) -> bool:
        return len(shape) == len(leaf_shape) and all(
            n in (None, m) for n, m in zip(shape, leaf_shape, strict=True)
        )

    shapes, structure = jax.tree.flatten(expected, is_leaf=is_shape)
    actual = jax.tree.leaves(carry_shapes, is_leaf=is_shape)
    has_structure = bool(structure == jax.tree.structure(carry))  # type: ignore
    if has_structure and all(map(fits, shapes, actual)):
        return
    name, features = type(cell).__name__, getattr(cell, "features", None)
    shape = jax.tree.leaves(inputs)[0].shape
    hint = " A step takes the carry, and then the inputs of one time step."
    kind, carry_kind = type(expected), type(carry)
    is_container = isinstance(carry, list | dict | tuple) and not is_shape(expected)
    if is_container and kind is not carry_kind:
        kinds = f"a {kind.__name__}, not a {carry_kind.__name__}"
        hint = f" The carry of {name} is {kinds}."
    elif has_structure and all(fits(s[:-1], o[:-1]) for s, o in zip(shapes, actual)):
        hint = (
            " flax.linen ignores `features` and takes the width of the carry. For this "
            f"carry, write {name}(features={actual[-1][-1]}).{hint}"
        )
    elif has_structure and all(s[-len(o) :] == o for s, o in zip(shapes, actual)):
        hint = (
            " This carry lacks batch axes. `initialize_carry` takes the shape of one "
            f"step of input with its features, such as {shape}."
        )
    elif has_structure and all(len(s) == len(o) + 1 for s, o in zip(shapes, actual)):
        hint = (
            " The inputs have one axis more than the carry: a step takes one time "
            "step, and a layer such as RNN takes a sequence."
        )
    raise ValueError(
        f"`carry` of {name}(features={features}) must have shapes {expected} for "
        f"inputs of shape {shape}, got {carry_shapes}.{hint}"
    )


def check_stepped(
    name: str, stepped: Any, carry: Carry
) -> tuple[Carry, chex.ArrayTree]:
    """Returns the result of `recur`, or raises an error if it is malformed.

    Args:
      name: name of the cell.
      stepped: result of `recur`, which must be `(new_carry, output)`.
      carry: carry before the step.
    """
    shapes = jax.tree.map(jnp.shape, carry)
    new_carry, output = check_returned("recur", name, stepped)
    new_shapes = jax.tree.map(jnp.shape, new_carry)
    if new_shapes != shapes:
        raise ValueError(
            f"`recur` of {name} must return (new_carry, output), a new carry with the "
            f"shapes of the old, {shapes}, got {new_shapes}."
        )
    return new_carry, output


def check_returned(method: str, name: str, returned: Any) -> tuple[Any, Any]:
    """Returns the result of a step, or raises TypeError unless it is a pair.

    Args:
      method: name of the method that took the step.
      name: name of the cell.
      returned: result of the method, which must be `(new_carry, output)`.
    """
    if isinstance(returned, tuple) and len(returned) == 2:
        return returned
    shapes = jax.tree.map(jnp.shape, returned)
    is_array = hasattr(returned, "shape")
    got = "an array of shape" if is_array else type(returned).__name__
    raise TypeError(
        f"`{method}` of {name} must return (new_carry, output), got {got} {shapes}."
    )


def check_kept(cell: str, new: Carry, old: Carry) -> None:
    """Raises ValueError if a step changed the structure or shapes of its carry."""
    if not is_alike(new, old):
        raise ValueError(
            f"{cell} got the carry {describe(old)} and returned {describe(new)}. A "
            "step must keep the carry's structure, its shapes, and whether it is real "
            "or complex. If you passed `initial_carry`, check that it fits the inputs."
        )
