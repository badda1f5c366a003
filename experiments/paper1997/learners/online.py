"""Online learning of one sequence by each trial: the truncated gradient, forward.

Hochreiter and Schmidhuber, 1997, appendix A.1. `at_end` is for tasks with an error only
after the last step. `along` is for tasks with an error at every step; it updates the
weights after each step or after each sequence (the paper does not say which).
`by_full_gradient` does not truncate the gradient. All three are gradient descent on
half the squared error.

Forward traces are the fastest of three forms. The reverse cumulative sum stores the
activations of all steps for a product after the loop. Automatic differentiation needs a
second loop. `benchmarks/online.py` measures them.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from experiments.paper1997.learners.network import (
    Array,
    Errors,
    Network,
    State,
    Step,
    Weights,
    errors,
    project,
    read_out,
    start,
    step,
)


class Traces(NamedTuple):
    """Derivatives of the states by the weights into gates and cells, so far.

    Equations 25 and 27: sums over the steps of a source times the derivative of the
    state by the net input of its input gate, or of its cell. Gates first, then cells.

    Attributes:
      inputs: traces of weights from input units, `(inputs, 2 * cells, trials)`; None if
        they are computed after the sequence.
      hidden: traces of weights from hidden units, `(sources, 2 * cells, trials)`.
      bias: traces of biases, `(2 * cells, trials)`.
    """

    inputs: Array | None
    hidden: Array | None
    bias: Array | None


def at_end(
    network: Network,
    w: Weights,
    inputs: Array,
    lengths: Array,
    target: Array,
    rate: float,
) -> tuple[Weights, Array]:
    """Trains on a sequence with a target at its end.

    Args:
      network: the architecture.
      w: the weights.
      inputs: `(time, inputs, trials)`, or symbols `(time, trials)`; inputs after the
        lengths have no effect.
      lengths: number of steps of each sequence, at least 1, `(trials,)`.
      target: `(outputs, trials)`.
      rate: the learning rate.

    Returns:
      The new weights, and the outputs of the old weights, `(outputs, trials)`.
    """
    projected = project(network, w, inputs)
    trials = lengths.shape[-1]
    state = start(network, trials, projected.dtype)
    now = jax.tree.map(jnp.zeros_like, step(network, w, projected[0], state))
    traces = _no_traces(network, w, state, with_inputs=not network.is_symbolic)
    by = jnp.zeros((len(inputs), 2 * network.cells, trials), projected.dtype)

    def body(t, carry):
        now, y_before, traces, by = carry
        new = step(network, w, projected[t], now.state)
        is_on = t < lengths
        # Steps after the end of a sequence have no effect.
        gives = jnp.where(is_on, _gives(new), 0)
        traces = _traced(network, traces, inputs[t], now.state.y, gives)
        y_before = jnp.where(is_on, now.state.y, y_before)
        now = jax.tree.map(partial(jnp.where, is_on), new, now)
        if network.is_symbolic:
            by = by.at[t].set(gives)
        return now, y_before, traces, by

    carry = now, state.y, traces, by
    now, y_before, traces, by = jax.lax.fori_loop(0, jnp.max(lengths), body, carry)
    last = at_last_step(inputs, lengths)
    y_c = now.state.y[: network.cells]
    y, slope = read_out(network, w, y_c, last)
    e = errors(network, w, now, target - y, slope)
    change = _change(network, w, e, traces, y_c, y_before, last)
    if not network.is_symbolic:
        return _descend(w, change, rate), y
    # Each step changes only the weights of its symbol.
    is_last = jnp.arange(len(inputs))[:, None, None] == lengths - 1
    rows = rate * into_units(network, e, by, is_last)
    new = _add_rows(w.inputs, inputs, rows)
    return _descend(w._replace(inputs=None), change, rate)._replace(inputs=new), y


def along(
    network: Network,
    w: Weights,
    inputs: Array,
    lengths: Array,
    targets: Array,
    rate: float,
    update: str,
    has_grown: Array | None = None,
) -> tuple[Weights, Array]:
    """Trains on a sequence with a target at every step.

    Args:
      network: the architecture.
      w: the weights.
      inputs: `(time, inputs, trials)`, or symbols `(time, trials)`.
      lengths: number of steps of each sequence, `(trials,)`.
      targets: index of the output unit whose target is 1 (others 0) at each step,
        `(time, trials)`.
      rate: the learning rate.
      update: `'step'` updates the weights after every step and keeps the traces of
        earlier steps; `'sequence'` updates them after the last step.
      has_grown: whether each trial has its hidden units already, `(trials,)`. Before,
        the weights from them stay 0, and the weights into them get no error. None: all
        trials have them.

    Returns:
      The new weights, and the outputs of all steps, each from the weights before its
      update, `(time, outputs, trials)`.
    """
    trials = lengths.shape[-1]
    projected = project(network, w, inputs)
    state = start(network, trials, projected.dtype)
    traces = _no_traces(network, w, state, with_inputs=True)
    outputs = jnp.zeros((len(inputs), network.outputs, trials), projected.dtype)
    change = jax.tree.map(jnp.zeros_like, w)
    is_step = update == "step"

    def body(t, carry):
        w, state, traces, outputs, change = carry
        z = project(network, w, inputs[t][None])[0] if is_step else projected[t]
        now = step(network, w, z, state)
        traces = _traced(network, traces, inputs[t], state.y, _gives(now))
        y_c = now.state.y[: network.cells]
        y, slope = read_out(network, w, y_c, inputs[t])
        target = jax.nn.one_hot(targets[t], network.outputs, axis=0)
        e = errors(network, w, now, jnp.where(t < lengths, target - y, 0), slope)
        # Without this barrier, XLA recomputes the errors for every weight.
        e = jax.lax.optimization_barrier(e)
        own = _change(network, w, e, traces, y_c, state.y, inputs[t])
        if has_grown is not None:
            own = own._replace(outputs=own.outputs * has_grown)
        if is_step:
            w = _descend(w, own, rate)
        else:
            change = jax.tree.map(jnp.add, change, own)
        return w, now.state, traces, outputs.at[t].set(y), change

    carry = w, state, traces, outputs, change
    w, _, _, outputs, change = jax.lax.fori_loop(0, jnp.max(lengths), body, carry)
    return (w if is_step else _descend(w, change, rate)), outputs


def by_full_gradient(
    network: Network,
    w: Weights,
    inputs: Array,
    lengths: Array,
    target: Array,
    rate: float,
    is_along: bool,
    has_grown: Array | None = None,
) -> tuple[Weights, Array]:
    """Trains on a sequence with the full gradient through time.

    Args:
      network: the architecture.
      w: the weights.
      inputs: see `at_end`.
      lengths: see `at_end`.
      target: see `at_end`, or `along` if `is_along`.
      rate: the learning rate.
      is_along: whether there is a target at every step.
      has_grown: see `along`.

    Returns:
      The results of `at_end`, or of `along` with one update after each sequence.
    """

    @partial(jax.grad, has_aux=True)
    def gradient(w):
        y = respond_along(network, w, inputs, lengths)
        y = y if is_along else at_last_step(y, lengths)
        return half_squared_error(y, lengths, target), y

    change, y = gradient(w)
    if w.bias is not None:
        change = change._replace(bias=change.bias * network.has_bias())
    if has_grown is not None:
        change = change._replace(outputs=change.outputs * has_grown)
    return _descend(w, change, -rate), y


def half_squared_error(y: Array, lengths: Array, target: Array) -> Array:
    """Returns half the squared error, summed over sequences, steps and output units.

    Args:
      y: outputs at the end, `(outputs, *sequences)`, or at every step, `(time, outputs,
        *sequences)`.
      lengths: lengths of the sequences.
      target: `(outputs, *sequences)`, or the index of the output unit whose target is 1
        at each step, `(time, *sequences)`.
    """
    if y.ndim > target.ndim:
        steps = jnp.arange(len(y)).reshape(-1, *(1,) * lengths.ndim)
        counts = (steps < lengths)[:, None]
        one_hot = jax.nn.one_hot(target, y.shape[1], axis=1)
        return 0.5 * jnp.sum((one_hot - y) ** 2, where=counts)
    return 0.5 * jnp.sum((target - y) ** 2)


def respond(network: Network, w: Weights, inputs: Array, lengths: Array) -> Array:
    """Returns the outputs at the end of sequences, `(outputs, trials)`."""
    projected = project(network, w, inputs)
    state = start(network, lengths.shape[-1], projected.dtype)

    def body(t, state):
        new = step(network, w, projected[t], state).state
        return jax.tree.map(partial(jnp.where, t < lengths), new, state)

    state = jax.lax.fori_loop(0, jnp.max(lengths), body, state)
    last = at_last_step(inputs, lengths)
    return read_out(network, w, state.y[: network.cells], last)[0]


def respond_along(network: Network, w: Weights, inputs: Array, lengths: Array) -> Array:
    """Returns the outputs at every step of sequences, `(time, outputs, trials)`."""
    return trace(network, w, inputs, lengths)[1]


def trace(
    network: Network, w: Weights, inputs: Array, lengths: Array
) -> tuple[State, Array]:
    """Returns states and outputs at every step of sequences, `(time, ..., trials)`."""
    projected = project(network, w, inputs)

    def body(state, now):
        z, inputs = now
        state = step(network, w, z, state).state
        return state, (state, read_out(network, w, state.y[: network.cells], inputs)[0])

    state = start(network, lengths.shape[-1], projected.dtype)
    return jax.lax.scan(body, state, (projected, inputs))[1]


def _gives(now: Step) -> Array:
    """Returns the derivatives of the states by the net inputs of gates and cells."""
    return jnp.concatenate([now.by_gate, now.by_cell])


def at_last_step(steps: Array, lengths: Array) -> Array:
    """Returns the last step of sequences `(time, ..., trials)`."""
    index = (lengths - 1).reshape(1, *(1,) * (steps.ndim - 2), -1)
    return jnp.take_along_axis(steps, index, axis=0)[0]


def _no_traces(network: Network, w: Weights, state: State, with_inputs: bool) -> Traces:
    """Returns the traces before the first step, zeros."""
    none = jnp.concatenate([state.s, state.s])

    def zeros(sources):
        return jnp.zeros((sources, *none.shape), none.dtype)

    return Traces(
        zeros(network.inputs) if with_inputs else None,
        zeros(network.sources) if network.recurrent else None,
        None if w.bias is None else none,
    )


def _traced(
    network: Network, traces: Traces, inputs: Array, y_before: Array, gives: Array
) -> Traces:
    """Returns the traces after one more step."""
    of_inputs, of_hidden, of_bias = traces
    if of_inputs is not None and network.is_symbolic:
        of_inputs = _add_rows(of_inputs, inputs, gives)
    elif of_inputs is not None:
        of_inputs = of_inputs + inputs[:, None] * gives
    if of_hidden is not None:
        of_hidden = of_hidden + y_before[:, None] * gives
    if of_bias is not None:
        of_bias = of_bias + gives
    return Traces(of_inputs, of_hidden, of_bias)


def _change(
    network: Network,
    w: Weights,
    e: Errors,
    traces: Traces,
    y_c: Array,
    y_before: Array,
    inputs: Array,
) -> Weights:
    """Returns minus the gradient: equations 22, 26 and 28."""
    one_hot = inputs
    if network.is_symbolic:
        one_hot = jax.nn.one_hot(inputs, network.inputs, axis=0, dtype=e.k.dtype)

    into = partial(into_units, network, e)
    of_inputs = of_hidden = of_bias = None
    if traces.inputs is not None:
        of_inputs = into(traces.inputs, one_hot[:, None])
    if traces.hidden is not None:
        of_hidden = into(traces.hidden, y_before[:, None])
    if traces.bias is not None:
        of_bias = into(traces.bias, 1.0) * network.has_bias()
    return Weights(
        inputs=of_inputs,
        hidden=of_hidden,
        bias=of_bias,
        outputs=e.k[:, None] * y_c,
        output_bias=None if w.output_bias is None else e.k,
        direct=None if w.direct is None else one_hot[:, None] * e.k,
    )


def into_units(network: Network, e: Errors, gave: Array, source: Array) -> Array:
    """Returns the change of the weights from some sources into hidden units.

    Args:
      network: the architecture.
      e: errors after a step.
      gave: traces of the sources, or their terms for single steps, through input gates
        and through cells, `(..., 2 * cells, trials)`.
      source: the sources at this step, from which output gates learn, broadcastable to
        `(..., blocks, trials)`.

    Returns:
      `(..., units, trials)`.
    """
    of_gate, of_cell = jnp.split(gave, 2, axis=-2)
    gate = e.s * of_gate
    gate = gate.reshape(*gate.shape[:-2], network.blocks, -1, gate.shape[-1])
    parts = [gate.sum(-2), e.s * of_cell]
    if e.out is not None:
        parts.append(e.out * source)
    return jnp.concatenate(parts, axis=-2)


def _add_rows(weights: Array, symbols: Array, rows: Array) -> Array:
    """Adds a row to the weights of each trial's symbol."""
    trials = jnp.arange(symbols.shape[-1])
    return weights.at[symbols, :, trials].add(jnp.moveaxis(rows, -1, -2))


def _descend(w: Weights, change: Weights, rate: float) -> Weights:
    return jax.tree.map(lambda leaf, step: leaf + rate * step, w, change)
