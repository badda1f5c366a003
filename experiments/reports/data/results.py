"""Committed results on data sets: `results/data/NAME/READING.json` for each reading.

Beside the result of the literal reading are its pictures, if the task draws any.
"""

import shutil
from pathlib import Path
from typing import Any

import numpy as np

from experiments.reports import committed
from experiments.reports.committed import read_results, result_path
from experiments.runs.folder import (
    FILM_ANIMATION,
    FILM_STRIP,
    LINE_OF_DATA,
    METRICS,
    check_result,
    read_metrics,
)
from experiments.settings.reading import config_path, read_config, to_dict
from experiments.settings.rules import ConfigError

RESULTS = committed.RESULTS / "data"
# The published figure does not affect a run.
FREE = "published"
# Largest number of points of a learning curve.
POINTS = 60
DIGITS = 5


def results_of(name: str) -> dict[str, dict[str, Any]]:
    """Returns the committed results of a config by reading, the literal one first.

    The published figure is that of the reading in the config, because it does not
    affect a run.

    Raises:
      ConfigError: there is a result of a reading that the config does not have; a file
        is damaged, or does not have the metric of the published figure.
    """
    found = read_results(RESULTS / name)
    for result in found.values():
        experiment = read_config(config_path(name), result["reading"])
        result["config"]["published"] = to_dict(experiment)["published"]
        check_result(result, result_path(RESULTS, result))
    return found


def check(folder: Path, result: dict[str, Any]) -> None:
    """Checks the seed.

    Raises:
      ConfigError: it is not that of the config.
    """
    experiment = read_config(config_path(result["name"]), result.get("reading"))
    if result["config"]["seed"] != experiment.seed:
        raise ConfigError(
            f"`{folder}` must have the seed {experiment.seed} of its config, got "
            f"{result['config']['seed']}."
        )


def keep_files(folder: Path, result: dict[str, Any], path: Path) -> None:
    """Copies the film of the literal reading."""
    for picture in FILM_STRIP, FILM_ANIMATION:
        if result["reading"] is None and (folder / picture).is_file():
            shutil.copy(folder / picture, path.parent)


def films_of(name: str) -> list[Path]:
    """Returns the files of the committed film of a config: a strip, an animation."""
    paths = [RESULTS / name / picture for picture in (FILM_STRIP, FILM_ANIMATION)]
    return [path for path in paths if path.is_file()]


def curve(folder: Path, result: dict[str, Any]) -> dict[str, Any]:
    """Returns the learning curve, at most `POINTS` of its evaluations.

    Returns:
      Lists of the same length. `updates`: number of updates before each evaluation.
      `train`: mean loss of the batches since the point before. `validation`: for `loss`
      and, if the task has it, `accuracy`: `mean`, `min` and `max` over networks. None
      stands for numbers that are not finite.
    """
    metrics, networks = folder / METRICS, result["config"]["seeds"]
    lines = read_metrics(metrics, LINE_OF_DATA)
    train = _by_update(lines, "train")
    validation = _by_update(lines, "validation")
    names = [name for name in ("loss", "accuracy") if _has(validation.values(), name)]
    if not (_has(train.values(), "loss") and "loss" in names):
        raise ConfigError(f"{metrics} is damaged: it has no learning curves.")
    evaluated = sorted(validation)
    count = len(evaluated)
    at = np.linspace(0, count - 1, min(count, POINTS)).round().astype(int)
    updates = [evaluated[k] for k in at]
    try:
        return {
            "updates": updates,
            "train": _rounded(_train_losses(train, updates, networks)),
            "validation": {
                name: _spread([validation[n][name] for n in updates], networks)
                for name in names
            },
        }
    except ValueError as error:
        raise ConfigError(
            f"{metrics} is damaged: each line must have {networks} values."
        ) from error


def _by_update(lines: list[dict[str, Any]], split: str) -> dict[int, dict[str, Any]]:
    """Returns the lines of a split by update.

    After training, the last update has a second line with the metrics of the best
    parameters, which is left out.
    """
    found: dict[int, dict[str, Any]] = {}
    for line in lines:
        if line["split"] == split:
            found.setdefault(line["update"], line)
    return found


def _has(lines: Any, name: str) -> bool:
    return bool(lines) and all(name in line for line in lines)


def _train_losses(
    train: dict[int, dict[str, Any]], updates: list[int], networks: int
) -> np.ndarray:
    """Returns the mean training loss between points, over batches and networks."""
    ends = np.array(sorted(train))
    losses = _values([train[n]["loss"] for n in ends], networks).mean(1)
    counts = np.diff(ends, prepend=0)
    before = np.searchsorted(ends, [0, *updates], side="right")
    means = [
        np.average(losses[a:b], weights=counts[a:b]) if a < b else np.nan
        for a, b in zip(before, before[1:], strict=False)
    ]
    return np.array(means)


def _spread(rows: list[Any], networks: int) -> dict[str, list[float | None]]:
    values = _values(rows, networks)
    of = {"mean": values.mean(1), "min": values.min(1), "max": values.max(1)}
    return {name: _rounded(array) for name, array in of.items()}


def _values(rows: list[Any], networks: int) -> np.ndarray:
    """Returns lists of numbers or None as an array, `(rows, networks)`."""
    return np.array(rows, float).reshape(len(rows), networks)


def _rounded(array: np.ndarray) -> list[float | None]:
    return [float(f"{x:.{DIGITS}g}") if np.isfinite(x) else None for x in array]
