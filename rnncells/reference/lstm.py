"""One step of long short-term memory and its derivatives, in closed form.

Each line is one equation. The code does not use automatic differentiation, and it is
not fast.

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

The functions sum the derivatives of parameters over the batch. The caller sums them
over time.

Reference: Greff et al., 2017, https://doi.org/10.1109/TNNLS.2016.2582924, section II.B.
The paper writes z for g and y for h, marks the arguments of the activations with bars,
and writes δh_t as a sum over the gates of the next step. Different here: there are no
peepholes, which would add terms to δc_t. The full gradient is from Graves and
Schmidhuber, 2005, https://doi.org/10.1016/j.neunet.2005.06.042. The truncated gradient
of Hochreiter and Schmidhuber, 1997, https://doi.org/10.1162/neco.1997.9.8.1735,
appendix A.1, sets δh_{t-1} to 0, and has no forget gate (see `rnncells.LSTM1997Cell`).
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.nn import sigmoid
from jax.numpy import tanh

Params = dict[str, dict[str, jax.Array]]
State = tuple[jax.Array, jax.Array]


def lstm_step(params: Params, carry: State, x: jax.Array) -> tuple[State, jax.Array]:
    """Returns the new carry and the output of one step.

    Args:
      params: parameters of an `LSTMCell`, `variables["params"]`: kernels `(features_in,
        features)` of `ii if ig io` and `(features, features)` of `hi hf hg ho`. Each
        gate can have a bias `(features,)`.
      carry: (c_{t-1}, h_{t-1}), each `(*batch, features)`.
      x: input of the step, `(*batch, features_in)`.

    Returns:
      `((c, h), h)`, each `(*batch, features)`.

    Raises:
      ValueError: shapes do not fit; names of parameters are missing or unknown.
    """
    _check_step(params, carry, x)
    c_before, h_before = carry
    i, f, g, o = _gates(params, h_before, x)
    c = f * c_before + i * g
    h = o * tanh(c)
    return (c, h), h


def lstm_step_vjp(
    params: Params, carry: State, x: jax.Array, d_carry: State, d_h: jax.Array
) -> tuple[Params, State, jax.Array]:
    """Returns the derivatives of a loss with respect to all arguments of one step.

    For backpropagation through time, pass as `d_carry` the derivative that the call for
    the next step returned:

    >>> import jax, jax.numpy as jnp, rnncells
    >>> from rnncells.reference import lstm_step, lstm_step_vjp
    >>> cell, x = rnncells.LSTMCell(features=4), jnp.ones((2, 3))
    >>> zeros = cell.initialize_carry(jax.random.key(0), x)
    >>> params = cell.init(jax.random.key(1), zeros, x)["params"]
    >>> carry, _ = lstm_step(params, zeros, x)
    >>> d_h = jnp.ones((2, 4))  # of the sum of the outputs, over batch and time
    >>> last, d_carry, _ = lstm_step_vjp(params, carry, x, zeros, d_h)
    >>> first, d_carry, _ = lstm_step_vjp(params, zeros, x, d_carry, d_h)
    >>> d_params = jax.tree.map(jnp.add, first, last)

    Args:
      params: parameters, as in `lstm_step`.
      carry: carry before the step, as in `lstm_step`.
      x: input of the step, as in `lstm_step`.
      d_carry: derivatives with respect to the carry after the step, from the next step:
        (δc_t, δh_t), each `(*batch, features)`.
      d_h: derivative with respect to the output of the step, `(*batch, features)`.

    Returns:
      The derivatives with respect to `params` (summed over the batch), `carry` and `x`.

    Raises:
      ValueError: shapes do not fit; names of parameters are missing or unknown.
    """
    _check_step(params, carry, x)
    _check_derivatives(carry, d_carry, d_h)
    c_before, h_before = carry
    i, f, g, o = _gates(params, h_before, x)
    c = f * c_before + i * g
    W = {name: gate["kernel"] for name, gate in params.items()}

    d_c, d_h_next = d_carry
    d_h = d_h_next + d_h
    d_o = d_h * tanh(c) * o * (1 - o)
    d_c = d_c + d_h * o * (1 - tanh(c) ** 2)
    d_f = d_c * c_before * f * (1 - f)
    d_i = d_c * g * i * (1 - i)
    d_g = d_c * i * (1 - g**2)
    d_c_before = d_c * f
    # Vectors are rows here, so W^T d is written d W^T.
    d_h_before = d_i @ W["hi"].T + d_f @ W["hf"].T + d_g @ W["hg"].T + d_o @ W["ho"].T
    d_x = d_i @ W["ii"].T + d_f @ W["if"].T + d_g @ W["ig"].T + d_o @ W["io"].T

    d_params = {
        "ii": _d_gate(params["ii"], x, d_i),
        "if": _d_gate(params["if"], x, d_f),
        "ig": _d_gate(params["ig"], x, d_g),
        "io": _d_gate(params["io"], x, d_o),
        "hi": _d_gate(params["hi"], h_before, d_i),
        "hf": _d_gate(params["hf"], h_before, d_f),
        "hg": _d_gate(params["hg"], h_before, d_g),
        "ho": _d_gate(params["ho"], h_before, d_o),
    }
    return d_params, (d_c_before, d_h_before), d_x


def _gates(params: Params, h: jax.Array, x: jax.Array) -> tuple[jax.Array, ...]:
    def affine(name, inputs):
        return inputs @ params[name]["kernel"] + params[name].get("bias", 0)

    i = sigmoid(affine("ii", x) + affine("hi", h))
    f = sigmoid(affine("if", x) + affine("hf", h))
    g = tanh(affine("ig", x) + affine("hg", h))
    o = sigmoid(affine("io", x) + affine("ho", h))
    return i, f, g, o


def _d_gate(
    gate: dict[str, jax.Array], inputs: jax.Array, d_a: jax.Array
) -> dict[str, jax.Array]:
    """Returns the derivatives of a kernel and, if there is one, of a bias."""
    batch = tuple(range(d_a.ndim - 1))
    d_gate = {"kernel": jnp.tensordot(inputs, d_a, (batch, batch))}
    if "bias" in gate:
        d_gate["bias"] = d_a.sum(batch)
    return d_gate


def _check_step(params: Params, carry: State, x: jax.Array) -> None:
    _check_pair("carry", carry)
    if jnp.ndim(x) < 1 or jnp.ndim(carry[0]) < 1:
        raise ValueError(
            "`x` and `carry` must have a feature axis, got the shapes "
            f"{jnp.shape(x)} and {jax.tree.map(jnp.shape, carry)}."
        )
    *batch, features = jnp.shape(carry[0])
    _check_shape("x", x, (*batch, jnp.shape(x)[-1]))
    _check_shape("carry[1]", carry[1], (*batch, features))
    names = ("ii", "if", "ig", "io", "hi", "hf", "hg", "ho")
    if sorted(params) != sorted(names):
        raise ValueError(f"`params` must have {sorted(names)}, got {sorted(params)}.")
    for name in names:
        rows = jnp.shape(x)[-1] if name.startswith("i") else features
        if not {"kernel"} <= set(params[name]) <= {"kernel", "bias"}:
            raise ValueError(
                f"`params['{name}']` must have a kernel and may have a bias, got "
                f"{sorted(params[name])}."
            )
        _check_shape(
            f"params['{name}']['kernel']", params[name]["kernel"], (rows, features)
        )
        if "bias" in params[name]:
            _check_shape(f"params['{name}']['bias']", params[name]["bias"], (features,))


def _check_derivatives(carry: State, d_carry: State, d_h: jax.Array) -> None:
    _check_pair("d_carry", d_carry)
    shape = jnp.shape(carry[0])
    _check_shape("d_carry[0]", d_carry[0], shape)
    _check_shape("d_carry[1]", d_carry[1], shape)
    _check_shape("d_h", d_h, shape)


def _check_pair(name: str, pair: Any) -> None:
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise ValueError(
            f"`{name}` must be a pair (c, h), got {jax.tree.map(jnp.shape, pair)}."
        )


def _check_shape(name: str, array: jax.Array, shape: tuple[int, ...]) -> None:
    if jnp.shape(array) != shape:
        raise ValueError(
            f"`{name}` must have the shape {shape}, got {jnp.shape(array)}."
        )
