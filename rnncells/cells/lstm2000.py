"""The memory cells of Hochreiter and Schmidhuber with forget gates, 2000."""

from collections.abc import Sequence

from rnncells.cells.lstm1997 import LSTM1997Cell, Units


class LSTM2000Cell(LSTM1997Cell):
    r"""The LSTM of 2000: memory cell blocks with forget gates.

    The cells :math:`c_j^v`, :math:`v = 1..S`, of block :math:`j` share an input gate, a
    forget gate :math:`\varphi_j` and an output gate. :math:`y_{t-1}` are the
    activations of all hidden units (cells, input gates, forget gates, output gates) at
    the previous step:

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

    By default the gradient is truncated as in the paper and in `LSTM1997Cell`: errors
    flow back in time only through :math:`s`, scaled by the forget gates.

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

    Attributes, in addition to those of `LSTM1997Cell` (`blocks`, `block_size`,
    `weight_range`, `input_gate_bias`, `output_gate_bias`, `gate_feedback`,
    `truncate_gradient`, `gate_fn`, `g`, `h`, `dtype`, `param_dtype`, `carry_init`):
      biases: the kinds of units that have biases: some of `"in"` (input gates),
        `"forget"`, `"cell"` and `"out"` (output gates).
      forget_gate_bias: initial bias of each block's forget gate; None draws them. The
        paper uses positive values, so that a cell keeps its state at first.

    Raises:
      ValueError: the same as for `LSTM1997Cell`.

    Reference: Gers, Schmidhuber and Cummins, 2000,
    https://doi.org/10.1162/089976600300015015. Parameters: `ii if ig io` hold :math:`W`
    of input gates, forget gates, cells and output gates, `hi hf hg ho` hold :math:`U`
    and :math:`b`. `LSTMCell` differs: it has no blocks, its activation function is
    :math:`\tanh`, only cells are fed back, and its gradient is the full one.
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
