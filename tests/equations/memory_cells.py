"""The memory cells of 1997, and those of 2000, with forget gates."""

from equations.parts import affine, np, sigmoid, stop_gradient
from equations.table import equations

SIZES = {"blocks": 3, "block_size": 2, "weight_range": 0.9, "input_shape": (5,)}


def g(x):
    return 4 * sigmoid(x) - 2


def h(x):
    return 2 * sigmoid(x) - 1


@equations(
    "LSTM1997Cell",
    rows={"": {}, "full-gradient": {"truncate_gradient": False}},
    variants={
        "cells-feed-back": {"gate_feedback": False},
        "gate-biases": {
            "biases": ("in", "out"),
            "input_gate_bias": (-1.0, -2.0, -3.0),
            "output_gate_bias": (0.5, 0.0, -0.5),
        },
    },
    **SIZES,
)
def lstm1997(p, carry, x, block_size, gate_feedback=True, truncate_gradient=True):
    s, y = carry
    y = stop_gradient(y) if truncate_gradient else y
    y_in = sigmoid(affine(x, p["ii"]) + affine(y, p["hi"]))
    y_out = sigmoid(affine(x, p["io"]) + affine(y, p["ho"]))
    net_c = affine(x, p["ig"]) + affine(y, p["hg"])
    s = s + np.repeat(y_in, block_size, -1) * g(net_c)
    y_c = np.repeat(y_out, block_size, -1) * h(s)
    y = np.concatenate([y_c, y_in, y_out], -1) if gate_feedback else y_c
    return (s, y), y_c


@equations(
    "LSTM2000Cell",
    variants={
        "cells-feed-back": {"gate_feedback": False},
        "full-gradient": {"truncate_gradient": False},
        "gate-biases": {
            "biases": ("in", "forget", "out"),
            "forget_gate_bias": (1.0, 2.0, 3.0),
        },
    },
    **SIZES,
)
def lstm2000(p, carry, x, block_size, gate_feedback=True, truncate_gradient=True):
    s, y = carry
    y = stop_gradient(y) if truncate_gradient else y
    y_in = sigmoid(affine(x, p["ii"]) + affine(y, p["hi"]))
    y_forget = sigmoid(affine(x, p["if"]) + affine(y, p["hf"]))
    y_out = sigmoid(affine(x, p["io"]) + affine(y, p["ho"]))
    net_c = affine(x, p["ig"]) + affine(y, p["hg"])
    s = np.repeat(y_forget, block_size, -1) * s
    s = s + np.repeat(y_in, block_size, -1) * g(net_c)
    y_c = np.repeat(y_out, block_size, -1) * h(s)
    y = np.concatenate([y_c, y_in, y_forget, y_out], -1) if gate_feedback else y_c
    return (s, y), y_c
