"""A whole sequence and its derivatives: backpropagation through time, as a loop.

A step of any cell of this package, from the first to the last::

    carry_t, y_t = step(params, carry_{t-1}, x_t)

and its derivatives, from the last step to the first::

    δparams_t, δcarry_{t-1}, δx_t = step_vjp(params, carry_{t-1}, x_t, δcarry_t, Δ_t)
    δparams = Σ_t δparams_t

References: Rumelhart, Hinton and Williams, 1986, https://doi.org/10.1038/323533a0;
Werbos, 1990, https://doi.org/10.1109/5.58337.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from rnncells.reference.gates import Params, with_zeros


def sequence(
    step: Callable, params: Params, carry: Any, inputs: Array
) -> tuple[Any, Array]:
    """Returns the last carry and the outputs of a sequence.

    >>> import jax, jax.numpy as jnp, rnncells
    >>> from rnncells.reference import gru_step, gru_step_vjp, sequence, sequence_vjp
    >>> rnn, x = rnncells.RNN(rnncells.GRUCell(4)), jnp.ones((2, 5, 3))
    >>> params = rnn.init(jax.random.key(0), x)["params"]["cell"]
    >>> carry, y = sequence(gru_step, params, jnp.zeros((2, 4)), x)
    >>> d_params, d_carry, d_x = sequence_vjp(
    ...     gru_step, gru_step_vjp, params, jnp.zeros((2, 4)), x,
    ...     d_outputs=jnp.ones((2, 5, 4)),
    ... )

    Args:
      step: a step of this package, such as `gru_step`.
      params: parameters of the cell.
      carry: carry before the first step.
      inputs: `(*batch, time, features_in)`; the outputs are `(*batch, time, features)`.
    """
    outputs = []
    for t in range(_time(inputs)):
        carry, y = step(params, carry, inputs[..., t, :])
        outputs.append(y)
    return carry, jnp.stack(outputs, -2)


def sequence_vjp(
    step: Callable,
    step_vjp: Callable,
    params: Params,
    carry: Any,
    inputs: Array,
    d_carry: Any = None,
    d_outputs: Array | None = None,
    *,
    return_gates: bool = False,
) -> tuple[Any, ...]:
    """Returns the derivatives of a loss by `params`, the first carry and `inputs`.

    See `sequence` for an example. For options of a cell, pass
    `functools.partial(gru_step, reset_after=False)` and the same of `gru_step_vjp`.

    Args:
      step, params, carry, inputs: see `sequence`.
      step_vjp: derivatives of the step, such as `gru_step_vjp`.
      d_carry: derivatives with respect to the last carry; None: zeros.
      d_outputs: derivatives with respect to the outputs, `(*batch, time, features)`;
        None: zeros.
      return_gates: also returns the derivatives of the gates of every step by name,
        `(*batch, time, units)`, and those of the carry after every step, without Δ_t,
        as `(*batch, time, ...)`.
    """
    time = _time(inputs)
    end, y = jax.eval_shape(step, params, carry, inputs[..., 0, :])
    outputs = jax.ShapeDtypeStruct((*inputs.shape[:-1], y.shape[-1]), y.dtype)
    *d_end, d_outputs = with_zeros(end, outputs, d_carry, d_outputs, "d_outputs")
    d_carry = tuple(d_end) if isinstance(end, tuple) else d_end[0]
    carries = [carry]
    for t in range(time):
        carries.append(step(params, carries[t], inputs[..., t, :])[0])

    d_params = jax.tree.map(jnp.zeros_like, params)
    d_inputs, gates, d_carries = [], [], []
    for t in reversed(range(time)):
        d_carries.append(d_carry)
        d_step, d_carry, d_x, d_gates = step_vjp(
            params,
            carries[t],
            inputs[..., t, :],
            d_carry,
            d_outputs[..., t, :],
            return_gates=True,
        )
        d_params = jax.tree.map(jnp.add, d_params, d_step)
        d_inputs.append(d_x)
        gates.append(d_gates)

    gradients = d_params, d_carry, _over_time(d_inputs)
    if return_gates:
        return *gradients, _over_time(gates), _over_time(d_carries)
    return gradients


def _time(inputs: Array) -> int:
    if jnp.ndim(inputs) < 2 or not inputs.shape[-2]:
        raise ValueError(
            "`inputs` must be (*batch, time, features) with at least one step, got the "
            f"shape {jnp.shape(inputs)}."
        )
    return inputs.shape[-2]


def _over_time(steps: list[Any]) -> Any:
    """Returns arrays of all steps, last step first, as `(*batch, time, ...)`."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves, -2), *reversed(steps))
