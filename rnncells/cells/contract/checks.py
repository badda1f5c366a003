"""Explanations of wrong carries and calls of cells."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from chex import ArrayTree

from rnncells.cells.contract.carry import Carry, ShapeTree, dtype_of, is_shape


def check_projection(name: str, proj_features: Any, features: Any) -> None:
    """Raises an error unless `proj_features` is less than `features`."""
    if features is None:
        raise TypeError(f"`features` of {name} must be an int, got None.")
    if proj_features is not None and proj_features >= features:
        raise ValueError(
            f"`proj_features` of {name} must be less than `features` {features}, got "
            f"{proj_features}."
        )


def check_not_states(name: str, carry: Carry) -> None:
    """Raises TypeError if a cell gets the states of a layer as its carry."""
    # The class is one of layers, which cells do not import.
    if type(carry).__name__ == "LSTMStates":
        raise TypeError(
            f"`carry` of {name} must be the carry of a cell, got LSTMStates(h, c), the "
            "states of a layer. For LSTM cells, the carry of layer and direction k is "
            "(states.c[k], states.h[k])."
        )


def wrong_initialize_carry(cell: Any, old_kwargs: Mapping[str, Any]) -> TypeError:
    """Returns the error for a call of `initialize_carry` as before Flax 0.7."""
    if set(old_kwargs) - {"batch_dims", "size", "init_fn"}:
        return TypeError(
            "`initialize_carry` takes `key` and `sample_input`, got "
            f"{sorted(old_kwargs)}."
        )
    is_class = not hasattr(type(cell), "initialize_carry")
    got = "on the class" if is_class else "with (key, batch_dims, size)"
    return TypeError(
        "`initialize_carry` must be called on an instance, as "
        "cell.initialize_carry(key, sample_input), where sample_input is one step of "
        f"input or its shape (*batch_dims, features_in). It was called {got}, as up to "
        "Flax 0.6.11. `import rnncells.legacy` runs such code, and the command "
        "`rnncells-migrate` rewrites it."
    )


def wrong_carry_shape(name: str, shape: Any) -> Exception:
    """Returns the error for a part of `carry_shape` that is no shape of known sizes."""
    if is_shape(shape):
        return ValueError(
            f"`features` of {name} is None, so the width of the carry is unknown. Pass "
            "`features`, or pass a carry."
        )
    return TypeError(
        f"`carry_shape` of {name} must return shapes, which are tuples of sizes, got "
        f"{shape!r}. A tuple of one size needs a comma: ({shape!r},)."
    )


def wrong_carry(
    cell: Any, carry: Carry, shapes: ShapeTree, batch: tuple, inputs: ArrayTree
) -> Exception:
    """Returns the error for a carry that does not have the form of `carry_shape`."""
    name, features = type(cell).__name__, getattr(cell, "features", None)
    check_not_states(name, carry)
    specs: list[Any]
    specs, structure = jax.tree.flatten(shapes, is_leaf=is_shape)
    sizes = [batch + tuple(getattr(spec, "shape", spec)) for spec in specs]
    expected = jax.tree.unflatten(structure, sizes)
    carry_shapes = jax.tree.map(jnp.shape, carry)
    actual = jax.tree.leaves(carry_shapes, is_leaf=is_shape)
    has_structure = bool(structure == jax.tree.structure(carry))  # type: ignore
    pairs = list(zip(sizes, actual))

    def fits(shape: tuple, leaf_shape: tuple) -> bool:
        """Says whether sizes are as expected, of which None is any size."""
        return len(shape) == len(leaf_shape) and all(
            n in (None, m) for n, m in zip(shape, leaf_shape, strict=True)
        )

    if has_structure and all(fits(s, o) for s, o in pairs):
        dtypes = {str(dtype_of(leaf)) for leaf in jax.tree.leaves(carry)}
        got = ", ".join(sorted(dtypes))
        return TypeError(f"`carry` of {name} must be floating or complex, got {got}.")
    shape = jax.tree.leaves(inputs)[0].shape
    hint = " A step takes the carry, and then the inputs of one time step."
    kind, carry_kind = type(expected), type(carry)
    is_container = isinstance(carry, list | dict | tuple) and not is_shape(expected)
    if is_container and kind is not carry_kind:
        kinds = f"a {kind.__name__}, not a {carry_kind.__name__}"
        hint = f" The carry of {name} is {kinds}."
    elif has_structure and all(fits(s[:-1], o[:-1]) for s, o in pairs):
        hint = (
            " flax.linen ignores `features` and takes the width of the carry. For this "
            f"carry, write {name}(features={actual[-1][-1]}).{hint}"
        )
    elif has_structure and all(s[-len(o) :] == o for s, o in pairs):
        hint = (
            " This carry lacks batch axes. `initialize_carry` takes the shape of one "
            f"step of input with its features, such as {shape}."
        )
    elif has_structure and all(len(s) == len(o) + 1 for s, o in pairs):
        hint = " A step takes one time step; a layer such as RNN takes a sequence."
    return ValueError(
        f"`carry` of {name}(features={features}) must have shapes {expected} for "
        f"inputs of shape {shape}, got {carry_shapes}.{hint}"
    )
