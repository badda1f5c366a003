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

import jax
from jax.numpy import tanh

from rnncells.reference.gates import (
    Gates,
    Params,
    affine,
    back,
    check_step,
    d_gates,
    with_zeros,
)


def elman_step(
    params: Params, carry: jax.Array, x: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Returns the new carry and the output of one step.

    Args:
      params: parameters of a `SimpleCell`, `variables["params"]`: the kernel `i`,
        `(features_in, features)`, with an optional bias, and the kernel `h`,
        `(features, features)`.
      carry: h_{t-1}, `(*batch, features)`.
      x: input of the step, `(*batch, features_in)`.

    Returns:
      `(h, h)`, each `(*batch, features)`.

    Raises:
      ValueError: shapes do not fit; names of parameters are missing or unknown.
    """
    check_step(params, carry, x, [""])
    h = tanh(affine(params, "i", x) + affine(params, "h", carry))
    return h, h


def elman_step_vjp(
    params: Params,
    carry: jax.Array,
    x: jax.Array,
    d_carry: jax.Array | None = None,
    d_h: jax.Array | None = None,
    *,
    return_gates: bool = False,
) -> tuple[Params, jax.Array, jax.Array] | tuple[Params, jax.Array, jax.Array, Gates]:
    """Returns the derivatives of a loss with respect to all arguments of one step.

    Args:
      params, carry, x: see `elman_step`.
      d_carry: δh_t from the next step, `(*batch, features)`; None: zeros.
      d_h: derivative with respect to the output of the step, `(*batch, features)`;
        None: zeros.
      return_gates: also returns δa_t by the name `a`.

    Returns:
      The derivatives with respect to `params` (summed over the batch), `carry` and `x`,
      and with `return_gates` that of a_t.

    Raises:
      ValueError: see `elman_step`; or all derivatives are None.
    """
    check_step(params, carry, x, [""])
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
