"""Cells around cells, without random numbers: tests/test_random_cells.py has those."""

import flax.linen as nn

import rnncells
from equations.gru import gru
from equations.lstm import lstm
from equations.parts import affine, relu
from equations.table import FEATURES, equations


def around_lstm(**options):
    return rnncells.LSTMCell(FEATURES, **options)


@equations(
    "ZoneoutCell",
    is_like="LSTMCell",
    around=around_lstm,
    rate=(0.4, 0.1),
    deterministic=True,
)
def zoneout(p, carry, x, rate):
    new, _ = lstm(p["cell"], carry, x)
    pairs = zip(rate, carry, new, strict=True)
    c, h = (d * before + (1 - d) * after for d, before, after in pairs)
    return (c, h), h


@equations(
    "DropConnectCell", is_like="LSTMCell", around=around_lstm, deterministic=True
)
def drop_connect(p, carry, x):
    return lstm(p["cell"], carry, x)


def several_layers(carry_init=nn.initializers.zeros_init(), **options):
    return [
        rnncells.LSTMCell(FEATURES, carry_init=carry_init, **options),
        nn.Dense(5, **options),
        nn.relu,
        rnncells.GRUCell(2, carry_init=carry_init, **options),
    ]


@equations("StackedCell", is_like="LSTMCell", around=several_layers)
def stacked(p, carry, x):
    of_lstm, of_gru = carry
    of_lstm, y = lstm(p["layers_0"], of_lstm, x)
    of_gru, y = gru(p["layers_3"], of_gru, relu(affine(y, p["layers_1"])))
    return (of_lstm, of_gru), y
