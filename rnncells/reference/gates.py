"""Gates of the closed forms, their gradients, and checks of shapes."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

# Parameters of a cell by the name of the gate: a kernel, and a bias if there is one.
Params = dict[str, dict[str, jax.Array]]
# Derivatives with respect to the arguments of a cell's activation functions, by gate.
Gates = dict[str, jax.Array]


def affine(params: Params, name: str, inputs: jax.Array) -> jax.Array:
    """Returns W inputs + b of a gate."""
    return inputs @ params[name]["kernel"] + params[name].get("bias", 0)


def back(params: Params, d_a: dict[str, jax.Array]) -> jax.Array:
    """Returns Σ_a W_a^T δa, from the derivatives δa by the name of the gate."""
    # Vectors are rows here, so W^T δ is written δ W^T.
    first, *others = (d @ params[name]["kernel"].T for name, d in d_a.items())
    return sum(others, first)


def d_gates(
    params: Params, inputs: jax.Array, d_a: dict[str, jax.Array]
) -> dict[str, dict[str, jax.Array]]:
    """Returns δW_a = δa inputs^T and δb_a = δa, summed over the batch, by gate."""

    def d_gate(gate, d):
        batch = tuple(range(d.ndim - 1))
        found = {"kernel": jnp.tensordot(inputs, d, (batch, batch))}
        return found | ({"bias": d.sum(batch)} if "bias" in gate else {})

    return {name: d_gate(params[name], d) for name, d in d_a.items()}


def check_params(params: Params, shapes: dict[str, tuple[int, int]]) -> None:
    """Raises ValueError unless there is a kernel of each shape.

    Args:
      params: the parameters.
      shapes: shapes of the kernels by the name of the gate.
    """
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
    """Returns the batch axes and the width of the input, after checking them.

    Args:
      x: input of the step.
      *carry: arrays of the carry; the first one has the batch axes.
    """
    for name, array in [("x", x), *(("carry", leaf) for leaf in carry)]:
        if not getattr(array, "shape", ()):
            is_array = hasattr(array, "shape")
            got = "the shape ()" if is_array else f"a {type(array).__name__}"
            raise ValueError(f"`{name}` must be (*batch, features), got {got}.")
    batch = jnp.shape(carry[0])[:-1]
    check_shape("x", x, (*batch, jnp.shape(x)[-1]))
    return batch, jnp.shape(x)[-1]


def check_pair(name: str, pair: Any, words: str = "(c, h)") -> None:
    """Raises ValueError unless a value is a pair."""
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise ValueError(
            f"`{name}` must be a pair {words}, got {jax.tree.map(jnp.shape, pair)}."
        )


def parts(d_carry: Any, words: str = "(c, h)") -> tuple[Any, Any]:
    """Returns the two derivatives of a pair, each of them None if the pair is None."""
    if d_carry is None:
        return None, None
    check_pair("d_carry", d_carry, words)
    return tuple(d_carry)


def check_shape(name: str, array: Any, shape: tuple[int, ...]) -> None:
    """Raises ValueError unless an array has a shape."""
    if jnp.shape(array) != shape:
        raise ValueError(
            f"`{name}` must have the shape {shape}, got {jnp.shape(array)}."
        )


def derivatives(given: dict[str, tuple[Any, Any]]) -> list[jax.Array]:
    """Returns derivatives, with zeros in place of None, after checking their shapes.

    Args:
      given: by name, the derivative or None, and the array it is the derivative by.

    Raises:
      ValueError: a shape does not fit, or all are None.
    """
    if all(d is None for d, _ in given.values()):
        *names, last = (f"`{name}`" for name in given)
        raise ValueError(
            f"{', '.join(names)} and {last} are all None, so all gradients would be 0. "
            "Pass at least one of them: the derivative of the loss with respect to the "
            "carry or the output."
        )
    for name, (d, like) in given.items():
        if d is not None:
            check_shape(name, d, jnp.shape(like))
    return [jnp.zeros_like(like) if d is None else d for d, like in given.values()]
