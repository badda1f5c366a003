"""One step of a gated recurrent unit and its derivatives, in closed form.

The step, as in `rnncells.GRUCell`::

    r_t = σ(W_ir x_t + b_ir + W_hr h_{t-1})
    z_t = σ(W_iz x_t + b_iz + W_hz h_{t-1})
    q_t = W_hn h_{t-1} + b_hn
    n_t = tanh(W_in x_t + b_in + r_t ⊙ q_t)
    h_t = (1 - z_t) ⊙ n_t + z_t ⊙ h_{t-1}

The derivatives. For a gate a (r, z and n), δa_t is the derivative of the loss with
respect to the argument of σ or tanh. δh_t comes from the next step; Δ_t is the
derivative with respect to the output of this step::

    δh_t ← δh_t + Δ_t
    δz_t = δh_t ⊙ (h_{t-1} - n_t) ⊙ z_t ⊙ (1 - z_t)
    δn_t = δh_t ⊙ (1 - z_t) ⊙ (1 - n_t²)
    δq_t = δn_t ⊙ r_t
    δr_t = δn_t ⊙ q_t ⊙ r_t ⊙ (1 - r_t)
    δh_{t-1} = δh_t ⊙ z_t + W_hr^T δr_t + W_hz^T δz_t + W_hn^T δq_t
    δx_t = W_ir^T δr_t + W_iz^T δz_t + W_in^T δn_t
    δW_ia = δa_t x_t^T
    δb_ia = δa_t
    δW_hr = δr_t h_{t-1}^T
    δW_hz = δz_t h_{t-1}^T
    δW_hn = δq_t h_{t-1}^T
    δb_hn = δq_t

With `reset_after=False`, as in the paper, the reset gate acts before the product. p_t
is the argument of the product::

    p_t = r_t ⊙ h_{t-1}
    n_t = tanh(W_in x_t + b_in + W_hn p_t)

    δp_t = W_hn^T δn_t
    δr_t = δp_t ⊙ h_{t-1} ⊙ r_t ⊙ (1 - r_t)
    δh_{t-1} = δh_t ⊙ z_t + W_hr^T δr_t + W_hz^T δz_t + δp_t ⊙ r_t
    δW_hn = δn_t p_t^T

Reference: Cho et al., 2014, https://arxiv.org/abs/1406.1078. The reset gate after the
product is that of cuDNN, PyTorch and Flax.
"""

from jax import Array
from jax.nn import sigmoid
from jax.numpy import tanh

from rnncells.reference.gates import Params, affine, back, check, d_gates, with_zeros


def gru_step(
    params: Params, carry: Array, x: Array, *, reset_after: bool = True
) -> tuple[Array, Array]:
    """Returns the new carry and the output of one step, `(h, h)`.

    See `rnncells.reference`. `params` has the kernels `ir iz in` of inputs and
    `hr hz hn` of states, each with an optional bias; the carry is h_{t-1}. With
    `reset_after`, the default, the reset gate acts after the recurrent product.
    """
    check(params, carry, x, "rzn")
    r, z, n = _gates(params, carry, x, reset_after)
    h = (1 - z) * n + z * carry
    return h, h


def gru_step_vjp(
    params: Params,
    carry: Array,
    x: Array,
    d_carry: Array | None = None,
    d_h: Array | None = None,
    *,
    reset_after: bool = True,
    return_gates: bool = False,
) -> tuple[Params, Array, Array] | tuple[Params, Array, Array, dict[str, Array]]:
    """Returns the derivatives of `gru_step`; see `rnncells.reference`.

    `return_gates` adds δr_t, δz_t and δn_t by the names `r z n`.
    """
    check(params, carry, x, "rzn")
    h_before = carry
    r, z, n = _gates(params, h_before, x, reset_after)
    d_h_next, d_h = with_zeros(h_before, h_before, d_carry, d_h, "d_h")

    d_h = d_h_next + d_h
    d_z = d_h * (h_before - n) * z * (1 - z)
    d_n = d_h * (1 - z) * (1 - n**2)
    if reset_after:
        q = affine(params, "hn", h_before)
        d_q = d_n * r
        d_r = d_n * q * r * (1 - r)
        d_h_before = d_h * z + back(params, {"hr": d_r, "hz": d_z, "hn": d_q})
        d_W_hn = d_gates(params, h_before, {"hn": d_q})
    else:
        p = r * h_before
        d_p = back(params, {"hn": d_n})
        d_r = d_p * h_before * r * (1 - r)
        d_h_before = d_h * z + back(params, {"hr": d_r, "hz": d_z}) + d_p * r
        d_W_hn = d_gates(params, p, {"hn": d_n})
    d_x = back(params, {"ir": d_r, "iz": d_z, "in": d_n})
    d_W_i = d_gates(params, x, {"ir": d_r, "iz": d_z, "in": d_n})
    d_W_h = d_gates(params, h_before, {"hr": d_r, "hz": d_z})

    grads = d_W_i | d_W_h | d_W_hn, d_h_before, d_x
    return (*grads, {"r": d_r, "z": d_z, "n": d_n}) if return_gates else grads


def _gates(
    params: Params, h: Array, x: Array, reset_after: bool
) -> tuple[Array, Array, Array]:
    r = sigmoid(affine(params, "ir", x) + affine(params, "hr", h))
    z = sigmoid(affine(params, "iz", x) + affine(params, "hz", h))
    if reset_after:
        n = tanh(affine(params, "in", x) + r * affine(params, "hn", h))
    else:
        n = tanh(affine(params, "in", x) + affine(params, "hn", r * h))
    return r, z, n
