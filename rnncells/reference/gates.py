"""What the closed forms share: gates, their gradients, and checks of shapes."""

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
    return sum(d @ params[name]["kernel"].T for name, d in d_a.items())


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
    names = list(shapes)
    if sorted(params) != sorted(names):
        raise ValueError(f"`params` must have {sorted(names)}, got {sorted(params)}.")
    for name in names:
        if not {"kernel"} <= set(params[name]) <= {"kernel", "bias"}:
            raise ValueError(
                f"`params['{name}']` must have a kernel and may have a bias, got "
                f"{sorted(params[name])}."
            )
        path = f"params['{name}']"
        check_shape(f"{path}['kernel']", params[name]["kernel"], shapes[name])
        if "bias" in params[name]:
            check_shape(f"{path}['bias']", params[name]["bias"], shapes[name][1:])


def check_features(x: Any, *carry: Any) -> tuple[tuple[int, ...], int]:
    """Returns the batch axes and the width of the input, after checking them.

    Args:
      x: input of the step.
      *carry: arrays of the carry; the first one has the batch axes.
    """
    if jnp.ndim(x) < 1 or any(jnp.ndim(leaf) < 1 for leaf in carry):
        raise ValueError(
            "`x` and `carry` must have a feature axis, got the shapes "
            f"{jnp.shape(x)} and {[jnp.shape(leaf) for leaf in carry]}."
        )
    batch = jnp.shape(carry[0])[:-1]
    check_shape("x", x, (*batch, jnp.shape(x)[-1]))
    return batch, jnp.shape(x)[-1]


def check_pair(name: str, pair: Any, words: str = "(c, h)") -> None:
    """Raises ValueError unless a value is a pair."""
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise ValueError(
            f"`{name}` must be a pair {words}, got {jax.tree.map(jnp.shape, pair)}."
        )


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
        names = " or ".join(f"`{name}`" for name in given)
        raise ValueError(
            f"Pass {names}: with no derivative of the loss, all gradients are 0."
        )
    for name, (d, like) in given.items():
        if d is not None:
            check_shape(name, d, jnp.shape(like))
    return [jnp.zeros_like(like) if d is None else d for d, like in given.values()]
