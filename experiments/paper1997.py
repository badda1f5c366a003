"""Every LSTM row of the tables of Hochreiter and Schmidhuber (1997), beside ours.

A row is a config; its runs are in `results/`, one file for each reading. The verdict of
a row follows from them, by one rule:

reproduced          the share of trials that succeed is not below the paper's, and the
                    mean of their sequences not above 1.5 times the paper's
as written          by the literal reading
under reading X     by one of what the paper leaves open, or says two things of
with deviation Y    by one that contradicts the paper
not reproduced      by none; the best of those that were tried is named
"""

import json
import statistics
from pathlib import Path
from typing import Any, NamedTuple

from experiments.reading import config_names, config_path, readings
from experiments.report import changes, markdown_row
from experiments.rules import ConfigError

RESULTS = Path(__file__).resolve().parent / "results"
MOST = 1.5
LITERAL = "as-written"


class Outcome(NamedTuple):
    """What the trials of one reading of a row came to.

    Attributes:
      reading: its name, `LITERAL` for the literal one.
      kind: what it does to the paper's words: `"literal"`, `"silent"`,
        `"contradictory"` or `"departure"`.
      result: as in `result.json`.
    """

    reading: str
    kind: str
    result: dict[str, Any]

    @property
    def share(self) -> float:
        """Share of trials that succeeded."""
        trials = self.result["trials"]
        return sum(trial["solved"] for trial in trials) / len(trials)

    def mean(self, point: int = -1) -> float | None:
        """Mean of the sequences until a stopping point, of trials that succeeded."""
        solved = [t["sequences"][point] for t in self.result["trials"] if t["solved"]]
        return statistics.mean(solved) if solved else None

    @property
    def is_reproduced(self) -> bool:
        """Whether the share and the mean are as good as the paper's."""
        paper, mean = self.result["config"]["paper"], self.mean()
        # Where no share is printed, no failure is reported.
        percent = 100.0 if paper["percent"] is None else paper["percent"]
        is_share = 100 * self.share >= percent - 0.5
        return is_share and mean is not None and mean <= MOST * paper["sequences"][-1]


def outcomes(name: str) -> list[Outcome]:
    """Returns the outcomes of a row, the literal one first.

    Raises:
      ConfigError: a result of a reading that the config does not have.
    """
    known = readings(config_path(name))
    found = []
    for path in sorted((RESULTS / name).glob("*.json")):
        result = json.loads(path.read_text())
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
      ConfigError: a run of other values than the config's, or of fewer trials.
    """
    result = json.loads((folder / "result.json").read_text())
    changed = changes(result)
    if changed:
        raise ConfigError(
            f"`{folder}` must be as its config says, got {', '.join(changed)}."
        )
    kept = RESULTS / result["name"] / f"{result['reading'] or LITERAL}.json"
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text(json.dumps(result, indent=1) + "\n")
    return kept


def verdict(found: list[Outcome]) -> str:
    """Returns the verdict of a row from its outcomes."""
    if not found:
        return "not run"
    good = [outcome for outcome in found if outcome.is_reproduced]
    for kinds, words in (
        (("literal",), "**reproduced as written**"),
        (("silent", "contradictory"), "**reproduced under reading** `{}`"),
        (("departure",), "**reproduced with deviation** `{}`"),
    ):
        of_kind = [outcome for outcome in good if outcome.kind in kinds]
        if of_kind:
            best = min(of_kind, key=Outcome.mean)
            return words.format(best.reading)
    best = max(found, key=lambda outcome: (outcome.share, -(outcome.mean() or 0)))
    return f"not reproduced (best: `{best.reading}`)"


def tables() -> str:
    """Returns the verdicts on all rows, and then all readings of all rows."""
    names = config_names()
    verdicts = [(name, verdict(outcomes(name))) for name in names]
    rows = [_cells(name, outcome) for name in names for outcome in outcomes(name)]
    head = ("row", "reading", "weights", "solved", "sequences: paper", "ours", "wrong")
    return f"{_table(('row', 'verdict'), verdicts)}\n\n{_table(head, rows)}"


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    return "\n".join(map(markdown_row, [head, ["---"] * len(head), *rows]))


def _cells(name: str, outcome: Outcome) -> tuple[str, ...]:
    result, paper = outcome.result, outcome.result["config"]["paper"]
    solved = [trial for trial in result["trials"] if trial["solved"]]
    points = range(len(paper["sequences"]))
    means = [outcome.mean(point) for point in points]
    ours = " / ".join("-" if mean is None else f"{mean:,.0f}" for mean in means)
    if solved:
        last = [trial["sequences"][-1] for trial in solved]
        ours += f" ({min(last):,}–{max(last):,})"
    wrong = [trial["wrong"][-1] for trial in solved]
    tested = result["config"]["test_sequences"]
    printed = "-" if paper["wrong"] is None else f"{paper['wrong']:g}"
    mean_wrong = f"{statistics.mean(wrong):.2f}" if wrong else "-"
    cap = result["config"]["learning"]["max_sequences"]
    return (
        name,
        outcome.reading,
        f"{paper['weights']}, {result['weights']}",
        f"{len(solved)} of {len(result['trials'])} (cap {cap:,})",
        " / ".join(f"{n:,}" for n in paper["sequences"]),
        ours,
        f"{printed}, {mean_wrong} of {tested}",
    )
