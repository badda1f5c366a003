"""Cells of images, and the convolution over time."""

from equations.lstm import ACTIVATIONS
from equations.parts import convolve, np, sigmoid
from equations.table import FEATURES, FEATURES_IN, equations

IMAGES = {"kernel_size": (3, 2), "input_shape": (6, 7, FEATURES_IN)}
ROWS = {"kernel_size": (3,), "input_shape": (6, FEATURES_IN)}
VOLUMES = {"kernel_size": (3, 2, 3), "input_shape": (3, 4, 5, FEATURES_IN)}


@equations(
    "ConvLSTMCell",
    rows={
        "2d": IMAGES,
        "strides": {"strides": (2, 3)},
        "peepholes": {"peepholes": True},
    },
    variants={
        "1d": ROWS,
        "3d": VOLUMES,
        "no-bias": {"use_bias": False},
        "valid": {"padding": "VALID"},
        "pairs": {"padding": ((1, 0), (2, 2))},
        # These keep the size of images, so that Flax runs them, for the state as well.
        "circular": {"padding": "CIRCULAR"},
        "causal": {"padding": "CAUSAL"} | ROWS,
        "one-sided": {"padding": ((2, 0), (0, 1))},
        "peepholes-strides": {"peepholes": True, "strides": (2, 3)},
    },
    flax_cannot_run=("strides", "valid", "pairs"),
    **IMAGES,
)
def conv_lstm(p, carry, x, strides=None, padding="SAME"):
    c, h = carry
    of_x = convolve(x, p["ih"], strides, padding)
    keeps_size = of_x.shape[:-1] == x.shape[:-1]
    of_h = convolve(h, p["hh"], pads=padding if keeps_size else "SAME")
    i, g, f, o = np.split(of_x + of_h, 4, axis=-1)
    w_ci, w_cf, w_co = (p[n]["kernel"] if n in p else 0 for n in ("ci", "cf", "co"))
    i, f = sigmoid(i + w_ci * c), sigmoid(f + w_cf * c + 1)
    c = f * c + i * np.tanh(g)
    h = sigmoid(o + w_co * c) * np.tanh(c)
    return (c, h), h


@equations(
    "ConvGRUCell",
    variants={
        "activations": ACTIVATIONS | ROWS,
        "no-bias": {"use_bias": False, "reset_after": True},
        "reset-after": {"reset_after": True},
        "strides": {"strides": (2, 3), "padding": "VALID"},
    },
    **IMAGES,
)
def conv_gru(
    p,
    h,
    x,
    strides=None,
    padding="SAME",
    reset_after=False,
    gate_fn=sigmoid,
    activation_fn=np.tanh,
):
    xz, xr, xn = np.split(convolve(x, p["ih"], strides, padding), 3, axis=-1)
    hz, hr = np.split(convolve(h, p["hh"]), 2, axis=-1)
    z = gate_fn(xz + hz)
    r = gate_fn(xr + hr)
    if reset_after:
        n = activation_fn(xn + r * convolve(h, p["hn"]))
    else:
        n = activation_fn(xn + convolve(r * h, p["hn"]))
    h = (1 - z) * h + z * n
    return h, h


@equations("CausalConvCell", has_products=False, input_shape=(FEATURES,))
def causal_conv(p, last, x):
    window = np.concatenate([last, x[..., None, :]], -2)
    return window[..., 1:, :], (p["kernel"][:, 0] * window).sum(-2) + p["bias"]
