"""Long short-term memory with forget gates, in dense layers."""

from equations.parts import affine, np, side_by_side, sigmoid, soft_gate, soft_sign
from equations.table import equations

ACTIVATIONS = {"gate_fn": soft_gate, "activation_fn": soft_sign}
VARIANTS = {"activations": ACTIVATIONS, "no-bias": {"use_bias": False}}


@equations("LSTMCell", variants=VARIANTS | {"heads": {"num_heads": 2}})
@equations("OptimizedLSTMCell")
@equations("VariationalLSTMCell", is_like="LSTMCell", deterministic=True)
def lstm(p, carry, x, gate_fn=sigmoid, activation_fn=np.tanh):
    c, h = carry
    i = gate_fn(affine(x, p["ii"]) + affine(h, p["hi"]))
    f = gate_fn(affine(x, p["if"]) + affine(h, p["hf"]))
    g = activation_fn(affine(x, p["ig"]) + affine(h, p["hg"]))
    o = gate_fn(affine(x, p["io"]) + affine(h, p["ho"]))
    c = f * c + i * g
    h = o * activation_fn(c)
    return (c, h), h


@equations(
    "ProjectedLSTMCell", variants={"no-bias": {"use_bias": False}}, proj_features=2
)
def projected_lstm(p, carry, x):
    (c, _), h = lstm(p, carry, x)
    h = affine(h, p["hr"])
    return (c, h), h


@equations("PeepholeLSTMCell", variants=VARIANTS)
def peephole_lstm(p, carry, x, gate_fn=sigmoid, activation_fn=np.tanh):
    c, h = carry
    p_i, p_f, p_o = (p[name]["kernel"] for name in ("pi", "pf", "po"))
    i = gate_fn(affine(x, p["ii"]) + affine(h, p["hi"]) + p_i * c)
    f = gate_fn(affine(x, p["if"]) + affine(h, p["hf"]) + p_f * c)
    g = activation_fn(affine(x, p["ig"]) + affine(h, p["hg"]))
    c = f * c + i * g
    o = gate_fn(affine(x, p["io"]) + affine(h, p["ho"]) + p_o * c)
    h = o * activation_fn(c)
    return (c, h), h


@equations("CoupledLSTMCell", variants=VARIANTS)
def coupled_lstm(p, carry, x, gate_fn=sigmoid, activation_fn=np.tanh):
    c, h = carry
    i = gate_fn(affine(x, p["ii"]) + affine(h, p["hi"]))
    f = 1 - i
    g = activation_fn(affine(x, p["ig"]) + affine(h, p["hg"]))
    o = gate_fn(affine(x, p["io"]) + affine(h, p["ho"]))
    c = f * c + i * g
    h = o * activation_fn(c)
    return (c, h), h


def norm(z, params, epsilon):
    sd = np.sqrt(np.var(z, axis=-1, keepdims=True) + epsilon)
    normed = (z - np.mean(z, axis=-1, keepdims=True)) / sd
    return normed * params["kernel"] + params.get("bias", 0)


@equations("LayerNormLSTMCell", variants=VARIANTS)
def layer_norm_lstm(p, carry, x, gate_fn=sigmoid, activation_fn=np.tanh, epsilon=1e-5):
    c, h = carry
    a_h = side_by_side(h, p, "hi", "hf", "hg", "ho")
    a_x = side_by_side(x, p, "ii", "if", "ig", "io")
    a = norm(a_h, p["norm_h"], epsilon) + norm(a_x, p["norm_x"], epsilon)
    i, f, g, o = np.split(a, 4, axis=-1)
    c = gate_fn(f) * c + gate_fn(i) * activation_fn(g)
    h = gate_fn(o) * activation_fn(norm(c, p["norm_c"], epsilon))
    return (c, h), h
