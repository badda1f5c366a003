"""Decoding: it equals a loop over `step`."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import (
    assert_close,
    assert_equal,
    random_like,
    random_params,
    values_and_gradients,
)
from levels import by_level

import rnncells

STEPS = 4
RNGS = {"teacher_forcing": jax.random.key(5)}


def head(cell):
    return rnncells.StackedCell([cell, nn.Dense(3)])


def doubled(pair):
    return {"y": 2 * pair["y"], "x": pair["x"]}


class Pairs(nn.Module):
    """A cell of a user with several inputs and outputs."""

    num_feature_axes: int = 1

    @nn.nowrap
    def initialize_carry(self, rng, input_shape):
        return jnp.zeros(input_shape["x"], jnp.result_type(float))

    @nn.compact
    def __call__(self, h, inputs):
        h = jnp.tanh(nn.Dense(3)(h) + inputs["x"]) - inputs["y"]
        return h, {"x": h**2, "y": nn.Dense(3)(h)}


# A cell, the shape of its inputs, `feed`, the rate, and options of the layer.
CASES = {
    "lstm": (rnncells.LSTMCell(3), (2, 3), None, None, {}),
    "gru": (rnncells.GRUCell(3), (2, 5, 3), jnp.sin, 0.5, {"time_major": True}),
    "images": (rnncells.ConvLSTMCell(2, (3, 3)), (2, 5, 4, 2), None, 0.5, {}),
    "head": (head(rnncells.LSTMCell(4)), (2, 3), jnp.cos, 1.0, {}),
    "pairs without a batch": (Pairs(), (3,), doubled, 0.5, {}),
}


def inputs_of(name, rng, *leading):
    shape = (*leading, *CASES[name][1])
    if name != "pairs without a batch":
        return jnp.asarray(rng.standard_normal(shape))
    return {k: jnp.asarray(rng.standard_normal(shape)) for k in "xy"}


def in_float64(tree):
    return jax.tree.map(lambda leaf: np.asarray(leaf, float), tree)


def draws(rnn, params, rate, batch):
    """Returns which rows see targets, `(time, *batch)`."""
    if rate is None or rate == 1:
        return jnp.full((STEPS, *batch), rate == 1)
    key = rnn.apply(
        params, method=lambda rnn: rnn.make_rng("teacher_forcing"), rngs=RNGS
    )
    return jax.random.bernoulli(key, rate, (STEPS, *batch))


def step_by_step(rnn, params, carry, x, targets, feed, forced):
    """Returns the last carry, and outputs and next inputs, `(time, ...)`."""

    def step(carry_and_x, at):
        target, is_forced = at
        carry, y = rnn.apply(params, *carry_and_x, method="step")
        x = y if feed is None else feed(y)
        if target is not None:

            def chosen(a, b):
                axes = range(is_forced.ndim, a.ndim)
                return jnp.where(jnp.expand_dims(is_forced, tuple(axes)), a, b)

            x = jax.tree.map(chosen, target, x)
        return (carry, x), (y, x)

    (carry, _), steps = jax.lax.scan(step, (carry, x), (targets, forced), STEPS)
    return carry, steps


@pytest.mark.parametrize(
    "name", by_level(CASES, ["gru", "images", "pairs without a batch"])
)
def test_decoding_equals_a_loop_over_steps(name, rng, float64):
    cell, _, feed, rate, options = CASES[name]
    # `memory` raises unless the fast loop runs.
    rnn = rnncells.RNN(cell, return_carry=True, memory="recompute", **options)
    first = inputs_of(name, rng)
    targets = None if rate is None else inputs_of(name, rng, STEPS)
    axis = 0 if rnn.time_major else jnp.ndim(jax.tree.leaves(first)[0])
    axis -= 0 if rnn.time_major else (3 if name == "images" else 1)
    sequence = jax.tree.map(lambda leaf: jnp.expand_dims(leaf, axis), first)
    params = in_float64(random_params(rng, rnn, sequence))
    carry = in_float64(random_like(rng, rnn.initialize_carry(None, first)))
    given = (params, carry, first) + (() if targets is None else (targets,))
    batch = CASES[name][1][: -3 if name == "images" else -1]
    forced = draws(rnn, params, rate, batch)

    def decode(params, carry, first, targets=None):
        arguments = {"initial_carry": carry, "feed": feed, "return_inputs": True}
        if targets is None:
            arguments["steps"] = STEPS
        else:
            arguments["targets"] = jax.tree.map(
                lambda leaf: jnp.moveaxis(leaf, 0, axis), targets
            )
            arguments["teacher_forcing_rate"] = rate
        result = rnn.apply(params, first, method="decode", rngs=RNGS, **arguments)
        carry, results = result
        return carry, jax.tree.map(lambda leaf: jnp.moveaxis(leaf, axis, 0), results)

    def by_hand(params, carry, first, targets=None):
        return step_by_step(rnn, params, carry, first, targets, feed, forced)

    actual, expected = (
        values_and_gradients(decode, *given),
        values_and_gradients(by_hand, *given),
    )
    assert_close(actual, expected, rtol=1e-12, atol=1e-12)
    if 0 < (rate or 0) < 1:
        assert 0 < np.mean(forced) < 1


def setting(rng, cell=None, **options):
    rnn = rnncells.RNN(cell or head(rnncells.SimpleCell(4)), **options)
    x = jnp.asarray(rng.standard_normal((2, STEPS, 3)), jnp.float32)
    return rnn, random_params(rng, rnn, x), x


@pytest.mark.default
def test_rate_may_be_traced(rng):
    rnn, params, x = setting(rng)
    x = np.asarray(x)
    decode = partial(rnn.apply, params, x[:, 0], targets=x, method="decode")
    traced = jax.jit(lambda rate: decode(teacher_forcing_rate=rate, rngs=RNGS))

    shifted = np.concatenate([x[:, :1], x[:, :-1]], axis=1)

    @jax.jit
    def known():
        """Returns what each rate must give; rates of 0 and 1 need no random stream."""
        at_rate = {rate: decode(teacher_forcing_rate=rate) for rate in (0.0, 1.0)}
        free = rnn.apply(params, x[:, 0], steps=STEPS, method="decode")
        return {
            0.0: [at_rate[0.0], free],
            0.5: [decode(teacher_forcing_rate=0.5, rngs=RNGS)],
            1.0: [at_rate[1.0], decode(), rnn.apply(params, shifted)],
        }

    for rate, all_expected in known().items():
        for expected in all_expected:
            assert_close(traced(rate), expected)


@pytest.mark.default
def test_each_row_and_step_draws_whether_it_sees_its_target(rng):
    rnn, params, x = setting(rng)
    targets = jnp.full((50, 40, 3), 100.0)
    decode = partial(rnn.apply, params, jnp.zeros((50, 3)), targets=targets)

    _, following = decode(
        teacher_forcing_rate=0.3, rngs=RNGS, return_inputs=True, method="decode"
    )

    forced = np.asarray(following == 100)
    assert (forced.all(-1) == forced.any(-1)).all()
    # Three standard deviations of the mean of 40, 50 and 2000 draws.
    assert np.abs(forced.mean() - 0.3) < 0.03
    for axis, draws in ((0, 50), (1, 40)):
        of_each = forced[..., 0].mean(axis)
        assert 0.5 < of_each.std() / np.sqrt(0.3 * 0.7 / draws) < 1.5


@pytest.mark.default
def test_feed_may_sample_tokens(rng):
    cell = rnncells.StackedCell([nn.Embed(7, 3), rnncells.SimpleCell(4), nn.Dense(7)])
    rnn, start = rnncells.RNN(cell, return_carry=True), jnp.array([0, 6, 2])
    params = random_params(rng, rnn, start[:, None])
    key = jax.random.key(3)

    def feed(logits, key):
        return jax.random.categorical(key, logits)

    decode = partial(rnn.apply, params, start, steps=STEPS, method="decode", feed=feed)
    found = jax.jit(partial(decode, return_inputs=True))(feed_key=key)
    carry, (logits, tokens) = jax.device_get(found)

    @jax.jit
    def step(state, x, key):
        state, y = rnn.apply(params, state, x, method="step")
        return state, y, feed(y, key)

    state, x = None, start
    for t, key_t in enumerate(jax.random.split(key, STEPS)):
        state, y, x = step(state, x, key_t)
        assert_close(logits[:, t], y)
        assert_equal(tokens[:, t], np.asarray(x, tokens.dtype))
    assert_close(carry, state)
    raw = jax.random.key_data(key)
    again = jax.jit(decode)(feed_key=jax.random.wrap_key_data(raw))
    assert_equal(again[1], logits)


@pytest.mark.default
def test_gradients_flow_into_arrays_that_feed_reads(rng, float64):
    rnn, params, x = setting(rng)
    params, x = in_float64((params, x))
    matrix = jnp.asarray(rng.standard_normal((3, 3)))

    def feed(matrix, y):
        return y @ matrix

    def decode(matrix):
        arguments = {"feed": partial(feed, matrix), "time_major": True}
        fast = rnn.clone(memory="recompute")
        return fast.apply(params, x[:, 0], STEPS, method="decode", **arguments)

    def by_hand(matrix):
        start = rnn.initialize_carry(None, x[:, 0])
        given = rnn, params, start, x[:, 0], None, partial(feed, matrix), None
        return step_by_step(*given)[1][0]

    actual, expected = (
        values_and_gradients(decode, matrix),
        values_and_gradients(by_hand, matrix),
    )
    assert_close(actual, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.default
def test_dropout_in_decoding_draws_what_the_plain_loop_draws(rng):
    inner = rnncells.VariationalGRUCell(4, recurrent_rate=0.3, rng_collection="fixed")
    cell = rnncells.StackedCell([inner, nn.Dropout(0.4), nn.Dense(3)])
    rnn, params, x = setting(rng, cell.clone(deterministic=True))
    arguments = {
        "targets": x,
        "teacher_forcing_rate": 0.5,
        "deterministic": False,
        "method": "decode",
    }
    rngs = RNGS | {"dropout": jax.random.key(1), "fixed": jax.random.key(2)}
    fast, plain = (
        jax.jit(partial(rnn.clone(**options).apply, params, x[:, 0], **arguments))
        for options in ({"memory": "recompute"}, {"implementation": "scan"})
    )
    y = fast(rngs=rngs)
    assert_close(y, plain(rngs=rngs))
    for stream in ("dropout", "fixed"):
        other = fast(rngs=rngs | {stream: jax.random.key(4)})
        assert not np.allclose(y, other)


def test_decoding_creates_the_parameters_of_a_call_and_returns_carries(rng, key):
    rnn, _, x = setting(rng, learn_initial_carry=True)
    arguments = {"targets": x, "teacher_forcing_rate": 0.5}
    params = rnn.init(key, x[:, 0], method="decode", **arguments)
    assert_equal(params, rnn.init(key, x))

    decode = partial(rnn.apply, params, x[:, 0], STEPS, method="decode")
    of_last, of_all, outputs = jax.jit(
        lambda: (decode(return_carry=True), decode(return_all_carries=True), decode())
    )()
    (carry, y), (carries, again) = of_last, of_all
    assert_equal((again, carries[0][:, -1]), (y, carry[0]))
    assert carries[0].shape == (2, STEPS, 4)
    assert_equal(outputs, y)
