"""Committed results of the paper: `results/ROW/READING.json` for each reading of a row.

`READING.npz` has the weights of the first successful trials at their last stopping
point: at most 2,000 numbers, but at least one trial.
"""

import statistics
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile

import numpy as np

from experiments.reports import committed
from experiments.reports.committed import read_results, result_path
from experiments.reports.paper1997.tables import reached
from experiments.runs.folder import (
    METRICS,
    WEIGHTS,
    read_metrics,
    read_result,
    written,
)
from experiments.settings.reading import config_path, read_config, readings
from experiments.settings.rules import ConfigError

RESULTS = committed.RESULTS
# Fewer trials are allowed, to try a reading out.
FREE = "trials"
# A row is reproduced with at most this multiple of the paper's sequences.
MOST = 1.5
POINTS, NUMBERS = 40, 2000
# Kinds of readings that do not count for the verdict on a row.
WITHOUT_VERDICT = "baseline", "competitor"


class Outcome(NamedTuple):
    """The result of one reading of a row.

    Attributes:
      reading: name of the reading, `committed.LITERAL` for the literal one.
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


def check(folder: Path, result: dict[str, Any]) -> None:
    """Checks the seed, the number of weights, and the number of trials.

    The seed can differ for baselines and for fewer trials than the paper's, which try a
    reading out.

    Raises:
      ConfigError: the seed differs; there is another number of weights than in the
        paper, and the reading is not a departure; or there are fewer trials than in the
        committed result.
    """
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
    kept, count = result_path(RESULTS, result), len(result["trials"])
    before = len(read_result(kept)["trials"]) if kept.is_file() else 0
    if count < before:
        raise ConfigError(
            f"`{folder}` must have at least the {before} trials of {kept}, got {count}."
        )


def keep_files(folder: Path, result: dict[str, Any], path: Path) -> None:
    """Copies the weights of the first successful trials to `path` with `.npz`."""
    solved = [trial["trial"] for trial in result["trials"] if trial["solved"]]
    few = solved[: max(1, NUMBERS // result["weights"])]
    weights = path.with_suffix(".npz")
    if few and (folder / WEIGHTS).is_file():
        _keep_weights(folder / WEIGHTS, weights, few)
    else:
        weights.unlink(missing_ok=True)


def _keep_weights(source: Path, target: Path, trials: list[int]) -> None:
    try:
        # NumPy does not close a damaged file if it opened the file itself.
        with source.open("rb") as file, np.load(file) as arrays:
            chosen = {name: leaf[..., trials] for name, leaf in arrays.items()}
    except (ValueError, EOFError, BadZipFile) as error:
        raise ConfigError(f"{source} is damaged: {error}.") from error
    with written(target) as beside, beside.open("wb") as file:
        np.savez_compressed(file, **chosen)


def curve(folder: Path, result: dict[str, Any]) -> dict[str, list[float]]:
    """Returns the quartiles over trials of the error on training sequences.

    A finished trial keeps its last error.

    Returns:
      Lists under `sequences`, `low`, `median` and `high`, at most `POINTS` long.
    """
    lines, trials = read_metrics(folder / METRICS), len(result["trials"])
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
