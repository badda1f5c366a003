"""Gates of the closed forms, their gradients, and checks of shapes."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

# Parameters of a cell by the name of the gate: a kernel, and a bias if there is one.
Params = dict[str, dict[str, Array]]
# Derivatives with respect to the arguments of a cell's activation functions, by gate.
Gates = dict[str, Array]


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
        check_pair("d_carry", d_carry)
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
            check_shape(name, d, jnp.shape(like))
    return [jnp.zeros_like(like) if d is None else d for d, like in pairs.values()]


def check_step(
    params: Params, carry: Any, x: Any, gates: Sequence[str], is_pair: bool = False
) -> None:
    """Raises ValueError unless the arguments of a step with these gates fit."""
    if is_pair:
        check_pair("carry", carry)
    arrays: Sequence[Any] = carry if is_pair else (carry,)
    batch, inputs = check_features(x, *arrays)
    features = arrays[0].shape[-1]
    if is_pair:
        check_shape("carry[1]", arrays[1], (*batch, features))
    check_params(params, inputs, features, dict.fromkeys(gates, features))


def check_params(
    params: Params, inputs: int, units: int, widths: Mapping[str, int]
) -> None:
    """Raises ValueError unless each gate has kernels of inputs and of states.

    `widths` has the number of units of each gate, by its letter.
    """
    shapes = {f"i{gate}": (inputs, width) for gate, width in widths.items()}
    shapes |= {f"h{gate}": (units, width) for gate, width in widths.items()}
    check_names(params, list(shapes))
    for name, shape in shapes.items():
        path = f"params['{name}']"
        check_shape(f"{path}['kernel']", params[name]["kernel"], shape)
        if "bias" in params[name]:
            check_shape(f"{path}['bias']", params[name]["bias"], shape[1:])


def check_names(params: Params, names: list[str]) -> None:
    """Raises ValueError unless the parameters are those of the named gates."""
    if sorted(params) != sorted(names):
        raise ValueError(f"`params` must have {sorted(names)}, got {sorted(params)}.")
    for name, gate in params.items():
        has_names = isinstance(gate, Mapping)
        if not has_names or not {"kernel"} <= set(gate) <= {"kernel", "bias"}:
            raise ValueError(
                f"`params['{name}']` must have a kernel and may have a bias, got "
                f"{sorted(gate) if has_names else type(gate).__name__}."
            )


def check_features(x: Any, *carry: Any) -> tuple[tuple[int, ...], int]:
    """Returns the batch axes of the carry, and the number of features of the input."""
    for name, array in [("x", x), *(("carry", leaf) for leaf in carry)]:
        if not getattr(array, "shape", ()):
            is_array = hasattr(array, "shape")
            got = "the shape ()" if is_array else f"a {type(array).__name__}"
            raise ValueError(f"`{name}` must be (*batch, features), got {got}.")
    batch = jnp.shape(carry[0])[:-1]
    check_shape("x", x, (*batch, jnp.shape(x)[-1]))
    return batch, jnp.shape(x)[-1]


def check_pair(name: str, pair: Any) -> None:
    """Raises ValueError unless a value is a pair."""
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise ValueError(
            f"`{name}` must be a pair of arrays, got {jax.tree.map(jnp.shape, pair)}."
        )


def check_shape(name: str, array: Any, shape: tuple[int, ...]) -> None:
    """Raises ValueError unless an array has a shape."""
    if jnp.shape(array) != shape:
        raise ValueError(
            f"`{name}` must have the shape {shape}, got {jnp.shape(array)}."
        )
