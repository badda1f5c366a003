"""RTRL, BPTT and Elman nets against NumPy loops of their equations, and gradients."""

import dataclasses
from functools import partial

import jax
import numpy as np
import pytest
from levels import by_level

from experiments.paper1997.learners.competitor import CompetitorLearner
from experiments.paper1997.tasks import TASKS
from experiments.paper1997.training.trainer import Trainer, learner_of
from experiments.settings.config import PER_GUESS
from experiments.settings.reading import config_path, paper_names, read_config, readings

pytestmark = pytest.mark.default

RATE, TRIALS = 0.7, 2
KEY = jax.random.key(0)
# A row, a reading, and the learning rule.
NETS = [
    ("long-lag-2a", "rtrl-4", "rtrl"),
    ("long-lag-2a", "rtrl-4", "bptt"),
    ("reber-1-1", "rtrl-3", "rtrl"),
    ("reber-1-1", "elman-15", "elman"),
]


def setting(name, reading, method):
    """Returns a learner, and weights and sequences of trials."""
    config = read_config(config_path(name), reading)
    competitor = dataclasses.replace(config.competitor, method=method, units=2)
    learning = dataclasses.replace(config.learning, rate=RATE)
    config = dataclasses.replace(config, competitor=competitor, learning=learning)
    learner, sample = learner_of(config), TASKS[config.task.name].sample

    @jax.jit
    @partial(jax.vmap, out_axes=-1)
    def draw(key):
        return learner.init(key), sample(config.task, key)

    w, sequence = jax.device_get(draw(jax.random.split(jax.random.key(3), TRIALS)))
    # Weights of the size of trained ones.
    return learner, jax.tree.map(lambda leaf: 6 * leaf, w), sequence


def f(net):
    return 1 / (1 + np.exp(-net))


def by_equations(w, x, target, method):
    """Learns one sequence, as Williams and Zipser (1989) and Elman (1990) write."""
    units, outputs, direct = (None if leaf is None else leaf.copy() for leaf in w)
    n, inputs = units.shape[1], x.shape[1]
    a, p, later, ys = np.zeros(n), np.zeros((n, n, len(units))), 0 * units, []
    of_outputs, of_direct = 0.0, 0.0
    for x_t, d in zip(x, target, strict=True):
        z = np.concatenate([x_t, a])
        a, before = f(z @ units), p
        p = np.zeros_like(p)
        for k in range(n):
            for i in range(n):
                for j in range(len(z)):
                    past = before[:, i, j] @ units[inputs:, k]
                    own = z[j] if i == k else 0
                    past = 0 if method == "elman" else past
                    p[k, i, j] = a[k] * (1 - a[k]) * (past + own)
        if outputs is None:
            y = a[: target.shape[1]]
            e = np.zeros(n)
            e[: len(y)] = d - y
        else:
            y = f(a @ outputs + (0 if direct is None else x_t @ direct))
            delta = (d - y) * y * (1 - y)
            e = outputs @ delta
            of_outputs = of_outputs + RATE * np.outer(a, delta)
            of_direct = of_direct + RATE * np.outer(x_t, delta)
        later = later + RATE * np.einsum("k,kij->ji", e, p)
        ys.append(y)
        if method != "bptt" or len(ys) == len(x):
            units = units + later
            outputs = None if outputs is None else outputs + of_outputs
            direct = None if direct is None else direct + of_direct
            later, of_outputs, of_direct = 0 * units, 0.0, 0.0
    return (units, outputs, direct), np.array(ys)


def one_hot(indices, size):
    return np.eye(size)[np.asarray(indices)]


@pytest.mark.parametrize("name, reading, method", by_level(NETS, 2))
def test_learning_follows_the_equations(name, reading, method, float64):
    learner, w, sequence = setting(name, reading, method)
    assert isinstance(learner, CompetitorLearner)
    new, y = jax.jit(learner.learn)(w, sequence)
    for trial in range(TRIALS):
        of_trial = [
            None if leaf is None else np.asarray(leaf[..., trial]) for leaf in w
        ]
        length = int(sequence.length[trial])
        x = one_hot(sequence.inputs[:length, trial], learner.inputs)
        target = one_hot(sequence.target[:length, trial], learner.outputs)
        expected, outputs = by_equations(of_trial, x, target, method)
        np.testing.assert_allclose(y[:length, :, trial], outputs, rtol=1e-11)
        for ours, theirs in zip(new, expected, strict=True):
            assert (ours is None) == (theirs is None)
            if ours is not None:
                np.testing.assert_allclose(ours[..., trial], theirs, rtol=1e-11)


@pytest.mark.parametrize(
    "name, reading",
    [
        (name, reading)
        for name in paper_names()
        for reading, one in readings(config_path(name)).items()
        if one.kind == "competitor"
    ],
)
def test_numbers_of_weights_are_those_of_the_paper(name, reading):
    config = read_config(config_path(name), reading)
    learner = learner_of(config)
    w = jax.eval_shape(jax.vmap(learner.init, out_axes=-1), jax.random.split(KEY, 2))
    assert learner.count(w) == config.paper.weights
    assert config.competitor.published and config.competitor.method in reading


@pytest.mark.exhaustive
def test_a_guess_stays_while_a_batch_is_right():
    config = read_config(config_path("two-classes-3b-1"), "guessing")
    trainer = Trainer(dataclasses.replace(config, trials=40))
    learner, w = trainer.learner, trainer.init().weights
    keys = jax.random.split(KEY, PER_GUESS)
    draw = jax.jit(jax.vmap(lambda key: trainer.sample(0, key), out_axes=-1))
    w, drawn = jax.device_get((w, draw(keys)))
    many = jax.tree.map(lambda leaf: np.stack([leaf] * 40, -1), drawn)
    learn = jax.jit(learner.learn)
    new, y = jax.device_get(learn(w, many))

    x, units = np.asarray(drawn.inputs), np.asarray(w.units, float)
    a, expected = (np.zeros((2, PER_GUESS, 40)), np.zeros((PER_GUESS, 40)))
    for t in range(len(x)):
        net = units[0][:, None] * x[t, 0][:, None]
        net = net + np.einsum("lkn,lbn->kbn", units[1:3], a) + units[3][:, None]
        a = f(np.clip(net, -700, 700))
        expected = np.where((drawn.length == t + 1)[:, None], a[0], expected)
    # Weights of up to 100 amplify rounding.
    assert (np.abs(y[0] - expected) < 1e-3).mean() > 0.99
    wrong = (np.abs(y[0] - drawn.truth.T) >= config.stopping.tolerance).sum(0)
    stays = (np.asarray(new.units) == np.asarray(w.units)).all((0, 1))
    assert np.array_equal(stays, wrong <= 5)
    right, _ = learn(w, many._replace(truth=y))
    assert np.array_equal(right.units, w.units)
    assert (np.asarray(w.units)[-1, 0] == 0).all() and np.abs(w.units).max() > 90


@pytest.mark.parametrize(
    "name, reading, section, changes, message",
    [
        ("adding-4-1", None, "competitor", {"method": "rtrl"}, "competitor.method"),
        ("temporal-order-6a", None, "competitor", {"method": "rtrl"}, "competitor"),
        ("long-lag-2a", "rtrl-4", "learning", {"error": "whole"}, "learning.error"),
        ("long-lag-2a", "rtrl-4", "growth", {"window": 100}, "growth.window"),
        ("two-classes-3a-1", "guessing", "stopping", {"window": 256}, "stopping"),
        (
            *("two-classes-3a-1", "guessing", "learning"),
            *({"max_sequences": 1100}, "learning.max_sequences"),
        ),
    ],
)
def test_mistakes_are_named(name, reading, section, changes, message):
    config = read_config(config_path(name), reading)
    changed = dataclasses.replace(getattr(config, section), **changes)
    with pytest.raises(ValueError, match=f"`{message}.*got "):
        dataclasses.replace(config, **{section: changed})
