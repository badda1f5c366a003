"""One step of Elman's recurrent cell and its derivatives, in closed form.

The step, as in `rnncells.SimpleCell`::

    a_t = W_i x_t + b_i + W_h h_{t-1}
    h_t = tanh(a_t)

The derivatives. δh_t comes from the next step; Δ_t is the derivative of the loss with
respect to the output of this step::

    δh_t ← δh_t + Δ_t
    δa_t = δh_t ⊙ (1 - h_t²)
    δh_{t-1} = W_h^T δa_t
    δx_t = W_i^T δa_t
    δW_i = δa_t x_t^T
    δb_i = δa_t
    δW_h = δa_t h_{t-1}^T

References: Elman, 1990, https://doi.org/10.1207/s15516709cog1402_1, with a logistic
activation; Werbos, 1990, https://doi.org/10.1109/5.58337, for the derivatives.
"""

from jax import Array
from jax.numpy import tanh

from rnncells.reference.gates import Params, affine, back, check, d_gates, with_zeros


def elman_step(params: Params, carry: Array, x: Array) -> tuple[Array, Array]:
    """Returns the new carry and the output of one step, `(h, h)`.

    See `rnncells.reference`. `params` has the kernels `i`, with an optional bias, and
    `h`; the carry is h_{t-1}.
    """
    check(params, carry, x, [""])
    h = tanh(affine(params, "i", x) + affine(params, "h", carry))
    return h, h


def elman_step_vjp(
    params: Params,
    carry: Array,
    x: Array,
    d_carry: Array | None = None,
    d_h: Array | None = None,
    *,
    return_gates: bool = False,
) -> tuple[Params, Array, Array] | tuple[Params, Array, Array, dict[str, Array]]:
    """Returns the derivatives of `elman_step`; see `rnncells.reference`.

    `return_gates` adds δa_t by the name `a`.
    """
    check(params, carry, x, [""])
    h_before = carry
    h = tanh(affine(params, "i", x) + affine(params, "h", h_before))
    d_h_next, d_h = with_zeros(h_before, h_before, d_carry, d_h, "d_h")

    d_h = d_h_next + d_h
    d_a = d_h * (1 - h**2)
    d_h_before = back(params, {"h": d_a})
    d_x = back(params, {"i": d_a})
    d_W_i = d_gates(params, x, {"i": d_a})
    d_W_h = d_gates(params, h_before, {"h": d_a})

    grads = d_W_i | d_W_h, d_h_before, d_x
    return (*grads, {"a": d_a}) if return_gates else grads
