"""Cells that are linear in their carry."""

from equations.parts import affine, heads, np, outer, read, sigmoid, softplus
from equations.table import FEATURES, equations


def g(x):
    return np.where(x >= 0, x + 0.5, sigmoid(x))


@equations("MinGRUCell", has_products=False)
def min_gru(p, h, x):
    z = sigmoid(affine(x, p["z"]))
    h = (1 - z) * h + z * g(affine(x, p["n"]))
    return h, h


@equations("MinLSTMCell", is_like="MinGRUCell")
def min_lstm(p, h, x):
    f, i = sigmoid(affine(x, p["f"])), sigmoid(affine(x, p["i"]))
    h = f / (f + i) * h + i / (f + i) * g(affine(x, p["n"]))
    return h, h


@equations("QRNNCell", is_like="MinGRUCell", variants={"ifo": {"pooling": "ifo"}})
def qrnn(p, c, x, pooling="fo"):
    z, f = np.tanh(affine(x, p["z"])), sigmoid(affine(x, p["f"]))
    i = sigmoid(affine(x, p["i"])) if pooling == "ifo" else 1 - f
    c = f * c + i * z
    return c, sigmoid(affine(x, p["o"])) * c


@equations("LRUCell", has_products=False, state_features=6)
def lru(p, s, x):
    decay = np.exp(-np.exp(p["nu"]) + 1j * np.exp(p["theta"]))
    B = p["B_re"]["kernel"] + 1j * p["B_im"]["kernel"]
    C = p["C_re"]["kernel"] + 1j * p["C_im"]["kernel"]
    s = decay * s + np.exp(p["gamma"]) * (x @ B)
    return s, (s @ C).real + x @ p["D"]["kernel"]


@equations("RGLRUCell", is_like="MinGRUCell", num_heads=2, input_shape=(FEATURES,))
def rg_lru(p, h, x):
    r, i = (sigmoid(affine(x, p[name])) for name in ("a", "x"))
    a = sigmoid(-p["Lambda"]) ** (8 * r)
    h = a * h + np.sqrt(1 - a**2) * (i * x)
    return h, h


@equations("DeltaNetCell", is_like="GatedDeltaNetCell", num_heads=2)
def delta_net(p, S, x, num_heads):
    q, k, v = (affine(x, p[name]) for name in "qkv")
    q, k, v = (heads(z * sigmoid(z), num_heads) for z in (q, k, v))
    q, k = (z / np.sqrt((z**2).sum(-1, keepdims=True) + 1e-6) for z in (q, k))
    beta = sigmoid(affine(x, p["beta"]))[..., None, None]
    S = S @ (np.eye(k.shape[-1]) - beta * outer(k, k)) + beta * outer(v, k)
    return S, read(S, q)


@equations("GatedDeltaNetCell", has_products=False, num_heads=2)
def gated_delta_net(p, S, x, num_heads):
    alpha = np.exp(-np.exp(p["a"]) * softplus(affine(x, p["alpha"])))
    return delta_net(p, alpha[..., None, None] * S, x, num_heads)
