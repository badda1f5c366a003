"""The networks of the paper, and their truncated gradient, as functions of arrays.

Hochreiter and Schmidhuber, 1997, section 4 and appendix A.1. All arrays have a last
axis `trials`: networks of equal shape that learn in parallel, each on its own
sequences. With this axis last, and with small sums written out, a step is a few loops
over contiguous numbers. A small matrix product for each trial takes several times as
long.

The truncated gradient flows back in time only through the cells' states, with factor 1.
Therefore it needs no backward pass: traces of the weights' effect on the states
(equations 25 and 27) are computed along with the sequence, and used where an error
occurs. `tests/test_network.py` compares with `rnncells.LSTM1997Cell` and `jax.grad`.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

Array = jax.Array


class Weights(NamedTuple):
    """The weights of a network; None for weights that it does not have.

    Hidden units are in the order input gates, cells (block by block), output gates.

    Attributes:
      inputs: from input to hidden units, `(inputs, units, trials)`.
      hidden: from the previous step's hidden units to hidden units, `(sources, units,
        trials)`. Sources are in the order cells, input gates, output gates.
      bias: biases of hidden units, `(units, trials)`; 0 for units without bias.
      outputs: from cells to output units, `(outputs, cells, trials)`.
      output_bias: biases of output units, `(outputs, trials)`.
      direct: from input to output units, `(inputs, outputs, trials)`.
    """

    inputs: Array
    hidden: Array | None
    bias: Array | None
    outputs: Array
    output_bias: Array | None
    direct: Array | None


class State(NamedTuple):
    """The state of a network between steps, initially 0.

    Attributes:
      s: internal states of the cells, `(cells, trials)`.
      y: activations of cells, input gates and output gates, `(sources, trials)`.
    """

    s: Array
    y: Array


def logistic(x: Array) -> tuple[Array, Array]:
    """Returns f(x) = 1 / (1 + exp(-x)) and its slope, without cancellation to 0."""
    e = jnp.exp(-jnp.abs(x))
    r = 1 / (1 + e)
    return jnp.where(x >= 0, r, e * r), e * r * r


def centred(limit: float) -> Callable[[Array], tuple[Array, Array]]:
    """Returns the paper's function h or g, with values in [-limit, limit]."""

    def squash(x: Array) -> tuple[Array, Array]:
        f, slope = logistic(x)
        return limit * (2 * f - 1), 2 * limit * slope

    return squash


def identity(x: Array) -> tuple[Array, Array]:
    return x, jnp.ones_like(x)


# By their names in configs; each returns value and slope.
SQUASHING = {
    "logistic": logistic,
    "identity": identity,
    "1": centred(1.0),
    "2": centred(2.0),
    "4": centred(4.0),
}


@dataclasses.dataclass(frozen=True)
class Network:
    """The architecture of a network; all values are known.

    Attributes:
      inputs: number of input units.
      outputs: number of output units.
      blocks: number of memory cell blocks.
      block_size: cells of each block.
      g: squashing of a cell's net input, a name in `SQUASHING`.
      h: squashing of a cell's state.
      output_unit: squashing of output units.
      output_slope: whether the error of an output unit has the factor f'(net_k) of
        equation 19.
      output_slope_offset: added to this factor.
      output_gates: whether blocks have output gates; otherwise y^out is 1.
      recurrent: whether hidden units have recurrent connections.
      gate_feedback: whether hidden units get the activations of gates, not only cells.
      biases: kinds of hidden units with biases: `"in"`, `"cell"`, `"out"`.
      output_bias: whether output units have biases.
      direct: whether input units are connected to output units.
      input_gate_offset: constants added to the net input of input gates: none, or one
        number for each block.
      is_symbolic: whether inputs are indices of symbols, for one-hot input units.
    """

    inputs: int
    outputs: int
    blocks: int
    block_size: int
    g: str = "2"
    h: str = "1"
    output_unit: str = "logistic"
    output_slope: bool = True
    output_slope_offset: float = 0.0
    output_gates: bool = True
    recurrent: bool = True
    gate_feedback: bool = True
    biases: tuple[str, ...] = ("in", "cell", "out")
    output_bias: bool = True
    direct: bool = False
    input_gate_offset: tuple[float, ...] = ()
    is_symbolic: bool = False

    @property
    def cells(self) -> int:
        return self.blocks * self.block_size

    @property
    def widths(self) -> dict[str, int]:
        """Number of hidden units of each kind, in their order."""
        out = self.blocks if self.output_gates else 0
        return {"in": self.blocks, "cell": self.cells, "out": out}

    @property
    def units(self) -> int:
        return sum(self.widths.values())

    @property
    def sources(self) -> int:
        """Number of hidden units that are inputs of hidden units."""
        if not self.recurrent:
            return 0
        return self.units if self.gate_feedback else self.cells

    def split(self, units: Array) -> tuple[Array, Array, Array]:
        """Splits an array of units into input gates, cells and output gates."""
        first, last = self.blocks, self.blocks + self.cells
        return units[:first], units[first:last], units[last:]

    def to_cells(self, gates: Array) -> Array:
        """Repeats each block's gate for the cells of the block."""
        blocks, *rest = gates.shape
        wide = jnp.broadcast_to(gates[:, None], (blocks, self.block_size, *rest))
        return wide.reshape(self.cells, *rest)

    def to_blocks(self, cells: Array) -> Array:
        """Sums over the cells of each block."""
        return cells.reshape(self.blocks, self.block_size, *cells.shape[1:]).sum(1)

    def has_bias(self) -> Array:
        """Returns 1 for the hidden units that have a bias, else 0: `(units, 1)`."""
        has = [[float(k in self.biases)] * n for k, n in self.widths.items()]
        return jnp.array(sum(has, []))[:, None]


def weighted(weights: Array, values: Array) -> Array:
    """Returns the sum of weights times values over their first axis, written out."""
    total = weights[0] * values[0]
    for weight, value in zip(weights[1:], values[1:], strict=True):
        total = total + weight * value
    return total


def count(network: Network, weights: Weights) -> int:
    """Returns the number of trainable weights of one trial."""
    sizes = [math.prod(leaf.shape[:-1]) for leaf in jax.tree.leaves(weights)]
    widths = network.widths
    without = sum(widths[kind] for kind in widths.keys() - set(network.biases))
    return sum(sizes) - (without if weights.bias is not None else 0)


def start(network: Network, trials: int, dtype=jnp.float32) -> State:
    """Returns the state before the first step."""
    return State(
        jnp.zeros((network.cells, trials), dtype),
        jnp.zeros((network.sources or network.units, trials), dtype),
    )


def project(network: Network, w: Weights, inputs: Array) -> Array:
    """Returns the net inputs of hidden units from inputs and biases, for many steps.

    Args:
      network: the architecture.
      w: the weights.
      inputs: `(time, inputs, trials)`, or symbols `(time, trials)`.

    Returns:
      `(time, units, trials)`.
    """
    if network.is_symbolic:
        net = look_up(w.inputs, inputs)
    else:
        net = weighted(w.inputs[:, None], jnp.moveaxis(inputs, 1, 0)[:, :, None])
    if w.bias is not None:
        net = net + w.bias
    if network.input_gate_offset:
        offset = jnp.zeros(network.units)
        offset = offset.at[: network.blocks].set(jnp.array(network.input_gate_offset))
        net = net + offset[:, None]
    return net


def look_up(weights: Array, symbols: Array) -> Array:
    """Returns the weights of each symbol's input unit.

    Args:
      weights: `(inputs, units, trials)`, or `(inputs, units, 1)` of one trial.
      symbols: `(*time, trials)`.

    Returns:
      `(*time, units, trials)`.
    """
    trials = jnp.arange(symbols.shape[-1]) if weights.shape[-1] > 1 else 0
    rows = weights[symbols, :, trials]
    return jnp.moveaxis(rows, -1, -2)


class Step(NamedTuple):
    """The results of one step of the hidden layer, `(..., trials)` each.

    Attributes:
      state: the state after the step.
      y_out: activations of output gates, one for each cell; None without them.
      slope_out: slopes of output gates, one for each block.
      by_cell: derivative of a cell's state by its net input: g'(net_c) y^in.
      by_gate: derivative of it by the gate's net input: g(net_c) f'(net_in).
    """

    state: State
    y_out: Array | None
    slope_out: Array | None
    by_cell: Array
    by_gate: Array


def step(network: Network, w: Weights, projected: Array, state: State) -> Step:
    """Runs the hidden layer for one step.

    Args:
      network: the architecture.
      w: the weights.
      projected: result of `project` for this step, `(units, trials)`.
      state: the state before the step.
    """
    net = projected
    if network.recurrent:
        net = net + weighted(w.hidden, state.y)
    net_in, net_c, net_out = network.split(net)
    y_in, slope_in = logistic(net_in)
    g, slope_g = SQUASHING[network.g](net_c)
    s = state.s + network.to_cells(y_in) * g
    h, _ = SQUASHING[network.h](s)
    y_out = slope_out = None
    y = [h, y_in]
    if network.output_gates:
        gates, slope_out = logistic(net_out)
        y_out = network.to_cells(gates)
        y = [y_out * h, y_in, gates]
    if network.recurrent and not network.gate_feedback:
        y = y[:1]
    return Step(
        State(s, jnp.concatenate(y)),
        y_out,
        slope_out,
        slope_g * network.to_cells(y_in),
        g * network.to_cells(slope_in),
    )


def read_out(
    network: Network, w: Weights, y_c: Array, inputs: Array
) -> tuple[Array, Array]:
    """Returns the activations of output units and their slopes, `(outputs, trials)`.

    Args:
      network: the architecture.
      w: the weights.
      y_c: activations of the cells.
      inputs: inputs of this step, `(inputs, trials)`, or symbols `(trials,)`.
    """
    net = weighted(jnp.moveaxis(w.outputs, 1, 0), y_c[:, None])
    if w.output_bias is not None:
        net = net + w.output_bias
    if w.direct is not None:
        net = net + (
            look_up(w.direct, inputs)
            if network.is_symbolic
            else weighted(w.direct, inputs[:, None])
        )
    y, slope = SQUASHING[network.output_unit](net)
    if not network.output_slope:
        return y, jnp.ones_like(slope)
    return y, slope + network.output_slope_offset


class Errors(NamedTuple):
    """Equations 19, 21 and 23: errors at one step, `(..., trials)`.

    Attributes:
      k: errors of output units.
      s: errors of the cells' states.
      out: errors of output gates; None without them.
    """

    k: Array
    s: Array
    out: Array | None


def errors(
    network: Network, w: Weights, now: Step, difference: Array, slope: Array
) -> Errors:
    """Returns the errors of one step from target minus output.

    Args:
      network: the architecture.
      w: the weights.
      now: the step.
      difference: target minus output, 0 where there is no target.
      slope: slopes of the output units.
    """
    e_k = slope * difference
    d = weighted(w.outputs, e_k[:, None])
    h, slope_h = SQUASHING[network.h](now.state.s)
    if now.y_out is None:
        return Errors(e_k, slope_h * d, None)
    e_out = now.slope_out * network.to_blocks(h * d)
    return Errors(e_k, now.y_out * slope_h * d, e_out)
