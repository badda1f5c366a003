"""Cells of liquid networks, and SRU."""

from equations.parts import affine, np, sigmoid, softplus
from equations.table import equations


@equations("SRUCell", has_products=False)
def sru(p, c, x):
    f = sigmoid(affine(x, p["f"]) + p["vf"]["kernel"] * c)
    r = sigmoid(affine(x, p["r"]) + p["vr"]["kernel"] * c)
    c = f * c + (1 - f) * affine(x, p["c"])
    return c, r * c + (1 - r) * affine(x, p["p"])


@equations(
    "CfCCell",
    is_like="LTCCell",
    variants={"pure": {"mode": "pure"}},
    backbone_features=5,
)
def cfc(p, h, x, mode="default"):
    s = 1.7159 * np.tanh(0.666 * (affine(x, p["i"]) + affine(h, p["h"])))
    g = affine(s, p["g"])
    if mode == "pure":
        h = p["A"] - p["A"] * np.exp(-(abs(p["w_tau"]) + abs(g))) * g
    else:
        f = sigmoid(affine(s, p["a"]) + affine(s, p["b"]))
        h = (1 - f) * np.tanh(g) + f * np.tanh(affine(s, p["u"]))
    return h, h


@equations("LTCCell", has_products=False, unfolds=2)
def ltc(p, v, x, unfolds):
    def synapses(v, p):
        s = softplus(p["w"]) * sigmoid(p["gamma"] * (v[..., None] - p["mu"]))
        return (s * p["E"]).sum(-2), s.sum(-2)

    driven_x, conductance_x = synapses(x, p["i"])
    for _ in range(unfolds):
        driven, conductance = synapses(v, p["h"])
        cm, gleak = unfolds * softplus(p["cm"]), softplus(p["gleak"])
        above = cm * v + gleak * p["vleak"] + driven + driven_x
        v = above / (cm + gleak + conductance + conductance_x + 1e-8)
    return v, v
