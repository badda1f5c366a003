"""Initialisers that JAX does not have, or has only for some dtypes.

Cells take them as `kernel_init`, `recurrent_kernel_init` and `bias_init`; where biases
of gates differ, as a `ByGate`.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax.typing import Dtype, Initializer
from jax.nn import initializers

from rnncells.checks import check_count


def orthogonal(scale: float = 1.0, column_axis: int = -1) -> Initializer:
    """Returns JAX's `orthogonal`, which this makes work in half precision too.

    bfloat16 and float16 matrices are drawn in float32 and rounded, since JAX has no
    QR decomposition in half precision. All other dtypes give JAX's own values.

    Args:
      scale: factor of the orthogonal matrix.
      column_axis: axis of the columns, which are orthonormal.

    Reference: Saxe, McClelland and Ganguli, 2013, https://arxiv.org/abs/1312.6120.
    """
    draw = initializers.orthogonal(scale, column_axis)

    def init(key: jax.Array, shape: tuple[int, ...], dtype: Dtype = jnp.float32):
        is_half = jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits < 32
        return draw(key, shape, jnp.float32 if is_half else dtype).astype(dtype)

    return init


def uniform(limit: float) -> Initializer:
    """Returns an initialiser that draws uniformly from `[-limit, limit)`."""

    def init(key: jax.Array, shape: tuple[int, ...], dtype: Dtype = jnp.float32):
        return jax.random.uniform(key, shape, dtype, -limit, limit)

    return init


@dataclasses.dataclass(frozen=True)
class ByGate:
    """Initialisers of biases, by the name of the gate.

    The gates named here get one key, if the cell declares them together, so that what
    is drawn for one can be used for another.

    >>> import jax, rnncells
    >>> from rnncells.initializers import ByGate
    >>> bias_init = ByGate({"hf": jax.nn.initializers.ones})
    >>> cell = rnncells.LSTMCell(features=2, bias_init=bias_init)
    >>> carry = cell.initialize_carry(None, (3,))
    >>> params = cell.init(jax.random.key(0), carry, jax.numpy.ones(3))["params"]
    >>> params["hf"]["bias"], params["hi"]["bias"]
    (Array([1., 1.], dtype=float32), Array([0., 0.], dtype=float32))

    Attributes:
      gates: initialisers by name, as in the parameter tree.
      default: of all other gates.

    Raises:
      TypeError: `gates` that are no initialisers by name.
      ValueError: when a cell is initialised that has a bias of none of the names, if
        the others are 0.
    """

    gates: Mapping[str, Initializer]
    default: Initializer = initializers.zeros

    def __post_init__(self):
        inits = [*getattr(self.gates, "values", list)(), self.default]
        if not isinstance(self.gates, Mapping) or not all(map(callable, inits)):
            raise TypeError(
                f"`gates` must be initialisers by the name of the gate, got {self!r}."
            )

    def __hash__(self):
        return hash((frozenset(self.gates.items()), self.default))

    def __call__(
        self, key: jax.Array, shape: tuple[int, ...], dtype: Dtype = jnp.float32
    ) -> jax.Array:
        """Draws with the initialiser of all other gates."""
        return self.default(key, shape, dtype)


def forget_gate(value: float = 1.0) -> ByGate:
    """Returns biases of 0, but for `value` at the forget gate of an LSTM.

    The sigmoid of 1 is 0.73: the cell begins by keeping most of its state.

    Reference: Gers, Schmidhuber and Cummins, 2000,
    https://doi.org/10.1162/089976600300015015; the 1 is from Jozefowicz et al., 2015,
    https://proceedings.mlr.press/v37/jozefowicz15.html.
    """
    return ByGate({"hf": initializers.constant(value)})


def chrono(longest: int) -> ByGate:
    r"""Returns biases that make an LSTM or GRU keep its state for 1 to `longest` steps.

    .. math::
        b_f \sim \log(U([1, T_{max} - 1])), \quad b_i = -b_f

    for the gates of an LSTM, and :math:`b_z \sim \log(U([1, T_{max} - 1]))` for the
    gate z of a GRU, which keeps the state where it is 1. Other biases are 0.

    Args:
      longest: :math:`T_{max}`, the range of the dependencies in steps, at least 3.

    Raises:
      ValueError: `longest` that is less.
      TypeError: no int.

    Reference: Tallec and Ollivier, 2018, https://arxiv.org/abs/1804.11188, equation 16
    for the LSTM; the gate of the GRU in the paper is 1 - z.
    """
    check_count("chrono", "longest", longest, least=3)

    def log_uniform(key, shape, dtype=jnp.float32):
        return jnp.log(jax.random.uniform(key, shape, dtype, 1, longest - 1))

    def negative(key, shape, dtype=jnp.float32):
        return -log_uniform(key, shape, dtype)

    return ByGate({"hf": log_uniform, "hi": negative, "iz": log_uniform})


def pytorch(features: int) -> dict[str, Initializer]:
    r"""Returns the arguments with which parameters start as those of PyTorch do.

    All are uniform in :math:`[-1 / \sqrt{H}, 1 / \sqrt{H})`, H being `features`; of the
    two biases that PyTorch has where one is enough, we draw the sum.

    >>> import rnncells
    >>> cell = rnncells.LSTMCell(64, **rnncells.initializers.pytorch(64))
    >>> layer = rnncells.GRU(64, num_layers=2, **rnncells.initializers.pytorch(64))

    Args:
      features: width of the state, PyTorch's `hidden_size`, at least 1.

    Raises:
      ValueError: `features` below 1.
      TypeError: no int.

    Source: `torch.nn.LSTM`, `GRU`, `RNN`, and their cells.
    """
    check_count("pytorch", "features", features)
    draw = uniform(int(features) ** -0.5)

    def summed(key, shape, dtype=jnp.float32):
        return sum(draw(each, shape, dtype) for each in jax.random.split(key))

    # Both biases of a GRU's n count, so that both are there.
    biases = ByGate({"in": draw, "hn": draw}, default=summed)
    return {"kernel_init": draw, "recurrent_kernel_init": draw, "bias_init": biases}


def of_gate(init: Initializer, name: str, key: Any) -> Initializer:
    """Returns the initialiser of one gate's bias, with the key of all gates.

    Args:
      init: a `ByGate`, or an initialiser of every gate, which gets its own key.
      name: of the gate.
      key: the key that the gates named by a `ByGate` share.
    """
    if not isinstance(init, ByGate) or name not in init.gates:
        return init
    own = init.gates[name]
    return lambda _, shape, dtype=jnp.float32: own(key, shape, dtype)


def check_by_gate(cell: str, init: Any, names: list[str]) -> None:
    """Raises if a `ByGate` names no bias that a cell has, and all would be 0.

    Args:
      cell: its name.
      init: a `ByGate`, or anything else.
      names: of the gates that have biases.
    """
    if not isinstance(init, ByGate) or init.default is not initializers.zeros:
        return
    if not init.gates.keys() & set(names):
        raise ValueError(
            f"`bias_init` of {cell} must name gates that have biases, {sorted(names)}, "
            f"got a ByGate of {sorted(init.gates)}."
        )
