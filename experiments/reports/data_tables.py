"""Tables of the results on data sets, for the terminal and Markdown."""

import statistics
from typing import Any


def rows(result: dict[str, Any]) -> list[tuple[str, str]]:
    """Returns the rows of one run's table: name and value, the mean over networks.

    Args:
      result: the contents of `result.json`.
    """
    published = result["config"]["published"]
    found = [
        (f"{split} {name}", spread(values))
        for split, metrics in result["metrics"].items()
        for name, values in metrics.items()
        if name != "characters" and not isinstance(values[0], list)
    ]
    return [
        (f"published: {published['what']}", f"{published['value']:g}"),
        *found,
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


def print_data_table(result: dict[str, Any]) -> None:
    """Prints the table of one run."""
    # Imported here because Markdown does not need rich.
    from rich.console import Console
    from rich.table import Table

    table = Table(title=result["config"]["title"])
    table.add_column("")
    table.add_column("value", overflow="fold")
    for row in rows(result):
        table.add_row(*row)
    Console().print(table)
