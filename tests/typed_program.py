"""A program of a user, which mypy checks: arguments, results, and mistakes.

It is not run. A comment `type: ignore` marks a mistake: mypy ends with an error if it
does not find the mistake.
"""

from typing import assert_type

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import nnx

import rnncells
import rnncells.nnx as rnx
from rnncells import diagnostics, initializers, packing
from rnncells.interop import pytorch

x = jnp.ones((2, 5, 3))
cell = rnncells.LSTMCell(features=4, bias_init=initializers.forget_gate(1.0))
assert_type(cell, rnncells.LSTMCell)
carry = cell.initialize_carry(jax.random.key(0), x[:, 0])
rnn = rnncells.RNN(cell, return_carry=True, memory=rnncells.Chunk(8))
params = rnn.init(jax.random.key(0), x)
y = rnn.apply(params, x, seq_lengths=jnp.array([5, 2]))
both = rnncells.Bidirectional(rnn, rnncells.RNN(rnncells.GRUCell(4)))
stack = rnncells.Stack([rnncells.SimpleCell(4), nn.Dense(3), nn.relu])
layer = rnncells.LSTM(8, num_layers=2, bidirectional=True, proj_features=4)
assert_type(layer.directions, int)
online = rnncells.RNN(cell, gradient=rnncells.SnAp(1))
inputs, plan = packing.pack([x[0], x[1]], row_length=8)
variables = pytorch.from_state_dict(layer, {})
report = rnncells.check_cell(rnncells.GRUCell(4), (2, 3))
assert_type(report.ok, bool)
found = diagnostics.record(rnn, params, x)


class Leaky(rnncells.RNNCellBase):
    features: int
    rate: float = 0.1
    num_feature_dims = 1

    def carry_shape(self, input_shape):
        return (self.features,)

    def project(self, inputs):
        return inputs

    def recur(self, carry, projected):
        return carry, carry


leaky = Leaky(4, rate=0.2)
assert_type(leaky.rate, float)
model = rnx.RNN(rnx.LSTMCell(3, 4, rngs=nnx.Rngs(0)), memory="sqrt")
assert_type(rnx.from_linen(Leaky), type[rnx.FromLinen])

rnncells.LSTMCell(feature=4)  # type: ignore[call-arg]
rnncells.LSTMcell(4)  # type: ignore[attr-defined]
rnncells.LSTM(8, 2)  # type: ignore[arg-type, call-arg]
rnncells.RNN(cell, memory="square")  # type: ignore[arg-type]
rnncells.RNN(4)  # type: ignore[arg-type]
Leaky(4, rates=0.2)  # type: ignore[call-arg]
