"""Runs on data sets: their folders, texts that change, samples, several processes."""

import json
import os
import re
from functools import partial

import jax
import numpy as np
import pytest
from data_configs import (
    language_model,
    run_two_processes,
    write_finished,
    write_text,
)

from experiments import cli
from experiments.datasets.text import SHORTEST
from experiments.runs.checkpoint import Checkpoints
from experiments.runs.folder import CHECKPOINTS, DATA, METRICS, RESULT
from experiments.settings.rules import ConfigError
from experiments.supervised import run as of_run
from experiments.supervised.loop import Run
from experiments.supervised.run import run
from experiments.supervised.sampling import load
from experiments.supervised.tasks.char_lm import STREAMS, CharLMTask

pytestmark = pytest.mark.default


class Stopped(Run):
    """Ends after a checkpoint at update 3, as a process that is killed there.

    Its state is zeros, which need no compilation.
    """

    def __init__(self, trainer, *others):
        trainer.init = partial(
            jax.tree.map, lambda leaf: np.zeros(leaf.shape, leaf.dtype), trainer.shapes
        )
        super().__init__(trainer, *others)

    def train(self):
        with Checkpoints(self.folder / CHECKPOINTS) as checkpoints:
            self._resume(checkpoints)
            self.update = 3
            self._save(checkpoints)
        raise KeyboardInterrupt


def start_and_kill(config, folder, monkeypatch):
    """Leaves an unfinished run in a folder."""
    with monkeypatch.context() as patch:
        patch.setattr(of_run, "Run", Stopped)
        with pytest.raises(KeyboardInterrupt):
            run(config, folder, "char-lm", None)


@pytest.fixture
def text(tmp_path):
    return write_text(tmp_path / "text.txt")


@pytest.fixture
def folder(tmp_path, text, monkeypatch):
    """The folder of an unfinished run."""
    folder = tmp_path / "run"
    start_and_kill(language_model(text), folder, monkeypatch)
    return folder


def test_run_does_not_resume_on_another_text(folder, text):
    config, before = language_model(text), (folder / DATA).read_bytes()
    # One character is another one of the same alphabet.
    old = text.read_text()
    text.write_text(("b" if old[0] == "a" else "a") + old[1:])
    message = rf"text file {re.escape(str(text))} has changed since the run in .*sha256"
    with pytest.raises(ConfigError, match=message):
        run(config, folder, "char-lm", None)
    assert (folder / DATA).read_bytes() == before
    (folder / DATA).unlink()
    with pytest.raises(ConfigError, match="data.json is missing or damaged"):
        run(config, folder, "char-lm", None)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A text without newlines, and the files that a run on it has left."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    text = write_text(folder.with_name("text.txt"), "bcde ")
    write_finished(
        language_model(text), folder, lambda task: jax.jit(task.init)(jax.random.key(0))
    )
    return text, folder


def test_sample_does_not_need_the_text(finished, capsys):
    text, folder = finished
    assert json.loads((folder / DATA).read_text())["symbols"] == " bcde"
    # Another alphabet of the same size.
    text.write_text(text.read_text().replace("b", "x"))
    assert load(folder).symbols == " bcde"
    text.unlink()
    drawing = ["sample", str(folder), "--characters", "9"]
    assert cli.main([*drawing, "--temperature", "1e-30", "--top-p", "0.5"]) == 0
    said = capsys.readouterr().out
    # The text has no newline, so its first symbol is the prompt.
    assert len(said) == 1 + 9 + 1 and said[0] == " " and set(said) <= set(" bcde\n")


@pytest.mark.parametrize(
    "options, message",
    [
        ("--prompt b c", "`--prompt` must be a string, got `b c`"),
        ("--prompt=-b", "Character '-' at position 0"),
        ("--prompt bcx", "Character 'x' at position 2 is not in the alphabet"),
        ("--temperature -1", r"`--temperature` must be .* \[0, .* got -1"),
        ("--temperature nan", r"`--temperature` must be .* \[0, .* got nan"),
        ("--top-p 0", r"`--top-p` must be .* \(0, 1\], got 0"),
        ("--top-p 1.01", r"`--top-p` must be .* \(0, 1\], got 1.01"),
        ("--network 1", r"`--network` must be in \[0, 1\), got 1"),
    ],
)
def test_wrong_option_of_sample_is_one_line(options, message, finished, capsys):
    assert cli.main(["sample", str(finished[1]), *options.split()]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and re.search(message, lines[0]), lines


def test_shortest_text_has_a_character_for_each_stream(tmp_path):
    task = CharLMTask(language_model(write_text(tmp_path / "text.txt", count=SHORTEST)))
    assert all(len(task.data[split]) > streams for split, streams in STREAMS.items())


# Runs command lines one after the other, in one of two processes that join once. Equal
# configs share their compiled programs.
PROCESS = """
import functools
import json
import sys
from experiments import cli
from experiments.supervised import distributed, run
from experiments.supervised.metrics import Metrics

run.Trainer = functools.cache(run.Trainer)
for words, is_full in json.loads(sys.argv[1]):
    write = Metrics.write

    def fail(self, update, split, metrics):
        if self.path is not None and split == "validation":
            raise OSError(28, "No space left on device")
        write(self, update, split, metrics)

    Metrics.write = fail if is_full else write
    print("status", cli.main(words), file=sys.stderr, flush=True)
    Metrics.write = write
    distributed.join = lambda flags: None
"""


@pytest.mark.exhaustive
def test_two_processes_train_and_fail_as_one(tmp_path, text):
    command = ["run", "char-lm", "--task.file", str(text), "--task.window", "5"]
    command += ["--training.batch", "8", "--training.updates", "4"]
    command += ["--training.chunk", "2", "--training.evaluate-every", "4"]
    command += ["--optimizer.warmup", "2", "--model.features", "6"]
    one, two, other = tmp_path / "one", tmp_path / "two", tmp_path / "other"
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    # For each process: options, and whether the disk of process 0 is full. After that
    # error, the run is resumed.
    cases = [
        ([["--out", two], ["--out", two, "--seed", "1"]], False),
        ([["--out", tmp_path / "mine"]] * 2, False),
        ([["--out", two], ["--out", other]], False),
        ([["--out", two]] * 2, True),
        ([["--out", two]] * 2, False),
    ]

    def words_of(address, number):
        together = ["--coordinator", address, "--processes", "2"]
        together += ["--process", str(number)]
        lines = [
            ([*command, *map(str, options[number]), *together], is_full)
            for options, is_full in cases
        ]
        return [json.dumps(lines)]

    said = run_two_processes(PROCESS, words_of, XLA_FLAGS="")
    errors, statuses = zip(*map(outcome, said))
    assert statuses == ([2, 2, 2, 2, 0],) * 2, said
    ended = "process 0 has ended: "
    wanted = [
        ("same config, but process 1 has", "same config, but process 1 has"),
        ("mine` is not empty", f"{ended}the folder .*mine` is not empty"),
        ("process 1 has ended: .*shared", "process 1 must see .*other`.*shared"),
        ("No space left on device", f"{ended}.*No space left on device"),
    ]
    for got, patterns in zip(zip(*errors), wanted, strict=True):
        assert all(map(re.search, patterns, got)), got
    assert not other.exists() and os.listdir(tmp_path / "mine") == ["notes.txt"]
    assert cli.main([*command, "--out", str(one)]) == 0
    losses = [
        [
            json.loads(line)["loss"]
            for line in (folder / METRICS).read_text().splitlines()
        ]
        for folder in (one, two)
    ]
    assert len(losses[0]) == 5 and np.isfinite(losses).all()
    np.testing.assert_allclose(*losses, rtol=1e-5)
    results = [json.loads((folder / RESULT).read_text()) for folder in (one, two)]
    assert [result["devices"] for result in results] == [1, 2]
    assert [result["environment"]["processes"] for result in results] == [1, 2]
    assert [result["best_updates"] for result in results] == [[4], [4]]


def outcome(said):
    """Returns the errors and the exit statuses of the command lines of a process."""
    errors = re.findall(r"^error: (.*)$", said, re.MULTILINE)
    return errors, [int(status) for status in re.findall(r"^status (\d+)$", said, re.M)]
