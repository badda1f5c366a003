"""The paper's networks and their learning: equal to autodiff, and to its equations."""

import dataclasses
import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from equations.memory_cells import on_line
from levels import by_level

from experiments.paper1997.learners import online
from experiments.paper1997.learners.network import Network, Weights, count, logistic

pytestmark = pytest.mark.default

TRIALS, TIME, RATE = 3, 9, 0.5
LENGTHS = np.array([9, 5, 1])
NETWORKS = {
    "adding": Network(2, 1, 2, 2),
    "identity": Network(2, 3, 2, 2, output_unit="identity"),
    "reber": Network(
        *(7, 7, 3, 2), biases=("in", "out"), output_bias=False, is_symbolic=True
    ),
    "no biases": Network(5, 2, 2, 1, biases=(), output_bias=False, is_symbolic=True),
    "cells alone": Network(5, 3, 2, 2, gate_feedback=False, g="1", h="2"),
    "direct": Network(4, 3, 2, 2, direct=True, output_slope_offset=0.1),
    "direct symbols": Network(5, 5, 2, 2, direct=True, is_symbolic=True),
    "offset": Network(4, 3, 2, 2, input_gate_offset=(-1.0, -2.0), h="4"),
    "long lag": Network(
        *(6, 6, 1, 1),
        g="logistic",
        h="identity",
        output_gates=False,
        recurrent=False,
        biases=(),
        output_bias=False,
        direct=True,
        is_symbolic=True,
    ),
}
FUNCTIONS = {
    "logistic": jax.nn.sigmoid,
    "identity": lambda x: x,
    "1": lambda x: 2 / (1 + jnp.exp(-x)) - 1,
    "2": lambda x: 4 / (1 + jnp.exp(-x)) - 2,
    "4": lambda x: 8 / (1 + jnp.exp(-x)) - 4,
}


def draw_weights(rng, network):
    def draw(*shape):
        return rng.uniform(-0.5, 0.5, (*shape, TRIALS))

    n = network
    return Weights(
        draw(n.inputs, n.units),
        draw(n.sources, n.units) if n.recurrent else None,
        draw(n.units) * n.has_bias() if n.biases else None,
        draw(n.outputs, n.cells),
        draw(n.outputs) if n.output_bias else None,
        draw(n.inputs, n.outputs) if n.direct else None,
    )


def draw_inputs(rng, network):
    """Returns inputs as the network takes them, and as numbers."""
    if not network.is_symbolic:
        inputs = rng.standard_normal((TIME, network.inputs, TRIALS))
        return inputs, inputs
    symbols = rng.integers(0, network.inputs, (TIME, TRIALS))
    return symbols, np.eye(network.inputs)[symbols].swapaxes(1, 2)


def plain_outputs(network, w, x, is_truncated=True):
    """The equations of section 1, one trial, differentiated by JAX."""
    b, size, cells = network.blocks, network.block_size, network.cells
    f, g, h = (FUNCTIONS[name] for name in ("logistic", network.g, network.h))

    def step(carry, x):
        s, y = carry
        y = jax.lax.stop_gradient(y) if is_truncated else y
        net = x @ w.inputs
        net += y @ w.hidden if network.recurrent else 0
        net += 0 if w.bias is None else w.bias
        net_in, net_c, net_out = net[:b], net[b : b + cells], net[b + cells :]
        if network.input_gate_offset:
            net_in += jnp.array(network.input_gate_offset)
        y_in, y_out = f(net_in), f(net_out)
        s = s + jnp.repeat(y_in, size) * g(net_c)
        y_c = h(s) * (jnp.repeat(y_out, size) if network.output_gates else 1)
        y = jnp.concatenate([y_c, y_in, y_out] if network.gate_feedback else [y_c])
        net_k = w.outputs @ y_c
        net_k += 0 if w.output_bias is None else w.output_bias
        net_k += 0 if w.direct is None else x @ w.direct
        # A value of 0 whose derivative is the offset of the slope.
        zero = network.output_slope_offset * (net_k - jax.lax.stop_gradient(net_k))
        return (s, y), FUNCTIONS[network.output_unit](net_k) + zero

    start = jnp.zeros(cells), jnp.zeros(network.sources or network.units)
    return jax.lax.scan(step, start, x)[1]


@partial(jax.jit, static_argnums=(0, 5))
def descended(network, w, x, target, is_scored, is_truncated=True):
    """Returns one trial's weights after a step of gradient descent, and its outputs."""

    @partial(jax.grad, has_aux=True)
    def gradient(w):
        y = plain_outputs(network, w, x, is_truncated)
        return 0.5 * jnp.sum(is_scored[:, None] * (target - y) ** 2), y

    change, y = gradient(w)
    if w.bias is not None:
        change = change._replace(bias=change.bias * network.has_bias()[:, 0])
    return jax.tree.map(lambda leaf, d: leaf - RATE * d, w, change), y


def on_host(tree):
    """Returns NumPy arrays, of which slices need no compilation."""
    return jax.tree.map(np.asarray, tree)


def trial(tree, k):
    return jax.tree.map(lambda leaf: leaf[..., k], tree)


def close(actual, expected):
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-13),
        actual,
        expected,
    )


@pytest.mark.parametrize("name", by_level(NETWORKS, ["adding", "reber"]))
def test_learning_at_the_end_is_gradient_descent(name, rng, float64):
    network = NETWORKS[name]
    w, (inputs, x) = draw_weights(rng, network), draw_inputs(rng, network)
    target = rng.uniform(0, 1, (network.outputs, TRIALS))

    @jax.jit
    def learn(target, w, *sequences):
        learnt = online.at_end(network, w, *sequences, target, RATE)
        return learnt, online.respond(network, w, *sequences)

    (new, y), response = on_host(learn(target, w, inputs, LENGTHS))

    for k, length in enumerate(LENGTHS):
        is_end = np.arange(TIME) == length - 1
        expected, outputs = descended(
            network, trial(w, k), x[..., k], target[:, k], is_end
        )
        close((trial(new, k), y[:, k]), (expected, outputs[length - 1]))
    close(response, y)


@pytest.mark.parametrize("name", by_level(NETWORKS, ["direct symbols"]))
def test_learning_along_the_sequence_is_gradient_descent(name, rng, float64):
    network = NETWORKS[name]
    w, (inputs, x) = draw_weights(rng, network), draw_inputs(rng, network)
    targets = rng.integers(0, network.outputs, (TIME, TRIALS))

    @jax.jit
    def learn(targets, w, *sequences):
        learnt = online.along(network, w, *sequences, targets, RATE, "sequence")
        return learnt, online.respond_along(network, w, *sequences)

    (new, y), responses = on_host(learn(targets, w, inputs, LENGTHS))

    for k, length in enumerate(LENGTHS):
        one_hot = np.eye(network.outputs)[targets[:, k]]
        counts = np.arange(TIME) < length
        expected, outputs = descended(network, trial(w, k), x[..., k], one_hot, counts)
        close((trial(new, k), y[:length, :, k]), (expected, outputs[:length]))
    close(responses[0], y[0])


@pytest.mark.parametrize(
    "name, is_along",
    by_level(
        [*itertools.product(NETWORKS, [False, True])],
        # Without recurrent weights, with symbols, and with numbers.
        [("reber", True), ("adding", False)],
    ),
)
def test_full_gradient_is_gradient_descent(name, is_along, rng, float64):
    # Only the truncated gradient has another factor than the slope.
    network = dataclasses.replace(NETWORKS[name], output_slope_offset=0.0)
    w, (inputs, x) = draw_weights(rng, network), draw_inputs(rng, network)
    if is_along:
        given = rng.integers(0, network.outputs, (TIME, TRIALS))
        targets = np.eye(network.outputs)[given].swapaxes(1, 2)
    else:
        given = rng.uniform(0, 1, (network.outputs, TRIALS))
        targets = np.broadcast_to(given, (TIME, *given.shape))

    learn = jax.jit(online.by_full_gradient, static_argnums=(0, 5, 6))
    learnt = learn(network, w, inputs, np.array(LENGTHS), given, RATE, is_along)
    new, y = on_host(learnt)

    for k, length in enumerate(LENGTHS):
        step = np.arange(TIME)
        counts = step < length if is_along else step == length - 1
        target = targets[..., k]
        expected, outputs = descended(
            *(network, trial(w, k), x[..., k], target, counts, False)
        )
        close(trial(new, k), expected)
        own = y[:length, :, k] if is_along else y[:, k]
        close(own, outputs[:length] if is_along else outputs[length - 1])


def step_by_step(network, w, x, targets, rate):
    """Equations 19 to 28, one step and one update after the other, in NumPy."""
    w = Weights(*(None if leaf is None else np.array(leaf) for leaf in w))
    into = np.concatenate([w.inputs, w.hidden, w.bias[None]])
    ends = network.blocks, network.blocks + network.cells
    columns = dict(zip("igo", np.split(into, ends, 1)))
    given = columns, w.outputs.T, w.output_bias, x, targets, network.block_size
    for change, _ in on_line(*given):
        for name, column in columns.items():
            column += rate * change[name]
        w.outputs.T[...] += rate * change["k"]
        w.output_bias[...] += rate * change["b_k"]
    inputs, hidden, bias = np.split(into, (x.shape[1], len(into) - 1))
    return w._replace(inputs=inputs, hidden=hidden, bias=bias[0])


@pytest.mark.parametrize("is_symbolic", [False, True])
def test_updates_at_every_step_follow_the_equations(is_symbolic, rng, float64):
    network = Network(4, 3, 2, 2, is_symbolic=is_symbolic)
    w, (inputs, x) = draw_weights(rng, network), draw_inputs(rng, network)
    targets = rng.integers(0, 3, (TIME, TRIALS))

    learn = jax.jit(online.along, static_argnums=(0, 5, 6))
    given = network, w, inputs, np.array(LENGTHS), targets, RATE
    new, _ = on_host(learn(*given, "step"))

    for k, length in enumerate(LENGTHS):
        one_hot = np.eye(3)[targets[:length, k]]
        x_k = x[:length, :, k]
        close(trial(new, k), step_by_step(network, trial(w, k), x_k, one_hot, RATE))


def test_slope_of_the_logistic_function_does_not_underflow():
    value, slope = logistic(jnp.float32(40.0))
    assert value == 1 and slope == jnp.exp(jnp.float32(-40.0)) > 0


def test_weights_without_a_bias_are_not_counted(rng):
    network = NETWORKS["reber"]
    assert count(network, draw_weights(rng, network)) == 276
