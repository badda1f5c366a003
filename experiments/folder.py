"""A run's folder: who may write to it, and what it holds in the end.

RUN/config.json       the resolved config
RUN/metrics.jsonl     learning curves, a line for each chunk of sequences
RUN/result.json       each trial, versions, seed, commits, seconds; written last
RUN/weights.npz       of the published network, at the last stopping points
RUN/learning_curve.png
RUN/state.msgpack     where it goes on, until it has ended
RUN/environment.json  with what it began and went on, until it has ended
"""

import contextlib
import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from experiments.settings.config import Experiment
from experiments.settings.reading import to_dict
from experiments.settings.rules import ConfigError

CONFIG, RESULT, WEIGHTS = "config.json", "result.json", "weights.npz"
METRICS, CURVE = "metrics.jsonl", "learning_curve.png"
STATE, ENVIRONMENT = "state.msgpack", "environment.json"
# What is read of a result, by its names with dots.
NEEDED = (
    *("name", "weights", "seconds", "trials", "environment.commit"),
    *("config.title", "config.seed", "config.test_sequences", "config.task.name"),
    *("config.learning.max_sequences", "config.paper.table", "config.paper.row"),
    *("config.paper.sequences", "config.paper.weights", "config.paper.trials"),
    *("config.paper.percent", "config.paper.wrong", "config.paper.test_sequences"),
)
OF_TRIAL = "trial", "solved", "sequences", "wrong", "mean_error"


def to_json(value: Any) -> str:
    return json.dumps(_finite(value), indent=2, allow_nan=False)


def _finite(value: Any) -> Any:
    """Returns a value with None for NaN and infinity, which JSON does not have."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write(path: Path, text: str) -> None:
    """Writes a file that is there as a whole or not at all."""
    beside = path.with_name(path.name + ".new")
    beside.write_text(text)
    os.replace(beside, path)


def read_result(path: Path) -> dict[str, Any]:
    """Returns what a `result.json`, or a kept one, holds.

    Raises:
      ConfigError: a damaged file.
    """
    result = read_json(path)
    trials = _at(result, "trials")
    lacking = [name for name in NEEDED if _at(result, name) is _NOTHING]
    if not (isinstance(trials, list) and trials) or any(
        _at(one, name) is _NOTHING for one in trials for name in OF_TRIAL
    ):
        lacking.append("trials")
    if lacking:
        raise ConfigError(
            f"{path} is damaged: it is not the result of a run, as it has no "
            f"`{lacking[0]}`."
        )
    return result


_NOTHING = object()


def _at(table: Any, name: str) -> Any:
    """Returns what nested tables hold under a name with dots, or `_NOTHING`."""
    for key in name.split("."):
        table = table.get(key, _NOTHING) if isinstance(table, dict) else _NOTHING
    return table


def read_json(path: Path) -> Any:
    """Returns what a JSON file holds.

    Raises:
      ConfigError: a damaged file.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{path} is damaged: {error}.") from error


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Returns the lines of a `metrics.jsonl`, at least one.

    Raises:
      ConfigError: a damaged file.
    """
    try:
        lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    except ValueError as error:
        raise ConfigError(f"{path} is damaged: {error}.") from error
    names = "sequences", "trials", "error"
    if not lines or any(_at(x, name) is _NOTHING for x in lines for name in names):
        raise ConfigError(f"{path} is damaged: it holds no learning curves.")
    return lines


def check(folder: Path, experiment: Experiment, overwrite: bool = False) -> None:
    """Checks that a run may go to a folder: empty, or its own that did not end.

    Raises:
      ConfigError: it may not.
    """
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"`--out` must be a folder, got the file `{folder}`.")
    if not folder.is_dir() or overwrite:
        return
    names = {path.name for path in folder.iterdir()}
    other = "give --overwrite, or --out another."
    if CONFIG in names and RESULT not in names:
        # Bytes, as a damaged file may hold no text.
        if (folder / CONFIG).read_bytes() != to_json(to_dict(experiment)).encode():
            raise ConfigError(
                f"the folder `{folder}` has an unfinished run of other options, or a "
                f"damaged {CONFIG}: {other}"
            )
    elif names:
        raise ConfigError(f"the folder `{folder}` is not empty: {other}")


def is_of(result: dict[str, Any], experiment: Experiment) -> bool:
    """Says whether a result is that of a config."""
    return result["config"] == json.loads(to_json(to_dict(experiment)))


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keeps other processes from running in a folder, where the system can.

    Raises:
      ConfigError: another one does.
    """
    try:
        import fcntl
    except ModuleNotFoundError:
        yield
        return
    # Beside the folder: what lies in it is the run's.
    with Path(f"{folder}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigError(f"another process runs in `{folder}`.") from error
        yield
        Path(lock.name).unlink(missing_ok=True)
