"""Runs an experiment and writes its folder, see `experiments/folder.py`."""

import importlib.metadata
import platform
import subprocess
from pathlib import Path
from typing import Any

import jax
import numpy as np

from experiments.folder import (
    CONFIG,
    CURVE,
    METRICS,
    RESULT,
    STATE,
    WEIGHTS,
    locked,
    to_json,
    write,
)
from experiments.learners.network import Weights
from experiments.reports.learning_curve import save_learning_curve
from experiments.reports.tables import print_table
from experiments.settings.config import Experiment
from experiments.settings.reading import to_dict
from experiments.training.loop import Run
from experiments.training.trainer import Trainer, Trials


def run(
    experiment: Experiment,
    folder: Path,
    name: str,
    reading: str | None,
    overwrite: bool = False,
) -> None:
    """Trains and tests all trials, writes the folder and prints the table.

    Args:
      experiment: the config.
      folder: where the files go; made if need be. What an unfinished run of the same
        config left there is gone on with.
      name: of the config.
      reading: of the paper, if it is not the literal one.
      overwrite: whether to start anew.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        if overwrite:
            (folder / CONFIG).unlink(missing_ok=True)
        _run(experiment, folder, name, reading)


def _run(experiment: Experiment, folder: Path, name: str, reading: str | None) -> None:
    config = to_json(to_dict(experiment))
    (folder / RESULT).unlink(missing_ok=True)
    written = folder / CONFIG
    if not (written.is_file() and written.read_text() == config):
        for old in (STATE, METRICS, CURVE, WEIGHTS):
            (folder / old).unlink(missing_ok=True)
        write(written, config)
    environment = describe_environment()
    trainer = Trainer(experiment)
    training = Run(trainer, folder)
    training.train()
    trials = training.trials
    result = {
        "name": name,
        "reading": reading,
        "config": to_dict(experiment),
        "weights": trainer.learner.count(trials.weights),
        "presented": training.presented,
        "trials": test(trainer, trials),
        "seconds": training.seconds,
        "environment": environment,
    }
    if isinstance(trials.reached, Weights):
        save_weights(folder / WEIGHTS, trials.reached)
    save_learning_curve(folder / METRICS, result, folder / CURVE)
    # Last: what has a result is whole.
    write(folder / RESULT, to_json(result))
    (folder / STATE).unlink()
    print_table(result)
    print(f"wrote {folder}")


def save_weights(path: Path, reached: Weights) -> None:
    """Writes the weights `(..., trials)` that networks have at their last point."""
    arrays = {
        name: np.asarray(leaf[-1])
        for name, leaf in reached._asdict().items()
        if leaf is not None
    }
    np.savez(path, **arrays)


def test(trainer: Trainer, trials: Trials) -> list[dict[str, Any]]:
    """Returns each trial's stopping points, and what it does on new sequences there.

    Args:
      trainer: of the experiment.
      trials: all of them, at the end.
    """
    points = []
    for k in range(len(trials.solved_after)):
        at = trials._replace(
            weights=jax.tree.map(lambda leaf, k=k: leaf[k], trials.reached)
        )
        points.append(trainer.test(at, 0, trainer.experiment.test_sequences))
    states = np.asarray(trainer.largest_state(at))
    points = jax.device_get(points)
    return [
        {
            "trial": trial,
            "solved": bool(solved[-1] > 0),
            "sequences": solved.tolist(),
            "wrong": [int(tests.wrong[trial]) for tests in points],
            "mean_error": [float(tests.error[trial]) for tests in points],
            "largest_state": float(states[trial]),
            # At the end.
            "wrong_by_target": points[-1].wrong_by_target[trial].tolist(),
            "by_target": points[-1].by_target[trial].tolist(),
        }
        for trial, solved in enumerate(np.asarray(trials.solved_after).T)
    ]


def describe_environment() -> dict[str, Any]:
    """Returns what a result depends on beside its config: versions, device, commit."""
    packages = ("jax", "jaxlib", "flax", "optax", "numpy")
    versions = {name: importlib.metadata.version(name) for name in packages}
    return {
        "python": platform.python_version(),
        **versions,
        "device": jax.devices()[0].device_kind,
        "commit": _commit(),
    }


def _commit() -> str | None:
    """Returns the commit of this clone, marked if files differ; None outside git."""
    root = Path(__file__).resolve().parent
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=10", "--exclude=*"],
            cwd=root,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return described.stdout.strip()
