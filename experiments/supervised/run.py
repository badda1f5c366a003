"""Trains and tests on a data set, and writes the run's folder; see `folder.py`."""

import math
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import traverse_util
from jax.experimental import multihost_utils

from experiments.environment import note_environment
from experiments.folder import (
    CHECKPOINTS,
    ENVIRONMENT,
    METRICS,
    RESULT,
    WEIGHTS,
    begin,
    check,
    locked,
    remove,
    to_json,
    write,
    writing,
    written,
)
from experiments.reports.data_tables import print_data_table
from experiments.settings.options import DataFlags
from experiments.settings.reading import to_dict
from experiments.settings.supervised import Supervised
from experiments.supervised.loop import Run
from experiments.supervised.metrics import Metrics, to_numbers
from experiments.supervised.trainer import Trainer

TENSORBOARD, PROFILE = "tensorboard", "profile"


def run(
    experiment: Supervised,
    folder: Path,
    name: str,
    reading: str | None,
    flags: DataFlags = DataFlags(),
) -> None:
    """Trains and tests all networks, writes the folder and prints the table.

    With several processes, every process calls this function with the same arguments
    and folder; the first one writes.

    Args:
      experiment: the config.
      folder: output folder, created if it does not exist. An unfinished run of the same
        config in this folder is resumed.
      name: name of the config.
      reading: name of the reading; None for the values of the file.
      flags: what else to write.

    Raises:
      LossNotFinite: a loss is NaN or infinite.
      ConfigError: the folder has other contents, or another process uses it; a data
        file is missing or damaged.
      Interrupted: a signal has ended the run; its state was saved.
    """
    result = train(experiment, folder, name, reading, flags)
    if result is not None:
        print_data_table(result)
        print(f"wrote {folder}")


def train(
    experiment: Supervised,
    folder: Path,
    name: str,
    reading: str | None,
    flags: DataFlags = DataFlags(),
) -> dict[str, Any] | None:
    """Trains and tests all networks, writes the folder and returns the result.

    Arguments and errors are those of `run`. Only the first of several processes
    returns a result; the others return None.
    """
    trainer = Trainer(experiment)
    if jax.process_index() > 0:
        _wait_for_folder()
        _train(trainer, folder, Metrics(None), None)
        return None
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        # Checked again: the folder can have changed since the command line checked it.
        check(folder, experiment, flags.overwrite)
        begin(folder, experiment, flags.overwrite)
        environment, *resumed = note_environment(folder)
        _wait_for_folder()
        tensorboard = folder / TENSORBOARD if flags.tensorboard else None
        metrics = Metrics(folder / METRICS, tensorboard)
        profile = folder / PROFILE if flags.profile else None
        training, splits = _train(trainer, folder, metrics, profile)
        for split, found in splits.items():
            # The curve has the validation losses already.
            if split != "validation":
                metrics.write(training.update, split, found)
        metrics.close()
        of_run = {
            "name": name,
            "reading": reading,
            # At the start, and each time the run was resumed in another environment.
            "environment": environment,
            "resumed": resumed,
        }
        result = of_run | result_of(training, splits)
        _write(folder, training, result)
    return result


def _wait_for_folder() -> None:
    """Lets other processes continue when the first one has prepared the folder."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices("the folder is ready")


def result_of(
    training: Run, splits: dict[str, dict[str, np.ndarray]]
) -> dict[str, Any]:
    """Returns what the training and the tests have found, as JSON types.

    Args:
      training: the training, after the last update.
      splits: metrics of each split, `(seeds, ...)`.
    """
    return {
        "config": to_dict(training.trainer.experiment),
        "parameters": count(training.state.best),
        "updates": training.update,
        "best_updates": np.asarray(training.state.best_update).tolist(),
        "metrics": {
            split: {key: to_numbers(array) for key, array in found.items()}
            for split, found in splits.items()
        },
        "seconds": training.seconds,
        "devices": training.trainer.mesh.size,
    }


def _write(folder: Path, training: Run, result: dict[str, Any]) -> None:
    """Writes the parameters, the pictures and the result; removes the checkpoints."""
    trainer, params = training.trainer, jax.device_get(training.state.best)
    with written(folder / WEIGHTS) as beside, beside.open("wb") as file:
        np.savez(file, **traverse_util.flatten_dict(params, sep="/"))
    with writing(folder):
        first = jax.tree.map(lambda leaf: leaf[0], params)
        trainer.task.save_pictures(first, jax.device_get(trainer.data), folder)
    # Written last, so that a folder with a result is complete.
    write(folder / RESULT, to_json(result))
    remove(folder, CHECKPOINTS, ENVIRONMENT)


def _train(
    trainer: Trainer, folder: Path, metrics: Metrics, profile: Path | None
) -> tuple[Run, dict[str, dict[str, np.ndarray]]]:
    """Trains all networks, and tests their best parameters on every split."""
    training = Run(trainer, folder, metrics, profile)
    training.train()
    splits = {
        split: jax.tree.map(
            np.asarray, trainer.evaluate(training.state.best, trainer.data, split)
        )
        for split in trainer.task.splits
    }
    return training, splits | trainer.task.together(splits)


def count(params: Any) -> int:
    """Returns the number of parameters of one network."""
    return sum(math.prod(leaf.shape[1:]) for leaf in jax.tree.leaves(params))
