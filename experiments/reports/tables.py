"""Tables that compare the paper's numbers with ours, for the terminal and Markdown."""

import json
import statistics
from collections.abc import Iterable
from typing import Any

from experiments.settings.reading import config_path, read_config, to_dict
from experiments.settings.rules import ConfigError


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


def commits(result: dict[str, Any]) -> list[str | None]:
    """Returns the commits that computed a result, in order."""
    environments = [result["environment"], *result.get("resumed", [])]
    return list(dict.fromkeys(one["commit"] for one in environments))


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


def print_table(result: dict[str, Any]) -> None:
    """Prints the table of one run."""
    # Imported here because the Markdown table does not need rich.
    from rich.console import Console
    from rich.table import Table

    paper = result["config"]["paper"]
    table = Table(title=f"{title_of(result)}: table {paper['table']}")
    table.add_column("")
    table.add_column("paper", justify="right")
    table.add_column("ours", overflow="fold")
    for row in summary(result):
        table.add_row(*row)
    # Names of files can look like markup.
    Console(markup=False, emoji=False).print(table)


def paper_table(results: list[dict[str, Any]]) -> str:
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


def changes(result: dict[str, Any]) -> list[str]:
    """Returns the options that differ from the config's reading, except the seed."""
    try:
        path = config_path(result["name"])
        file = to_dict(read_config(path, result.get("reading")))
    except ConfigError:
        return ["config no longer exists"]
    before, after = _flat(file), _flat(result["config"])
    names = [name for name in after if name not in ("seed", "title")]
    return [
        f"{name} = {json.dumps(after[name])}"
        for name in names
        if after[name] != before.get(name)
    ]


def title_of(result: dict[str, Any]) -> str:
    """Returns the title of a run's config, or its changes if they make it wrong."""
    as_written = result | {"reading": None}
    changed = [x for x in changes(as_written) if x.startswith(("task.", "model."))]
    if changed:
        return f"{result['name']} with {', '.join(changed)}"
    return result["config"]["title"]


def _flat(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flattens nested tables into one with dotted names."""
    flat = {}
    for key, value in table.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def _mean(values: list[float], form: str, with_sd: bool = True) -> str:
    """Returns mean and standard deviation, if there are enough values."""
    if not values:
        return "-"
    mean = format(statistics.mean(values), form)
    if not with_sd or len(values) < 2:
        return mean
    return f"{mean} ± {format(statistics.stdev(values), form)}"


def markdown(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Returns a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
