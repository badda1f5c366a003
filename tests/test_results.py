"""Results on data sets: which are kept, and how they are reported."""

import copy
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from experiments.cli import main
from experiments.reports import committed as committed_results
from experiments.reports import report
from experiments.reports.committed import keep
from experiments.reports.data import figures, page
from experiments.reports.data import results as of_data
from experiments.reports.data.results import curve, results_of
from experiments.reports.report import KINDS, ROOT, modules_of, write_pages
from experiments.reports.tables import changes
from experiments.runs import environment
from experiments.settings.reading import config_path, data_names, read_config, to_dict
from experiments.settings.rules import ConfigError

pytestmark = pytest.mark.default

NAME = "japanese-vowels"
CONFUSION = [[[5, 1], [0, 3]]] * 4 + [[[4, 2], [2, 1]]]
PAPER = {"name": "reber-1-1", "weights": 264, "seconds": 1.0, "trials": []}


def result_of(name=NAME, reading=None, **changed):
    experiment = read_config(config_path(name), reading)
    of_split = {"loss": [0.5] * experiment.seeds}
    if experiment.seeds == 5:
        of_split |= {"accuracy": [97, 98, 98.5, 99, 97.5], "confusion": CONFUSION}
    result = {
        "name": name,
        "reading": reading,
        "config": to_dict(experiment),
        "parameters": 12_345,
        "updates": 120,
        "best_updates": [60] * experiment.seeds,
        "metrics": {"validation": of_split, "test": of_split},
        "seconds": 90.0,
        "devices": 1,
        "environment": {"commit": "abc", "device": "cpu", "processor": "Z80"},
        "resumed": [],
    }
    split, _, metric = experiment.published.metric.partition(".")
    result["metrics"].setdefault(split, {metric: [0.5] * experiment.seeds})
    return copy.deepcopy(result) | changed


def result_of_paper():
    config = to_dict(read_config(config_path("reber-1-1")))
    trial = {"trial": 0, "solved": True, "sequences": [9], "wrong": [0]}
    trials = [trial | {"mean_error": [0.0]}]
    of_run = {"config": config, "trials": trials, "environment": {"commit": "abc"}}
    return PAPER | of_run


def lines_of(evaluations, networks, chunk=3, rng=np.random.default_rng(0)):
    """The lines of a run with two calls of updates between two evaluations."""
    lines, update = [], 0
    for _ in range(evaluations):
        for count in (chunk, 1):
            update += count
            losses = rng.random(networks).tolist()
            lines.append({"update": update, "split": "train", "loss": losses})
        metrics = {name: rng.random(networks).tolist() for name in ("loss", "accuracy")}
        lines.append({"update": update, "split": "validation"} | metrics)
    best = {"loss": [0.0] * networks, "accuracy": [0.0] * networks}
    return lines + [
        {"update": update, "split": split} | best for split in ("validation", "test")
    ]


def write_run(folder, result, lines=None):
    folder.mkdir(exist_ok=True, parents=True)
    (folder / "result.json").write_text(json.dumps(result))
    if lines is None:
        lines = lines_of(2, result["config"]["seeds"])
    write_lines(folder / "metrics.jsonl", lines)
    return folder


def write_lines(path, lines):
    path.write_text("\n".join(map(json.dumps, lines)))


@pytest.fixture(autouse=True)
def results(tmp_path, monkeypatch):
    """Replaces the folder of the committed results by an empty one."""
    monkeypatch.setattr(of_data, "RESULTS", tmp_path / "results")
    return tmp_path / "results"


@pytest.fixture
def committed(monkeypatch):
    """Restores the folder of the committed results."""
    folder = committed_results.RESULTS / "data"
    monkeypatch.setattr(of_data, "RESULTS", folder)


@pytest.fixture
def found(tmp_path):
    """Results of two readings that are kept."""
    for reading in ("packed", None):
        keep(write_run(tmp_path / "run", result_of(reading=reading)))
    return results_of(NAME)


def test_results_are_kept_by_config_and_reading(tmp_path, results, capsys):
    for reading in ("packed", None):
        result = result_of(reading=reading)
        folder = write_run(tmp_path / "run", result)
        assert main(["keep", str(folder)]) == 0
        path = results / NAME / f"{reading or 'as-written'}.json"
        assert capsys.readouterr().out == f"wrote {path}\n"
        kept = json.loads(path.read_text())
        assert kept.pop("curve")["updates"] == [4, 8]
        assert kept == result
    assert list(results_of(NAME)) == ["as-written", "packed"]
    path.rename(path.with_name("no-such.json"))
    with pytest.raises(ConfigError, match="has no reading `no-such`"):
        results_of(NAME)


def of_config(section, **values):
    config = result_of()["config"]
    (config[section] if section else config).update(values)
    return {"config": config}


def commits(*names):
    first, *resumed = ({"device": "cpu", "commit": name} for name in names)
    return {"environment": first, "resumed": resumed}


@pytest.mark.parametrize(
    "changed, message",
    [
        (of_config("", seed=1), "must have the seed 0 of its config, got 1"),
        (
            of_config("training", updates=7),
            "must have the values of its config, got training.updates = 7",
        ),
        ({"reading": "packed"}, 'its config, got task.layout = "padded"'),
        (commits("abc-dirty"), "committed code, got the commit abc-dirty"),
        (of_config("", seeds=4), "damaged: a result must have `metrics.test.accuracy`"),
        ({"metrics": {"test": {"accuracy": [1.0] * 4}}}, "have `metrics.test.acc"),
        ({"environment": {"commit": "abc"}}, "must have `environment.device`"),
    ],
)
def test_other_runs_are_refused(changed, message, tmp_path, results):
    folder = write_run(tmp_path / "run", result_of() | changed)
    with pytest.raises(ConfigError, match=re.escape(message)):
        keep(folder)
    assert not results.exists()


TRAIN, VALIDATION = (
    {"update": 4, "split": split, "loss": [1.0] * 5}
    for split in ("train", "validation")
)


@pytest.mark.parametrize(
    "lines, message",
    [
        ([], "no learning curves"),
        ([TRAIN, {"sequences": 500, "trials": [0], "error": [1.0]}], "no learning"),
        ([TRAIN, VALIDATION | {"loss": [1.0] * 4}], "each line must have 5 values"),
    ],
)
def test_damaged_learning_curves_are_named(lines, message, tmp_path, results):
    write_run(tmp_path / "run", result_of(), lines)
    with pytest.raises(ConfigError, match=f"metrics.jsonl is damaged: .*{message}"):
        keep(tmp_path / "run")
    (tmp_path / "run" / "metrics.jsonl").write_text('{"update": 4')
    with pytest.raises(ConfigError, match="metrics.jsonl is damaged"):
        keep(tmp_path / "run")
    assert not results.exists()


@pytest.mark.parametrize("evaluations", [1, 3, 60, 61, 151])
def test_curve_is_thinned_and_has_the_losses_between_its_points(evaluations, tmp_path):
    lines = lines_of(evaluations, 2)
    write_lines(tmp_path / "metrics.jsonl", lines)
    kept = curve(tmp_path, {"config": {"seeds": 2}})
    updates = kept["updates"]
    assert len(updates) == min(evaluations, 60) == len(set(updates))
    assert (updates[0], updates[-1]) == (4, 4 * evaluations)
    assert max(np.diff(updates), default=4) <= 4 * -(-evaluations // 59)

    # One loss for each update, from the lines of both calls.
    losses = []
    for line in lines:
        if line["split"] == "train":
            repeats = line["update"] - len(losses)
            losses += [np.mean(line["loss"])] * repeats
    start = 0
    for k, end in enumerate(updates):
        expected = np.mean(losses[start:end])
        np.testing.assert_allclose(kept["train"][k], expected, rtol=1e-4)
        tested = next(
            line
            for line in lines
            if line["split"] == "validation" and line["update"] == end
        )
        for name in ("loss", "accuracy"):
            for of, function in (("mean", np.mean), ("min", min), ("max", max)):
                value = kept["validation"][name][of][k]
                np.testing.assert_allclose(value, function(tested[name]), rtol=1e-4)
        start = end


def test_table_compares_the_mean_and_range_with_the_published_figure(found):
    published = read_config(config_path(NAME)).published
    row = (
        f"| {NAME} | as written | {published.what} | "
        f"{published.value:g} ({published.source}) | 98 (97 to 99) | 5 | 12,345 | "
        "1.5 min | cpu, Z80 | abc |"
    )
    head, line, *rows = page.tables()["results"].splitlines()
    assert rows == [row, row.replace("as written", "packed")]
    assert head.count("|") == line.count("|") == row.count("|")


def test_report_prints_a_table_for_each_kind_of_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_run(Path("runs/a"), result_of(**of_config("training", updates=7)))
    write_run(Path("runs/b"), result_of("char-lm"))
    (Path("runs/c")).mkdir()
    Path("runs/c/result.json").write_text(json.dumps(result_of_paper()))
    assert main(["report"]) == 0
    paper, data = capsys.readouterr().out.split("\n\n")
    assert len(paper.splitlines()) == 3 and "| 9 (9–9) | 1 of 1 |" in paper
    *_, vowels, text = data.splitlines()
    assert f"| {NAME} |" in vowels
    assert vowels.endswith("| abc | training.updates = 7 | 0 |")
    assert text.endswith("| abc | - | 0 |")
    assert main(["report", "runs/b"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3


def page_in(folder):
    (folder / "docs").mkdir()
    shutil.copy(report.ROOT / "docs" / "results.md", folder / "docs")
    return folder / "docs" / "results.md"


def test_page_links_the_pictures_that_are_drawn(tmp_path):
    for reading in (None, "packed"):
        folder = write_run(tmp_path / "run", result_of(reading=reading))
        (folder / "film.gif").write_text(f"the film of {reading}")
        keep(folder)
    path = page_in(tmp_path)
    report.write_pages(page, page.tables(), tmp_path)
    drawn = report.write_figures(figures, tmp_path)
    names = [f"{NAME}.svg", f"{NAME}-confusion.svg", f"{NAME}-film.gif"]
    assert [path.name for path in drawn] == names
    assert drawn[-1].read_text() == "the film of None"
    assert [path.parent / link for link in linked(path)] == drawn
    before = [path.read_bytes() for path in drawn]
    report.write_figures(figures, tmp_path)
    assert [path.read_bytes() for path in drawn] == before


@pytest.mark.parametrize("name", data_names())
def test_committed_results_match_the_current_configs(name, committed):
    for result in results_of(name).values():
        assert changes(result) == []
        commit = result["environment"]["commit"]
        assert commit and not commit.endswith("-dirty")
        assert len(result["curve"]["updates"]) <= of_data.POINTS


def test_environment_names_the_processor(tmp_path, monkeypatch):
    assert environment.describe_environment()["processor"]
    info = tmp_path / "cpuinfo"
    info.write_text("processor\t: 0\nmodel name\t: Z80 @ 4 MHz\nmodel\t\t: 1\n")
    monkeypatch.setattr(environment, "CPU_INFO", info)
    assert environment.describe_environment()["processor"] == "Z80 @ 4 MHz"
    info.unlink()
    monkeypatch.setattr(environment.platform, "machine", lambda: "z80")
    for name, shown in (("Zilog", "Zilog"), ("", "z80")):
        monkeypatch.setattr(environment.platform, "processor", lambda name=name: name)
        assert environment.describe_environment()["processor"] == shown


@pytest.mark.parametrize("device, is_resumed", [("cpu", False), ("a GPU", True)])
def test_processor_may_change_next_to_an_accelerator(
    device, is_resumed, tmp_path, monkeypatch
):
    now = environment.describe_environment() | {"device": device}
    monkeypatch.setattr(environment, "describe_environment", lambda: now)
    monkeypatch.setattr(environment, "saved_steps", lambda folder: [3])
    before = [now | {"processor": "Z80"}]
    (tmp_path / environment.ENVIRONMENT).write_text(json.dumps(before))
    if is_resumed:
        assert environment.note_environment(tmp_path) == [*before, now]
    else:
        with pytest.raises(ConfigError, match="started with processor Z80, now"):
            environment.note_environment(tmp_path)


def linked(page):
    """Returns the pictures of a page, relative to it."""
    return re.findall(r"!\[[^]]*\]\((.*?)\)", page.read_text())


@pytest.mark.parametrize("kind", KINDS)
def test_committed_pages_equal_the_output_of_the_command(kind, tmp_path, committed):
    page, figures = modules_of(kind)
    (tmp_path / "docs").mkdir()
    for name in page.PAGES:
        shutil.copy(ROOT / "docs" / name, tmp_path / "docs")
    for written in write_pages(page, page.tables(), tmp_path):
        committed = ROOT / "docs" / written.name
        assert written.read_text() == committed.read_text()
        for link in linked(committed):
            assert (committed.parent / link).is_file()
    assert (ROOT / "docs" / figures.FOLDER).is_dir()
