"""The files of a run's folder, and the checks before a run writes to it.

RUN/config.json       the resolved config
RUN/data.json         sha256 of your data files, and the alphabet of a text
RUN/metrics.jsonl     learning curves, a line for each chunk of sequences or updates
RUN/result.json       each trial, or the metrics of each split; versions, seed, commits,
                      seconds; written last
RUN/weights.npz       weights at the last stopping points, or those that were tested
RUN/learning_curve.png  of the experiments of 1997
RUN/tensorboard/      metrics for TensorBoard, with --tensorboard
RUN/profile/          a trace of one compiled call, with --profile
RUN/film.*            a forecast of moving digits, as a strip of frames and an animation
RUN/inspect/          pictures of what the trained cells do, from `inspect`
RUN/checkpoints/      the newest states, for resuming; removed when the run has finished
RUN/failure.json      why a cell of the league has no result
RUN/environment.json  versions, settings, devices and commits so far; removed when the
                      run has finished
RUN/lock              held by the process that uses the folder; removed when it ends

Files are written atomically, beside themselves with the suffix `.new`. Only
`metrics.jsonl` grows: a checkpoint has its size, and a resumed run shortens it to that.
"""

import contextlib
import json
import math
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from experiments.settings.config import Experiment
from experiments.settings.reading import is_on_data, to_dict
from experiments.settings.rules import ConfigError
from experiments.settings.supervised import Supervised

try:
    import fcntl
except ModuleNotFoundError:  # Windows
    fcntl = None

CONFIG, RESULT, WEIGHTS = "config.json", "result.json", "weights.npz"
METRICS, CURVE = "metrics.jsonl", "learning_curve.png"
TENSORBOARD, PROFILE = "tensorboard", "profile"
DATA = "data.json"
INSPECT = "inspect"
FILM_STRIP, FILM_ANIMATION = "film.png", "film.gif"
CHECKPOINTS, ENVIRONMENT = "checkpoints", "environment.json"
FAILURE = "failure.json"
LOCK = "lock"
NEW = ".new"
# Required fields as dotted names: of all results, of results of the paper, of its
# trials, and of results on data sets.
NEEDED = (
    *("name", "seconds", "environment.commit"),
    *("config.title", "config.seed", "config.task.name"),
)
OF_PAPER = (
    *("weights", "trials", "config.test_sequences"),
    *("config.learning.max_sequences", "config.paper.table", "config.paper.row"),
    *("config.paper.sequences", "config.paper.weights", "config.paper.trials"),
    *("config.paper.percent", "config.paper.wrong", "config.paper.test_sequences"),
)
OF_TRIAL = "trial", "solved", "sequences", "wrong", "mean_error"
OF_DATA = (
    *("parameters", "updates", "best_updates", "metrics", "devices"),
    *("environment.device", "config.seeds", "config.published.what"),
    *("config.published.value", "config.published.source", "config.published.metric"),
)
# Required fields of a line of `metrics.jsonl`.
LINE_OF_PAPER, LINE_OF_DATA = ("sequences", "trials", "error"), ("update", "split")


def to_json(value: Any) -> str:
    return json.dumps(_finite(value), indent=2, allow_nan=False)


def _finite(value: Any) -> Any:
    """Replaces NaN and infinity, which JSON does not have, by None."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Names a file in the errors of writing it, where the system does not.

    Raises:
      ConfigError: the file cannot be written.
    """
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"cannot write {path}: {error.strerror}. Repeat the command to go on from "
            "the newest checkpoint."
        ) from error


def write(path: Path, text: str) -> None:
    """Writes a file atomically.

    Raises:
      ConfigError: the file cannot be written.
    """
    with written(path) as beside:
        beside.write_text(text)


@contextlib.contextmanager
def written(path: Path) -> Iterator[Path]:
    """Yields the path of a new file, which then replaces `path`.

    Raises:
      ConfigError: the file cannot be written.
    """
    beside = path.with_name(path.name + NEW)
    with writing(path):
        try:
            yield beside
            with beside.open("r+b") as file:
                os.fsync(file.fileno())
            os.replace(beside, path)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise


def read_result(path: Path) -> dict[str, Any]:
    """Reads a `result.json`, or a committed result.

    Raises:
      ConfigError: the file is damaged.
    """
    result = read_json(path)
    check_result(result, path)
    return result


def read_failure(path: Path) -> dict[str, Any]:
    """Reads a `failure.json`: `reason`, `config` and `environment`.

    Raises:
      ConfigError: the file is damaged.
    """
    failure = read_json(path)
    for name in ("reason", "config.model", "environment.commit"):
        if _at(failure, name) is _NOTHING:
            raise ConfigError(f"{path} is damaged: it must have `{name}`.")
    return failure


def check_result(result: Any, path: Path) -> None:
    """Checks that the contents of a `result.json` are complete.

    Raises:
      ConfigError: the file is damaged.
    """
    needed, lacking_in = NEEDED + OF_PAPER, _lacking_trials
    if is_of_data(result):
        needed, lacking_in = NEEDED + OF_DATA, _lacking_metrics
    lacking = [name for name in needed if _at(result, name) is _NOTHING]
    lacking = lacking or lacking_in(result)
    if lacking:
        raise ConfigError(
            f"{path} is damaged: a result must have `{lacking[0]}`, which is missing "
            "or incomplete."
        )


def is_of_data(result: Any) -> bool:
    """Says whether a result is that of a run on a data set."""
    config = _at(result, "config")
    return isinstance(config, dict) and is_on_data(config)


def _lacking_trials(result: dict[str, Any]) -> list[str]:
    """Returns `["trials"]` if the trials of a result of the paper are incomplete."""
    trials = result["trials"]
    is_whole = isinstance(trials, list) and all(
        _at(one, name) is not _NOTHING for one in trials for name in OF_TRIAL
    )
    return [] if is_whole and trials else ["trials"]


def _lacking_metrics(result: dict[str, Any]) -> list[str]:
    """Returns the metrics that do not have a value for each network."""
    metrics, config = result["metrics"], result["config"]
    if not isinstance(metrics, dict) or not all(
        isinstance(of, dict) for of in metrics.values()
    ):
        return ["metrics"]
    names = {f"{split}.{name}" for split, of in metrics.items() for name in of}
    names.add(config["published"]["metric"])
    found = {name: _at(metrics, name) for name in sorted(names)}
    return [
        f"metrics.{name}"
        for name, values in found.items()
        if not isinstance(values, list) or len(values) != config["seeds"]
    ]


_NOTHING = object()


def _at(table: Any, name: str) -> Any:
    """Returns the value of a dotted name in nested tables, or `_NOTHING`."""
    for key in name.split("."):
        table = table.get(key, _NOTHING) if isinstance(table, dict) else _NOTHING
    return table


def read_json(path: Path) -> Any:
    """Reads a JSON file.

    Raises:
      ConfigError: the file is damaged.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is damaged: {error}.") from error


def read_metrics(
    path: Path, names: tuple[str, ...] = LINE_OF_PAPER
) -> list[dict[str, Any]]:
    """Reads the lines of a `metrics.jsonl`; there is at least one.

    Args:
      path: the file.
      names: required fields of each line.

    Raises:
      ConfigError: the file is damaged.
    """
    try:
        lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is damaged: {error}.") from error
    if not lines or any(_at(x, name) is _NOTHING for x in lines for name in names):
        raise ConfigError(f"{path} is damaged: it has no learning curves.")
    return lines


def check_kept(path: Path, size: int) -> None:
    """Checks the first bytes of a `metrics.jsonl`, which a resumed run keeps.

    Raises:
      ConfigError: there are fewer bytes, or they are not lines with JSON objects.
    """
    kept = path.read_bytes()[:size] if path.is_file() else b""
    fault = f"it must have at least {size} bytes, got {len(kept)}"
    if len(kept) == size:
        try:
            lines = [json.loads(line) for line in kept.splitlines()]
        except (ValueError, RecursionError) as error:
            fault = str(error)
        else:
            if all(isinstance(line, dict) for line in lines):
                return
            fault = "each line must be a JSON object"
    raise ConfigError(f"{path} is damaged: {fault}. Pass --overwrite to start again.")


def check(
    folder: Path, experiment: Experiment | Supervised, overwrite: bool = False
) -> bool:
    """Checks that a folder is empty or has a run with the same config.

    Returns:
      Whether that run is finished. `overwrite` starts it again.

    Raises:
      ConfigError: the folder has other contents.
    """
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"`--out` must be a folder, got the file `{folder}`.")
    if not folder.is_dir() or overwrite:
        return False
    # A killed process can leave a file that was not yet whole.
    names = {path.name for path in folder.iterdir() if path.suffix != NEW} - {LOCK}
    other = "Pass --overwrite, or another folder with --out."
    if CONFIG in names and RESULT not in names:
        # As bytes, because a damaged file may not be text.
        if (folder / CONFIG).read_bytes() != to_json(to_dict(experiment)).encode():
            raise ConfigError(
                f"the folder `{folder}` has an unfinished run with other options, or a "
                f"damaged {CONFIG}. {other}"
            )
    elif {CONFIG, RESULT} <= names:
        if not is_of(read_result(folder / RESULT), experiment):
            raise ConfigError(
                f"the folder `{folder}` has a finished run with other options. {other}"
            )
        return True
    elif names:
        raise ConfigError(f"the folder `{folder}` is not empty. {other}")
    return False


def begin(
    folder: Path, experiment: Experiment | Supervised, overwrite: bool = False
) -> None:
    """Removes the files of earlier runs and writes the config, if a run starts."""
    if not overwrite and (folder / CONFIG).is_file():
        return
    clear(folder)
    write(folder / CONFIG, to_json(to_dict(experiment)))


def clear(folder: Path) -> None:
    """Removes the files of a run from its folder."""
    # The config first: without it, no run would be resumed.
    remove(folder, CONFIG, RESULT, FAILURE, CHECKPOINTS, ENVIRONMENT, METRICS, DATA)
    remove(folder, CURVE, WEIGHTS, FILM_STRIP, FILM_ANIMATION)
    remove(folder, TENSORBOARD, PROFILE, INSPECT)


def remove(folder: Path, *names: str) -> None:
    """Removes files and folders of a run, if they exist."""
    for name in names:
        path = folder / name
        # Of a symbolic link, only the link is the run's.
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def is_of(result: dict[str, Any], experiment: Experiment | Supervised) -> bool:
    """Says whether a result belongs to a config."""
    return result["config"] == json.loads(to_json(to_dict(experiment)))


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Makes a folder, and locks it against other processes, if the system supports it.

    The lock is a file in the folder, so it is the same for every path to the folder.

    Raises:
      ConfigError: another process holds the lock, or the folder cannot be written.
    """
    path = folder / LOCK
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = path.open("a") if fcntl else None
    except OSError as error:
        raise ConfigError(
            f"cannot write in the folder `{folder}`: {error.strerror}. Choose another "
            "folder with `--out`, or repeat the command when this one can be written."
        ) from error
    if lock is None:
        yield
        return
    with lock:
        _hold(lock, path)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def _hold(lock: TextIO, path: Path) -> None:
    """Locks an open file, until it is closed."""
    error: Exception | None = None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The process that held the lock may have removed the file in the meantime.
        is_held = os.path.samestat(os.fstat(lock.fileno()), path.stat())
    except (BlockingIOError, FileNotFoundError) as failure:
        is_held, error = False, failure
    if not is_held:
        raise ConfigError(f"another process is using `{path.parent}`.") from error
