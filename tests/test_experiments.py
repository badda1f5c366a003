"""The experiments: learning and its stopping rules, whole runs, and runs resumed."""

import dataclasses
import itertools
import json
from functools import cache, partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from levels import by_level

from experiments.paper1997.learners import online
from experiments.paper1997.learners.baseline import CELLS
from experiments.paper1997.run import run
from experiments.paper1997.tasks import TASKS
from experiments.paper1997.training import hopeless, loop
from experiments.paper1997.training import trainer as trainer_module
from experiments.paper1997.training.loop import Run
from experiments.paper1997.training.trainer import Trainer
from experiments.reports.paper1997.tables import summary
from experiments.reports.runs import markdown_tables, show
from experiments.reports.tables import title_of
from experiments.runs import checkpoint
from experiments.runs.checkpoint import Checkpoints
from experiments.runs.environment import usual_promotion
from experiments.runs.folder import CHECKPOINTS
from experiments.settings.config import Baseline, Growth
from experiments.settings.reading import (
    baselines,
    config_path,
    paper_names,
    read_config,
)

pytestmark = pytest.mark.default

SMALL = {
    "embedded-reber": {"strings": 8, "pairs": 2},
    "long-lags": {"lag": 4},
    "very-long-lags": {"lag": 3, "distractors": 4},
    "two-classes": {"length": 24},
    "marked-pairs": {"length": 24},
    "temporal-order": {"positions": ((1, 3), (5, 6)), "lengths": (9, 12)},
}


def config_of(name):
    return read_config(config_path(name))


def small(experiment, max_sequences=700, trials=3, **stopping):
    """Returns a config that ends within seconds: short, few, easily satisfied."""
    points = len(experiment.stopping.wrong)
    defaults = {"window": 5, "wrong": (0,) * points, "every": 3, "streak": 0}
    if experiment.stopping.mean_error:
        defaults["mean_error"] = (0.5,) * points
    tested = 4
    if experiment.task.name == "embedded-reber":
        # All strings of both sets.
        tested = stopping["window"] = 2 * SMALL["embedded-reber"]["strings"]
    return dataclasses.replace(
        experiment,
        trials=trials,
        test_sequences=tested,
        task=dataclasses.replace(experiment.task, **SMALL[experiment.task.name]),
        learning=dataclasses.replace(experiment.learning, max_sequences=max_sequences),
        stopping=dataclasses.replace(experiment.stopping, **(defaults | stopping)),
    )


def of_trial(tree, trial):
    return jax.tree.map(lambda leaf: np.asarray(leaf[..., trial]), tree)


SIX_A = config_of("temporal-order-6a")
# Several tests share its programs, for chunks of 6 sequences. The first trial succeeds,
# and both parts of the rule decide when.
SHARED = dataclasses.replace(
    small(SIX_A, 66, tolerance=0.65, mean_error=(0.42,), gives_up=True),
    paper=dataclasses.replace(SIX_A.paper, sequences=(60,)),
)

# Adds hidden units. Two tests share its programs, for chunks of one sequence.
GROWING = small(config_of("long-lag-2a"), 6, tolerance=1e-6)
GROWING = dataclasses.replace(
    GROWING, growth=dataclasses.replace(GROWING.growth, window=4, gain=0.2)
)


@cache
def trainer_of(config):
    """Returns the trainer of a config; tests of equal configs share its programs."""
    return Trainer(config)


sets_of = cache(trainer_module.draw_sets)


@cache
def drawing(options):
    """Returns a compiled function of a trial's key and a number: a sequence."""
    sample = TASKS[options.name].sample
    return jax.jit(lambda key, n: sample(options, jax.random.fold_in(key, n)))


def share_programs(monkeypatch):
    """Lets runs use the programs of other tests: for 6 sequences, and tests of 4."""
    monkeypatch.setattr(trainer_module, "draw_sets", sets_of)
    monkeypatch.setattr("experiments.paper1997.run.Trainer", trainer_of)
    monkeypatch.setattr(loop, "CHUNK", 6)
    monkeypatch.setattr(hopeless, "TESTED", 4)


def stacked(sequences):
    """Returns sequences in one, on a new last axis."""
    return jax.tree.map(lambda *leaves: np.stack(leaves, -1), *sequences)


def test_training_equals_a_loop_of_plain_updates():
    trainer = trainer_of(SHARED)
    trials = trainer.init()
    weights = jax.tree.map(jnp.copy, trials.weights)
    _, keys, _ = trainer.keys(trials.numbers)

    trained, errors, _ = trainer.advance(trials, 0, 6)

    update = jax.jit(partial(online.at_end, trainer.learner.network))
    draw = drawing(SHARED.task)
    for n in range(6):
        inputs, length, target, truth, *_ = stacked([draw(key, n) for key in keys])
        weights, y = update(weights, inputs, length, target, SHARED.learning.rate)
        np.testing.assert_allclose(errors[n], np.abs(truth - y).mean(0), rtol=1e-4)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-6),
        trained.weights,
        weights,
    )


@pytest.mark.parametrize(
    "chunk, tolerance, mean_error",
    by_level(
        [
            (chunk, *rule)
            for chunk in (1, 6, 60)
            for rule in ((0.65, 0.42), (0.57, 0.6))
        ],
        [(6, 0.65, 0.42)],
    ),
)
def test_stopping_rule_of_the_paper_is_checked_at_every_sequence(
    chunk, tolerance, mean_error
):
    rule = {"tolerance": tolerance, "mean_error": (mean_error,)}
    stopping = dataclasses.replace(SHARED.stopping, **rule)
    config = dataclasses.replace(SHARED, stopping=stopping)
    window, trainer = config.stopping.window, trainer_of(config)
    trials, errors, rights, frozen = trainer.init(), [], [], {}
    for start in range(0, 60, chunk):
        trials, error, right = trainer.advance(trials, start, chunk)
        errors.append(error)
        rights.append(right)
        for trial in np.flatnonzero(trials.is_over):
            kept = of_trial((trials.weights, trials.reached), trial)
            jax.tree.map(
                np.testing.assert_array_equal, kept, frozen.setdefault(trial, kept)
            )
            jax.tree.map(
                lambda now, at: np.testing.assert_array_equal(now, at[0]), *kept
            )
    errors, rights = np.concatenate(errors), np.concatenate(rights)

    for trial in range(config.trials):
        expected = 0
        for n in range(window, 61):
            recent = slice(n - window, n)
            mean = errors[recent, trial].mean()
            if rights[recent, trial].all() and mean < mean_error:
                expected = n
                break
        assert trials.solved_after[0, trial] == expected
    assert len(frozen) > 0


def test_stopping_points_are_reached_in_order():
    config = config_of("multiplication-5")
    config = small(config, window=10, wrong=(6, 3), tolerance=0.3)
    trainer, rights = Trainer(config), []
    trials = trainer.init()
    for n in range(80):
        trials, _, right = trainer.advance(trials, n, 1)
        rights.append(right[0])
    rights = np.array(rights)

    for trial in range(config.trials):
        wrong = [
            (~rights[n - 10 : n, trial]).sum() if n >= 10 else 99 for n in range(81)
        ]
        first = next((n for n in range(81) if wrong[n] <= 6), 0)
        last = next((n for n in range(81) if wrong[n] <= 3 and first), 0)
        assert trials.solved_after[:, trial].tolist() == [first, last]
    assert trials.solved_after.any()


def chunks(run, cap):
    """Returns the numbers of sequences of the chunks of a run."""
    counts = []
    while sum(counts) < cap:
        run.presented = sum(counts)
        counts.append(run._count(cap))
    run.presented = 0
    return counts


@pytest.mark.exhaustive
@pytest.mark.parametrize("streak, cap", [(2, 22), (0, 8)])
def test_stopping_rule_on_test_sets_is_that_of_the_paper(
    streak, cap, tmp_path, monkeypatch
):
    monkeypatch.setattr(loop, "FIRST", 4)
    wrong, mean_error, every, window = (3, 1), (0.3, 0.25), 3, 8
    rule = {"wrong": wrong, "mean_error": mean_error, "every": every, "streak": streak}
    config = config_of("multiplication-5")
    config = small(config, cap, 8, on="test", tolerance=0.35, window=window, **rule)
    trainer, starts = Trainer(config), {}
    now = Run(trainer, tmp_path)
    assert chunks(now, cap) == [every] * (cap // every) + [cap % every]
    # A program for one sequence is enough.
    monkeypatch.setattr(loop, "CHUNK", 1)

    def test(trials, start, count):
        starts[now.presented] = start
        return Trainer.test(trainer, trials, start, count)

    monkeypatch.setattr(trainer, "test", test)
    now.train()
    # No test has sequences of another, nor of the one at the end.
    behind = np.diff(sorted([0, *starts.values()]))
    assert behind[0] >= config.test_sequences and behind[1:].min() >= window

    rights, expected = [], np.zeros((2, 8), int)
    trials = trainer.init()
    for n in range(1, cap + 1):
        trials, _, right = trainer.advance(trials, n - 1, 1)
        rights = [*rights, *np.asarray(right)]
        if n % every and n < cap:
            assert n not in starts
            continue
        may_pass = np.all(rights[n - streak :], axis=0) & (expected[1] == 0)
        assert (n in starts) == may_pass.any()
        for trial in np.flatnonzero(may_pass):
            one = jax.tree.map(lambda leaf, k=trial: np.asarray(leaf)[..., [k]], trials)
            tests = Trainer.test(trainer, one, starts[n], window)
            for point in range(2):
                if expected[point, trial] == 0:
                    if tests.wrong[0] > wrong[point]:
                        break
                    if tests.error[0] >= mean_error[point]:
                        break
                    expected[point, trial] = n
    np.testing.assert_array_equal(now.trials.solved_after, expected)
    # Every part of the rule has decided.
    assert cap in expected and np.any((expected[1] > expected[0]) & (expected[0] > 0))


def baseline(cell, config=SIX_A, **stopping):
    """Returns a small config with a baseline that learns in batches of 4."""
    if config.stopping.on == "test":
        stopping = {"every": 4} | stopping
    return dataclasses.replace(
        small(config, 20, **({"window": 8} | stopping)),
        growth=Growth(),
        baseline=Baseline(cell=cell, batch=4, features=5),
    )


@cache
def batched(cell):
    """Returns a trainer in batches, and trials, errors and rights of 60 sequences."""
    trainer = Trainer(baseline(cell, window=12, tolerance=0.75, mean_error=(0.49,)))
    return trainer, trainer.advance(trainer.init(), 0, 60)


def test_stopping_rule_looks_at_every_sequence_of_a_batch():
    _, (trials, errors, rights) = batched("elman")
    for trial in range(3):
        ends = [
            n
            for n in range(12, 61, 4)
            if rights[n - 12 : n, trial].all()
            and errors[n - 12 : n, trial].mean() < 0.49
        ]
        assert trials.solved_after[0, trial] == (ends or [0])[0]
    assert trials.solved_after.any() and not rights.all()


@pytest.mark.exhaustive
@pytest.mark.parametrize("cell", CELLS)
def test_baselines_follow_the_gradient_of_their_batch(cell):
    """Adam's first step is the rate times the sign of the gradient."""
    trainer, (_, errors, _) = batched(cell)
    before = jax.device_get(trainer.init())
    _, keys, _ = trainer.keys(before.numbers)
    draw = drawing(trainer.experiment.task)
    sequences = [stacked([draw(key, n) for n in range(8)]) for key in keys]
    first = jax.tree.map(lambda leaf: leaf[..., :4, :], stacked(sequences))
    learn = jax.jit(trainer.learner.learn)
    after, _ = jax.device_get(learn(before.weights, first))
    network = trainer.learner.network

    @jax.jit
    @partial(jax.grad, has_aux=True)
    def gradient_and_error(params, inputs, lengths, targets):
        y = network.apply(params, jnp.moveaxis(inputs, -1, 1))
        error = targets.T - y[lengths - 1, jnp.arange(4)]
        return 0.5 * jnp.mean(jnp.sum(error**2, -1)), jnp.abs(error).mean(-1)

    for trial in range(3):
        old, new = (of_trial(w["params"], trial) for w in (before.weights, after))
        one, other = (
            [leaf[..., at : at + 4] for leaf in sequences[trial][:3]] for at in (0, 4)
        )
        gradient, error = gradient_and_error(old, *one)
        np.testing.assert_allclose(errors[:4, trial], error, rtol=1e-4)
        _, error = gradient_and_error(new, *other)
        np.testing.assert_allclose(errors[4:8, trial], error, rtol=1e-4)
        jax.tree.map(
            lambda new, old, d: np.testing.assert_allclose(
                (new - old)[np.abs(d) > 1e-4],
                -trainer.experiment.baseline.rate * np.sign(d)[np.abs(d) > 1e-4],
                rtol=2e-2,
            ),
            new,
            old,
            jax.device_get(gradient),
        )


# Each on one task; on each kind of task the one that learns in batches, and the other.
BASELINE_READINGS = tuple(baselines())
KINDS_OF_TASKS = "reber-1-1", "long-lag-2a", "very-long-lag-2c-1"
RUNS = [("adding-4-1", reading) for reading in BASELINE_READINGS]
RUNS += itertools.product(KINDS_OF_TASKS, BASELINE_READINGS[:2])


@pytest.mark.exhaustive
@pytest.mark.parametrize("name, reading", RUNS)
def test_every_baseline_runs(name, reading, tmp_path, monkeypatch):
    monkeypatch.setattr(trainer_module, "draw_sets", sets_of)
    changes = read_config(config_path(name), reading)
    config = small(dataclasses.replace(changes, baseline=Baseline()), 20)
    if changes.baseline.cell:
        config = baseline(changes.baseline.cell, config_of(name))
    result = run(config, tmp_path / "run", name, reading)
    assert result["reading"] == reading and result["presented"] > 0


def test_training_tests_and_seeds_draw_independent_keys():
    trainer = Trainer(SIX_A)
    other = Trainer(dataclasses.replace(SIX_A, seed=1))
    numbers = jnp.arange(SIX_A.trials)
    keys = [jax.random.key_data(k) for t in (trainer, other) for k in t.keys(numbers)]
    assert len(np.unique(np.concatenate(keys), axis=0)) == 6 * SIX_A.trials


@pytest.mark.exhaustive
def test_largest_state_is_taken_over_cells_and_steps():
    trainer = trainer_of(SHARED)
    trials = trainer.init()
    _, _, keys = trainer.keys(trials.numbers)
    trace = jax.jit(partial(online.trace, trainer.learner.network))
    draw, expected = drawing(SHARED.task), []
    for trial, key in enumerate(keys):
        w = jax.tree.map(lambda leaf: leaf[..., None], of_trial(trials.weights, trial))
        inputs, length, *_ = stacked([draw(key, n) for n in range(64)])
        states = np.abs(trace(w, inputs, length)[0].s)
        largest = [states[:last, ..., n].max() for n, last in enumerate(length)]
        expected.append(np.mean(largest))
    np.testing.assert_allclose(trainer.largest_state(trials), expected, rtol=1e-5)


@pytest.mark.exhaustive
def test_hidden_units_are_added_when_the_error_stops_falling():
    config, trainer = GROWING, trainer_of(GROWING)
    trials = trainer.init()
    drawn, after = trials.added
    drawn, errors = np.asarray(drawn), []
    for n in range(40):
        trials, error, _ = trainer.advance(trials, n, 1)
        errors.append(error[0])
        outputs, added = np.asarray(trials.weights.outputs), trials.added[1]
        for trial in range(config.trials):
            if added[trial] == 0:
                assert not outputs[..., trial].any()
            elif added[trial] == n + 1:
                np.testing.assert_array_equal(outputs[..., trial], drawn[..., trial])
    means = np.array(errors).reshape(10, 4, -1).mean(1)
    for trial, when in enumerate(trials.added[1]):
        stalled = np.flatnonzero(means[1:, trial] >= 0.8 * means[:-1, trial])
        assert when == 4 * (stalled[0] + 2)


@pytest.mark.exhaustive
@pytest.mark.parametrize("reading", [None, "update-per-step", "full-gradient"])
def test_hidden_units_that_are_not_added_yet_stay_unchanged(reading):
    config = small(read_config(config_path("long-lag-2a"), reading), tolerance=1e-6)
    task = dataclasses.replace(config.task, lag=7)
    growth = dataclasses.replace(config.growth, window=1000)
    trainer = Trainer(dataclasses.replace(config, growth=growth, task=task))
    before = trials = trainer.init()
    before, direct = jax.device_get((before.weights, np.array(before.weights.direct)))
    keys, draw = trainer.keys(trials.numbers)[1], drawing(task)
    for n in range(3):
        y_before = direct.copy()
        trials, _, _ = trainer.advance(trials, n, 1)
        for k in range(config.trials):
            one = jax.device_get(draw(keys[k], n))
            for symbol, target in zip(one.inputs, one.target, strict=True):
                w = direct if reading == "update-per-step" else y_before
                y = 1 / (1 + np.exp(-w[symbol, :, k]))
                e = y * (1 - y) * (np.eye(8)[target] - y)
                direct[symbol, :, k] += config.learning.rate * e
    np.testing.assert_allclose(trials.weights.direct, direct, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(trials.weights.inputs, before.inputs)
    assert not trials.weights.outputs.any()


def test_trials_that_reach_the_cap_have_failed(tmp_path, monkeypatch):
    """The first trial succeeds before it."""
    share_programs(monkeypatch)
    now = Run(trainer_of(SHARED), tmp_path)
    now.train()
    cap = SHARED.learning.max_sequences
    first, *others = now.trials.solved_after[0]
    assert 0 < first < now.presented == cap and others == [0, 0]


class Killed(Exception):
    """As by a signal, at any moment."""


def found_by(wrong_by_target):
    """Returns the results of a test with 4 sequences of each class.

    Args:
      wrong_by_target: wrong sequences by class, then by trial.
    """
    wrong = np.transpose(wrong_by_target)
    return trainer_module.Tests(
        wrong.sum(1), wrong.sum(1) / 4, wrong, np.full_like(wrong, 4)
    )


def test_trial_with_a_dead_class_is_stopped_after_ten_tests(monkeypatch):
    trainer = Trainer(small(SIX_A, gives_up=True))
    watch, trials = hopeless.watch_of(trainer), trainer.init()
    seen, stopped = watch.start(trials), []
    for k in range(1, 21):
        # 0: class 1 is dead. 1: it was right once, at the fifth test. 2: no class is
        # right in all sequences.
        found = [[0, 0, 1], [4, 3 if k == 5 else 4, 4], [2, 1, 4], [0, 0, 4]]
        monkeypatch.setattr(trainer, "test", lambda *_, f=found: found_by(f))
        seen = watch.look(seen, trials, 100 * k)
        stopped.append(seen.stopped.tolist())
    assert stopped[8] == [0, 0, 0] and stopped[9] == [1000, 0, 0]
    assert stopped[13] == [1000, 0, 0] and stopped[14:] == [[1000, 1500, 0]] * 6


def test_trial_with_saturated_cells_is_stopped_after_ten_tests(monkeypatch):
    trainer = Trainer(small(SIX_A, gives_up=True))
    watch, trials = hopeless.watch_of(trainer), trainer.init()
    seen, stopped = watch.start(trials), []
    network, bias = trainer.learner.network, trials.weights.bias
    for k in range(1, 21):
        wrong = np.array([hopeless.TESTED, hopeless.TESTED, hopeless.TESTED - 1])
        found = found_by([[4] * 3] * 4)._replace(wrong=wrong)
        monkeypatch.setattr(trainer, "test", lambda *_, f=found: f)
        # 0: the weights into output gates move. 1: a weight into a cell moves slowly.
        moved = bias.at[-1, 0].add(k).at[network.blocks, 1].add(1.9e-4 * k)
        now = trials._replace(weights=trials.weights._replace(bias=moved))
        seen = watch.look(seen, now, 100 * k)
        stopped.append(seen.stopped.tolist())
    assert stopped[8] == [0, 0, 0] and stopped[9:] == [[1000, 0, 0]] * 11


def test_hopeless_trials_end_a_run_also_if_it_is_resumed(tmp_path, monkeypatch):
    share_programs(monkeypatch)
    monkeypatch.setattr(checkpoint, "SECONDS_BETWEEN_CHECKPOINTS", -1.0)
    trainer, calls = trainer_of(SHARED), []
    trials, advance = trainer.init(), trainer.advance
    # All outputs are 1, which is wrong, and gives no gradient.
    w = trials.weights._replace(output_bias=trials.weights.output_bias + 50)
    monkeypatch.setattr(trainer, "init", lambda: trials._replace(weights=w))

    def advance_or_die(*given):
        calls.append(given)
        if len(calls) == 8:
            raise Killed
        return advance(*given)

    monkeypatch.setattr(trainer, "advance", advance_or_die)
    with pytest.raises(Killed), Checkpoints(tmp_path / CHECKPOINTS) as checkpoints:
        Run(trainer, tmp_path, checkpoints).train()
    with Checkpoints(tmp_path / CHECKPOINTS) as checkpoints:
        resumed = Run(trainer, tmp_path, checkpoints)
        assert resumed.presented == 42
        resumed.train()
    assert resumed.stopped.tolist() == [60] * 3 and resumed.presented == 60


def distinct():
    """Yields the configs; those that differ in size alone are one, named together."""
    found = {}
    for name in paper_names():
        # Tests in training have as many sequences as the test at the end.
        rule = {"tolerance": 1.0, "window": 4}
        config = small(config_of(name), trials=2, max_sequences=6, **rule)
        # Other tests compile the programs of two.
        if name == "temporal-order-6a":
            config = SHARED
        if name == "long-lag-2a":
            config = GROWING
        parts = config.task, config.model, config.learning, config.growth
        found.setdefault((*parts, config.stopping), (config, []))[1].append(name)
    for config, names in found.values():
        marks = [] if names[0] == "temporal-order-6a" else pytest.mark.exhaustive
        yield pytest.param(config, names[0], id=",".join(names), marks=marks)


@pytest.mark.parametrize("config, name", list(distinct()))
def test_every_config_runs(config, name, tmp_path, capsys, monkeypatch):
    share_programs(monkeypatch)
    if config == GROWING:
        monkeypatch.setattr(loop, "CHUNK", 1)
    result = run(config, tmp_path / "run", name, None)

    assert result == json.loads((tmp_path / "run" / "result.json").read_text())
    show(tmp_path / "run", result)
    assert result["presented"] in (3, 4, 6, 66)
    assert result["config"]["trials"] == config.trials == len(result["trials"])
    for trial in result["trials"]:
        assert len(trial["sequences"]) == len(config.paper.sequences)
        assert np.isfinite(trial["mean_error"]).all() and trial["largest_state"] > 0
    assert {"jax", "flax", "commit", "device"} <= set(result["environment"])
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert names == {
        *("config.json", "metrics.jsonl", "result.json", "learning_curve.png"),
        "weights.npz",
    }
    with np.load(tmp_path / "run" / "weights.npz") as weights:
        assert weights["outputs"].shape[-1] == config.trials
    assert f"{config.paper.sequences[-1]:,}" in capsys.readouterr().out
    assert f", {result['weights']} |" in markdown_tables([tmp_path / "run"])


def some_result(*sequences):
    trials = [
        {"trial": i, "solved": n > 0, "sequences": [n], "wrong": [2 * i]}
        for i, n in enumerate(sequences)
    ]
    result = {"config": json.loads(json.dumps(dataclasses.asdict(SIX_A)))}
    result["trials"] = [trial | {"mean_error": [0.01]} for trial in trials]
    rest = {"weights": 156, "seconds": 12.3, "environment": {"commit": "abc"}}
    return result | rest


def test_summary_has_means_of_the_trials_that_reached_a_point():
    rows = {
        what: (paper, ours) for what, paper, ours in summary(some_result(10, 0, 40))
    }
    assert rows["sequences to success, mean"] == ("31,390", "25 ± 21")
    assert rows["each trial"][1] == "10, failed, 40"
    assert rows["trials solved"] == ("of 20: not printed", "2 of 3")
    assert rows["wrong test sequences, mean"] == ("1 of 2560", "2.00 ± 2.83 of 2560")
    none = {what: ours for what, _, ours in summary(some_result(0))}
    assert none["sequences to success, mean"] == "-"
    result = some_result(10, 40)
    result["config"]["paper"]["sequences"] = [5, 20]
    result["trials"][0]["sequences"] = [4, 10]
    result["trials"][1] |= {"sequences": [6, 0], "solved": False}
    rows = {what: ours for what, _, ours in summary(result)}
    means = [rows[f"sequences to success, mean, point {k}"] for k in (1, 2)]
    assert means == ["5 ± 1", "10"]


def test_title_is_that_of_the_settings():
    result = some_result(10) | {"name": "temporal-order-6a", "reading": "gru"}
    assert title_of(result) == result["config"]["title"]
    result["config"]["learning"]["rate"] = 0.4
    assert title_of(result) == result["config"]["title"]
    result["config"]["task"]["lengths"] = [7, 8]
    title = "temporal-order-6a with task.lengths = [7, 8]"
    assert title_of(result) == title
    assert title_of(result | {"name": "mine"}) == result["config"]["title"]


def test_trials_with_nan_weights_fail_at_the_cap(tmp_path, monkeypatch):
    share_programs(monkeypatch)
    trainer = trainer_of(SHARED)
    trials = trainer.init()
    nan = jax.tree.map(lambda leaf: leaf * np.nan, trials.weights)
    monkeypatch.setattr(trainer, "init", lambda: trials._replace(weights=nan))
    result = run(SHARED, tmp_path, "diverged", None)
    assert [trial["solved"] for trial in result["trials"]] == [False] * 3
    assert result["presented"] == 66


LEARNERS = [("temporal-order-6a", None), ("temporal-order-6b", "full-gradient")]
LEARNERS += [("adding-4-1", "lstm"), ("long-lag-2a", None), ("long-lag-2a", "rtrl-4")]
LEARNERS += [("long-lag-2a", "bptt-100"), ("two-classes-3a-1", "guessing")]


@pytest.mark.parametrize("name, reading", by_level(LEARNERS, 2))
def test_types_of_the_state_stay_with_64_bit_types(name, reading):
    """As `lax.scan` and checkpoints need it, with settings of users."""
    config = dataclasses.replace(read_config(config_path(name), reading), trials=2)
    with jax.enable_x64(True), jax.numpy_rank_promotion("raise"), usual_promotion():
        trainer = Trainer(config)
        before = jax.eval_shape(trainer.init)
        advance = partial(trainer.advance, start=0, count=2 * trainer.learner.batch)
        after, *_ = jax.eval_shape(advance, before)
        jax.eval_shape(partial(trainer.test, start=0, count=4), before)
    chex.assert_trees_all_equal_shapes_and_dtypes(before, after)
