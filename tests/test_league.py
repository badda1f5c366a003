"""The league: widths of equal budgets, many runs by one command, and its report."""

import copy
import json
import re
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import random_like
from data_configs import Stop
from levels import by_level

from experiments import cli
from experiments.reports import committed
from experiments.reports.league import page, results
from experiments.runs.folder import CONFIG, FAILURE, RESULT
from experiments.settings import reading
from experiments.settings.reading import read_league
from experiments.settings.rules import ConfigError
from experiments.supervised import league
from experiments.supervised.network import MADE
from experiments.supervised.tasks import TASKS

pytestmark = pytest.mark.default

# A small task; with one sequence in a batch, one device is used.
TEXT = """
title = "Sums"
seeds = 2
[league]
parameters = {parameters}
[published]
what = "squared error"
metric = "test.loss"
value = 0.5
source = "by hand"
[task]
name = "adding"
length = 3
[optimizer]
rate = {rate}
clip = {rate}
[training]
updates = 2
batch = 1
evaluate_every = 2
chunk = 1
"""
# A cell of width 2: two kernels, a bias, and the dense layer.
SIMPLE = 2 * 2 + 2 * 2 + 2 + 2 + 1


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A working folder with three tasks: `adding`, `diverging` and `tiny`."""
    tasks = tmp_path / "configs"
    tasks.mkdir()
    for name, parameters, rate in [
        ("adding", 20, 0.1),
        ("diverging", 20, 1e30),
        ("tiny", 3, 0.1),
    ]:
        text = TEXT.format(parameters=parameters, rate=rate)
        (tasks / f"{name}.toml").write_text(text)
    monkeypatch.setattr(reading, "LEAGUE", tasks)
    monkeypatch.setattr(results, "LEAGUE", tmp_path / "league.json")
    # Other tests use their compiled programs again.
    monkeypatch.setattr(jax, "clear_caches", lambda: None)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def of_project(monkeypatch):
    """The tasks and the committed results of the project."""
    monkeypatch.setattr(reading, "LEAGUE", reading.CONFIGS / "league")
    monkeypatch.setattr(results, "LEAGUE", committed.RESULTS / "league.json")


def run(*words):
    return cli.main(["league", *words])


CELLS = [entry.cell for entry in league.entries([read_league("adding")], [], Path())]


@pytest.mark.parametrize("cell", by_level(CELLS, ["LTCCell", "CfCCell"]))
def test_network_has_the_most_parameters_of_the_budget(cell):
    """Counts the parameters of the task's own network, for two widths."""
    task, budget = read_league("adding"), 400

    def count(width):
        network = TASKS["adding"](task.of(cell, width))
        params = jax.eval_shape(lambda: network.init(jax.random.key(0)))
        return sum(np.prod(leaf.shape) for leaf in jax.tree.leaves(params))

    size = league.sizes_of(task)
    width = league.largest_width(lambda width: size(cell, width), budget)
    assert count(width) <= budget < count(width + 1)


RANDOM = {"DropConnectCell", "VariationalGRUCell", "VariationalLSTMCell", "ZoneoutCell"}


@pytest.mark.parametrize("cell", by_level(MADE, ["RGLRUCell"]))
def test_cells_with_more_than_a_width_train(cell):
    """A gradient can be traced; random cells draw in training only."""
    task = read_league("adding")
    network = TASKS["adding"](task.of(cell, 2))
    shapes = jax.eval_shape(network.init, jax.random.key(0))
    params = random_like(np.random.default_rng(7), shapes)
    batch = jax.jit(network.batch)((), jax.random.key(1), 0)

    def loss(params, key):
        return network.loss(params, batch, (), key, 0)[0]

    shapes = jax.eval_shape(jax.grad(loss), params, jax.random.key(2))
    assert jax.tree.map(jnp.shape, shapes) == jax.tree.map(jnp.shape, params)
    if cell not in RANDOM:
        return
    # At a rate of 0.1, the masks of ten keys are unlikely to be equal.
    losses = jax.jit(jax.vmap(loss, (None, 0)))(
        params, jax.random.split(jax.random.key(3), 10)
    )
    assert len(set(losses.tolist())) > 1


@pytest.mark.parametrize("budget", [14, 260, 261, 10_000])
def test_width_is_that_of_trying_all(budget):
    sizes = {n: 4 * n * (n + 2) + n + 1 for n in range(1, 200)}
    found = league.largest_width(sizes.__getitem__, budget)
    assert found == max(n for n in sizes if sizes[n] <= budget)


def test_league_takes_all_cells_for_vectors():
    assert {"SimpleCell", "StackedCell", "ZoneoutCell", "LSTM1997Cell"} <= set(CELLS)
    assert not {"OptimizedLSTMCell", "ConvLSTMCell"} & set(CELLS)


@pytest.mark.exhaustive
def test_interrupted_cell_continues_and_ended_cells_are_skipped(capsys, monkeypatch):
    both = "--tasks", "adding,diverging", "--cells", "SimpleCell"
    with monkeypatch.context() as patch:
        patch.setattr("experiments.supervised.loop.Interruption", Stop)
        assert run(*both) == 143
    assert (
        "saved at update 1 in runs/league/adding/SimpleCell" in capsys.readouterr().err
    )
    assert run(*both) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "0 of 2 runs already finished"
    assert "1/2 adding/SimpleCell: " in said[1] and f"{SIMPLE} parameters" in said[1]
    assert re.search(r"2/2 diverging/SimpleCell: failed: the loss of network", said[2])

    result = json.loads(Path("runs/league/adding/SimpleCell", RESULT).read_text())
    assert result["config"]["model"]["features"] == 2 and result["updates"] == 2
    assert len(result["metrics"]["test"]["loss"]) == 2
    assert result["metrics"]["test"]["loss"][0] != result["metrics"]["test"]["loss"][1]
    failed = Path("runs/league/diverging/SimpleCell")
    assert "must be finite" in json.loads((failed / FAILURE).read_text())["reason"]

    assert run(*both) == 0
    assert capsys.readouterr().out == "2 of 2 runs already finished\n"
    for changed in {"parameters": 20, "rate": 0.2}, {"parameters": 40, "rate": 0.1}:
        (reading.LEAGUE / "adding.toml").write_text(TEXT.format(**changed))
        assert run(*both) == 2
        assert "SimpleCell` had other settings" in capsys.readouterr().err


def test_cell_that_cannot_be_built_is_noted(capsys):
    assert run("--tasks", "tiny", "--cells", "GRUCell,SimpleCell") == 0
    reason = "the network cannot be built: a network of width 1 must have at most 3"
    assert capsys.readouterr().out.count(reason) == 2
    again = "--tasks", "tiny", "--cells", "GRUCell"
    assert run(*again) == 0
    assert capsys.readouterr().out == "1 of 1 runs already finished\n"
    Path("runs/league/tiny/GRUCell", FAILURE).write_text('{"reason": "x"}')
    assert run(*again) == 2
    assert "failure.json is damaged: it must have `config" in capsys.readouterr().err
    assert run(*again, "--overwrite") == 0
    assert reason in capsys.readouterr().out


@pytest.mark.parametrize(
    "words, message",
    [
        ("--tasks add", "no task `add`; did you mean `adding`?"),
        ("--tasks adding,", "`--tasks` must be names with commas, got `adding,`."),
        ("--cells GRU", "no cell `GRU` in the league; did you mean `GRUCell`?"),
        ("--cells OptimizedLSTMCell", "which computes what LSTMCell computes"),
        ("--updates 3", "unknown option `--updates` of `league`; expected one of"),
    ],
)
def test_mistakes_end_before_any_run(words, message, capsys):
    assert run(*words.split()) == 2
    error = capsys.readouterr().err
    assert message in error and len(error.splitlines()) == 1
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    "old, new, message",
    [
        ("[league]\nparameters = 20\n", "", "[league]: missing key `parameters`."),
        ("parameters = 20", "parameters = 0", "`parameters` must be an integer in [1,"),
        ("seeds", "model = 3\nseeds", "adding.toml: `model` must be a section, got 3."),
    ],
)
def test_mistakes_in_a_file_are_named(old, new, message):
    path = reading.LEAGUE / "adding.toml"
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(ConfigError, match=re.escape(message)):
        read_league("adding")


VALUES = {"GRUCell": [0.25, 0.75], "LSTMCell": [1.0, 1.0], "SimpleCell": [0.1, 0.3]}


def write_runs(out, commit="abc"):
    """Writes the folders of a made-up league: results, and a failure of MGUCell."""
    task = read_league("adding")
    environment = {"device": "cpu", "processor": "Z80", "commit": commit}
    for cell, values in VALUES.items():
        result = {
            "name": "league-adding",
            "config": reading.to_dict(task.of(cell, 2)),
            "parameters": 12,
            "updates": 2,
            "best_updates": [1, 2],
            "metrics": {"test": {"loss": values}},
            "seconds": 61.26,
            "devices": 1,
            "environment": environment,
            "resumed": [],
        }
        (out / "adding" / cell).mkdir(parents=True, exist_ok=True)
        (out / "adding" / cell / RESULT).write_text(json.dumps(result))
    failure = {"reason": "the loss is nan", "environment": environment}
    failure["config"] = reading.to_dict(task.of("MGUCell", 2))
    (out / "adding" / "MGUCell").mkdir(exist_ok=True)
    (out / "adding" / "MGUCell" / FAILURE).write_text(json.dumps(failure))
    # A run that has not ended.
    (out / "adding" / "CoupledLSTMCell").mkdir(exist_ok=True)
    (out / "adding" / "CoupledLSTMCell" / CONFIG).write_text("{}")
    return out


@pytest.fixture
def found(folder):
    """The committed results of the made-up league."""
    results.keep(write_runs(folder / "made-up"))
    return results.league_results()


def test_results_are_kept_and_added(folder, capsys):
    assert cli.main(["keep", str(write_runs(folder / "made-up"))]) == 0
    path = folder / "league.json"
    assert capsys.readouterr().out == f"wrote {path}\n"
    cells = json.loads(path.read_text())["adding"]["cells"]
    assert list(cells) == ["GRUCell", "LSTMCell", "MGUCell", "SimpleCell"]
    assert cells["GRUCell"] == {
        "features": 2,
        "parameters": 12,
        "values": [0.25, 0.75],
        "updates": 2,
        "best_updates": [1, 2],
        "seconds": 61.3,
        "processor": "Z80",
        "commits": ["abc"],
    }
    assert cells["MGUCell"] == {"failure": "the loss is nan", "commits": ["abc"]}

    # One new result: the others stay.
    shutil.rmtree(folder / "made-up")
    out = write_runs(folder / "again", "def")
    for cell in ("LSTMCell", "MGUCell", "SimpleCell"):
        shutil.rmtree(out / "adding" / cell)
    results.keep(out)
    after = results.league_results()["adding"]["cells"]
    assert after == cells | {"GRUCell": cells["GRUCell"] | {"commits": ["def"]}}

    # Other settings: none of them stays.
    text = TEXT.format(parameters=20, rate=0.2)
    (reading.LEAGUE / "adding.toml").write_text(text)
    with pytest.raises(ConfigError, match="must have the settings of configs/league/"):
        results.keep(out)
    write_runs(out)
    shutil.rmtree(out / "adding" / "LSTMCell")
    results.keep(out)
    assert "LSTMCell" not in results.league_results()["adding"]["cells"]


def test_tables_have_means_deviations_and_ranks(found):
    tables = page.tables()
    assert tables["league"].splitlines()[2:] == [
        "| `SimpleCell` | 1.0 | **0.2 ± 0.1** |",
        "| `GRUCell` | 2.0 | 0.5 ± 0.4 |",
        "| `LSTMCell` | 3.0 | 1 ± 0 |",
        "| `MGUCell` | 4.0 | failed |",
        "| to compare |  | 0.5 |",
    ]
    assert "Sums: squared error, smaller is better" in tables["league"]
    assert tables["failures"] == "* `MGUCell` on `adding`: the loss is nan"
    assert "| `GRUCell` | 2, 12, 61 s | abc |" in tables["widths"]
    assert "| `MGUCell` | - | abc |" in tables["widths"]
    row = "| `adding` | 20 | 2 | 2 | 1 | 0.1, cosine | 0.5 (by hand) | 3.1 min |"
    assert tables["tasks"].splitlines()[2] == row


def test_accuracies_rank_from_the_largest_and_small_tasks_do_not_count(found):
    other = copy.deepcopy(found["adding"])
    other["settings"]["published"]["metric"] = "test.accuracy"
    other["cells"]["GRUCell"]["values"] = [None, 99.0]
    assert page.ranks(other) == {
        "LSTMCell": 1,
        "SimpleCell": 2,
        "GRUCell": 4,
        "MGUCell": 4,
    }
    both = {"adding": found["adding"], "other": other}
    assert page.mean_ranks(both) == {
        "SimpleCell": 1.5,
        "LSTMCell": 2.0,
        "GRUCell": 3.0,
        "MGUCell": 4.0,
    }
    assert page.shown({"values": [97.5, 98.5]}, other["settings"]) == "98.0 ± 0.7"
    other["settings"]["league"]["cells"] = ["LSTMCell"]
    assert list(page.mean_ranks(both).values()) == [1, 2, 3, 4]


def test_committed_results_match_the_current_files(of_project):
    for name, of in results.league_results().items():
        assert of["settings"] == read_league(name).settings()
        for cell in of["cells"].values():
            assert not any(str(c).endswith("-dirty") for c in cell["commits"])
