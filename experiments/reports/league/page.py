"""The page on the league, docs/league.md."""

import math
import statistics
from typing import Any

from experiments.reports.data.tables import duration
from experiments.reports.league.results import league_results
from experiments.reports.tables import markdown

PAGES = ("league.md",)
NONE = "No results are committed yet."
FAILED = "failed"
FIGURE = "![Every cell on every task](league/league.svg)"


def tables() -> dict[str, str]:
    """Returns the Markdown tables of the committed results.

    Returns:
      `league`: the results of every cell, the best cells first. `figure`: a link to the
      figure. `failures`: why cells failed. `tasks`: the tasks. `widths`: units and time
      of every cell.
    """
    found = league_results()
    if not found:
        return dict.fromkeys(("league", "figure", "failures", "tasks", "widths"), NONE)
    return {
        "league": league_table(found),
        "figure": FIGURE,
        "failures": failures(found),
        "tasks": tasks_table(found),
        "widths": widths_table(found),
    }


def is_better_large(settings: dict[str, Any]) -> bool:
    """Says whether larger values of a task's metric are better."""
    return settings["published"]["metric"].endswith("accuracy")


def mean(cell: dict[str, Any]) -> float | None:
    """Returns the mean over seeds; None if the cell failed or a value is not finite."""
    values = cell.get("values", [None])
    if any(value is None or not math.isfinite(value) for value in values):
        return None
    return statistics.mean(values)


def deviation(cell: dict[str, Any]) -> float:
    """Returns the sample standard deviation over seeds; 0 for one seed."""
    return statistics.stdev(cell["values"]) if len(cell["values"]) > 1 else 0.0


def ranks(task: dict[str, Any]) -> dict[str, int]:
    """Returns the rank of each cell in a task, from 1; equal means share a rank.

    Failed cells have the last rank, the number of cells.
    """
    sign = -1 if is_better_large(task["settings"]) else 1
    means = {cell: mean(of_cell) for cell, of_cell in task["cells"].items()}
    known = [sign * value for value in means.values() if value is not None]
    return {
        cell: len(means)
        if value is None
        else 1 + sum(other < sign * value for other in known)
        for cell, value in means.items()
    }


def mean_ranks(found: dict[str, dict[str, Any]]) -> dict[str, float]:
    """Returns the mean rank of each cell, in increasing order.

    Tasks for some cells only do not count, unless there are no others.
    """
    whole = [of for of in found.values() if not of["settings"]["league"]["cells"]]
    each = [ranks(of) for of in whole or found.values()]
    cells = {cell for of in found.values() for cell in of["cells"]}
    means = {}
    for cell in cells:
        of_cell = [of[cell] for of in each if cell in of]
        means[cell] = statistics.mean(of_cell) if of_cell else math.inf
    return dict(sorted(means.items(), key=lambda pair: (pair[1], pair[0])))


def shown(cell: dict[str, Any], settings: dict[str, Any]) -> str:
    """Returns the mean and the standard deviation as text."""
    value = mean(cell)
    if value is None:
        return FAILED
    if is_better_large(settings):
        return f"{value:.1f} ± {deviation(cell):.1f}"
    return f"{value:.4g} ± {deviation(cell):.1g}"


def league_table(found: dict[str, dict[str, Any]]) -> str:
    """Returns the results of every cell; the best of each task are bold."""
    order = mean_ranks(found)
    ranked = {name: ranks(of) for name, of in found.items()}
    rows = []
    for cell, rank in order.items():
        row = [f"`{cell}`", f"{rank:.1f}" if math.isfinite(rank) else "-"]
        for name, of in found.items():
            text = (
                shown(of["cells"][cell], of["settings"]) if cell in of["cells"] else "-"
            )
            is_best = ranked[name].get(cell) == 1 and text != FAILED
            row.append(f"**{text}**" if is_best else text)
        rows.append(tuple(row))
    compared = [f"{of['settings']['published']['value']:g}" for of in found.values()]
    rows.append(("to compare", "", *compared))
    return markdown(("cell", "mean rank", *map(heading, found.values())), rows)


def heading(task: dict[str, Any]) -> str:
    """Returns the title of a task, its figure, and which values are better."""
    settings = task["settings"]
    better = "larger" if is_better_large(settings) else "smaller"
    return f"{settings['title']}: {settings['published']['what']}, {better} is better"


def tasks_table(found: dict[str, dict[str, Any]]) -> str:
    """Returns a table of the tasks, and of the settings that all cells share."""
    head = (
        *("task", "largest number of parameters", "seeds", "updates", "batch"),
        *("learning rate", "to compare", "time of all cells"),
    )
    rows = []
    for name, of in found.items():
        settings = of["settings"]
        published, optimizer = settings["published"], settings["optimizer"]
        seconds = sum(cell.get("seconds", 0) for cell in of["cells"].values())
        rows.append(
            (
                f"`{name}`",
                f"{settings['league']['parameters']:,}",
                str(settings["seeds"]),
                f"{settings['training']['updates']:,}",
                str(settings["training"]["batch"]),
                f"{optimizer['rate']:g}, {optimizer['schedule']}",
                f"{published['value']:g} ({published['source']})",
                duration(seconds),
            )
        )
    return markdown(head, rows)


def widths_table(found: dict[str, dict[str, Any]]) -> str:
    """Returns the units, the parameters and the time of every cell."""
    rows = []
    for cell in sorted(mean_ranks(found)):
        row = [f"`{cell}`"]
        for of in found.values():
            one = of["cells"].get(cell, {})
            row.append(
                f"{one['features']}, {one['parameters']:,}, {one['seconds']:.0f} s"
                if "values" in one
                else "-"
            )
        commits = {
            commit
            for of in found.values()
            for commit in of["cells"].get(cell, {}).get("commits", [])
        }
        rows.append((*row, ", ".join(sorted(commits))))
    return markdown(("cell", *(f"`{name}`" for name in found), "commit"), rows)


def failures(found: dict[str, dict[str, Any]]) -> str:
    """Returns a list of the cells that failed, with the reasons."""
    lines = [
        f"* `{cell}` on `{name}`: {of_cell['failure']}"
        for name, of in found.items()
        for cell, of_cell in of["cells"].items()
        if "failure" in of_cell
    ]
    return "\n".join(lines) if lines else "No cell failed."
