"""Runs an experiment and writes its folder; see `experiments/runs/folder.py`."""

from pathlib import Path
from typing import Any

import jax
import numpy as np

from experiments.paper1997.learners.network import Weights
from experiments.paper1997.learners.without_cells import WithoutCells
from experiments.paper1997.training.loop import Run
from experiments.paper1997.training.trainer import Trainer, Trials
from experiments.runs.checkpoint import Checkpoints
from experiments.runs.environment import note_environment, usual_promotion
from experiments.runs.folder import (
    CHECKPOINTS,
    ENVIRONMENT,
    RESULT,
    WEIGHTS,
    begin,
    check,
    locked,
    read_result,
    remove,
    to_json,
    write,
    written,
)
from experiments.runs.interruption import Interruption
from experiments.settings.config import Experiment
from experiments.settings.reading import to_dict


def run(
    experiment: Experiment,
    folder: Path,
    name: str,
    reading: str | None,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Trains and tests all trials, writes the folder and returns the result.

    Args:
      experiment: the config.
      folder: output folder, created if it does not exist. An unfinished run of the same
        config in this folder is resumed, and a finished one is not repeated.
      name: name of the config.
      reading: name of the reading; None for the literal reading.
      overwrite: starts a new run in place of the files in the folder.

    Raises:
      ConfigError: the folder has other contents or damaged files, another process
        uses it, or a file cannot be written.
      Interrupted: a signal has ended the run; its state was saved.
    """
    with locked(folder), usual_promotion():
        # Checked again: the folder can have changed since the command line checked it.
        if check(folder, experiment, overwrite):
            return read_result(folder / RESULT)
        trainer = Trainer(experiment)
        begin(folder, experiment, overwrite)
        return _run(trainer, folder, name, reading)


def _run(
    trainer: Trainer, folder: Path, name: str, reading: str | None
) -> dict[str, Any]:
    environment, *resumed = note_environment(folder)
    with (
        Interruption() as interruption,
        Checkpoints(folder / CHECKPOINTS) as checkpoints,
    ):
        training = Run(trainer, folder, checkpoints, interruption)
        training.train()
        trials = training.trials
        tested = test(trainer, trials)
        training.stop_if_interrupted()
    result = {
        "name": name,
        "reading": reading,
        "config": to_dict(trainer.experiment),
        "weights": trainer.learner.count(trials.weights),
        "presented": training.presented,
        "trials": tested,
        "stopped": training.stopped.tolist(),
        "seconds": training.seconds,
        # At the start, and each time the run was resumed in another environment.
        "environment": environment,
        "resumed": resumed,
    }
    if isinstance(trials.reached, Weights):
        save_weights(folder / WEIGHTS, trials.reached)
    # Written last, so that a folder with a result is complete.
    write(folder / RESULT, to_json(result))
    remove(folder, CHECKPOINTS, ENVIRONMENT)
    return result


def save_weights(path: Path, reached: Weights) -> None:
    """Writes the weights `(..., trials)` at the last stopping point."""
    arrays = {
        name: np.asarray(leaf[-1])
        for name, leaf in reached._asdict().items()
        if leaf is not None
    }
    with written(path) as beside, beside.open("wb") as file:
        np.savez(file, **arrays)


def test(trainer: Trainer, trials: Trials) -> list[dict[str, Any]]:
    """Returns each trial's stopping points, and its test results at them.

    Args:
      trainer: the trainer of the experiment.
      trials: all trials after training.
    """
    points = []
    for k in range(len(trials.solved_after)):
        at = trials._replace(
            weights=jax.tree.map(lambda leaf, k=k: leaf[k], trials.reached)
        )
        points.append(trainer.test(at, 0, trainer.experiment.test_sequences))
    states = np.full(trainer.experiment.trials, np.nan)
    if not isinstance(trainer.learner, WithoutCells):
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
            # At the last stopping point.
            "wrong_by_target": points[-1].wrong_by_target[trial].tolist(),
            "by_target": points[-1].by_target[trial].tolist(),
        }
        for trial, solved in enumerate(np.asarray(trials.solved_after).T)
    ]
