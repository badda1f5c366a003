"""The networks of the paper, and their truncated gradient, as functions of arrays.

Hochreiter and Schmidhuber, 1997, section 4 and appendix A.1. Everything has a last axis
of `trials`: networks of one shape that learn side by side, each its own sequences. It
is last, and small sums are written out, so that one step is a few loops over
neighbouring numbers; a product of small matrices for each trial takes several times as
long.

Nothing but a cell's state links the steps, with factor 1, where the gradient is
truncated. So it needs no way back: traces of what the weights have done to the states
(equations 25 and 27) run along with the sequence, and are used where an error comes.
`tests/test_network.py` compares with `rnncells.LSTM1997Cell` and `jax.grad`.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

Array = jax.Array


class Weights(NamedTuple):
    """The weights of a network; what a network does not have is None.

    Hidden units lie in the order input gates, cells (block by block), output gates.

    Attributes:
      inputs: from input to hidden units, `(inputs, units, trials)`.
      hidden: from hidden to hidden units of the step before: sources in the order
        cells, input gates, output gates: `(sources, units, trials)`.
      bias: of hidden units, `(units, trials)`; 0 for those that have none.
      outputs: from cells to output units, `(outputs, cells, trials)`.
      output_bias: of output units, `(outputs, trials)`.
      direct: from input to output units, `(inputs, outputs, trials)`.
    """

    inputs: Array
    hidden: Array | None
    bias: Array | None
    outputs: Array
    output_bias: Array | None
    direct: Array | None


class State(NamedTuple):
    """What a network holds between steps, and 0 before the first.

    Attributes:
      s: internal states of the cells, `(cells, trials)`.
      y: activations of cells, input gates and output gates, `(sources, trials)`.
    """

    s: Array
    y: Array


def logistic(x: Array) -> tuple[Array, Array]:
    """Returns f(x) = 1 / (1 + exp(-x)) and its slope, which does not cancel to 0."""
    e = jnp.exp(-jnp.abs(x))
    r = 1 / (1 + e)
    return jnp.where(x >= 0, r, e * r), e * r * r


def centred(limit: float) -> Callable[[Array], tuple[Array, Array]]:
    """Returns the function from -limit to limit that the paper calls h, or g."""

    def squash(x: Array) -> tuple[Array, Array]:
        f, slope = logistic(x)
        return limit * (2 * f - 1), 2 * limit * slope

    return squash


def identity(x: Array) -> tuple[Array, Array]:
    return x, jnp.ones_like(x)


# By the names that configs give them; each returns value and slope.
SQUASHING = {
    "logistic": logistic,
    "identity": identity,
    "1": centred(1.0),
    "2": centred(2.0),
    "4": centred(4.0),
}


@dataclasses.dataclass(frozen=True)
class Network:
    """What kind of network it is; all values known.

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
      output_gates: whether blocks have output gates; otherwise y^out is 1.
      recurrent: whether hidden units see each other.
      gate_feedback: whether gates are among the sources of hidden units.
      biases: kinds of hidden units with biases: `"in"`, `"cell"`, `"out"`.
      output_bias: whether output units have biases.
      direct: whether output units see the input units.
      input_gate_offset: added to the net input of input gates, and not trained: none,
        or one number for each block.
      is_symbolic: whether inputs are symbols, of which one input unit is 1, given as
        indices.
    """

    inputs: int
    outputs: int
    blocks: int
    block_size: int
    g: str = "2"
    h: str = "1"
    output_unit: str = "logistic"
    output_slope: bool = True
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
        """Number of hidden units that hidden units see."""
        if not self.recurrent:
            return 0
        return self.units if self.gate_feedback else self.cells

    def split(self, units: Array) -> tuple[Array, Array, Array]:
        """Returns what is of input gates, of cells, and of output gates."""
        first, last = self.blocks, self.blocks + self.cells
        return units[:first], units[first:last], units[last:]

    def to_cells(self, gates: Array) -> Array:
        """Repeats each block's gate for the cells of the block."""
        blocks, *rest = gates.shape
        wide = jnp.broadcast_to(gates[:, None], (blocks, self.block_size, *rest))
        return wide.reshape(self.cells, *rest)

    def to_blocks(self, cells: Array) -> Array:
        """Adds up what is of the cells of each block."""
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
    """Returns what inputs give to hidden units, with their biases, for many steps.

    Args:
      network: its kind.
      w: its weights.
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
    """Returns the weights from the input unit of each symbol.

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
    """What one step of the hidden layer computes, `(..., trials)` each.

    Attributes:
      state: after it.
      y_out: activations of output gates, one for each cell; None without.
      slope_out: their slopes, one for each block.
      by_cell: what a cell's net input gives to its state: g'(net_c) y^in.
      by_gate: what the net input of its gate gives: g(net_c) f'(net_in).
    """

    state: State
    y_out: Array | None
    slope_out: Array | None
    by_cell: Array
    by_gate: Array


def step(network: Network, w: Weights, projected: Array, state: State) -> Step:
    """Runs the hidden layer for one step.

    Args:
      network: its kind.
      w: its weights.
      projected: of this step, `(units, trials)`.
      state: after the step before.
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
      network: its kind.
      w: its weights.
      y_c: activations of the cells.
      inputs: of this step: `(inputs, trials)`, or symbols `(trials,)`.
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
    return y, slope if network.output_slope else jnp.ones_like(slope)


class Errors(NamedTuple):
    """Equations 19, 21 and 23: errors at one step, `(..., trials)`.

    Attributes:
      k: of output units.
      s: of the cells' states.
      out: of output gates; None without.
    """

    k: Array
    s: Array
    out: Array | None


def errors(
    network: Network, w: Weights, now: Step, difference: Array, slope: Array
) -> Errors:
    """Returns the errors of one step from target minus output.

    Args:
      network: its kind.
      w: its weights.
      now: the step.
      difference: target minus output, 0 where there is no target.
      slope: of output units.
    """
    e_k = slope * difference
    d = weighted(w.outputs, e_k[:, None])
    h, slope_h = SQUASHING[network.h](now.state.s)
    if now.y_out is None:
        return Errors(e_k, slope_h * d, None)
    e_out = now.slope_out * network.to_blocks(h * d)
    return Errors(e_k, now.y_out * slope_h * d, e_out)
