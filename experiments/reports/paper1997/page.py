"""Our results for every LSTM row of the tables of Hochreiter and Schmidhuber (1997).

A row is a config. One rule decides the verdict on it:

reproduced       at least the paper's share of trials succeeds, and their mean number of
                 sequences is at most 1.5 times the paper's: as written with the literal
                 reading, under a reading of what the paper leaves open or states in two
                 ways, with a deviation that contradicts the paper
learnt, slower   at least the paper's share of trials succeeds
partly           some trials succeed
never            no trial of any reading succeeds

`reasons.toml` says why.
"""

import json
import statistics
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from experiments.reports.committed import LITERAL
from experiments.reports.paper1997 import conditions
from experiments.reports.paper1997.results import Outcome, outcomes
from experiments.reports.tables import markdown
from experiments.settings.config import PARTS
from experiments.settings.reading import (
    baselines,
    config_path,
    paper_names,
    readings,
)
from experiments.settings.tasks import TASK_OPTIONS

PAGES = "experiments.md", "paper1997.md"
VERDICTS = (
    (("literal",), "**reproduced** as written"),
    (("silent", "contradictory"), "**reproduced** under the reading `{}`"),
    (("departure",), "**reproduced** with the deviation `{}`"),
)
REASONS = Path(__file__).with_name("reasons.toml")
# A class counts as missed if at least this share of its sequences is wrong.
WHOLE = 0.9
VERDICT_HEAD = (
    *("row", "sequences: paper", "ours: mean (range)"),
    *("solved: paper", "ours", "verdict"),
)
READING_HEAD = (
    *("row", "reading", "kind", "weights", "solved", "seed", "sequences: paper"),
    *("ours", "wrong", "state"),
)
LEGEND_HEAD = "reading", "kind", "values", "run for"
# Up to this number, rows are listed by name; more are counted.
NAMED = 2
FAILURE_HEAD = "row", "reading", "failed", "wrong", "state", "what is wrong"
COMPETITOR_HEAD = (
    *("row", "reading", "method", "rate", "weights", "paper: share, sequences"),
    *("ours", "sequences: ours", "within"),
)


def deciding(found: list[Outcome]) -> tuple[str, Outcome | None]:
    """Returns the verdict on a row, and the outcome that decides it."""
    found = [outcome for outcome in found if outcome.counts_for_verdict]
    if not found:
        return "not run", None
    good = [outcome for outcome in found if outcome.is_reproduced]
    for kinds, words in VERDICTS:
        of_kind = [outcome for outcome in good if outcome.kind in kinds]
        if of_kind:
            best = min(of_kind, key=Outcome.mean)
            return words.format(best.reading), best
    whole = [outcome for outcome in found if outcome.is_whole] or found
    some = [outcome for outcome in whole if outcome.solved]
    some = some or [outcome for outcome in found if outcome.solved]
    best = max(some or whole, key=lambda one: (one.share, -(one.mean() or 0)))
    within = f"within {best.result['config']['learning']['max_sequences']:,}"
    if best.is_learnt:
        return f"*learnt, slower*: `{best.reading}`", best
    if best.solved:
        return f"*partly*: `{best.reading}`, {within}", best
    of_all = f"none of {len(found)} readings" if len(found) > 1 else best.reading
    return f"*never*: {of_all}, {within}", best


def tables() -> dict[str, str]:
    """Returns all Markdown tables by name."""
    found = {name: outcomes(name) for name in paper_names()}
    every = [(name, one) for name, of_row in found.items() for one in of_row]
    counted = [(name, one) for name, one in every if one.counts_for_verdict]
    failed = [(name, one) for name, one in counted if one.failed]
    others = [_competitor(name, one) for name, one in every if one.kind == "competitor"]
    run = {one.reading for _, one in every}
    networks = [LITERAL, *(name for name in baselines() if name in run)]
    compared = [
        _baselines(name, of_row, networks)
        for name, of_row in found.items()
        if any(outcome.kind == "baseline" for outcome in of_row)
    ]
    return {
        "verdicts": markdown(VERDICT_HEAD, [_verdict(*row) for row in found.items()]),
        "readings": markdown(READING_HEAD, [_reading(*one) for one in counted]),
        "legend": markdown(LEGEND_HEAD, _legend(found)),
        "failures": markdown(FAILURE_HEAD, [_failures(*one) for one in failed]),
        "competitors": markdown(COMPETITOR_HEAD, others),
        "baselines": markdown(("row", "paper", *networks), compared),
    } | conditions.tables()


def _legend(found: dict[str, list[Outcome]]) -> list[tuple[str, ...]]:
    """Returns the values of each reading, and the rows that were run with it."""
    known, rows = {}, {}
    for name in paper_names():
        for reading, one in readings(config_path(name)).items():
            known.setdefault(reading, one)
            if any(outcome.reading == reading for outcome in found[name]):
                rows.setdefault(reading, []).append(name)
    return [
        (
            f"`{reading}`",
            one.kind,
            ", ".join(f"`{key} = {json.dumps(x)}`" for key, x in one.changes.items()),
            _run_for(rows.get(reading, [])),
        )
        for reading, one in known.items()
    ]


def _run_for(rows: list[str]) -> str:
    return f"{len(rows)} rows" if len(rows) > NAMED else ", ".join(rows) or "not run"


def _verdict(name: str, found: list[Outcome]) -> tuple[str, ...]:
    words, outcome = deciding(found)
    if outcome is None:
        return (name, "", "", "", "", words)
    if all(one.kind != "literal" for one in found):
        words += ", literal reading not run"
    words += f": {_reason(name)}"
    if not outcome.is_reproduced:
        words += _not_tried(name, found, outcome)
    percent = outcome.result["config"]["paper"]["percent"]
    share = "-" if percent is None else f"{percent:g} %"
    found_by_us = _sequences(outcome), share, outcome.solved_of
    return (name, _printed(outcome), *found_by_us, words)


def _reason(name: str) -> str:
    reasons = tomllib.loads(REASONS.read_text())
    return reasons[max(filter(name.startswith, reasons), key=len)]


def _not_tried(name: str, found: list[Outcome], best: Outcome) -> str:
    """Returns the readings that did better with fewer trials, or were not run."""
    few = [
        f"; with fewer trials, `{one.reading}`: {one.solved_of}"
        for one in found
        if one.counts_for_verdict and not one.is_whole and one.share > best.share
    ]
    known, run = readings(config_path(name)), {one.reading for one in found}
    # In 2a and 2b, without ranges of g and h, two names have the same values.
    changes = [one.changes for reading, one in known.items() if reading in run]
    left = [
        f"`{reading}`"
        for reading, one in known.items()
        if one.kind in ("silent", "contradictory") and one.changes not in changes
    ]
    return "".join(few) + (f"; not run: {', '.join(left)}" if left else "")


def _reading(name: str, outcome: Outcome) -> tuple[str, ...]:
    result, paper = outcome.result, outcome.result["config"]["paper"]
    wrong = [trial["wrong"][-1] for trial in outcome.solved]
    printed = "-" if paper["wrong"] is None else f"{paper['wrong']:g}"
    mean_wrong = f"{statistics.mean(wrong):.2f}" if wrong else "-"
    return (
        name,
        outcome.reading,
        outcome.kind,
        f"{paper['weights']}, {result['weights']}",
        f"{outcome.solved_of} (cap {result['config']['learning']['max_sequences']:,})",
        str(result["config"]["seed"]),
        _printed(outcome),
        _sequences(outcome),
        f"{printed}, {mean_wrong} of {result['config']['test_sequences']}",
        _state(outcome),
    )


def _failures(name: str, outcome: Outcome) -> tuple[str, ...]:
    """Returns the errors of the failed trials after training."""
    failed, result = outcome.failed, outcome.result
    wrong = statistics.mean(trial["wrong"][-1] for trial in failed)
    return (
        name,
        outcome.reading,
        f"{len(failed)} of {len(result['trials'])}",
        f"{wrong:.1f} of {result['config']['test_sequences']}",
        _mean_state(failed),
        _what_is_wrong(failed, result["config"]["task"]["name"]),
    )


def _what_is_wrong(failed: list[dict[str, Any]], task: str) -> str:
    """Describes the missed targets: classes, numbers near 0 and 1, or steps.

    Args:
      failed: failed trials, as in `result.json`.
      task: the task's name in configs.
    """
    # Older results do not have counts by target.
    if not all(trial.get("by_target") for trial in failed):
        return "-"
    wrong = np.array([trial["wrong_by_target"] for trial in failed])
    there = np.array([trial["by_target"] for trial in failed])
    # Numeric targets can have only two values, like classes.
    wrong, there = (counts[:, there.any(0)] for counts in (wrong, there))
    kinds = wrong.shape[1]
    if TASK_OPTIONS[task].is_along:
        asked, others = wrong.sum(0) / there.sum(0)
        return f"long lag in {asked:.0%} of sequences, other steps in {others:.0%}"
    if kinds < PARTS:
        trials = Counter(np.sum(wrong >= WHOLE * there, axis=1).tolist())
        each = [f"{whole} of {kinds} in {n}" for whole, n in sorted(trials.items())]
        return f"classes missed: {', '.join(each)} trials"
    outer = [0, -1]
    share = wrong[:, outer].sum() / max(1, wrong.sum())
    of_all = there[:, outer].sum() / there.sum()
    low, high = 1 / PARTS, 1 - 1 / PARTS
    return f"{share:.0%} have targets < {low:g} or > {high:g}; of all, {of_all:.1%}"


def _state(outcome: Outcome) -> str:
    """Returns the mean largest states of successful and of failed trials."""
    return f"{_mean_state(outcome.solved)}, {_mean_state(outcome.failed)}"


def _mean_state(trials: list[dict[str, Any]]) -> str:
    # Older results do not have states.
    states = [trial.get("largest_state") for trial in trials]
    states = [state for state in states if state is not None]
    return f"{statistics.mean(states):.1f}" if states else "-"


def _baselines(name: str, found: list[Outcome], networks: list[str]) -> tuple[str, ...]:
    by_reading = {outcome.reading: outcome for outcome in found}
    cells = []
    for network in networks:
        outcome = by_reading.get(network)
        mean = outcome and outcome.mean()
        of_mean = f": {mean:,.0f}" if mean else ""
        cells.append("not run" if outcome is None else f"{outcome.solved_of}{of_mean}")
    return (name, f"{found[0].result['config']['paper']['sequences'][-1]:,}", *cells)


def _competitor(name: str, outcome: Outcome) -> tuple[str, ...]:
    config = outcome.result["config"]
    learning, competitor = config["learning"], config["competitor"]
    guesses = competitor["method"] == "guessing"
    rate = "-" if guesses else f"{learning['rate']:g}"
    return (
        *(name, outcome.reading, competitor["method"], rate),
        *(str(outcome.result["weights"]), competitor["published"]),
        *(outcome.solved_of, _sequences(outcome), f"{learning['max_sequences']:,}"),
    )


def _printed(outcome: Outcome) -> str:
    sequences = outcome.result["config"]["paper"]["sequences"]
    return " / ".join(f"{n:,}" for n in sequences)


def _sequences(outcome: Outcome) -> str:
    """Returns the means at all stopping points, and the range at the last one."""
    points = range(len(outcome.result["config"]["paper"]["sequences"]))
    each = [outcome.mean(point) for point in points]
    means = " / ".join("-" if mean is None else f"{mean:,.0f}" for mean in each)
    if not outcome.solved:
        return means
    last = [trial["sequences"][-1] for trial in outcome.solved]
    return f"{means} ({min(last):,}–{max(last):,})"
