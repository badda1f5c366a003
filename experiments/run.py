"""Runs an experiment and writes its folder, see `experiments/folder.py`."""

from pathlib import Path
from typing import Any

import jax
import numpy as np

from experiments.environment import note_environment
from experiments.folder import (
    CONFIG,
    CURVE,
    ENVIRONMENT,
    METRICS,
    RESULT,
    STATE,
    WEIGHTS,
    check,
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

    Raises:
      ConfigError: the folder holds something else, or is another process's.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        # Nothing is removed of what came since the command line looked.
        check(folder, experiment, overwrite)
        trainer = Trainer(experiment)
        if overwrite or not (folder / CONFIG).is_file():
            _begin(experiment, folder)
        _run(trainer, folder, name, reading)


def _begin(experiment: Experiment, folder: Path) -> None:
    """Removes what other runs left, and writes the config."""
    # First what says that there is a run to go on with.
    for old in (CONFIG, RESULT, STATE, ENVIRONMENT, METRICS, CURVE, WEIGHTS):
        (folder / old).unlink(missing_ok=True)
    write(folder / CONFIG, to_json(to_dict(experiment)))


def _run(trainer: Trainer, folder: Path, name: str, reading: str | None) -> None:
    environment, *resumed = note_environment(folder)
    training = Run(trainer, folder)
    training.train()
    trials = training.trials
    result = {
        "name": name,
        "reading": reading,
        "config": to_dict(trainer.experiment),
        "weights": trainer.learner.count(trials.weights),
        "presented": training.presented,
        "trials": test(trainer, trials),
        "seconds": training.seconds,
        # Of the start, and of each time that it went on with another one.
        "environment": environment,
        "resumed": resumed,
    }
    if isinstance(trials.reached, Weights):
        save_weights(folder / WEIGHTS, trials.reached)
    save_learning_curve(folder / METRICS, result, folder / CURVE)
    # Last: what has a result is whole.
    write(folder / RESULT, to_json(result))
    (folder / STATE).unlink()
    (folder / ENVIRONMENT).unlink()
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
