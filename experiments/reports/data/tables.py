"""Tables of the results on data sets, for the terminal and Markdown."""

import statistics
from typing import Any

from experiments.reports.tables import changes, commits, markdown, title_of

HEAD = (
    *("config", "reading", "figure", "published", "ours: mean (range)", "networks"),
    *("parameters", "training time", "device", "commit"),
)
SUMMARY_HEAD = "", "value"
summary_title = title_of


def summary(result: dict[str, Any]) -> list[tuple[str, str]]:
    """Returns the rows of one run's table: name and value, the mean over networks.

    Args:
      result: the contents of `result.json`.
    """
    published = result["config"]["published"]
    changed = changes(result)
    compared = [(f"published: {published['what']}", f"{published['value']:g}")]
    # On other data, the figure is not comparable.
    if not published["what"] or any(option.startswith("task.") for option in changed):
        compared = []
    found = [
        (f"{split} {name}", spread(values))
        for split, metrics in result["metrics"].items()
        for name, values in metrics.items()
        if name != "characters" and not isinstance(values[0], list)
    ]
    return [
        *compared,
        *found,
        *[("changed", ", ".join(changed))] * bool(changed),
        ("networks", str(len(result["best_updates"]))),
        ("parameters", f"{result['parameters']:,}"),
        ("updates", f"{result['updates']:,}"),
        ("best update", ", ".join(f"{n:,}" for n in result["best_updates"])),
        ("training time", f"{result['seconds']:,.0f} s"),
    ]


def spread(values: list[float | None]) -> str:
    """Returns the mean and the range of the networks' values.

    >>> spread([1.25, 1.75]), spread([0.5])
    ('1.5 (1.25 to 1.75)', '0.5')
    """
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return "not finite"
    mean = f"{statistics.mean(known):.5g}"
    if len(known) == 1:
        return mean
    return f"{mean} ({min(known):.5g} to {max(known):.5g})"


def committed_table(results: list[dict[str, Any]]) -> str:
    """Returns a Markdown table with one row for each result."""
    return markdown(HEAD, map(_cells, results))


def runs_table(results: list[dict[str, Any]]) -> str:
    """Returns the table with the options that differ from the config, and the seed.

    Committed results have these in common with their config.

    Args:
      results: the contents of each run's `result.json`.
    """
    added = [
        (", ".join(changes(result)) or "-", str(result["config"]["seed"]))
        for result in results
    ]
    cells = [_cells(result) + more for result, more in zip(results, added, strict=True)]
    return markdown((*HEAD, "changed", "seed"), cells)


def _cells(result: dict[str, Any]) -> tuple[str, ...]:
    published = result["config"]["published"]
    split, _, metric = published["metric"].partition(".")
    return (
        result["name"],
        result.get("reading") or "as written",
        published["what"] or published["metric"],
        f"{published['value']:g} ({published['source']})" if published["what"] else "-",
        spread(result["metrics"][split][metric]),
        str(result["config"]["seeds"]),
        f"{result['parameters']:,}",
        duration(result["seconds"]),
        devices(result),
        ", ".join(map(str, commits(result))),
    )


def duration(seconds: float) -> str:
    """Returns a time in the unit that suits it.

    >>> duration(48.2), duration(312), duration(5400)
    ('48 s', '5.2 min', '1.5 h')
    """
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:.1f} h"


def devices(result: dict[str, Any]) -> str:
    """Returns the number and the names of the devices that trained the networks.

    The device of a CPU has no name of its own, so the processor's name follows.
    """
    names = {}
    for one in [result["environment"], *result.get("resumed", [])]:
        is_named = one["device"] == "cpu" and "processor" in one
        names[f"cpu, {one['processor']}" if is_named else one["device"]] = None
    count = f"{result['devices']} x " if result["devices"] > 1 else ""
    return count + "; ".join(names)
