"""The tasks of the paper: each sequence is as defined, each choice equally likely."""

import dataclasses
import itertools
from functools import cache, partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from levels import by_level

from experiments.paper1997.tasks import TASKS, temporal_order
from experiments.paper1997.tasks import embedded_reber as reber
from experiments.paper1997.tasks.reber_sets import draw_sets
from experiments.settings.reading import config_path, paper_names, read_config
from experiments.settings.rules import ConfigError
from experiments.settings.tasks import (
    EmbeddedReber,
    LongLags,
    MarkedPairs,
    TemporalOrder,
    TwoClasses,
    VeryLongLags,
)

pytestmark = pytest.mark.default


@cache
def draw(options, count=4000):
    """Returns many sequences of a task, as NumPy's arrays."""
    task = TASKS[options.name]
    keys = jax.random.split(jax.random.key(0), count)
    sample = jax.jit(jax.vmap(lambda key: task.sample(options, key)))
    return jax.tree.map(np.asarray, sample(keys))


def assert_equally_likely(values, choices):
    counts = np.unique(values, return_counts=True)[1]
    expected = len(values) / choices
    assert len(counts) == choices
    # Five standard deviations of a binomial count.
    assert np.abs(counts - expected).max() < 5 * np.sqrt(expected)


@pytest.mark.parametrize("name", paper_names())
def test_sequences_have_the_shapes_of_the_network(name):
    options = read_config(config_path(name)).task
    task = TASKS[options.name]
    sequence = jax.eval_shape(lambda: task.sample(options, jax.random.key(0)))
    steps, units = task.longest(options), task.inputs(options)
    inputs = (steps,) if options.is_symbolic else (steps, units)
    chex.assert_shape(sequence.inputs, inputs)
    targets = steps if options.is_along else task.outputs(options)
    chex.assert_shape([sequence.target, sequence.truth], (targets,))
    chex.assert_rank(sequence.length, 0)


ONE_EACH = ["reber-1-1", "long-lag-2a", "long-lag-2b", "very-long-lag-2c-1"]
ONE_EACH += ["two-classes-3c-1", "adding-4-1", "temporal-order-6b"]


@pytest.mark.parametrize("name", by_level(ONE_EACH, 2))
def test_answers_are_judged_by_every_measured_output(name, rng):
    options = read_config(config_path(name)).task
    if options.name == "long-lags":
        options = dataclasses.replace(options, lag=7)
    task = TASKS[options.name]
    sample = jax.jit(partial(task.sample, options))
    sequence = jax.device_get(sample(jax.random.key(3)))
    judge = jax.jit(lambda y: sequence.judge(y, 0.3))
    y = truth = np.array(sequence.truth)
    if options.is_along:
        y = np.eye(task.outputs(options))[truth]
        measured = np.flatnonzero(sequence.measured)
        last = int(sequence.length) - 1
        expected = [last] if options.name == "long-lags" and options.is_random else None
        assert measured.tolist() == (expected or list(range(last + 1)))
        # What has to be kept from the start.
        first = 0 if options.name == "long-lags" else 1
        asked = truth[last + 1 - options.asked_from_end]
        assert asked == sequence.inputs[first]
    if sequence.legal is not None:
        # The order alone counts, and each symbol that is legal.
        y = np.where(sequence.legal, 0.02, 0.01 * rng.uniform(size=y.shape))
    error, is_right = judge(y)
    assert is_right and (sequence.legal is not None or error == 0)
    for place in np.ndindex(y.shape):
        other = y.copy()
        other[place] += -0.3 if y[place] > 0.015 else 0.3
        is_measured = not options.is_along or place[0] in measured
        error, is_right = judge(other)
        assert is_right == (not is_measured)
        if sequence.legal is None:
            share = 1 / (y.size if not options.is_along else len(measured) * y.shape[1])
            assert error == pytest.approx(0.3 * share * is_measured, rel=1e-3)
        other[place] = y[place] + 0.4 * (other[place] - y[place])
        assert sequence.legal is not None or judge(other)[1]


@pytest.mark.parametrize("name, shape", [("adding-4-1", (2, 1)), ("reber-1-1", (7,))])
def test_answers_of_another_shape_raise(name, shape):
    options = read_config(config_path(name)).task
    sample = partial(TASKS[options.name].sample, options)
    sequence = jax.eval_shape(sample, jax.random.key(3))
    with pytest.raises(ValueError, match="Use jax.vmap for many sequences"):
        sequence.judge(jnp.zeros(shape), 0.1)


def test_few_sequences_reach_the_length_limit():
    options = VeryLongLags(lag=3, go_on=0.99)
    drawn = draw(options, 2000)
    assert drawn.length.max() < drawn.inputs.shape[1]
    # The mean of the distractors beyond q.
    assert drawn.length.mean() - 6 == pytest.approx(99, rel=0.1)


def test_temporal_order():
    classes = {"XX": 0, "XY": 1, "YX": 2, "YY": 3}
    drawn = draw(TemporalOrder())
    for symbols, length, target in zip(*drawn[:3], strict=True):
        text = temporal_order.spell(symbols, length)
        assert len(text) == length and 100 <= length <= 110
        assert text[0] == "E" and text[-1] == "B"
        first, second = [i for i, symbol in enumerate(text) if symbol in "XY"]
        assert 10 <= first <= 20 and 50 <= second <= 60
        assert (
            target.tolist() == np.eye(4)[classes[text[first] + text[second]]].tolist()
        )
        rest = text[1:first] + text[first + 1 : second] + text[second + 1 : -1]
        assert set(rest) <= set("abcd")
    assert_equally_likely(drawn.length, 11)
    assert_equally_likely(drawn.target.argmax(1), 4)
    for steps in steps_of_letters(drawn):
        assert_equally_likely(steps, 11)
    distractors = np.bincount(drawn.inputs[:, 70:99].ravel())
    assert len(distractors) == 4 and np.ptp(distractors) / distractors.mean() < 0.05


def steps_of_letters(drawn):
    """Returns the steps of the first X or Y of all sequences, of the second, ..."""
    rows, steps = np.nonzero(drawn.inputs >= temporal_order.X)
    return steps.reshape(rows.max() + 1, -1).T


def test_three_symbols_have_eight_orders():
    options = TemporalOrder(positions=((10, 20), (33, 43), (66, 76)))
    drawn = draw(options)
    for (first, _), steps in zip(
        options.positions, steps_of_letters(drawn), strict=True
    ):
        assert_equally_likely(steps, 11)
        assert steps.min() == first
    drawn = jax.tree.map(lambda leaf: leaf[:50], drawn)
    for symbols, length, target in zip(*drawn[:3], strict=True):
        letters = [c for c in temporal_order.spell(symbols, length) if c in "XY"]
        assert target.argmax() == int("".join("01"[c == "Y"] for c in letters), 2)
    chex.assert_shape(drawn.target, (50, 8))


@pytest.mark.parametrize(
    "first_pair, operation",
    by_level(
        [*itertools.product(["first", "both"], ["sum", "product"])],
        [("both", "sum"), ("first", "product")],
    ),
)
def test_marked_pairs(first_pair, operation):
    options = MarkedPairs(operation=operation, first_pair=first_pair)
    drawn = draw(options)
    neutral, seconds = (0 if operation == "sum" else 1), []
    for pairs, length, target in zip(*drawn[:3], strict=True):
        numbers, markers = pairs[:length].T
        assert 100 <= length <= 110
        assert markers[0] == markers[-1] == -1
        assert set(markers[1:-1]) <= {0, 1}
        low = -1 if operation == "sum" else 0
        assert low <= numbers.min() and numbers.max() <= 1
        at = np.flatnonzero(markers == 1)
        # One of two numbers may be at the first pair, whose marker stays -1.
        assert len(at) in (1, 2) and at[0] < 49
        if len(at) == 2:
            assert at[0] < 10
            x = numbers[at]
        else:
            seconds.append(at[0])
            x = np.array([neutral, numbers[at[0]]])
            if first_pair == "first" and not np.isclose(target, told(operation, *x)):
                # It was the one picked second, after one of the first ten.
                assert at[0] < 10
                x[0] = numbers[0]
        np.testing.assert_allclose(target, told(operation, *x), atol=1e-6)
    assert 0.07 < len(seconds) / 4000 < 0.17
    assert_equally_likely(drawn.length, 11)


@pytest.mark.parametrize("operation", by_level(["sum", "product"], ["product"]))
def test_marked_number_of_the_first_pair_can_be_set_in_the_sequence(operation):
    drawn = draw(MarkedPairs(operation=operation, first_pair="input"))
    neutral, firsts = (0 if operation == "sum" else 1), 0
    for pairs, length, target in zip(*drawn[:3], strict=True):
        numbers, markers = pairs[:length].T
        one, other = np.flatnonzero(markers == 1)
        assert one < 10 and other < 49 and markers[-1] == -1
        assert set(markers[1:-1]) <= {0, 1}
        if one == 0:
            firsts += 1
            assert numbers[0] == neutral
        else:
            assert markers[0] == -1 and numbers[0] != neutral
        expected = told(operation, numbers[one], numbers[other])
        np.testing.assert_allclose(target, expected, atol=1e-6)
    assert 0.07 < firsts / 4000 < 0.17


def told(operation, x1, x2):
    return 0.5 + (x1 + x2) / 4 if operation == "sum" else x1 * x2


def test_numbers_and_marks_are_equally_likely():
    drawn = draw(MarkedPairs())
    markers = drawn.inputs[:, :, 1] == 1
    # The first is one of ten, the other any of the 48 that are left of 49.
    share = markers.mean(0)
    assert abs(share[1:10].mean() - (0.1 + 0.9 / 48)) < 0.005
    assert abs(share[10:49].mean() - 1 / 48) < 0.003
    assert not markers[:, 49:].any()
    # A mark behind the first ten is the other one.
    one, other = markers[:, :10], markers[:, 10:]
    assert_equally_likely(np.nonzero(other)[1], 39)
    assert_equally_likely(one[one.any(1) & other.any(1)].argmax(1), 9)
    numbers = np.sort(drawn.inputs[:, :100, 0].ravel())
    uniform = np.linspace(-1, 1, len(numbers))
    assert np.abs(numbers - uniform).max() < 0.02


@pytest.mark.parametrize("noisy", by_level([False, True], 1))
def test_two_classes(noisy):
    options = TwoClasses(information=3, noisy_signal=noisy)
    drawn = draw(options)
    signal = np.where(drawn.truth == 1, 1, -1)
    first = drawn.inputs[:, :3, 0] - signal
    rest = drawn.inputs[:, 3:100, 0]
    assert abs(rest.mean()) < 0.01 and abs(rest.var() - 0.2) < 0.01
    if noisy:
        assert abs(first.mean()) < 0.02 and abs(first.var() - 0.2) < 0.01
    else:
        assert not first.any()
    np.testing.assert_array_equal(drawn.target, drawn.truth)
    assert_equally_likely(drawn.truth[:, 0], 2)
    assert_equally_likely(drawn.length, 11)


def test_noise_on_targets_is_for_training():
    drawn = draw(TwoClasses(targets=(0.2, 0.8), target_variance=0.1))
    noise = drawn.target - drawn.truth
    assert abs(noise.mean()) < 0.03 and abs(noise.var() - 0.1) < 0.01
    is_first = drawn.inputs[:, 0, 0] == 1
    np.testing.assert_allclose(drawn.truth[:, 0], np.where(is_first, 0.2, 0.8))


@pytest.mark.parametrize("is_random", by_level([False, True], 1))
def test_long_lags(is_random):
    drawn = draw(LongLags(lag=20, is_random=is_random), 2000)
    for symbols, length, targets in zip(*drawn[:3], strict=True):
        assert length == len(symbols) == 20
        whole = [*symbols, targets[-1]]
        assert whole[1:] == targets.tolist()
        assert whole[0] == whole[-1] and whole[0] in (19, 20)
        assert set(whole[1:-1]) <= set(range(19))
        if not is_random:
            assert whole[1:-1] == list(range(19))
    assert_equally_likely(drawn.inputs[:, 0], 2)
    if is_random:
        assert_equally_likely(drawn.inputs[:, 1:].ravel(), 19)


def test_very_long_lags():
    p, q = 7, 30
    drawn = draw(VeryLongLags(lag=q, distractors=p))
    e, b, x, y = range(p, p + 4)
    for symbols, length, target in zip(*drawn[:3], strict=True):
        assert symbols[0] == b and symbols[1] in (x, y)
        assert target.tolist() == [symbols[1] == x, symbols[1] == y]
        assert symbols[length - 1] == e and length >= q + 3
        assert set(symbols[2 : length - 1]) <= set(range(p))
    assert_equally_likely(drawn.inputs[:, 1], 2)
    further = drawn.length - (q + 3)
    # Of a geometric distribution: mean 9, variance 90.
    assert abs(further.mean() - 9) < 0.6 and abs((further == 0).mean() - 0.1) < 0.02
    assert_equally_likely(drawn.inputs[:, 2:30].ravel(), p)


INNER = {
    0: {"T": 1, "P": 2},
    1: {"S": 1, "X": 3},
    2: {"T": 2, "V": 4},
    3: {"X": 2, "S": 5},
    4: {"P": 3, "V": 5},
}


def next_symbols(text):
    """Returns what may follow the start of a string, by walking the grammar."""
    if text == "":
        return {"B"}
    if len(text) == 1:
        return set("TP")
    inner = text[2:]
    if inner == "":
        return {"B"}
    node = 0
    for place, symbol in enumerate(inner[1:], 1):
        if node == 5:
            rest = inner[place:]
            return {"E": {text[1]}, "E" + text[1]: {"E"}}[rest]
        node = INNER[node][symbol]
    return {"E"} if node == 5 else set(INNER[node])


@pytest.mark.parametrize(
    "before, is_embedded",
    by_level([("", True), ("BT", False)], 1),
    ids=["embedded", "plain"],
)
def test_reber_strings_are_legal(before, is_embedded):
    """A string of the plain grammar is legal after BT."""
    drawn = draw(EmbeddedReber(embedded=is_embedded), 3000)
    lengths = []
    for symbols, length, target, legal in zip(
        drawn.inputs, drawn.length, drawn.target, drawn.legal, strict=True
    ):
        text = reber.spell([*symbols[:length], target[length - 1]], length + 1)
        lengths.append(len(text))
        for place in range(1, len(text)):
            allowed = next_symbols(before + text[:place])
            assert text[place] in allowed
            named = {reber.SYMBOLS[k] for k in np.flatnonzero(legal[place - 1])}
            assert named == allowed
            assert target[place - 1] == reber.SYMBOLS.index(text[place])
    lengths = np.array(lengths)
    # Edges have equal chances: a quarter is shortest; the mean is 12, and 8 inside.
    outside = 4 if is_embedded else 0
    shortest = outside + 5
    assert lengths.min() == shortest
    assert abs((lengths == shortest).mean() - 0.25) < 0.04
    assert abs(lengths.mean() - outside - 8) < 0.3
    assert (lengths > outside + 25).mean() < 0.01


def test_test_strings_are_not_in_the_training_set():
    sets = draw_sets(EmbeddedReber(strings=50, pairs=2), seed=3)
    arrays = jax.device_get(sets)
    assert sets.train.length.shape == sets.test.length.shape == (2, 50)
    for pair in range(2):
        texts = [
            {
                reber.spell(symbols, length)
                for symbols, length in zip(s.inputs[pair], s.length[pair], strict=True)
            }
            for s in arrays
        ]
        assert not texts[0] & texts[1]
    both = jax.jit(lambda trial: sets.both(trial, 512))(3)
    np.testing.assert_array_equal(both.length[:50], sets.train.length[1])
    drawn = jax.jit(sets.sample)(2, jax.random.key(1))
    assert (np.asarray(sets.train.inputs[0]) == np.asarray(drawn.inputs)).all(1).any()


def test_sets_can_have_distinct_strings():
    sets = draw_sets(EmbeddedReber(strings=50, pairs=1, distinct=True), seed=0)
    train = jax.device_get(sets.train)
    strings = {
        reber.spell(symbols, length)
        for symbols, length in zip(train.inputs[0], train.length[0], strict=True)
    }
    assert len(strings) == 50


@pytest.mark.parametrize("distinct", [False, True])
def test_sets_that_are_too_large_raise(distinct, monkeypatch):
    """All draws are one string, so that sets of any size are too large."""
    same = jax.jit(partial(reber.sample, EmbeddedReber()))(jax.random.key(0))
    monkeypatch.setattr(reber, "sample", lambda options, key: same)
    options = EmbeddedReber(strings=3, pairs=1, distinct=distinct)
    with pytest.raises(ConfigError, match="`strings` must be smaller: .* got 3"):
        draw_sets(options, seed=0)
