"""Initializers in addition to those of JAX.

Pass them to cells as `kernel_init`, `recurrent_kernel_init` and `bias_init`. Pass a
`PerGateInit` to initialize the biases of gates differently.
"""

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp
from chex import PRNGKey
from flax.typing import Dtype, Initializer, Shape
from jax import Array
from jax.nn import initializers

from rnncells._checks import check_count
from rnncells.recurrence.pytrees import full_precision


def in_float32(init: Initializer) -> Initializer:
    """Returns an initializer that computes in float32 at least, and rounds once."""

    def rounded(key: PRNGKey, shape: Shape, dtype: Dtype = jnp.float32) -> Array:
        return init(key, shape, full_precision(dtype)).astype(dtype)

    return rounded


def orthogonal(scale: float = 1.0, column_axis: int = -1) -> Initializer:
    """Returns an initializer of orthogonal matrices, for half precision too.

    JAX has no QR decomposition in half precision, so such matrices are drawn in float32
    and rounded. In other dtypes, the values are those of
    `jax.nn.initializers.orthogonal`, whose arguments it has.

    Reference: Saxe, McClelland and Ganguli, 2013, https://arxiv.org/abs/1312.6120.
    """
    return in_float32(initializers.orthogonal(scale, column_axis))


def uniform(limit: float) -> Initializer:
    """Returns an initializer that draws uniformly from `[-limit, limit)`."""
    return between(-limit, limit)


def between(low: float, high: float) -> Initializer:
    """Returns an initializer that draws uniformly from `[low, high)`."""

    def init(key: PRNGKey, shape: Shape, dtype: Dtype = jnp.float32) -> Array:
        return jax.random.uniform(key, shape, dtype, low, high)

    return init


def linspace(start: float, stop: float) -> Initializer:
    """Returns an initializer of evenly spaced numbers along the last axis."""

    @in_float32
    def init(key: PRNGKey, shape: Shape, dtype: Dtype = jnp.float32) -> Array:
        return jnp.broadcast_to(
            jnp.linspace(start, stop, shape[-1], dtype=dtype), shape
        )

    return init


def log_of_uniform(low: float, high: float) -> Initializer:
    """Returns an initializer of logs of uniform numbers in `(low, high]`, low >= 0."""

    @in_float32
    def init(key: PRNGKey, shape: Shape, dtype: Dtype = jnp.float32) -> Array:
        # 1 - u is never 0.
        u = 1 - jax.random.uniform(key, shape, dtype)
        return jnp.log(low + (high - low) * u)

    return init


@dataclasses.dataclass(frozen=True)
class PerGateInit:
    """Initializers of biases by the names of gates.

    The gates named here share one random key, if the cell declares them in one call of
    `gates`. So their biases can depend on the same random numbers.

    >>> import jax, rnncells
    >>> from rnncells.initializers import PerGateInit
    >>> bias_init = PerGateInit({"hf": jax.nn.initializers.ones})
    >>> cell = rnncells.LSTMCell(features=2, bias_init=bias_init)
    >>> carry = cell.initialize_carry(None, (3,))
    >>> params = cell.init(jax.random.key(0), carry, jax.numpy.ones(3))["params"]
    >>> params["hf"]["bias"], params["hi"]["bias"]
    (Array([1., 1.], dtype=float32), Array([0., 0.], dtype=float32))

    Attributes:
      gates: initializers by the name of the gate in the parameter tree.
      default: initializer of the biases of all other gates. Default: zeros.

    Raises:
      TypeError: `gates` does not map names to initializers.
      ValueError: when a cell is initialized: no gate of the cell with a bias is named,
        and `default` is zeros.
    """

    gates: Mapping[str, Initializer]
    default: Initializer = initializers.zeros

    def __post_init__(self) -> None:
        inits = [*getattr(self.gates, "values", list)(), self.default]
        if not isinstance(self.gates, Mapping) or not all(map(callable, inits)):
            raise TypeError(
                f"`gates` must map names of gates to initializers, got {self!r}."
            )

    def __hash__(self) -> int:
        return hash((frozenset(self.gates.items()), self.default))

    def __call__(self, key: PRNGKey, shape: Shape, dtype: Dtype = jnp.float32) -> Array:
        """Draws with `default`."""
        return self.default(key, shape, dtype)


def forget_gate(value: float = 1.0) -> PerGateInit:
    """Returns initializers of LSTM biases: `value` for the forget gate, 0 for others.

    The sigmoid of 1 is 0.73, so at first the cell keeps most of its state.

    Reference: Gers, Schmidhuber and Cummins, 2000,
    https://doi.org/10.1162/089976600300015015; the value 1 is from Jozefowicz et al.,
    2015, https://proceedings.mlr.press/v37/jozefowicz15.html.
    """
    return PerGateInit({"hf": initializers.constant(value)})


def chrono(longest: int) -> PerGateInit:
    """Returns initializers of biases for time scales of 1 to `longest` steps.

    The LSTM or GRU keeps its state for that many steps at first. The forget and input
    gate of an LSTM, and the gate z of a GRU, which keeps the state if it is 1, have the
    biases::

        b_f, b_z ~ log(U([1, T_max - 1]))
        b_i = -b_f

    Other biases are 0.

    Args:
      longest: T_max, the longest dependency in steps: an int of at least 3, else a
        TypeError or ValueError is raised.

    Reference: Tallec and Ollivier, 2018, https://arxiv.org/abs/1804.11188, equation 16
    for the LSTM. The gate of the GRU in the paper is our 1 - z.
    """
    check_count("chrono", "longest", longest, least=3)

    @in_float32
    def log_uniform(key: PRNGKey, shape: Shape, dtype: Dtype = jnp.float32) -> Array:
        return jnp.log(jax.random.uniform(key, shape, dtype, 1, longest - 1))

    def negative(key: PRNGKey, shape: Shape, dtype: Dtype = jnp.float32) -> Array:
        return -log_uniform(key, shape, dtype)

    return PerGateInit({"hf": log_uniform, "hi": negative, "iz": log_uniform})


def pytorch(features: int) -> dict[str, Initializer]:
    """Returns initializers with the distributions of PyTorch, as keyword arguments.

    All parameters are uniform in [-1 / √H, 1 / √H), where H is `features`. Where
    PyTorch has two biases and our cells have one, the initializer draws the sum of two.

    >>> import rnncells
    >>> cell = rnncells.LSTMCell(64, **rnncells.initializers.pytorch(64))
    >>> layer = rnncells.GRU(64, num_layers=2, **rnncells.initializers.pytorch(64))

    Args:
      features: width of the state, PyTorch's `hidden_size`: an int of at least 1, else
        a TypeError or ValueError is raised.

    Source: `torch.nn.LSTM`, `GRU`, `RNN`, and their cells.
    """
    check_count("pytorch", "features", features)
    draw = uniform(int(features) ** -0.5)

    def summed(key: PRNGKey, shape: Shape, dtype: Dtype = jnp.float32) -> Array:
        first, second = jax.random.split(key)
        return draw(first, shape, dtype) + draw(second, shape, dtype)

    # The gate n of a GRU has two biases here too.
    biases = PerGateInit({"in": draw, "hn": draw}, default=summed)
    return {"kernel_init": draw, "recurrent_kernel_init": draw, "bias_init": biases}
