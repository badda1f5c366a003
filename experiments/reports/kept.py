"""Results that are committed, `results/ROW/READING.json` for a reading of a row.

Beside a result's own file, `READING.npz` has the weights of the first trials that
succeeded, at their last stopping point: so many as fit into 2,000 numbers, but one.
"""

import json
import statistics
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments.folder import METRICS, RESULT, WEIGHTS, read_result, to_json, write
from experiments.reports.tables import changes
from experiments.settings.reading import config_path, readings
from experiments.settings.rules import ConfigError

RESULTS = Path(__file__).resolve().parents[1] / "results"
# At most so many times as many sequences as the paper are a success.
MOST = 1.5
LITERAL = "as-written"
POINTS, NUMBERS = 40, 2000


class Outcome(NamedTuple):
    """What the trials of one reading of a row came to.

    Attributes:
      reading: its name, `LITERAL` for the literal one.
      kind: what it does to the paper's words: `"literal"`, `"silent"`,
        `"contradictory"` or `"departure"`; `"baseline"` for another network.
      result: as in `result.json`, and its `curve`.
    """

    reading: str
    kind: str
    result: dict[str, Any]

    @property
    def solved(self) -> list[dict[str, Any]]:
        """The trials that succeeded."""
        return [trial for trial in self.result["trials"] if trial["solved"]]

    @property
    def failed(self) -> list[dict[str, Any]]:
        """The trials that did not."""
        return [trial for trial in self.result["trials"] if not trial["solved"]]

    @property
    def solved_of(self) -> str:
        """How many trials reached each stopping point, as `'9 / 3 of 20'`."""
        trials = self.result["trials"]
        reached = [sum(n > 0 for n in point) for point in self._sequences()]
        return f"{' / '.join(map(str, reached))} of {len(trials)}"

    @property
    def is_whole(self) -> bool:
        """Whether there were as many trials as the paper's."""
        return len(self.result["trials"]) >= self.result["config"]["paper"]["trials"]

    @property
    def share(self) -> float:
        """Share of trials that succeeded."""
        return len(self.solved) / len(self.result["trials"])

    def mean(self, point: int = -1) -> float | None:
        """Mean of the sequences until a stopping point, of trials that reached it."""
        sequences = [n for n in self._sequences()[point] if n > 0]
        return statistics.mean(sequences) if sequences else None

    def _sequences(self) -> list[tuple[int, ...]]:
        """Returns all trials' sequences until each stopping point; 0: not reached."""
        return list(zip(*(trial["sequences"] for trial in self.result["trials"])))

    @property
    def is_reproduced(self) -> bool:
        """Whether share and means, of all trials, are as good as the paper's."""
        paper = self.result["config"]["paper"]
        # Where no share is printed, no failure is reported.
        percent = 100.0 if paper["percent"] is None else paper["percent"]
        # 97 % of 30 trials are 29.
        is_share = 100 * self.share >= percent - (0.5 if percent < 100 else 0)
        is_soon = bool(self.solved) and all(
            self.mean(point) <= MOST * printed
            for point, printed in enumerate(paper["sequences"])
        )
        return self.is_whole and is_share and is_soon

    @property
    def weights(self) -> dict[str, np.ndarray] | None:
        """The weights that are kept, their last axis that of `trials`."""
        path = RESULTS / self.result["name"] / f"{self.reading}.npz"
        if not path.is_file():
            return None
        with np.load(path) as arrays:
            return dict(arrays)


def outcomes(name: str) -> list[Outcome]:
    """Returns the outcomes of a row, the literal one first.

    Raises:
      ConfigError: a result of a reading that the config does not have.
    """
    known = readings(config_path(name))
    found = []
    for path in sorted((RESULTS / name).glob("*.json")):
        result = read_result(path)
        if path.stem == LITERAL:
            found.insert(0, Outcome(LITERAL, "literal", result))
        elif path.stem in known:
            found.append(Outcome(path.stem, known[path.stem].kind, result))
        else:
            raise ConfigError(f"{path}: no reading `{path.stem}` of `{name}`.")
    return found


def keep(folder: Path) -> Path:
    """Copies a run's result to those that are committed, and returns where to.

    Args:
      folder: of the run.

    Raises:
      ConfigError: a run of other values than the config's, the number of trials apart;
        or of fewer trials than what is kept; or of another number of weights than
        the paper's, where the reading is no departure.
    """
    result = read_result(folder / RESULT)
    # A few trials show whether a reading is worth more.
    changed = [
        change for change in changes(result) if not change.startswith("trials =")
    ]
    if changed:
        raise ConfigError(
            f"`{folder}` must be as its config says, got {', '.join(changed)}."
        )
    kind, weights = "literal", result["config"]["paper"]["weights"]
    if result["reading"] is not None:
        kind = readings(config_path(result["name"]))[result["reading"]].kind
    if kind not in ("departure", "baseline") and result["weights"] != weights:
        raise ConfigError(
            f"`{folder}` must have the paper's {weights} weights, got "
            f"{result['weights']}."
        )
    kept = RESULTS / result["name"] / f"{result['reading'] or LITERAL}.json"
    count = len(result["trials"])
    before = len(read_result(kept)["trials"]) if kept.is_file() else 0
    if count < before:
        raise ConfigError(
            f"`{folder}` must have the {before} trials of {kept}, got {count}."
        )
    result["curve"] = curve(folder / METRICS, count)
    solved = [trial["trial"] for trial in result["trials"] if trial["solved"]]
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.with_suffix(".npz").unlink(missing_ok=True)
    if solved and (folder / WEIGHTS).is_file():
        few = solved[: max(1, NUMBERS // result["weights"])]
        _keep_weights(folder / WEIGHTS, kept.with_suffix(".npz"), few)
    write(kept, to_json(result) + "\n")
    return kept


def _keep_weights(source: Path, target: Path, trials: list[int]) -> None:
    with np.load(source) as arrays:
        chosen = {name: leaf[..., trials] for name, leaf in arrays.items()}
    np.savez_compressed(target, **chosen)


def curve(metrics: Path, trials: int) -> dict[str, list[float]]:
    """Returns the quartiles over trials of the error on training sequences.

    Args:
      metrics: the run's `metrics.jsonl`.
      trials: their number. One that has ended stays at its last error.

    Returns:
      Lists under `sequences`, `low`, `median` and `high`, at most `POINTS` long.
    """
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
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
