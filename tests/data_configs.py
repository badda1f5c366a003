"""Small configs on data sets, runs, and a signal, for the tests of training."""

import dataclasses

import numpy as np

from experiments.runs.folder import METRICS
from experiments.runs.interruption import Interruption
from experiments.settings.reading import config_path, read_config
from experiments.supervised.loop import Run
from experiments.supervised.metrics import Metrics

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


class Stop(Interruption):
    """Requests the end of a run from the start."""

    def __enter__(self):
        self.requested = 15
        return self

    def __exit__(self, *exception):
        pass
