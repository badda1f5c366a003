"""The memory cells of Hochreiter and Schmidhuber, 1997."""

from collections.abc import Callable, Sequence
from dataclasses import field
from itertools import accumulate
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from chex import ArrayTree
from flax.typing import Dtype, Initializer
from jax import Array

from rnncells import initializers
from rnncells._checks import check_count
from rnncells.cells.contract.base import RNNCellBase
from rnncells.cells.contract.carry import Carry, ShapeTree

HIDDEN_UNITS = ("in", "cell", "out")


class Units(NamedTuple):
    """The hidden units of one kind."""

    kind: str  # as in the field `biases` of the cell
    letter: str  # the second of the names of their parameters
    width: int  # number of units
    bias: str | None = None  # the cell's field with their initial biases


def g(x: Array) -> Array:
    """Maps the net input of a cell to (-2, 2), as in appendix A.1 of the paper."""
    return 4 * nn.sigmoid(x) - 2


def h(x: Array) -> Array:
    """Maps the state of a cell to (-1, 1), as in appendix A.1 of the paper."""
    return 2 * nn.sigmoid(x) - 1


class LSTM1997Cell(RNNCellBase):
    """The original LSTM: memory cell blocks without forget gates.

    The cells v = 1..S of block j share an input gate and an output gate. y_{t-1} are
    the activations of all hidden units (cells, input gates, output gates) at the
    previous step. One step computes, for each block j and each of its cells v::

        y^in_t[j]  = f(W_in[j] x_t + U_in[j] y_{t-1} + b_in[j])
        y^out_t[j] = f(W_out[j] x_t + U_out[j] y_{t-1} + b_out[j])
        net_t[j,v] = W_c[j,v] x_t + U_c[j,v] y_{t-1} + b_c[j,v]
        s_t[j,v]   = s_{t-1}[j,v] + y^in_t[j] · g(net_t[j,v])
        y^c_t[j,v] = y^out_t[j] · h(s_t[j,v])

    f is the logistic function, g = 4f - 2 and h = 2f - 1. The carry is (s_t, y_t),
    `(*batch, features)` and `(*batch, features + 2 * blocks)`; the output is y^c_t,
    `(*batch, features)`. Cells lie block by block.

    By default the gradient is truncated as in the paper: an error that reaches the net
    input of a gate or a cell changes the weights of that unit and is not propagated
    further. So errors flow back in time only through s_t. The outputs are the same with
    and without truncation.

    >>> import jax, jax.numpy as jnp, rnncells
    >>> cell, x = rnncells.LSTM1997Cell(blocks=2, block_size=2), jnp.ones((5, 3))
    >>> carry = cell.initialize_carry(jax.random.key(0), x)
    >>> (carry, y), params = cell.init_with_output(jax.random.key(1), carry, x)
    >>> y.shape
    (5, 4)

    Attributes:
      blocks: number of memory cell blocks; None: `features / block_size`. Default:
        None.
      block_size: number of cells in each block, S. Default: 1.
      weight_range: weights, and biases without a given value, are drawn uniformly from
        `[-weight_range, weight_range)`: 0.2 in the paper's Experiments 1 and 2, 0.1 in
        3 to 6. Default: 0.1.
      input_gate_bias: initial bias of each block's input gate; None draws them.
        Default: None.
      output_gate_bias: initial bias of each block's output gate; None draws them.
        Default: None.
      biases: the kinds of units that have biases: some of `"in"` (input gates),
        `"cell"` and `"out"` (output gates). Default: all of them.
      gate_feedback: whether y_{t-1} contains the gates, as in the paper's fully
        connected hidden layer. If not, it contains only the cells, and the second part
        of the carry is `(*batch, features)`. Default: True.
      truncate_gradient: whether the gradient is truncated as in the paper; False gives
        full backpropagation through time. Default: True.
      gate_fn: activation function of the gates, f in the equations. Default: sigmoid.
      g: activation function of a cell's net input. Default: 4 sigmoid(x) - 2.
      h: activation function of a cell's state. Default: 2 sigmoid(x) - 1.
      dtype: dtype of the computation; None promotes inputs and parameters.
        Default: None.
      param_dtype: dtype of the parameters and of the carry. Default: float32.
      carry_init: initializer of the carry, which is 0 in the paper. Default: zeros.
      features: number of cells, the width of the output; None: `blocks * block_size`.
        Default: None.

    Raises:
      TypeError: neither `blocks` nor `features` is given, or a number is not an int.
      ValueError: `features` is not `blocks * block_size`; a gate bias has not one value
        for each block, or `biases` lacks its kind; a field is out of range.

    Reference: Hochreiter and Schmidhuber, 1997,
    https://doi.org/10.1162/neco.1997.9.8.1735, section 4 and appendix A.1. The
    appendix delays every unit by a step. Here, as in the paper's experiments, gates and
    cells read the input of the same step. Parameters: `ii ig io` hold W of input
    gates, cells and output gates, `hi hg ho` hold U and b.
    """

    blocks: int | None = None
    block_size: int = 1
    weight_range: float = 0.1
    input_gate_bias: Sequence[float] | None = None
    output_gate_bias: Sequence[float] | None = None
    biases: Sequence[str] = HIDDEN_UNITS
    gate_feedback: bool = True
    truncate_gradient: bool = True
    gate_fn: Callable[[Array], Array] = nn.sigmoid
    g: Callable[[Array], Array] = g
    h: Callable[[Array], Array] = h
    dtype: Dtype | None = None
    param_dtype: Dtype = jnp.float32
    carry_init: Initializer = nn.initializers.zeros_init()
    features: int | None = field(default=None, kw_only=True)

    num_feature_dims = 1

    def __post_init__(self) -> None:
        self._set_sizes()
        if not self.weight_range > 0:
            raise ValueError(f"`weight_range` must be > 0, got {self.weight_range!r}.")
        kinds = [units.kind for units in self.hidden_units]
        for kind in [self.biases] if isinstance(self.biases, str) else self.biases:
            if kind not in kinds:
                raise ValueError(f"`biases` must contain only {kinds}, got {kind!r}.")
        for units in self.hidden_units:
            if units.bias is not None:
                self._check_bias(units.bias, units.kind)
        super().__post_init__()

    @nn.nowrap
    def clone(self, **updates: Any) -> "LSTM1997Cell":
        """Returns a copy with other fields; a new size leaves the other size open."""
        sizes = {"blocks", "block_size"} & updates.keys()
        if sizes and "features" not in updates:
            updates["features"] = None
            updates.setdefault("blocks", self.blocks)
        elif "features" in updates and not sizes:
            updates["blocks"] = None
        return super().clone(**updates)

    @property
    def hidden_units(self) -> tuple[Units, ...]:
        """The kinds of hidden units, in the order of their net inputs."""
        # `__post_init__` sets both sizes.
        assert self.blocks is not None and self.features is not None
        return (
            Units("in", "i", self.blocks, "input_gate_bias"),
            Units("cell", "g", self.features),
            Units("out", "o", self.blocks, "output_gate_bias"),
        )

    def carry_shape(self, input_shape: tuple[int, ...]) -> ShapeTree:
        all_units = sum(units.width for units in self.hidden_units)
        return (self.features,), (all_units if self.gate_feedback else self.features,)

    def setup(self) -> None:
        weights = initializers.uniform(self.weight_range)
        for kind, letter, width, bias in self.hidden_units:
            values = None if bias is None else getattr(self, bias)
            options: dict[str, Any] = {"features": width, "kernel_init": weights}
            self.gates(f"i{letter}", use_bias=False, **options)
            self.gates(
                f"h{letter}",
                bias_init=weights if values is None else _constants(values),
                use_bias=kind in self.biases,
                **options,
            )

    def project(self, inputs: ArrayTree) -> ArrayTree:
        return self.affine(inputs, *self._names("i"))

    def recur(self, carry: Carry, projected: ArrayTree) -> tuple[Carry, Array]:
        s, y = carry
        net_in, net_c, net_out = self._net(y, projected)
        y_in = self.gate_fn(net_in)
        y_out = self.gate_fn(net_out)
        s = s + self._to_cells(y_in) * self.g(net_c)
        return self._emit(s, y_in, y_out)

    @nn.nowrap
    def _set_sizes(self) -> None:
        """Sets `blocks` or `features`, each of which follows from the other."""
        name, size = type(self).__name__, self.block_size
        check_count(name, "block_size", size)
        if self.blocks is not None:
            check_count(name, "blocks", self.blocks)
            if self.features is None:
                self.features = self.blocks * size
        elif self.features is None:
            raise TypeError(f"{name} needs `blocks` or `features`, got neither.")
        check_count(name, "features", self.features)
        if self.blocks is None:
            self.blocks = self.features // size
        if self.blocks * size != self.features:
            raise ValueError(
                f"`features` of {name} must be `blocks` times `block_size`, got "
                f"features={self.features}, blocks={self.blocks}, block_size={size}. "
                "Pass only `blocks` or only `features`."
            )

    @nn.nowrap
    def _names(self, source: str) -> list[str]:
        return [source + units.letter for units in self.hidden_units]

    @nn.nowrap
    def _net(self, y: Array, projected: Array) -> list[Array]:
        """Returns the net inputs of the hidden units, one array for each kind."""
        if self.truncate_gradient:
            y = jax.lax.stop_gradient(y)
        net = self.affine(y, *self._names("h")) + projected
        ends = accumulate(units.width for units in self.hidden_units)
        return jnp.split(net, list(ends)[:-1], axis=-1)

    @nn.nowrap
    def _emit(self, s: Array, *y_gates: Array) -> tuple[Carry, Array]:
        """Returns the new carry and the output; `y_gates` ends with `y_out`."""
        y_c = self._to_cells(y_gates[-1]) * self.h(s)
        y = jnp.concatenate([y_c, *y_gates], axis=-1) if self.gate_feedback else y_c
        return (s, y), y_c

    @nn.nowrap
    def _to_cells(self, gate: Array) -> Array:
        """Repeats the gate of each block for all cells of the block."""
        return jnp.repeat(gate, self.block_size, axis=-1)

    @nn.nowrap
    def _check_bias(self, name: str, unit: str) -> None:
        bias = getattr(self, name)
        if bias is None:
            return
        if not isinstance(bias, Sequence) or len(bias) != self.blocks:
            raise ValueError(
                f"`{name}` must have one value for each of {self.blocks} blocks, got "
                f"{bias!r}."
            )
        if unit not in self.biases:
            raise ValueError(
                f"`{name}` needs units with biases: add {unit!r} to `biases`, got "
                f"{self.biases!r}."
            )


def _constants(values: Sequence[float]) -> Initializer:
    return lambda key, shape, dtype: jnp.asarray(values, dtype)
