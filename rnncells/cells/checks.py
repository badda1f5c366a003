"""Checks of the carries and results of cells."""

from typing import Any

import jax
import jax.numpy as jnp
from chex import ArrayTree

from rnncells.cells.carry import Carry, ShapeTree, describe, is_alike, is_shape


def check_projection(name: str, proj_features: Any, features: Any) -> None:
    """Raises an error unless `proj_features` is less than `features`."""
    if features is None:
        raise TypeError(f"`features` of {name} must be an int, got None.")
    if proj_features is not None and proj_features >= features:
        raise ValueError(
            f"`proj_features` of {name} must be less than `features` {features}, got "
            f"{proj_features}."
        )


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
    cell: Any, carry: Carry, expected: ShapeTree, inputs: ArrayTree
) -> None:
    """Raises ValueError unless a carry has the expected shapes; None is any size."""
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
        hint = " A step takes one time step; a layer such as RNN takes a sequence."
    raise ValueError(
        f"`carry` of {name}(features={features}) must have shapes {expected} for "
        f"inputs of shape {shape}, got {carry_shapes}.{hint}"
    )


def check_stepped(name: str, stepped: Any, carry: Carry) -> tuple[Carry, ArrayTree]:
    """Returns the result of `recur`, or raises an error if it is malformed."""
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
    """Returns the result of a step, or raises TypeError unless it is a pair."""
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
