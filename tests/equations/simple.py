"""Elman's cell, and a cell whose units see only themselves."""

from equations.parts import affine, np, relu
from equations.table import equations


@equations(
    "SimpleCell",
    variants={
        "relu": {"activation_fn": relu},
        "residual": {"residual": True},
        "heads": {"num_heads": 2},
        "no-bias": {"use_bias": False},
    },
)
def simple(p, h, x, activation_fn=np.tanh, residual=False):
    a = affine(x, p["i"]) + affine(h, p["h"])
    h = activation_fn(a + h if residual else a)
    return h, h


@equations("IndRNNCell", is_like="SRUCell", has_products=False)
def ind_rnn(p, h, x):
    h = relu(affine(x, p["i"]) + p["h"]["kernel"] * h)
    return h, h
