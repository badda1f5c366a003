"""Verdicts on the rows of the paper, from results that are kept."""

import contextlib
import copy
import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.paper1997.run import save_weights
from experiments.paper1997.training.trainer import Trainer
from experiments.reports.committed import keep
from experiments.reports.paper1997 import network_figures, page
from experiments.reports.paper1997 import results as committed
from experiments.reports.paper1997.page import deciding
from experiments.reports.paper1997.results import Outcome, outcomes
from experiments.reports.tables import changes
from experiments.settings.reading import config_path, paper_names, read_config, to_dict
from experiments.settings.rules import ConfigError

pytestmark = pytest.mark.default

NAME = "temporal-order-6a"


def result_of(*sequences, name=NAME, reading=None, **changed):
    config = to_dict(read_config(config_path(name), reading))
    trials = [
        {"trial": k, "solved": n > 0, "sequences": [n], "wrong": [1], "mean_error": [0]}
        for k, n in enumerate(sequences)
    ]
    result = {"name": name, "reading": reading, "config": config, "weights": 156}
    result |= {"seconds": 1.0, "environment": {"commit": "abc"}}
    return copy.deepcopy(result) | {"trials": trials} | changed


def outcome(kind, *sequences):
    return Outcome(f"a {kind} one", kind, result_of(*sequences))


# The paper has 20 trials.
GOOD, SLOW, HALF = (31_000, 40_000) * 10, (31_000, 90_000) * 10, (100, 0) * 10
FEW = (31_000,) * 19


NEVER = (0, 0) * 10
UNDER, WITH = "**reproduced** under the reading", "**reproduced** with the deviation"


@pytest.mark.parametrize(
    "expected, found",
    [
        ("not run", {}),
        ("**reproduced** as written", {"literal": GOOD, "silent": GOOD}),
        (
            f"{UNDER} `a silent one`",
            {"literal": SLOW, "departure": GOOD, "silent": GOOD},
        ),
        (f"{UNDER} `a contradictory one`", {"literal": HALF, "contradictory": GOOD}),
        (
            f"{WITH} `a departure one`",
            {"literal": HALF, "departure": GOOD, "silent": SLOW},
        ),
        ("*learnt, slower*: `a silent one`", {"literal": HALF, "silent": SLOW}),
        ("*never*: a literal one, within 1,000,000", {"literal": NEVER}),
        (
            "*partly*: `a silent one`, within 1,000,000",
            {"literal": NEVER, "silent": (0, 31_000)},
        ),
    ],
)
def test_verdict_follows_from_the_outcomes(expected, found):
    words, _ = deciding([outcome(kind, *trials) for kind, trials in found.items()])
    assert words == expected


def test_required_share_of_trials_is_that_of_the_paper():
    sequences = [10_000] * 29 + [0]
    one = Outcome("x", "literal", result_of(*sequences, name="reber-1-3"))
    assert one.is_reproduced
    other = Outcome("x", "literal", result_of(*sequences, name="reber-1-2"))
    assert not other.is_reproduced


def test_every_stopping_point_counts():
    result = result_of(*[0] * 10, name="multiplication-5")
    paper = result["config"]["paper"]["sequences"]
    for trial in result["trials"]:
        trial |= {"solved": True, "sequences": list(paper)}
    one = Outcome("x", "literal", result)
    assert one.is_reproduced and one.solved_of == "10 / 10 of 10"
    for trial in result["trials"]:
        trial["sequences"] = [int(1.6 * paper[0]), paper[1]]
    assert not one.is_reproduced
    for trial in result["trials"]:
        trial |= {"solved": False, "sequences": [paper[0], 0]}
    assert one.solved_of == "10 / 0 of 10" and one.mean(0) == paper[0]


METRICS = [
    {"sequences": 500, "trials": [0, 1], "error": [0.4, 0.5]},
    {"sequences": 1000, "trials": [0, 1], "error": [0.2, None]},
    {"sequences": 1500, "trials": [1], "error": [0.4]},
]


def write_run(folder, result):
    folder.mkdir(exist_ok=True)
    (folder / "result.json").write_text(json.dumps(result))
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, METRICS)))
    shapes = jax.eval_shape(Trainer(read_config(config_path(NAME))).init).weights
    rng, trials = np.random.default_rng(0), len(result["trials"])
    drawn = jax.tree.map(
        lambda leaf: rng.uniform(-0.1, 0.1, (*leaf.shape[:-1], trials)), shapes
    )
    drawn = jax.tree.map(np.float32, drawn)
    save_weights(folder / "weights.npz", jax.tree.map(lambda leaf: leaf[None], drawn))
    return drawn


def test_results_are_kept_by_row_and_reading(tmp_path, monkeypatch):
    monkeypatch.setattr(committed, "RESULTS", tmp_path / "results")
    run = tmp_path / "run"
    for reading in (None, "ranges-of-caption", "gru"):
        result = result_of(*GOOD, reading=reading)
        weights = write_run(run, result)
        path = keep(run)
        assert path.name == f"{reading or 'as-written'}.json"
        found = json.loads(path.read_text())
        assert found.pop("curve")["sequences"] == [500, 1000, 1500]
        assert found == result
    literal, *others = outcomes(NAME)
    assert literal.kind == "literal"
    assert {one.kind for one in others} == {"contradictory", "baseline"}
    for name, leaf in literal.weights.items():
        few = leaf.shape[-1]
        assert few == committed.NUMBERS // 156
        np.testing.assert_array_equal(leaf, getattr(weights, name)[..., :few])
    tables = page.tables()
    row = (
        "| as-written | literal | 156, 156 | 20 of 20 (cap 1,000,000) | 0 | 31,390 "
        "| 35,500"
    )
    assert row in tables["readings"] and "gru" not in tables["readings"]
    assert (
        f"| {NAME} | 31,390 | 35,500 (31,000–40,000) | - | 20 of 20 | **rep"
        in (tables["verdicts"])
    )
    last = f"| {NAME} | 31,390 | 20 of 20: 35,500 | 20 of 20: 35,500 |"
    assert last in tables["baselines"]

    (committed.RESULTS / NAME / "as-written.json").rename(tmp_path / "literal.json")
    verdicts = page.tables()["verdicts"]
    assert "`ranges-of-caption`, literal reading not run: the values in the" in verdicts

    result["config"]["trials"] = 3
    result["trials"] = result["trials"][:3]
    (run / "result.json").write_text(json.dumps(result))
    with pytest.raises(ConfigError, match="at least the 20 trials of .*, got 3"):
        keep(run)
    result = result_of(*GOOD) | {"weights": 157}
    (run / "result.json").write_text(json.dumps(result))
    with pytest.raises(ConfigError, match="the paper's 156 weights, got 157"):
        keep(run)


def test_only_whole_runs_with_the_seed_of_the_config_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(committed, "RESULTS", tmp_path / "results")
    run = tmp_path / "run"
    for trials, reading, is_kept in (
        (FEW, None, True),
        (GOOD, None, False),
        (GOOD, "gru", True),
    ):
        result = result_of(*trials, reading=reading)
        result["config"]["seed"] = 1
        write_run(run, result)
        refused = pytest.raises(ConfigError, match="have the seed 0 of its.* got 1")
        with contextlib.nullcontext() if is_kept else refused:
            keep(run)


def test_kept_results_stay_until_a_new_result_is_complete(tmp_path, monkeypatch):
    monkeypatch.setattr(committed, "RESULTS", tmp_path / "results")
    run = tmp_path / "run"
    write_run(run, result_of(*GOOD))
    path = keep(run)
    before = [file.read_bytes() for file in (path, path.with_suffix(".npz"))]
    for name, damage in (
        ("metrics.jsonl", b""),
        ("metrics.jsonl", b"{"),
        ("weights.npz", b""),
        ("weights.npz", b"PK\3\4 half of it"),
    ):
        write_run(run, result_of(*SLOW))
        (run / name).write_bytes(damage)
        with pytest.raises(ConfigError, match=f"{name} is damaged"):
            keep(run)
        after = [file.read_bytes() for file in (path, path.with_suffix(".npz"))]
        assert after == before
    write_run(run, result_of(*SLOW))
    keep(run)
    assert sorted(file.suffix for file in path.parent.iterdir()) == [".json", ".npz"]
    write_run(run, result_of(*[0] * 20))
    keep(run)
    assert [file.suffix for file in path.parent.iterdir()] == [".json"]


def test_weights_are_those_of_the_first_trials_that_succeeded(tmp_path, monkeypatch):
    monkeypatch.setattr(committed, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(committed, "NUMBERS", 400)
    drawn = write_run(tmp_path / "run", result_of(0, 5, 0, 6, 7))
    keep(tmp_path / "run")
    (literal,) = outcomes(NAME)
    for name, leaf in literal.weights.items():
        np.testing.assert_array_equal(leaf, getattr(drawn, name)[..., [1, 3]])


def test_activation_traces_equal_those_of_the_network():
    literal = Outcome("as-written", "literal", result_of(*GOOD))
    trainer = network_figures.trainer_of(NAME, literal)
    w = jax.device_get(jax.jit(trainer.learner.init)(jax.random.key(3)))

    class Kept:
        weights = {
            name: leaf[..., None]
            for name, leaf in w._asdict().items()
            if leaf is not None
        }

    four, first, second, length = network_figures.four_orders(trainer)
    assert len(set(map(tuple, np.asarray(four)[:, [first, second]]))) == 4
    run = network_figures.traced(trainer, Kept, 0, four, length)
    assert [part.shape for part in run.values()] == [(4, length, n) for n in (2, 4, 2)]
    # Equation 3, at the step of the second symbol.
    s, x = run["states of cells"][:, second - 1], np.asarray(four)[:, second]
    y_before = np.concatenate([part[:, second - 1] for part in run.values()], axis=-1)
    cells = run["output gates"][:, second - 1].repeat(2, -1) * np.tanh(s / 2)
    y_before[:, 2:6] = cells
    y_before = np.concatenate([cells, y_before[:, :2], y_before[:, 6:]], axis=-1)
    net = w.inputs[x] + w.bias + y_before @ w.hidden
    expected = 1 / (1 + np.exp(-np.asarray(net)[:, :2]))
    np.testing.assert_allclose(run["input gates"][:, second], expected, rtol=1e-5)
    assert network_figures.gate_share(run["input gates"], second) == pytest.approx(
        np.abs(expected[:2] - expected[2:]).max(), rel=1e-4
    )


@pytest.mark.parametrize("name", paper_names())
def test_committed_results_match_the_current_configs(name):
    for outcome in outcomes(name):
        result, changed = outcome.result, changes(outcome.result)
        if outcome.is_whole:
            assert changed == []
        assert all(change.startswith("trials =") for change in changed)
        assert len(result["trials"]) == result["config"]["trials"]
        commit = result["environment"]["commit"]
        assert commit and not commit.endswith("-dirty")
        for trial in result["trials"]:
            assert trial["solved"] == (trial["sequences"][-1] > 0)


# Wrong answers and sequences by target, of each trial.
CLASSES = [[9, 0, 10, 8], [10, 10, 10, 0]], [[10] * 4] * 2
NUMBERS = [[3] + [0] * 18 + [4], [0, 1] + [0] * 18], [[5] * 20] * 2
STEPS = [[1, 3], [2, 4]], [[5, 5]] * 2


@pytest.mark.parametrize(
    "name, by_target, expected",
    [
        (NAME, CLASSES, "classes missed: 2 of 4 in 1, 3 of 4 in 1 trials"),
        (NAME, NUMBERS, "88% have targets < 0.05 or > 0.95; of all, 10.0%"),
        (NAME, ([[], []], [[], []]), "-"),
        ("reber-1-1", STEPS, "long lag in 30% of sequences, other steps in 70%"),
    ],
)
def test_failures_name_the_missed_targets(name, by_target, expected):
    result = result_of(0, 0, name=name) | {"name": NAME}
    for trial, w, t in zip(result["trials"], *by_target, strict=True):
        trial |= {"wrong_by_target": w, "by_target": t, "largest_state": 3.0}
    row = page._failures(NAME, Outcome("x", "literal", result))
    tested = result["config"]["test_sequences"]
    assert row == (NAME, "x", "2 of 2", f"1.0 of {tested}", "3.0", expected)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", [NAME, "adding-4-1", "reber-1-1"])
def test_wrong_answers_are_counted_by_target(name, rng):
    config = read_config(config_path(name))
    trainer = Trainer(dataclasses.replace(config, trials=2))
    trials = jax.tree.map(
        lambda leaf: rng.normal(size=leaf.shape).astype(leaf.dtype),
        jax.eval_shape(trainer.init),
    )
    trials = trials._replace(numbers=np.arange(2, dtype=np.int32))
    tests = jax.device_get(trainer.test(trials, 0, 64))
    counted = tests.wrong_by_target.sum(1), tests.by_target.sum(1)
    if config.task.is_along:
        assert (tests.by_target == 64).all() and (counted[0] >= tests.wrong).all()
        assert (tests.wrong_by_target.max(1) <= tests.wrong).all()
        return
    np.testing.assert_array_equal(counted, [tests.wrong, [64, 64]])
    # The targets of the first trial, one by one.
    key = trainer.keys(jnp.array([0]))[2][0]
    draw = jax.jit(lambda n: trainer.sample(0, jax.random.fold_in(key, n)).truth)
    truth = np.stack([draw(n) for n in range(64)])
    kinds = truth.argmax(1) if truth.shape[1] > 1 else np.floor(truth[:, 0] * 20)
    for kind, count in enumerate(tests.by_target[0]):
        assert np.sum(kinds == kind) == count
