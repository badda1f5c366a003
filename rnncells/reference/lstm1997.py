"""One step of the memory cells of 1997 and its derivatives, in closed form.

The step, as in `rnncells.LSTM1997Cell`. The cells v of block j share the gates of the
block; y_t are the activations of all hidden units::

    net_in_t   = W_in x_t + U_in y_{t-1} + b_in
    net_c_t    = W_c x_t + U_c y_{t-1} + b_c
    net_out_t  = W_out x_t + U_out y_{t-1} + b_out
    y^in_t[j]  = f(net_in_t[j])
    y^out_t[j] = f(net_out_t[j])
    s_t[j,v]   = s_{t-1}[j,v] + y^in_t[j] · g(net_c_t[j,v])
    y^c_t[j,v] = y^out_t[j] · h(s_t[j,v])
    y_t        = (y^c_t, y^in_t, y^out_t)

f is the logistic function, g = 4f - 2 and h = 2f - 1.

The derivatives. δin_t, δc_t and δout_t are those of the loss with respect to the net
inputs. δs_t and δy_t come from the next step, and Δ_t is the derivative with respect to
the output y^c_t of this step. δy^c_t, δy^in_t and δy^out_t are the parts of δy_t::

    δy^c_t ← δy^c_t + Δ_t
    δout_t[j] = f'(net_out_t[j]) · (Σ_v h(s_t[j,v]) · δy^c_t[j,v] + δy^out_t[j]) (21)
    δs_t[j,v] ← δs_t[j,v] + y^out_t[j] · h'(s_t[j,v]) · δy^c_t[j,v]              (23)
    δc_t[j,v] = δs_t[j,v] · y^in_t[j] · g'(net_c_t[j,v])                         (27)
    δin_t[j] = f'(net_in_t[j]) · (Σ_v δs_t[j,v] · g(net_c_t[j,v]) + δy^in_t[j])  (25)
    δs_{t-1} = δs_t
    δy_{t-1} = 0
    δx_t = Σ_a W_a^T δa_t
    δW_a = δa_t x_t^T                                                 (22), (26), (28)
    δU_a = δa_t y_{t-1}^T                                             (22), (26), (28)
    δb_a = δa_t

a stands for in, c and out. The line δy_{t-1} = 0 is the truncation of the paper: errors
flow back in time only through s. With `truncate_gradient=False`::

    δy_{t-1} = Σ_a U_a^T δa_t

Reference: Hochreiter and Schmidhuber, 1997,
https://doi.org/10.1162/neco.1997.9.8.1735, appendix A.1; the numbers are those of its
equations. (19) and (20) are about output units and other hidden units, which are not
part of a cell. Different here: the paper sums (25) and (27) forward in time, and these
equations go back in time, with equal results. The paper writes e for minus the
derivative of the loss. Its truncated gradient has neither δy^in_t nor δy^out_t. As in
`LSTM1997Cell`, gates and cells read the input of the same step.
"""

from collections.abc import Callable

import jax.numpy as jnp
from jax import Array
from jax.nn import sigmoid as f

from rnncells.reference.gates import (
    Params,
    affine,
    back,
    check_params,
    check_shapes,
    d_gates,
    step_shapes,
    with_zeros,
)

State = tuple[Array, Array]


def lstm1997_step(params: Params, carry: State, x: Array) -> tuple[State, Array]:
    """Returns the new carry and the output of one step, `((s, y), y^c)`.

    See `rnncells.reference`. `params` has the kernels `ii ig io` (W of input gates,
    cells and output gates) and `hi hg ho` (U, with optional biases). The carry is
    (s_{t-1}, y_{t-1}), `(*batch, features)` and `(*batch, features + 2 * blocks)`, or
    `(*batch, features)` if gates are not fed back.
    """
    _check_step(params, carry, x)
    s_before, y_before = carry
    net_in, net_c, net_out = _net(params, y_before, x)
    y_in, y_out = f(net_in), f(net_out)
    s = s_before + _to_cells(y_in, s_before) * g(net_c)
    y_c = _to_cells(y_out, s_before) * h(s)
    feeds_gates = y_before.shape[-1] > s.shape[-1]
    y = jnp.concatenate([y_c, y_in, y_out], -1) if feeds_gates else y_c
    return (s, y), y_c


def lstm1997_step_vjp(
    params: Params,
    carry: State,
    x: Array,
    d_carry: tuple[Array | None, Array | None] | None = None,
    d_y_c: Array | None = None,
    *,
    truncate_gradient: bool = True,
    return_gates: bool = False,
) -> tuple[Params, State, Array] | tuple[Params, State, Array, dict[str, Array]]:
    """Returns the derivatives of `lstm1997_step`; see `rnncells.reference`.

    `d_carry` is (δs_t, δy_t). With `truncate_gradient`, the default, the gradient is
    truncated as in the paper. `return_gates` adds δin_t, δc_t and δout_t by the names
    `in c out`.
    """
    _check_step(params, carry, x)
    s_before, y_before = carry
    net_in, net_c, net_out = _net(params, y_before, x)
    y_in, y_out = _to_cells(f(net_in), s_before), _to_cells(f(net_out), s_before)
    s = s_before + y_in * g(net_c)
    d_s, d_y, d_y_c = with_zeros(carry, s_before, d_carry, d_y_c, "d_y_c")
    d_y_next, d_y_in, d_y_out = _parts(d_y, s, net_in)

    d_y_c = d_y_next + d_y_c
    d_out = slope(f, net_out) * (_over_cells(h(s) * d_y_c, net_out) + d_y_out)
    d_s = d_s + y_out * slope(h, s) * d_y_c
    d_c = d_s * y_in * slope(g, net_c)
    d_in = slope(f, net_in) * (_over_cells(d_s * g(net_c), net_in) + d_y_in)
    d_s_before = d_s
    d_y_before = jnp.zeros_like(y_before)
    if not truncate_gradient:
        d_y_before = back(params, {"hi": d_in, "hg": d_c, "ho": d_out})
    d_x = back(params, {"ii": d_in, "ig": d_c, "io": d_out})
    d_W = d_gates(params, x, {"ii": d_in, "ig": d_c, "io": d_out})
    d_U = d_gates(params, y_before, {"hi": d_in, "hg": d_c, "ho": d_out})

    grads = d_W | d_U, (d_s_before, d_y_before), d_x
    return (*grads, {"in": d_in, "c": d_c, "out": d_out}) if return_gates else grads


def g(x: Array) -> Array:
    """Returns 4 f(x) - 2."""
    return 4 * f(x) - 2


def h(x: Array) -> Array:
    """Returns 2 f(x) - 1."""
    return 2 * f(x) - 1


def slope(function: Callable, x: Array) -> Array:
    """Returns f'(x) = f(x) (1 - f(x)), g'(x) = 4 f'(x) or h'(x) = 2 f'(x)."""
    return {f: 1, g: 4, h: 2}[function] * f(x) * (1 - f(x))


def _net(params: Params, y: Array, x: Array) -> list[Array]:
    return [affine(params, f"i{a}", x) + affine(params, f"h{a}", y) for a in "igo"]


def _to_cells(gate: Array, s: Array) -> Array:
    """Repeats the gate of each block for all cells of the block."""
    return jnp.repeat(gate, s.shape[-1] // gate.shape[-1], axis=-1)


def _over_cells(cells: Array, gate: Array) -> Array:
    """Returns the sum over the cells of each block."""
    return cells.reshape(*gate.shape, -1).sum(-1)


def _parts(d_y: Array, s: Array, gate: Array) -> list[Array]:
    """Returns δy^c, δy^in and δy^out; zeros for gates that are not fed back."""
    features, blocks = s.shape[-1], gate.shape[-1]
    if d_y.shape[-1] == features:
        return [d_y, jnp.zeros_like(gate), jnp.zeros_like(gate)]
    return jnp.split(d_y, [features, features + blocks], axis=-1)


def _check_step(params: Params, carry: State, x: Array) -> None:
    state, inputs = step_shapes(carry, x)
    features = state[-1]
    shape = jnp.shape(params.get("ii", {}).get("kernel", 0))
    blocks = shape[1] if len(shape) == 2 else 0
    if not blocks or features % blocks:
        raise ValueError(
            "`params['ii']['kernel']` must be (features_in, blocks), where blocks "
            f"divides the {features} cells, got the shape {shape}."
        )
    feeds_gates = jnp.shape(carry[-1]) != state
    units = features + 2 * blocks * feeds_gates
    check_shapes("carry", carry, [state, (*state[:-1], units)])
    check_params(params, inputs, units, {"i": blocks, "g": features, "o": blocks})
