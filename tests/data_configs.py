"""Small configs on data sets, runs, processes and a signal, for tests of training."""

import dataclasses
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
from flax import traverse_util

from experiments.runs.folder import CONFIG, METRICS, WEIGHTS, to_json
from experiments.runs.interruption import Interruption
from experiments.settings.reading import config_path, read_config, to_dict
from experiments.supervised.identity import note_identity
from experiments.supervised.loop import Run
from experiments.supervised.metrics import Metrics
from experiments.supervised.tasks import TASKS

SYMBOLS = "\nabcdef"


def changed(config, task=None, **sections):
    """Returns a config with other values."""
    sections["task"] = task or {}
    new = {
        name: dataclasses.replace(getattr(config, name), **values)
        for name, values in sections.items()
    }
    return dataclasses.replace(config, **new)


def write_text(path, symbols=SYMBOLS, count=1200):
    """Writes a file of random characters; returns its path."""
    path.write_text("".join(np.random.RandomState(0).choice(list(symbols), count)))
    return path


def language_model(text, window=5, chunk=3):
    """Returns the config of a small network for a text file."""
    return changed(
        read_config(config_path("char-lm")),
        {"file": str(text), "window": window},
        model={"features": 6, "embedding": 4, "dropout": 0.0},
        training={"updates": 9, "batch": 8, "evaluate_every": 6, "chunk": chunk},
        optimizer={"warmup": 2},
    )


def run_in(folder, trainer):
    """Trains in a folder; returns the run."""
    folder.mkdir(exist_ok=True)
    run = Run(trainer, folder, Metrics(folder / METRICS))
    run.train()
    return run


def write_finished(config, folder, draw):
    """Writes the files of a finished run that later commands read; returns its task.

    `draw(task)` returns the parameters of its network.
    """
    task = TASKS[config.task.name](config)
    folder.mkdir()
    (folder / CONFIG).write_text(to_json(to_dict(config)))
    note_identity(folder, task)
    params = traverse_util.flatten_dict(draw(task), sep="/")
    np.savez(folder / WEIGHTS, **{name: leaf[None] for name, leaf in params.items()})
    return task


def run_two_processes(code, words_of, **environment):
    """Runs code in two processes, and returns what each of them prints.

    `words_of(address, number)` are the arguments of a process.
    """
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, *words_of(address, number)],
            cwd=Path(__file__).resolve().parent.parent,
            env=os.environ | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for number in range(2)
    ]
    said = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    return said


class Stop(Interruption):
    """Requests the end of a run from the start."""

    def __enter__(self):
        self.requested = 15
        return self

    def __exit__(self, *exception):
        pass
