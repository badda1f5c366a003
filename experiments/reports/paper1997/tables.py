"""Tables that compare the paper's numbers with ours, for the terminal and Markdown."""

import statistics
from typing import Any

from experiments.reports.tables import changes, commits, markdown, title_of

SUMMARY_HEAD = "", "paper", "ours"


def summary_title(result: dict[str, Any]) -> str:
    """Returns the title of one run's table."""
    return f"{title_of(result)}: table {result['config']['paper']['table']}"


def summary(result: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Returns the rows of one run's table: name, the paper's value, our value.

    Args:
      result: the contents of `result.json`.
    """
    paper, trials = result["config"]["paper"], result["trials"]
    solved = [trial for trial in trials if trial["solved"]]
    wrong = [trial["wrong"][-1] for trial in solved]
    points = len(paper["sequences"])
    tested = result["config"]["test_sequences"]
    stopped = result.get("stopped") or [0] * len(trials)
    each = ", ".join(
        f"{trial['sequences'][-1]:,}"
        if trial["solved"]
        else f"stopped at {after:,}"
        if after
        else "failed"
        for trial, after in zip(trials, stopped, strict=True)
    )
    return [
        ("trials solved", printed_share(paper), f"{len(solved)} of {len(trials)}"),
        *(
            (
                "sequences to success, mean" + f", point {k + 1}" * (points > 1),
                f"{paper['sequences'][k]:,}",
                _mean(reached(trials, k), ",.0f"),
            )
            for k in range(points)
        ),
        ("each trial", "-", each),
        ("weights", str(paper["weights"]), str(result["weights"])),
        (
            "wrong test sequences, mean",
            printed_wrong(paper),
            f"{_mean(wrong, '.2f')} of {tested}",
        ),
        ("wrong, each trial", "-", ", ".join(map(str, wrong)) or "-"),
        (
            "mean absolute test error",
            "-",
            _mean([trial["mean_error"][-1] for trial in solved], ".4f"),
        ),
    ]


def reached(trials: list[dict[str, Any]], point: int = -1) -> list[int]:
    """Returns the numbers of sequences of the trials that reached a stopping point."""
    sequences = [trial["sequences"][point] for trial in trials]
    return [n for n in sequences if n > 0]


def printed_share(paper: dict[str, Any]) -> str:
    """Returns the share of successful trials in the paper."""
    if paper["percent"] is None:
        return f"of {paper['trials']}: not printed"
    return f"{paper['percent']:g} % of {paper['trials']}"


def printed_wrong(paper: dict[str, Any]) -> str:
    """Returns the number of wrong test sequences in the paper."""
    if paper["wrong"] is None:
        return "-"
    return f"{paper['wrong']:g} of {paper['test_sequences']}"


def runs_table(results: list[dict[str, Any]]) -> str:
    """Returns a Markdown table with one row for each run.

    Args:
      results: the contents of each run's `result.json`.
    """
    head = (
        "experiment",
        "reading",
        "weights: paper, ours",
        "sequences to success: paper",
        "ours: mean ± sd (range)",
        "trials solved",
        "wrong: paper",
        "ours, mean",
        "changed",
        "seed",
        "commit",
        "seconds",
    )
    return markdown(head, map(_cells, results))


def _cells(result: dict[str, Any]) -> tuple[str, ...]:
    paper, trials = result["config"]["paper"], result["trials"]
    solved = [trial for trial in trials if trial["solved"]]
    sequences = reached(trials)
    spread = f" ({min(sequences):,}–{max(sequences):,})" if sequences else ""
    return (
        f"{paper['row']} (table {paper['table']})",
        result.get("reading") or "as written",
        f"{paper['weights']}, {result['weights']}",
        f"{paper['sequences'][-1]:,}",
        _mean(sequences, ",.0f") + spread,
        f"{len(solved)} of {len(trials)}",
        printed_wrong(paper),
        f"{_mean([trial['wrong'][-1] for trial in solved], '.2f', with_sd=False)} of "
        f"{result['config']['test_sequences']}",
        ", ".join(changes(result)) or "-",
        str(result["config"]["seed"]),
        ", ".join(map(str, commits(result))),
        f"{result['seconds']:.0f}",
    )


def _mean(values: list[float], form: str, with_sd: bool = True) -> str:
    """Returns mean and standard deviation, if there are enough values."""
    if not values:
        return "-"
    mean = format(statistics.mean(values), form)
    if not with_sd or len(values) < 2:
        return mean
    return f"{mean} ± {format(statistics.stdev(values), form)}"
