"""The experiments: the task, learning and its stopping rule, and whole runs."""

import dataclasses
import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.config import ConfigError, config_names, config_path, read_config
from experiments.online import Trainer
from experiments.plots import draw_learning_curve
from experiments.report import changes, markdown_table, summary
from experiments.run import run, train
from experiments.tasks import temporal_order as task

ROOT = Path(__file__).resolve().parent.parent
SIX_A = read_config(config_path("temporal-order-6a"))


def tiny(experiment, **learning):
    """Returns a config that ends within seconds: short, few, easily satisfied."""
    learning = {"tolerance": 0.61, "mean_error": 0.5, "window": 5} | learning
    return dataclasses.replace(
        experiment,
        trials=3,
        test_sequences=4,
        task=dataclasses.replace(
            experiment.task, positions=((1, 3), (5, 6)), lengths=(9, 12)
        ),
        learning=dataclasses.replace(experiment.learning, **learning),
    )


@pytest.fixture(scope="module")
def sequences():
    keys = jax.random.split(jax.random.key(0), 4000)
    return jax.vmap(lambda key: task.sample(SIX_A.task, key))(keys)


def test_sequences_are_as_defined(sequences):
    classes = {"XX": 0, "XY": 1, "YX": 2, "YY": 3}
    for symbols, length, label in zip(*map(np.asarray, sequences), strict=True):
        text = task.spell(symbols, length)
        assert len(text) == length and 100 <= length <= 110
        assert text[0] == "E" and text[-1] == "B"
        first, second = [i for i, symbol in enumerate(text) if symbol in "XY"]
        assert 10 <= first <= 20 and 50 <= second <= 60
        assert label == classes[text[first] + text[second]]
        rest = text[1:first] + text[first + 1 : second] + text[second + 1 : -1]
        assert set(rest) <= set("abcd")


def test_every_choice_is_equally_likely(sequences):
    symbols, lengths, labels = map(np.asarray, sequences)
    steps = np.argmax(symbols >= task.X, axis=1)
    for values, choices in ((lengths, 11), (labels, 4), (steps, 11)):
        counts = np.unique(values, return_counts=True)[1]
        expected = len(values) / choices
        assert len(counts) == choices
        # Five standard deviations of a binomial count.
        assert np.abs(counts - expected).max() < 5 * np.sqrt(expected)
    distractors = symbols[:, 70:99].ravel()
    counts = np.bincount(distractors)
    assert len(counts) == 4 and np.ptp(counts) / counts.mean() < 0.05


def test_six_b_is_another_choice_of_options():
    options = dataclasses.replace(
        SIX_A.task, positions=((10, 20), (33, 43), (66, 76)), lengths=(100, 110)
    )
    sample = task.sample(options, jax.random.key(0))
    letters = [c for c in task.spell(sample.symbols, sample.length) if c in "XY"]
    assert task.outputs(options) == 8
    assert sample.label == int("".join("01"[c == "Y"] for c in letters), 2)


def test_paper_net_has_the_paper_weights():
    trials = jax.eval_shape(Trainer(SIX_A).init)
    leaves = jax.tree.leaves(trials.params)
    assert sum(leaf.size for leaf in leaves) == SIX_A.trials * SIX_A.paper.weights


def test_learning_equals_a_loop_of_plain_updates():
    config = tiny(SIX_A, window=99)
    trainer = Trainer(config)
    trials = trainer.init()
    start = jax.tree.map(jnp.copy, trials.params)
    trained, errors, _ = trainer.advance(trials, 0, 6)

    @jax.jit
    @partial(jax.grad, has_aux=True)
    def gradient_and_error(params, x, label):
        e = jax.nn.one_hot(label, 4) - trainer.network.apply(params, x, len(x))
        return 0.5 * jnp.sum(e**2), e

    for trial in range(config.trials):
        params = jax.tree.map(lambda leaf, t=trial: leaf[t], start)
        for n in range(6):
            key = jax.random.fold_in(trainer.train_keys[trial], n)
            symbols, length, label = task.sample(config.task, key)
            x = jax.nn.one_hot(symbols, 8)[:length]
            gradient, e = gradient_and_error(params, x, label)
            np.testing.assert_allclose(errors[n, trial], jnp.abs(e).mean(), rtol=1e-5)
            params = jax.tree.map(lambda w, g: w - 0.5 * g, params, gradient)
        jax.tree.map(
            lambda a, b, t=trial: np.testing.assert_allclose(a[t], b, rtol=1e-4),
            trained.params,
            params,
        )


@pytest.mark.parametrize("chunk", [1, 20, 60])
@pytest.mark.parametrize("tolerance, mean_error", [(0.7, 0.42), (0.57, 0.6)])
def test_stopping_rule_is_that_of_the_paper_at_every_sequence(
    chunk, tolerance, mean_error
):
    config = tiny(SIX_A, tolerance=tolerance, mean_error=mean_error)
    window, trainer = config.learning.window, Trainer(config)
    trials, errors, rights, frozen = trainer.init(), [], [], {}
    for start in range(0, 60, chunk):
        trials, error, right = trainer.advance(trials, start, chunk)
        errors.append(error)
        rights.append(right)
        for trial in np.flatnonzero(trials.solved_after):
            kept = jax.tree.map(lambda leaf, t=trial: np.asarray(leaf[t]), trials)
            jax.tree.map(
                np.testing.assert_array_equal, kept, frozen.setdefault(trial, kept)
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
        assert trials.solved_after[trial] == expected
    assert len(frozen) > 0


def test_more_trials_leave_the_first_ones_alone():
    few, many = (
        Trainer(dataclasses.replace(tiny(SIX_A, window=99), trials=n)) for n in (2, 3)
    )
    (a, _, _), (b, _, _) = (t.advance(t.init(), 0, 5) for t in (few, many))
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y[:2], rtol=1e-5), a.params, b.params
    )


def test_training_test_and_seeds_have_streams_of_their_own():
    trainer = Trainer(SIX_A)
    other = Trainer(dataclasses.replace(SIX_A, seed=1))
    keys = [
        jax.random.key_data(k)
        for t in (trainer, other)
        for k in (t.init_keys, t.train_keys, t.test_keys)
    ]
    assert len(np.unique(np.concatenate(keys), axis=0)) == 6 * SIX_A.trials


def test_trials_that_reach_the_cap_have_failed(tmp_path):
    config = tiny(SIX_A, tolerance=1e-6, max_sequences=7)
    trials, presented = train(Trainer(config), tmp_path / "metrics.jsonl")
    assert presented == 7 and not trials.solved_after.any()


@pytest.mark.parametrize("name", config_names())
def test_every_config_runs(name, tmp_path, capsys):
    config = tiny(read_config(config_path(name)), max_sequences=700)
    config = dataclasses.replace(config, trials=2)

    run(config, tmp_path / "run", name)

    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["weights"] == config.paper.weights
    assert [trial["solved"] for trial in result["trials"]] == [True, True]
    assert result["config"]["trials"] == 2
    assert {"jax", "flax", "commit", "device"} <= set(result["environment"])
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["sequences"] for line in lines] == [500]
    assert (tmp_path / "run" / "learning_curve.png").stat().st_size > 10_000
    assert f"{config.paper.sequences:,}" in capsys.readouterr().out
    assert f"| {result['weights']}" in markdown_table([tmp_path / "run"]).replace(
        f"{config.paper.weights}, ", ""
    )


def some_result(*sequences):
    trials = [
        {
            "trial": i,
            "solved": n > 0,
            "sequences": n,
            "wrong": 2 * i,
            "mean_error": 0.01,
        }
        for i, n in enumerate(sequences)
    ]
    return {
        "config": json.loads(json.dumps(dataclasses.asdict(SIX_A))),
        "weights": 156,
        "trials": trials,
        "seconds": 12.3,
        "environment": {"commit": "abc"},
    }


def test_summary_leaves_failed_trials_out_of_the_means():
    rows = {
        what: (paper, ours) for what, paper, ours in summary(some_result(10, 0, 40))
    }
    assert rows["sequences to success, mean"] == ("31,390", "25 ± 21")
    assert rows["each trial"][1] == "10, failed, 40"
    assert rows["trials solved"] == ("all of 20", "2 of 3")
    assert rows["wrong test sequences, mean"] == ("1 of 2560", "2.00 ± 2.83 of 2560")
    none = {what: ours for what, _, ours in summary(some_result(0))}
    assert none["sequences to success, mean"] == "-"


def test_report_names_the_options_that_were_changed(tmp_path):
    result = some_result(10, 20) | {"name": "temporal-order-6a"}
    assert changes(result) == []
    result["config"]["learning"]["rate"] = 0.4
    result["config"]["trials"] = 5
    result["config"]["seed"] = 9
    assert changes(result) == ["trials = 5", "learning.rate = 0.4"]
    (tmp_path / "result.json").write_text(json.dumps(result))
    assert "| trials = 5, learning.rate = 0.4 |" in markdown_table([tmp_path])


def test_a_damaged_result_is_named(tmp_path):
    (tmp_path / "result.json").write_text("{")
    with pytest.raises(ConfigError, match="result.json is damaged"):
        markdown_table([tmp_path])


def test_networks_that_diverge_are_reported_as_failed(tmp_path, capsys):
    config = tiny(SIX_A, max_sequences=3)
    model = dataclasses.replace(config.model, weight_range=1e30)
    run(dataclasses.replace(config, model=model), tmp_path, "diverged")
    result = json.loads((tmp_path / "result.json").read_text())
    assert not any(trial["solved"] for trial in result["trials"])


def test_learning_curves_end_where_trials_succeed(tmp_path):
    from matplotlib.figure import Figure

    metrics = tmp_path / "metrics.jsonl"
    lines = [
        {"sequences": 500 * i, "error": [0.4 / i, 0.5 / i], "right": [0, 0]}
        for i in range(1, 5)
    ]
    metrics.write_text("\n".join(map(json.dumps, lines)))
    axes = Figure().add_subplot()

    draw_learning_curve(axes, metrics, some_result(700, 0))

    first, dot, second, paper, ours = axes.get_lines()
    assert list(first.get_xdata()) == [500, 1000]
    assert list(dot.get_xdata()) == [1000]
    assert list(second.get_xdata()) == [500, 1000, 1500, 2000]
    assert paper.get_xdata()[0] == 31_390 and ours.get_xdata()[0] == 700
    assert axes.get_xscale() == "log" and axes.get_ylabel() == "mean absolute error"


def test_command_runs_from_end_to_end(tmp_path):
    command = [sys.executable, "-m", "experiments", "run", "temporal-order-6a"]
    options = "--trials 2 --learning.max-sequences 3 --test-sequences 5".split()
    done = subprocess.run(
        [*command, *options, "--out", tmp_path / "out"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "0 of 2" in done.stdout and "31,390" in done.stdout
    assert (tmp_path / "out" / "result.json").exists()
