"""Gated recurrent units in dense layers."""

from equations.lstm import ACTIVATIONS, VARIANTS, norm
from equations.parts import affine, np, side_by_side, sigmoid
from equations.table import equations


@equations(
    "GRUCell",
    rows={"": {}, "reset-before": {"reset_after": False}},
    variants=VARIANTS | {"heads": {"num_heads": 2}},
)
@equations("VariationalGRUCell", is_like="GRUCell", deterministic=True)
def gru(p, h, x, reset_after=True, gate_fn=sigmoid, activation_fn=np.tanh, mask=1):
    """`mask` is that of variational dropout."""
    masked = mask * h
    r = gate_fn(affine(x, p["ir"]) + affine(masked, p["hr"]))
    z = gate_fn(affine(x, p["iz"]) + affine(masked, p["hz"]))
    if reset_after:
        a = r * affine(masked, p["hn"])
    else:
        a = affine(r * masked, p["hn"])
    n = activation_fn(affine(x, p["in"]) + a)
    h = (1 - z) * n + z * h
    return h, h


@equations("MGUCell", variants={"no-reset-gate": {"reset_gate": False}})
def mgu(p, h, x, reset_gate=True):
    f = sigmoid(affine(x, p["if"]) + affine(h, p["hf"]))
    r = f if reset_gate else 1
    n = np.tanh(affine(x, p["in"]) + r * affine(h, p["hn"]))
    h = (1 - f) * n + f * h
    return h, h


@equations(
    "LayerNormGRUCell",
    variants={
        "activations": ACTIVATIONS,
        "epsilon": {"epsilon": 0.1},
        "no-bias": {"use_bias": False},
    },
)
def layer_norm_gru(p, h, x, gate_fn=sigmoid, activation_fn=np.tanh, epsilon=1e-5):
    a_h, a_x = side_by_side(h, p, "hr", "hz"), side_by_side(x, p, "ir", "iz")
    a = norm(a_h, p["norm_h"], epsilon) + norm(a_x, p["norm_x"], epsilon)
    r, z = np.split(gate_fn(a), 2, axis=-1)
    xn = norm(affine(x, p["in"]), p["norm_xn"], epsilon)
    hn = norm(affine(h, p["hn"]), p["norm_hn"], epsilon)
    n = activation_fn(xn + r * hn)
    h = (1 - z) * h + z * n
    return h, h
