"""The cells of xLSTM; their equations are not stabilized."""

from equations.parts import affine, heads, np, outer, read, sigmoid, softplus
from equations.table import equations


@equations("SLSTMCell", variants={"exp": {"forget_gate": "exp"}}, num_heads=2)
def slstm(p, carry, x, forget_gate="sigmoid"):
    c, n, m, h = carry
    z, i, f, o = (affine(x, p[f"i{a}"]) + affine(h, p[f"h{a}"]) for a in "zifo")
    log_f = f if forget_gate == "exp" else -softplus(-f)
    # The memory and the normalizer themselves.
    c, n = np.exp(m) * c, np.exp(m) * n
    c = np.exp(log_f) * c + np.exp(i) * np.tanh(z)
    n = np.exp(log_f) * n + np.exp(i)
    h = sigmoid(o) * c / n
    m = np.maximum(log_f + m, i)
    return (np.exp(-m) * c, np.exp(-m) * n, m, h), h


@equations(
    "MLSTMCell",
    variants={"exp": {"forget_gate": "exp", "output_gate": False}},
    has_products=False,
    num_heads=2,
)
def mlstm(p, carry, x, num_heads, forget_gate="sigmoid", output_gate=True):
    C, n, m = carry
    q, k, v = (heads(affine(x, p[name]), num_heads) for name in "qkv")
    k = k / np.sqrt(k.shape[-1])
    i, f = affine(x, p["i"]), affine(x, p["f"])
    log_f = f if forget_gate == "exp" else -softplus(-f)
    # The memory and the normalizer themselves.
    scale = np.exp(m)[..., None]
    C, n = scale[..., None] * C, scale * n
    wide_i, wide_f = np.exp(i)[..., None], np.exp(log_f)[..., None]
    C = wide_f[..., None] * C + wide_i[..., None] * outer(v, k)
    n = wide_f * n + wide_i * k
    nq = abs((n * q).sum(-1, keepdims=True))
    h = read(C / np.maximum(nq, 1)[..., None], q)
    h = sigmoid(affine(x, p["o"])) * h if output_gate else h
    m = np.maximum(log_f + m, i)
    scale = np.exp(-m)[..., None]
    return (scale[..., None] * C, scale * n, m), h
