"""Gates of the closed forms, their gradients, and checks of shapes."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

# Parameters of a cell by the name of the gate: a kernel, and a bias if there is one.
Params = dict[str, dict[str, Array]]


def affine(params: Params, name: str, inputs: Array) -> Array:
    """Returns W inputs + b of a gate."""
    return inputs @ params[name]["kernel"] + params[name].get("bias", 0)


def back(params: Params, d_a: dict[str, Array]) -> Array:
    """Returns Σ_a W_a^T δa, from the derivatives δa by the name of the gate."""
    # Vectors are rows here, so W^T δ is written δ W^T.
    first, *rest = (d @ params[name]["kernel"].T for name, d in d_a.items())
    return sum(rest, first)


def d_gates(
    params: Params, inputs: Array, d_a: dict[str, Array]
) -> dict[str, dict[str, Array]]:
    """Returns δW_a = δa inputs^T and δb_a = δa, summed over the batch, by gate."""

    batch = tuple(range(inputs.ndim - 1))
    gradients = {}
    for name, d in d_a.items():
        gradients[name] = {"kernel": jnp.tensordot(inputs, d, (batch, batch))}
        if "bias" in params[name]:
            gradients[name]["bias"] = d.sum(batch)
    return gradients


def with_zeros(
    carry: Any, output: Any, d_carry: Any, d_output: Any, output_name: str
) -> list[Array]:
    """Returns the derivatives by the carry's arrays and by the output, checked.

    Zeros take the place of None. `output_name` is that of `d_output`.
    """
    pairs = {"d_carry": (d_carry, carry)}
    if isinstance(carry, tuple | list):
        d_carry = (None, None) if d_carry is None else d_carry
        parts = zip(d_carry, carry, strict=True)
        pairs = {f"d_carry[{k}]": pair for k, pair in enumerate(parts)}
    pairs[output_name] = d_output, output
    if all(d is None for d, _ in pairs.values()):
        *names, last = (f"`{name}`" for name in pairs)
        raise ValueError(
            f"{', '.join(names)} and {last} are all None, so all gradients would be 0. "
            "Pass at least one of them."
        )
    for name, (d, like) in pairs.items():
        if d is not None:
            check_shapes(name, d, jnp.shape(like))
    return [jnp.zeros_like(like) if d is None else d for d, like in pairs.values()]


def check(
    params: Params, carry: Any, x: Any, gates: Sequence[str], is_pair: bool = False
) -> None:
    """Raises ValueError unless the arguments of a step with these gates fit.

    All gates and all arrays of the carry have the same width.
    """
    state, inputs = step_shapes(carry, x)
    check_shapes("carry", carry, [state, state] if is_pair else state)
    check_params(params, inputs, state[-1], dict.fromkeys(gates, state[-1]))


def step_shapes(carry: Any, x: Any) -> tuple[tuple[int, ...], int]:
    """Returns the shape that a state has, and the number of features of the input."""
    first = jax.tree.leaves(carry)[0]
    for name, array in (("x", x), ("carry", first)):
        if not jnp.ndim(array):
            raise ValueError(f"`{name}` must be (*batch, features), got the shape ().")
    *batch, inputs = jnp.shape(x)
    return (*batch, jnp.shape(first)[-1]), inputs


def check_params(
    params: Params, inputs: int, units: int, widths: Mapping[str, int]
) -> None:
    """Raises ValueError unless each gate has kernels of inputs and of states.

    `widths` has the number of units of each gate, by its letter.
    """
    expected = {
        side + gate: {"kernel": (size, width), "bias": (width,)}
        for side, size in (("i", inputs), ("h", units))
        for gate, width in widths.items()
    }
    check_shapes("params", params, expected)


def check_shapes(name: str, tree: Any, expected: Any) -> None:
    """Raises ValueError unless arrays have the `expected` shapes.

    `expected` is a shape, a list of shapes for a pair, or a dictionary, in which the
    key `bias` is optional.
    """
    if isinstance(expected, tuple):
        if jnp.shape(tree) != expected:
            raise ValueError(
                f"`{name}` must have the shape {expected}, got {jnp.shape(tree)}."
            )
        return
    if isinstance(expected, list):
        if not isinstance(tree, tuple | list) or len(tree) != len(expected):
            shapes = jax.tree.map(jnp.shape, tree)
            raise ValueError(f"`{name}` must be a pair of arrays, got {shapes}.")
        tree, expected = dict(enumerate(tree)), dict(enumerate(expected))
    names = [*tree] if isinstance(tree, Mapping) else [type(tree).__name__]
    if not expected.keys() - {"bias"} <= {*names} <= expected.keys():
        text = [k + " (optional)" * (k == "bias") for k in map(str, expected)]
        raise ValueError(f"`{name}` must have {', '.join(text)}, got {names}.")
    for key in names:
        check_shapes(f"{name}[{key!r}]", tree[key], expected[key])
