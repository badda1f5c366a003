"""The command line: its answers, its one-line errors, and what it passes on."""

import dataclasses
import os
import re
import signal
import subprocess
import sys
import types
from pathlib import Path

import pytest

from experiments.cli import main
from experiments.runs.folder import to_json
from experiments.runs.interruption import Interrupted
from experiments.settings.options import option_types
from experiments.settings.reading import (
    CONFIGS,
    config_names,
    config_path,
    read_config,
    readings,
    to_dict,
)

pytestmark = pytest.mark.default

NAME = "temporal-order-6a"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """An empty working folder, so that no test sees or leaves runs."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def runs(monkeypatch):
    """The arguments of each call to `run`, which is replaced and does nothing."""
    calls = []
    module = types.SimpleNamespace(run=lambda *arguments: calls.append(arguments))
    monkeypatch.setitem(sys.modules, "experiments.paper1997.run", module)
    return calls


@pytest.mark.parametrize(
    "words", [[], ["--help"], ["-h"], ["list", "--help"], ["run", "-h"]]
)
def test_help_prints_the_usage(words, capsys):
    assert main(words) == 0
    output = capsys.readouterr()
    assert output.out.startswith("usage: python -m experiments")
    assert output.err == ""


def test_list_prints_each_name_and_title(capsys):
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == config_names()
    for name, line in zip(config_names(), lines, strict=True):
        assert line.endswith(read_config(config_path(name)).title)


def test_list_prints_the_conditions_of_the_paper(capsys):
    assert main(["list", "--conditions"]) == 0
    lines = capsys.readouterr().out.splitlines()
    # Rows of Tables 10 and 11, as published.
    for row in (
        "| long-lag-2a, long-lag-2b | 100 | 100 | 1 | 1 | 101 | 101 | 10504 | B | - "
        "| none | none | id | [0, 1] | 1 |",
        "| temporal-order-6b | 100 | 24 | 3 | 2 | 8 | 8 | 308 | F | r | -2, -4, -6 "
        "| all | [-1, 1] | [-2, 2] | 0.1 |",
        "| temporal-order-6a | generated | [-0.1, 0.1] | 2,560 | of the last 2,000 "
        "training sequences: at most 0 wrong, error < 0.1 | 1,000,000 | error < 0.3 |",
    ):
        assert row in lines


@pytest.mark.parametrize("name", config_names())
def test_show_prints_a_config_that_reads_back_equal(name, capsys):
    assert main(["show", name]) == 0
    text = capsys.readouterr().out
    Path("shown.toml").write_text(text, encoding="utf-8")
    assert read_config("shown.toml") == read_config(config_path(name))
    assert text.startswith("# ")


def test_run_passes_the_experiment_and_the_default_folder(runs):
    assert main(["run", NAME]) == 0
    experiment = read_config(config_path(NAME))
    assert runs == [(experiment, Path(f"runs/{NAME}-seed0"), NAME, None, False)]


def test_run_takes_a_reading(runs):
    assert main(["run", NAME, "--reading", "ranges-of-caption", "--seed", "3"]) == 0
    folder = Path(f"runs/{NAME}-ranges-of-caption-seed3")
    ((experiment, *rest),) = runs
    assert rest == [folder, NAME, "ranges-of-caption", False]
    assert (experiment.model.g, experiment.seed) == ("1", 3)


def test_run_takes_a_path_and_names_the_run_after_it(runs):
    Path("mine.toml").write_bytes(config_path(NAME).read_bytes())
    assert main(["run", "mine.toml", "--seed", "7"]) == 0
    assert runs[0][1:] == (Path("runs/mine-seed7"), "mine", None, False)


OVERRIDES = [
    ("--trials 5", (), {"trials": 5}),
    ("--trials=5 --seed 1", (), {"trials": 5, "seed": 1}),
    ("--trials 5 --trials 6", (), {"trials": 6}),
    ("--learning.rate 0.4", ("learning",), {"rate": 0.4}),
    ("--learning.rate 1", ("learning",), {"rate": 1.0}),
    ("--learning.max_sequences 10_000", ("learning",), {"max_sequences": 10_000}),
    ("--learning.max-sequences 9", ("learning",), {"max_sequences": 9}),
    ("--model.input-gate-bias -1 -2.5", ("model",), {"input_gate_bias": (-1.0, -2.5)}),
    ("--model.input-gate-bias None", ("model",), {"input_gate_bias": None}),
    ("--model.no-gate-feedback", ("model",), {"gate_feedback": False}),
    ("--model.gate-feedback", ("model",), {"gate_feedback": True}),
    (
        "--task.positions 1 2 4 5 --task.lengths 7 8",
        ("task",),
        {"positions": ((1, 2), (4, 5)), "lengths": (7, 8)},
    ),
]


@pytest.mark.parametrize("options, section, changes", OVERRIDES)
def test_options_replace_the_values_of_the_file(runs, options, section, changes):
    expected = read_config(config_path(NAME))
    if section:
        part = dataclasses.replace(getattr(expected, section[0]), **changes)
        changes = {section[0]: part}
    expected = dataclasses.replace(expected, **changes)

    assert main(["run", NAME, *options.split()]) == 0

    ((actual, *_),) = runs
    assert actual == expected


def test_run_help_shows_the_readings_and_exactly_the_accepted_options(capsys):
    assert main(["run", NAME, "--help"]) == 0
    text = capsys.readouterr().out
    shown = set(re.findall(r"^[^\w-]*(--[a-z][\w.-]*)", text, re.MULTILINE))
    accepted = option_types(read_config(config_path(NAME)))
    assert shown == {*accepted, "--reading", "--out", "--overwrite"}
    assert set(readings(config_path(NAME))) <= set(re.findall(r"[\w-]+", text))


RUN = f"run {NAME} "

# A command line, and what its error must contain. Rules of values: test_config.py.
MISTAKES = [
    ("rn", "unknown verb `rn`; did you mean `run`?"),
    ("qqq", "expected one of `list`, `show`, `run`, `run-all`, `league`, `sample`, "),
    ("list all", "`list` takes only `--conditions`, got `all`."),
    ("show temporal-oder-6a", f"did you mean `{NAME}`?"),
    ("show config/temporal-oder-6a.toml", f"did you mean `{NAME}`?"),
    ("show qqq", "no config `qqq`; expected one of "),
    ("show bad.toml", "bad.toml: Invalid value (at line 1, column 10)"),
    ("show typo.toml", "typo.toml: unknown key `trails`; did you mean `trials`?"),
    ("run reber", "`reber-1-2`, `reber-1-3`, `reber-1-4` or `reber-1-5`?"),
    (RUN + "--lr 3", "did you mean `--learning.rate` or `--baseline.rate`?"),
    (RUN + "--zzz 3", "unknown option `--zzz`; expected one of `--seed`, `--trials`,"),
    (RUN + "--model.no-gate-feedbak", "did you mean `--model.gate-feedback`?"),
    (RUN + "--trials ten", "`--trials` must be an integer in [1, 2**31), got `ten`."),
    (RUN + "--model.input-gate-bias x", "must be a list of numbers or None, got `x`."),
    (RUN + "--model.gate-feedback True", "takes no value, got `True`."),
    (RUN + "--reading", "`--reading` needs a value, got nothing."),
    (RUN + "--reading rangs-of-caption", "did you mean `ranges-of-caption`?"),
    (RUN + "--task.name b", "`--task.name` cannot be an option"),
    (RUN + "--task.positions 1 2 3", "list of lists of 2 integers, got `1 2 3`."),
    (RUN + "trials=5", "an option must start with `--`, got `trials=5`."),
    (RUN + "--learning.rate -1", "`rate` must be a number in (0, 3.4e+38), got -1.0."),
    ("run reber-1-5 --test-sequences 10000", "twice `task.strings`"),
    (RUN + "--out full", "the folder `full` is not empty. Pass --overwrite"),
    (RUN + "--out typo.toml", "`--out` must be a folder, got the file `typo.toml`."),
    (RUN + "--reading gru --reading lstm", "`--reading` must be given once, got"),
    ("report", "no finished run in `runs`. Start one with `run`."),
]


@pytest.mark.parametrize("words, message", MISTAKES)
def test_mistake_ends_with_one_line_and_status_2(words, message, runs, capsys):
    Path("bad.toml").write_text("trials = \n")
    Path("typo.toml").write_text("trails = 3\n")
    Path("data.toml").write_text("[tsk]\n[optimizer]\n")
    Path("full").mkdir()
    Path("full/notes.txt").write_text("kept")

    assert main(words.split()) == 2

    output = capsys.readouterr()
    assert output.out == ""
    assert len(output.err.splitlines()) == 1
    assert message in output.err
    assert "Traceback" not in output.err
    assert runs == []


def test_report_of_an_unfinished_run_names_the_nearest(capsys):
    Path("runs/adding").mkdir(parents=True)
    Path("runs/adding/result.json").write_text("{}")
    assert main(["report", "runs/addin"]) == 2
    assert "did you mean `runs/adding`?" in capsys.readouterr().err


def test_traceback_is_shown_on_request(capsys):
    assert main(["show", "temporal-oder-6a", "--traceback"]) == 2
    text = capsys.readouterr().err
    assert text.startswith("Traceback")
    assert f"did you mean `{NAME}`?" in text


def test_unfinished_runs_can_be_started_again(runs, capsys):
    folder = Path("runs") / "broken"
    folder.mkdir(parents=True)
    experiment = read_config(config_path(NAME))
    (folder / "config.json").write_text(to_json(to_dict(experiment)))
    assert main(["run", NAME, "--out", str(folder)]) == 0
    assert len(runs) == 1

    assert main(["run", NAME, "--out", str(folder), "--trials", "3"]) == 2
    assert "has an unfinished run with other options" in capsys.readouterr().err
    assert main(["run", NAME, "--out", str(folder), "--trials=3", "--overwrite"]) == 0
    assert len(runs) == 2

    (folder / "config.json").write_bytes(b"\xff")
    assert main(["run", NAME, "--out", str(folder)]) == 2
    assert "or a damaged config.json. Pass --overwrite" in capsys.readouterr().err


SAVED = Interrupted(signal.SIGTERM, "saved at update 7 in runs/x")
AGAIN = "interrupted: saved at update 7 in runs/x. Repeat the command"


@pytest.mark.parametrize(
    "error, option, status, message",
    [
        (KeyboardInterrupt(), [], 130, "interrupted"),
        (SAVED, [], 143, f"{AGAIN} to go on."),
        (SAVED, ["--overwrite"], 143, f"{AGAIN} without --overwrite to go on."),
    ],
)
def test_interrupted_run_ends_with_one_line(
    error, option, status, message, monkeypatch, capsys
):
    def run(*_):
        raise error

    module = types.SimpleNamespace(run=run)
    monkeypatch.setitem(sys.modules, "experiments.paper1997.run", module)
    assert main(["run", NAME, *option]) == status
    assert capsys.readouterr().err == f"{message}\n"
    # Any other error is a fault of ours, and keeps its traceback.
    error = ValueError("a fault of ours")
    with pytest.raises(ValueError, match="a fault of ours"):
        main(["run", NAME])


def test_without_tyro_the_error_names_the_extra(monkeypatch, runs, capsys):
    monkeypatch.setitem(sys.modules, "tyro", None)
    assert main(["run", NAME]) == 2
    assert "pip install -e '.[experiments]'" in capsys.readouterr().err


def test_without_pydantic_the_error_names_the_extra(tmp_path):
    (tmp_path / "pydantic.py").write_text("raise ModuleNotFoundError(name='pydantic')")
    done = subprocess.run(
        [sys.executable, "-m", "experiments", "list"],
        cwd=CONFIGS.parent,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (2, "")
    text = "`experiments` needs the package pydantic: in a clone, pip install -e"
    assert done.stderr.startswith(f"error: {text}")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "words, unneeded", [("list", {"jax", "tyro"}), (f"run {NAME} --help", {"jax"})]
)
def test_help_and_list_do_not_import_jax(words, unneeded):
    """`list` reads all configs."""
    code = (
        "import sys; from experiments.cli import main; "
        f"main({words.split()}); sys.exit(bool({unneeded} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=CONFIGS.parent, capture_output=True
    )
    assert done.returncode == 0
