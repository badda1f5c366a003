"""A run's folder: who may write to it, and what it holds in the end.

RUN/config.json      the resolved config
RUN/metrics.jsonl    learning curves, a line for each chunk of sequences
RUN/result.json      each trial, versions, seed, commit, seconds; written last
RUN/weights.npz      of the published network, at the last stopping points
RUN/learning_curve.png
RUN/state.msgpack    where it goes on, until it has ended
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
METRICS, CURVE, STATE = "metrics.jsonl", "learning_curve.png", "state.msgpack"


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
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{path} is damaged: {error}.") from error
    if not (isinstance(result, dict) and {"config", "trials", "name"} <= set(result)):
        raise ConfigError(f"{path} is damaged: it is not the result of a run.")
    return result


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
        if (folder / CONFIG).read_text() != to_json(to_dict(experiment)):
            raise ConfigError(
                f"the folder `{folder}` has an unfinished run of other options: {other}"
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
