"""Parts of tables of results, for the terminal and Markdown."""

import json
from collections.abc import Iterable
from typing import Any

from experiments.settings.reading import config_path, read_config, to_dict
from experiments.settings.rules import ConfigError


def commits(result: dict[str, Any]) -> list[str | None]:
    """Returns the commits that computed a result, in order."""
    environments = [result["environment"], *result.get("resumed", [])]
    return list(dict.fromkeys(one["commit"] for one in environments))


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


def markdown(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Returns a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def print_table(title: str, head: tuple[str, ...], rows: Iterable[tuple]) -> None:
    """Prints a table, whose last column folds long lines."""
    # Imported here because Markdown does not need rich.
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title)
    for name in head[:-1]:
        table.add_column(name, justify="right" if name else "left")
    table.add_column(head[-1], overflow="fold")
    for row in rows:
        table.add_row(*row)
    # Names of files can look like markup.
    Console(markup=False, emoji=False).print(table)
