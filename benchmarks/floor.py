"""The floor: the matrix products that every layer needs, and almost nothing else.

Forward: one product of all inputs with their weights, and one product of the state with
its weights at each step. Backward: one product with the transposed weights at each
step, and one product for each of the gradients by both weights and by the inputs. The
cell is linear, the mean of its gates.

ConvLSTM has no floor, because the speed of a convolution depends on the number of
images.
"""

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.contenders import Contender, compile_contender, make_inputs
from benchmarks.sizes import Size

GATES = {"LSTM": 4, "GRU": 3}


def make_floor(cell: str, size: Size, mode: str) -> Contender:
    """Returns the matrix products of a cell as a contender."""
    function = forward if mode == "forward" else gradient
    return compile_contender("floor", function, *make_arguments(cell, size))


def make_arguments(cell: str, size: Size) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns the weights of inputs, the weights of the state, and the inputs."""
    rng = np.random.default_rng(0)

    def weights(width):
        # Scaled so that states do not vanish, as CPUs are slow on subnormal numbers.
        values = rng.standard_normal((width, GATES[cell] * size.features))
        return jnp.asarray(values * width**-0.5, size.dtype)

    inputs = jnp.asarray(make_inputs(size), size.dtype)
    return weights(size.features_in), weights(size.features), inputs


def forward(w: jax.Array, u: jax.Array, x: jax.Array) -> jax.Array:
    """Returns the states after each step.

    Args:
      w: weights of the inputs.
      u: weights of the state, for each gate.
      x: inputs `(time, batch, features_in)`.
    """
    return _states(w, u, x)[1]


def gradient(
    w: jax.Array, u: jax.Array, x: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns the gradient of the sum of squared states by all arguments.

    Args:
      w: weights of the inputs.
      u: weights of the state, for each gate.
      x: inputs `(time, batch, features_in)`.
    """
    before, after = _states(w, u, x)
    gates = _gates(u)
    back = u.T

    def step(dh, h):
        d = jnp.concatenate([(dh + 2 * h) / gates] * gates, axis=-1)
        return d @ back, d

    _, d = jax.lax.scan(step, jnp.zeros_like(after[0]), after, reverse=True)
    d = _rows(d)
    dx = (d @ w.T).reshape(x.shape)
    return _rows(x).T @ d, _rows(before).T @ d, dx


def _states(w: jax.Array, u: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the states before and after each step."""
    gates = _gates(u)
    projected = (_rows(x) @ w).reshape(*x.shape[:2], -1)

    def step(h, projected):
        a = projected + h @ u
        after = sum(jnp.split(a, gates, axis=-1)) / gates
        return after, (h, after)

    return jax.lax.scan(step, jnp.zeros((x.shape[1], len(u)), x.dtype), projected)[1]


def _gates(u: jax.Array) -> int:
    width, gates_width = u.shape
    return gates_width // width


def _rows(x: jax.Array) -> jax.Array:
    """Merges the axes of steps and batch."""
    return x.reshape(-1, x.shape[-1])
