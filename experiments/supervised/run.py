"""Trains and tests on a data set, and writes the run's folder; see `folder.py`."""

import contextlib
import math
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import traverse_util

from experiments.runs.environment import note_environment, usual_promotion
from experiments.runs.folder import (
    CHECKPOINTS,
    CONFIG,
    ENVIRONMENT,
    METRICS,
    PROFILE,
    RESULT,
    TENSORBOARD,
    WEIGHTS,
    begin,
    check,
    locked,
    read_result,
    remove,
    to_json,
    write,
    writing,
    written,
)
from experiments.runs.processes import check_same, ending_together, is_first, of_first
from experiments.settings.options import DataFlags
from experiments.settings.reading import to_dict
from experiments.settings.rules import ConfigError
from experiments.settings.supervised import Supervised
from experiments.supervised.identity import note_identity
from experiments.supervised.loop import Run
from experiments.supervised.metrics import Metrics, to_numbers
from experiments.supervised.trainer import Trainer


def run(
    experiment: Supervised,
    folder: Path,
    name: str,
    reading: str | None,
    flags: DataFlags = DataFlags(),
) -> dict[str, Any] | None:
    """Trains and tests all networks, writes the folder and returns the result.

    With several processes, every process calls this function with the same config and
    folder; the first one writes and returns the result, the others return None. An
    error in one of them ends all of them.

    Args:
      experiment: the config.
      folder: output folder, created if it does not exist. An unfinished run of the same
        config in this folder is resumed, and a finished one is not repeated.
      name: name of the config.
      reading: name of the reading; None for the values of the file.
      flags: what else to write.

    Raises:
      LossNotFinite: a loss is NaN or infinite.
      ConfigError: the folder has other contents, or another process uses it; a data
        file is missing, damaged, or has changed since the run was started; the
        processes have different configs or folders.
      Interrupted: a signal has ended the run; its state was saved.
    """
    result, is_finished = None, False
    check_same(to_json(to_dict(experiment)), "config")
    with contextlib.ExitStack() as opened, usual_promotion():
        metrics, environments = Metrics(None), []
        with ending_together():
            trainer = Trainer(experiment)
            if is_first():
                opened.enter_context(locked(folder))
                # The command line of one of several processes has not checked it, and
                # it can have changed since that of a single process did.
                is_finished = check(folder, experiment, flags.overwrite)
                if is_finished:
                    result = read_result(folder / RESULT)
                else:
                    environments = _begin(trainer, folder, flags)
                    metrics = opened.enter_context(_metrics(folder, flags))
        if of_first(is_finished):
            return result
        with ending_together():
            _check_visible(folder)
        profile = folder / PROFILE if flags.profile and is_first() else None
        training, splits = _train(trainer, folder, metrics, profile)
        with ending_together():
            if is_first():
                _write_tests(metrics, training.update, splits)
                # At the start, and each time the run resumed in another environment.
                environment, *resumed = environments
                of_run = {"name": name, "reading": reading, "environment": environment}
                result = of_run | {"resumed": resumed} | result_of(training, splits)
                _write(folder, training, result)
    return result


def _begin(trainer: Trainer, folder: Path, flags: DataFlags) -> list[dict[str, Any]]:
    """Prepares the folder; returns the environments of the run so far."""
    begin(folder, trainer.experiment, flags.overwrite)
    note_identity(folder, trainer.task)
    return note_environment(folder)


def _metrics(folder: Path, flags: DataFlags) -> Metrics:
    return Metrics(
        folder / METRICS, folder / TENSORBOARD if flags.tensorboard else None
    )


def _check_visible(folder: Path) -> None:
    """Checks that this process sees the files of the first one."""
    if not (folder / CONFIG).is_file():
        raise ConfigError(
            f"process {jax.process_index()} must see the files of process 0 in "
            f"`{folder}`, but {CONFIG} is missing there. Pass a shared folder with "
            "--out."
        )


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


def _write_tests(metrics: Metrics, update: int, splits: dict[str, Any]) -> None:
    """Adds the metrics of the test to the curves, and closes them."""
    for split, found in splits.items():
        # The curves have the validation losses already.
        if split != "validation":
            metrics.write(update, split, found)
    metrics.close()


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
