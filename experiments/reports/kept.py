"""Committed results of the paper: `results/ROW/READING.json` for each reading of a row.

`READING.npz` has the weights of the first successful trials at their last stopping
point: at most 2,000 numbers, but at least one trial.
"""

import os
import statistics
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile

import numpy as np

from experiments.reports.tables import changes, commits, reached
from experiments.runs.folder import (
    METRICS,
    RESULT,
    WEIGHTS,
    read_metrics,
    read_result,
    to_json,
)
from experiments.settings.reading import config_path, read_config, readings
from experiments.settings.rules import ConfigError

RESULTS = Path(__file__).resolve().parents[1] / "results"
# A row is reproduced with at most this multiple of the paper's sequences.
MOST = 1.5
LITERAL = "as-written"
POINTS, NUMBERS = 40, 2000
# Kinds of readings that do not count for the verdict on a row.
WITHOUT_VERDICT = "baseline", "competitor"


class Outcome(NamedTuple):
    """The result of one reading of a row.

    Attributes:
      reading: name of the reading, `LITERAL` for the literal one.
      kind: kind of the reading: `"literal"`, `"silent"`, `"contradictory"` or
        `"departure"`; `"baseline"` or `"competitor"` for another network or gradient.
      result: the contents of `result.json`, and `curve`.
    """

    reading: str
    kind: str
    result: dict[str, Any]

    @property
    def counts_for_verdict(self) -> bool:
        """Whether it reads the paper, and is no other network or gradient."""
        return self.kind not in WITHOUT_VERDICT

    @property
    def solved(self) -> list[dict[str, Any]]:
        """The trials that succeeded."""
        return [trial for trial in self.result["trials"] if trial["solved"]]

    @property
    def failed(self) -> list[dict[str, Any]]:
        """The trials that failed."""
        return [trial for trial in self.result["trials"] if not trial["solved"]]

    @property
    def solved_of(self) -> str:
        """Number of trials that reached each stopping point, as `'9 / 3 of 20'`."""
        trials = self.result["trials"]
        points = range(len(trials[0]["sequences"]))
        counts = [str(len(reached(trials, point))) for point in points]
        return f"{' / '.join(counts)} of {len(trials)}"

    @property
    def is_whole(self) -> bool:
        """Whether there are at least as many trials as in the paper."""
        return len(self.result["trials"]) >= self.result["config"]["paper"]["trials"]

    @property
    def share(self) -> float:
        """Share of trials that succeeded."""
        return len(self.solved) / len(self.result["trials"])

    def mean(self, point: int = -1) -> float | None:
        """Mean number of sequences until a stopping point, if any trial reached it."""
        sequences = reached(self.result["trials"], point)
        return statistics.mean(sequences) if sequences else None

    @property
    def is_learnt(self) -> bool:
        """Whether at least the paper's share of the paper's trials succeeded."""
        paper = self.result["config"]["paper"]
        # If the paper prints no share, it reports no failures.
        percent = 100.0 if paper["percent"] is None else paper["percent"]
        # 29 of 30 trials are printed as 97 %.
        least = percent - (0.5 if percent < 100 else 0)
        return self.is_whole and 100 * self.share >= least

    @property
    def is_reproduced(self) -> bool:
        """Whether the share of trials and the means reproduce the paper's."""
        printed = self.result["config"]["paper"]["sequences"]
        is_soon = bool(self.solved) and all(
            self.mean(point) <= MOST * mean for point, mean in enumerate(printed)
        )
        return self.is_learnt and is_soon

    @property
    def weights(self) -> dict[str, np.ndarray] | None:
        """The stored weights, `(..., trials)`."""
        path = RESULTS / self.result["name"] / f"{self.reading}.npz"
        if not path.is_file():
            return None
        with np.load(path) as arrays:
            return dict(arrays)


def outcomes(name: str) -> list[Outcome]:
    """Returns the outcomes of a row, the literal one first.

    Raises:
      ConfigError: there is a result of a reading that the config does not have.
    """
    known = readings(config_path(name))
    return [
        Outcome(reading, known[reading].kind if reading in known else "literal", result)
        for reading, result in read_results(RESULTS / name).items()
    ]


def read_results(folder: Path) -> dict[str, dict[str, Any]]:
    """Returns the committed results of a config by reading, the literal one first.

    Args:
      folder: the folder of the results; its name is that of the config.

    Raises:
      ConfigError: there is a result of a reading that the config does not have.
    """
    known = [LITERAL, *readings(config_path(folder.name))]
    paths = sorted(folder.glob("*.json"), key=lambda path: (path.stem != LITERAL, path))
    for path in paths:
        if path.stem not in known:
            raise ConfigError(
                f"{path}: the config `{folder.name}` has no reading `{path.stem}`."
            )
    return {path.stem: read_result(path) for path in paths}


def kept_path(results: Path, result: dict[str, Any]) -> Path:
    """Returns the path of a committed result in a folder of results."""
    return results / result["name"] / f"{result.get('reading') or LITERAL}.json"


def keep(folder: Path) -> Path:
    """Copies a run's result to the committed results; returns the new path.

    Args:
      folder: folder of the run.

    Raises:
      ConfigError: the run has other values than the config (the number of trials can
        differ, and the seed too for baselines and for fewer trials than the paper's);
        has fewer trials than the committed result; has another number of weights than
        the paper, and its reading is not a departure; ran with uncommitted code; or a
        file is damaged.
    """
    result = read_result(folder / RESULT)
    kept = kept_path(RESULTS, result)
    # Fewer trials are allowed, to try a reading out.
    check_origin(folder, result, "trials")
    _check(folder, result)
    count = len(result["trials"])
    before = len(read_result(kept)["trials"]) if kept.is_file() else 0
    if count < before:
        raise ConfigError(
            f"`{folder}` must have at least the {before} trials of {kept}, got {count}."
        )
    result["curve"] = curve(folder / METRICS, count)
    solved = [trial["trial"] for trial in result["trials"] if trial["solved"]]
    few = solved[: max(1, NUMBERS // result["weights"])]
    kept.parent.mkdir(parents=True, exist_ok=True)
    weights = kept.with_suffix(".npz")
    # The old result stays until the new one is written completely.
    new, new_weights = kept.with_suffix(".json.new"), kept.with_suffix(".npz.new")
    new.write_text(to_json(result) + "\n")
    if few and (folder / WEIGHTS).is_file():
        _keep_weights(folder / WEIGHTS, new_weights, few)
        os.replace(new_weights, weights)
    else:
        weights.unlink(missing_ok=True)
    os.replace(new, kept)
    return kept


def check_origin(folder: Path, result: dict[str, Any], free: str) -> None:
    """Checks that a result belongs to its config and to committed code.

    Args:
      folder: folder of the run.
      result: the contents of its `result.json`.
      free: the option, or the section of options, that can differ from the config.

    Raises:
      ConfigError: another value differs, or the code was not committed.
    """
    changed = [
        change
        for change in changes(result)
        if not change.startswith((f"{free} =", f"{free}."))
    ]
    if changed:
        raise ConfigError(
            f"`{folder}` must have the values of its config, got {', '.join(changed)}."
        )
    check_commits(folder, result)


def check_commits(folder: Path, result: dict[str, Any]) -> None:
    """Checks that a result was computed by committed code.

    Raises:
      ConfigError: it was not.
    """
    for commit in commits(result):
        if commit is None or commit.endswith("-dirty"):
            raise ConfigError(
                f"`{folder}` must be a run of committed code, got the commit {commit}."
            )


def _check(folder: Path, result: dict[str, Any]) -> None:
    """Checks the seed and the number of weights."""
    path, reading = config_path(result["name"]), result.get("reading")
    kind = "literal" if reading is None else readings(path)[reading].kind
    seed, paper = result["config"]["seed"], result["config"]["paper"]
    its_seed = read_config(path, reading).seed
    is_whole = len(result["trials"]) >= paper["trials"]
    if is_whole and kind not in WITHOUT_VERDICT and seed != its_seed:
        raise ConfigError(
            f"`{folder}` has the paper's {paper['trials']} trials, so it must have the "
            f"seed {its_seed} of its config, got {seed}."
        )
    if kind not in ("departure", "baseline") and result["weights"] != paper["weights"]:
        raise ConfigError(
            f"`{folder}` must have the paper's {paper['weights']} weights, got "
            f"{result['weights']}."
        )


def _keep_weights(source: Path, target: Path, trials: list[int]) -> None:
    try:
        # NumPy does not close a damaged file if it opened the file itself.
        with source.open("rb") as file, np.load(file) as arrays:
            chosen = {name: leaf[..., trials] for name, leaf in arrays.items()}
    except (ValueError, EOFError, BadZipFile) as error:
        raise ConfigError(f"{source} is damaged: {error}.") from error
    with target.open("wb") as file:
        np.savez_compressed(file, **chosen)


def curve(metrics: Path, trials: int) -> dict[str, list[float]]:
    """Returns the quartiles over trials of the error on training sequences.

    Args:
      metrics: the run's `metrics.jsonl`.
      trials: number of trials. A finished trial keeps its last error.

    Returns:
      Lists under `sequences`, `low`, `median` and `high`, at most `POINTS` long.
    """
    lines = read_metrics(metrics)
    at = np.unique(np.geomspace(1, len(lines), POINTS).round().astype(int)) - 1
    now, rows = np.full(trials, np.nan), []
    for line in lines:
        now = now.copy()
        now[line["trials"]] = [np.nan if x is None else x for x in line["error"]]
        rows.append(now)
    quartiles = np.nanpercentile(np.array(rows)[at], [25, 50, 75], axis=1).round(5)
    low, median, high = quartiles.tolist()
    sequences = [lines[k]["sequences"] for k in at]
    return {"sequences": sequences, "low": low, "median": median, "high": high}
