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


def on_line(columns, w_k, b_k, x, targets, size, gate_feedback=True):
    """The algorithm of both papers, forward in time, for rate 1.

    Numbers are equations of 1997, whose forget gates are 1. Weights may be changed in
    place between steps.

    Args:
      columns: weights into gates `i`, `f` and `o` and cells `g`: `(inputs or hidden
        units or 1, units)` each.
      w_k, b_k: weights and biases of logistic outputs.
      x, targets: inputs and targets of each step.
      size: of a block.
      gate_feedback: whether gates are hidden units, after the cells.

    Yields:
      The changes of all weights by a step, and its outputs.
    """
    f, (sources, cells) = sigmoid, columns["g"].shape
    blocks = cells // size
    s, y = np.zeros(cells), np.zeros(sources - x.shape[1] - 1)
    # ds_c / dw: of c itself, of the input gate and the forget gate of its block.
    ds_c, ds_in, ds_forget = (np.zeros((sources, cells)) for _ in range(3))
    for x_t, t_t in zip(x, targets, strict=True):
        src = np.concatenate([x_t, y, np.ones(1)])
        net = {name: src @ column for name, column in columns.items()}
        gates = {name: f(net[name]) for name in "ifo" if name in net}
        wide = {name: np.repeat(gate, size) for name, gate in gates.items()}
        slope = {name: gate * (1 - gate) for name, gate in wide.items()}
        forget = wide.get("f", 1)
        ds_in = forget * ds_in + np.outer(src, g(net["g"]) * slope["i"])  # (25)
        d_g = 4 * f(net["g"]) * (1 - f(net["g"]))
        ds_c = forget * ds_c + np.outer(src, d_g * wide["i"])  # (27)
        ds_forget = forget * ds_forget + np.outer(src, s * slope.get("f", 0))
        s = forget * s + wide["i"] * g(net["g"])
        y_c = wide["o"] * h(s)
        y_k = f(y_c @ w_k + b_k)
        e_k = y_k * (1 - y_k) * (t_t - y_k)  # (19)
        back = w_k @ e_k
        e_out = (slope["o"] * h(s) * back).reshape(blocks, size).sum(1)  # (21)
        e_s = wide["o"] * 2 * f(s) * (1 - f(s)) * back  # (23)
        change = {
            "k": np.outer(y_c, e_k),
            "b_k": e_k,
            "o": np.outer(src, e_out),
        }  # (22)
        change["i"] = (e_s * ds_in).reshape(-1, blocks, size).sum(-1)  # (26)
        if "f" in net:
            change["f"] = (e_s * ds_forget).reshape(-1, blocks, size).sum(-1)
        change["g"] = e_s * ds_c  # (28)
        y = np.concatenate([y_c, *gates.values()]) if gate_feedback else y_c
        yield change, y_k
