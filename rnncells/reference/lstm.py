"""One step of long short-term memory and its derivatives, in closed form.

The step, as in `rnncells.LSTMCell`::

    i_t = σ(W_ii x_t + W_hi h_{t-1} + b_hi)
    f_t = σ(W_if x_t + W_hf h_{t-1} + b_hf)
    g_t = tanh(W_ig x_t + W_hg h_{t-1} + b_hg)
    o_t = σ(W_io x_t + W_ho h_{t-1} + b_ho)
    c_t = f_t ⊙ c_{t-1} + i_t ⊙ g_t
    h_t = o_t ⊙ tanh(c_t)

The derivatives. δc_t is the derivative of the loss with respect to c_t. For each gate a
(i, f, g and o), δa_t is the derivative with respect to the argument of σ or tanh. δh_t
and δc_t come from the next step; Δ_t is the derivative with respect to the output of
this step::

    δh_t ← δh_t + Δ_t
    δo_t = δh_t ⊙ tanh(c_t) ⊙ o_t ⊙ (1 - o_t)
    δc_t ← δc_t + δh_t ⊙ o_t ⊙ (1 - tanh²(c_t))
    δf_t = δc_t ⊙ c_{t-1} ⊙ f_t ⊙ (1 - f_t)
    δi_t = δc_t ⊙ g_t ⊙ i_t ⊙ (1 - i_t)
    δg_t = δc_t ⊙ i_t ⊙ (1 - g_t²)
    δc_{t-1} = δc_t ⊙ f_t
    δh_{t-1} = Σ_a W_ha^T δa_t
    δx_t = Σ_a W_ia^T δa_t
    δW_ia = δa_t x_t^T
    δW_ha = δa_t h_{t-1}^T
    δb_ha = δa_t

Reference: Greff et al., 2017, https://doi.org/10.1109/TNNLS.2016.2582924, section II.B.
The paper writes z for g and y for h, marks the arguments of the activations with bars,
and writes δh_t as a sum over the gates of the next step. Different here: there are no
peepholes, which would add terms to δc_t. The full gradient is from Graves and
Schmidhuber, 2005, https://doi.org/10.1016/j.neunet.2005.06.042. The truncated gradient
of Hochreiter and Schmidhuber, 1997, https://doi.org/10.1162/neco.1997.9.8.1735,
appendix A.1, sets δh_{t-1} to 0, and has no forget gate (see `rnncells.LSTM1997Cell`).
"""

from jax import Array
from jax.nn import sigmoid
from jax.numpy import tanh

from rnncells.reference.gates import Params, affine, back, check, d_gates, with_zeros

State = tuple[Array, Array]


def lstm_step(params: Params, carry: State, x: Array) -> tuple[State, Array]:
    """Returns the new carry and the output of one step, `((c, h), h)`.

    See `rnncells.reference`. `params` has the kernels `ii if ig io` of inputs and
    `hi hf hg ho` of states, each with an optional bias; the carry is (c_{t-1},
    h_{t-1}).
    """
    check(params, carry, x, "ifgo", is_pair=True)
    c_before, h_before = carry
    i, f, g, o = _gates(params, h_before, x)
    c = f * c_before + i * g
    h = o * tanh(c)
    return (c, h), h


def lstm_step_vjp(
    params: Params,
    carry: State,
    x: Array,
    d_carry: tuple[Array | None, Array | None] | None = None,
    d_h: Array | None = None,
    *,
    return_gates: bool = False,
) -> tuple[Params, State, Array] | tuple[Params, State, Array, dict[str, Array]]:
    """Returns the derivatives of `lstm_step`; see `rnncells.reference`.

    `d_carry` is (δc_t, δh_t). `return_gates` adds δi_t, δf_t, δg_t and δo_t by the
    names `i f g o`.
    """
    check(params, carry, x, "ifgo", is_pair=True)
    c_before, h_before = carry
    i, f, g, o = _gates(params, h_before, x)
    c = f * c_before + i * g
    d_c, d_h_next, d_h = with_zeros(carry, h_before, d_carry, d_h, "d_h")

    d_h = d_h_next + d_h
    d_o = d_h * tanh(c) * o * (1 - o)
    d_c = d_c + d_h * o * (1 - tanh(c) ** 2)
    d_f = d_c * c_before * f * (1 - f)
    d_i = d_c * g * i * (1 - i)
    d_g = d_c * i * (1 - g**2)
    d_c_before = d_c * f
    d_h_before = back(params, {"hi": d_i, "hf": d_f, "hg": d_g, "ho": d_o})
    d_x = back(params, {"ii": d_i, "if": d_f, "ig": d_g, "io": d_o})
    d_W_i = d_gates(params, x, {"ii": d_i, "if": d_f, "ig": d_g, "io": d_o})
    d_W_h = d_gates(params, h_before, {"hi": d_i, "hf": d_f, "hg": d_g, "ho": d_o})

    grads = d_W_i | d_W_h, (d_c_before, d_h_before), d_x
    return (*grads, {"i": d_i, "f": d_f, "g": d_g, "o": d_o}) if return_gates else grads


def _gates(params: Params, h: Array, x: Array) -> tuple[Array, ...]:
    i = sigmoid(affine(params, "ii", x) + affine(params, "hi", h))
    f = sigmoid(affine(params, "if", x) + affine(params, "hf", h))
    g = tanh(affine(params, "ig", x) + affine(params, "hg", h))
    o = sigmoid(affine(params, "io", x) + affine(params, "ho", h))
    return i, f, g, o
