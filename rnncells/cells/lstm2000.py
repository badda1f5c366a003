"""The memory cells of Hochreiter and Schmidhuber with forget gates, 2000."""

from collections.abc import Sequence

from chex import ArrayTree
from jax import Array

from rnncells.cells.contract.carry import Carry
from rnncells.cells.lstm1997 import LSTM1997Cell, Units


class LSTM2000Cell(LSTM1997Cell):
    """The LSTM of 2000: memory cell blocks with forget gates.

    The cells v = 1..S of block j share an input gate, a forget gate φ and an output
    gate. y_{t-1} are the activations of all hidden units (cells, input gates, forget
    gates, output gates) at the previous step. One step computes, for each block j and
    each of its cells v::

        y^in_t[j]  = f(W_in[j] x_t + U_in[j] y_{t-1} + b_in[j])
        y^φ_t[j]   = f(W_φ[j] x_t + U_φ[j] y_{t-1} + b_φ[j])
        y^out_t[j] = f(W_out[j] x_t + U_out[j] y_{t-1} + b_out[j])
        net_t[j,v] = W_c[j,v] x_t + U_c[j,v] y_{t-1} + b_c[j,v]
        s_t[j,v]   = y^φ_t[j] · s_{t-1}[j,v] + y^in_t[j] · g(net_t[j,v])
        y^c_t[j,v] = y^out_t[j] · h(s_t[j,v])

    f is the logistic function, g = 4f - 2 and h = 2f - 1. The carry is (s_t, y_t),
    `(*batch, features)` and `(*batch, features + 3 * blocks)`; the output is y^c_t,
    `(*batch, features)`. Cells lie block by block.

    By default the gradient is truncated as in the paper and in `LSTM1997Cell`: errors
    flow back in time only through s_t, scaled by the forget gates.

    >>> import jax, jax.numpy as jnp, rnncells
    >>> cell, x = rnncells.LSTM2000Cell(blocks=2, block_size=2), jnp.ones((5, 3))
    >>> carry = cell.initialize_carry(jax.random.key(0), x)
    >>> (carry, y), params = cell.init_with_output(jax.random.key(1), carry, x)
    >>> y.shape
    (5, 4)

    Attributes, in addition to those of `LSTM1997Cell`:
      biases: the kinds of units that have biases: some of `"in"` (input gates),
        `"forget"`, `"cell"` and `"out"` (output gates). Default: all of them.
      forget_gate_bias: initial bias of each block's forget gate; None draws them. The
        paper uses positive values, so that a cell keeps its state at first.
        Default: None.

    Reference: Gers, Schmidhuber and Cummins, 2000,
    https://doi.org/10.1162/089976600300015015. Parameters: `ii if ig io` hold W of
    input gates, forget gates, cells and output gates, `hi hf hg ho` hold U and b.
    `LSTMCell` differs: it has no blocks, its activation function is tanh, only cells
    are fed back, and its gradient is the full one.
    """

    biases: Sequence[str] = ("in", "forget", "cell", "out")
    forget_gate_bias: Sequence[float] | None = None

    @property
    def hidden_units(self) -> tuple[Units, ...]:
        gates_in, *other_units = super().hidden_units
        forget_gates = Units("forget", "f", gates_in.width, "forget_gate_bias")
        return gates_in, forget_gates, *other_units

    def recur(self, carry: Carry, projected: ArrayTree) -> tuple[Carry, Array]:
        s, y = carry
        net_in, net_forget, net_c, net_out = self._net(y, projected)
        y_in = self.gate_fn(net_in)
        y_forget = self.gate_fn(net_forget)
        y_out = self.gate_fn(net_out)
        s = self._to_cells(y_forget) * s + self._to_cells(y_in) * self.g(net_c)
        return self._emit(s, y_in, y_forget, y_out)
