"""The memory cells of Hochreiter and Schmidhuber with forget gates, 2000."""

from collections.abc import Sequence

from rnncells.cells.lstm1997 import LSTM1997Cell, Units


class LSTM2000Cell(LSTM1997Cell):
    r"""LSTM as it was when it learned to forget: memory cell blocks with forget gates.

    The cells :math:`c_j^v`, :math:`v = 1..S`, of block :math:`j` share an input gate, a
    forget gate :math:`\varphi_j` and an output gate. With :math:`y_{t-1}` the
    activations of all hidden units (cells, input gates, forget gates, output gates) at
    the step before:

    .. math::
        y^{in_j}_t &= f(W_{in_j} x_t + U_{in_j} y_{t-1} + b_{in_j}) \\
        y^{\varphi_j}_t &= f(W_{\varphi_j} x_t + U_{\varphi_j} y_{t-1}
            + b_{\varphi_j}) \\
        y^{out_j}_t &= f(W_{out_j} x_t + U_{out_j} y_{t-1} + b_{out_j}) \\
        net_{c_j^v,t} &= W_{c_j^v} x_t + U_{c_j^v} y_{t-1} + b_{c_j^v} \\
        s_{c_j^v,t} &= y^{\varphi_j}_t \, s_{c_j^v,t-1}
            + y^{in_j}_t \, g(net_{c_j^v,t}) \\
        y^{c_j^v}_t &= y^{out_j}_t \, h(s_{c_j^v,t})

    with :math:`f` logistic, :math:`g = 4f - 2` and :math:`h = 2f - 1`. The carry is
    :math:`(s_t, y_t)`, `(*batch, features)` and `(*batch, features + 3 * blocks)`; the
    output is :math:`y^c_t`, `(*batch, features)`. Cells lie block by block.

    By default the gradient is the paper's truncated one, as in `LSTM1997Cell`: nothing
    flows back in time but through :math:`s`, where the forget gates scale it.

    >>> import jax, jax.numpy as jnp, rnncells
    >>> cell = rnncells.LSTM2000Cell(
    ...     blocks=2, block_size=2, forget_gate_bias=(0.5, 1.0)
    ... )
    >>> cell.features
    4
    >>> x = jnp.ones((5, 2))
    >>> carry = cell.initialize_carry(jax.random.key(0), x)
    >>> (carry, y), params = cell.init_with_output(jax.random.key(1), carry, x)
    >>> y.shape
    (5, 4)

    Attributes:
      blocks: number of memory cell blocks.
      block_size: cells of each block, :math:`S`.
      weight_range: weights, and biases not set by hand, start uniform in
        `[-weight_range, weight_range)`.
      input_gate_bias: initial bias of each block's input gate; None draws them.
      output_gate_bias: initial bias of each block's output gate; None draws them.
      biases: the kinds of units that have biases, of `"in"` (input gates), `"forget"`,
        `"cell"` and `"out"` (output gates).
      gate_feedback: whether gates too are among the sources :math:`y_{t-1}`. Otherwise
        cells alone are, and the second part of the carry is `(*batch, features)`.
      truncate_gradient: the paper's gradient; False gives full backpropagation.
      gate_fn: :math:`f`.
      g: squashing of a cell's net input.
      h: squashing of a cell's state.
      dtype: dtype of the computation; None promotes inputs and parameters.
      param_dtype: dtype of the parameters and of the carry.
      carry_init: initialiser of the carry, which the paper sets to 0.
      forget_gate_bias: initial bias of each block's forget gate; None draws them. The
        paper sets positive ones, so that a cell starts by remembering.

    Raises:
      ValueError: biases by hand that are not one a block, or for units without biases.

    Reference: Gers, Schmidhuber and Cummins, 2000,
    https://doi.org/10.1162/089976600300015015. Parameters: `ii if ig io` hold :math:`W`
    of input gates, forget gates, cells and output gates, `hi hf hg ho` hold :math:`U`
    and :math:`b`. `LSTMCell` is the form without blocks, with :math:`\tanh`, cells
    alone fed back, and the full gradient.
    """

    biases: Sequence[str] = ("in", "forget", "cell", "out")
    forget_gate_bias: Sequence[float] | None = None

    @property
    def hidden_units(self):
        gates_in, *others = super().hidden_units
        forget_gates = Units("forget", "f", self.blocks, "forget_gate_bias")
        return gates_in, forget_gates, *others

    def recur(self, carry, projected):
        s, y = carry
        net_in, net_forget, net_c, net_out = self._net(y, projected)
        y_in = self.gate_fn(net_in)
        y_forget = self.gate_fn(net_forget)
        y_out = self.gate_fn(net_out)
        s = self._to_cells(y_forget) * s + self._to_cells(y_in) * self.g(net_c)
        return self._emit(s, y_in, y_forget, y_out)
