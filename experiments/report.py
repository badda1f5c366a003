"""The paper's numbers beside ours: for the terminal, and as Markdown."""

import json
import statistics
from pathlib import Path
from typing import Any

from experiments.config import ConfigError, config_path, read_config, to_dict


def summary(result: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Returns the rows of the table of one run: what, the paper's, ours.

    Args:
      result: as in `result.json`.
    """
    paper, trials = result["config"]["paper"], result["trials"]
    solved = [trial for trial in trials if trial["solved"]]
    wrong = [trial["wrong"] for trial in solved]
    tested = result["config"]["test_sequences"]
    each = ", ".join(
        f"{trial['sequences']:,}" if trial["solved"] else "failed" for trial in trials
    )
    return [
        (
            "trials solved",
            f"all of {paper['trials']}",
            f"{len(solved)} of {len(trials)}",
        ),
        (
            "sequences to success, mean",
            f"{paper['sequences']:,}",
            _mean([trial["sequences"] for trial in solved], ",.0f"),
        ),
        ("each trial", "-", each),
        ("weights", str(paper["weights"]), str(result["weights"])),
        (
            "wrong test sequences, mean",
            f"{paper['wrong']} of {paper['test_sequences']}",
            f"{_mean(wrong, '.2f')} of {tested}",
        ),
        (
            "wrong, each trial",
            f"at most {paper['most_wrong']}",
            ", ".join(map(str, wrong)) or "-",
        ),
        (
            "mean absolute test error",
            f"< {paper['mean_error']:g}",
            _mean([trial["mean_error"] for trial in solved], ".4f"),
        ),
    ]


def print_table(result: dict[str, Any]) -> None:
    """Prints the table of one run."""
    # Here, as the Markdown table needs no rich.
    from rich.console import Console
    from rich.table import Table

    paper = result["config"]["paper"]
    table = Table(title=f"{result['config']['title']}: table {paper['table']}")
    table.add_column("")
    table.add_column("paper", justify="right")
    table.add_column("ours", overflow="fold")
    for row in summary(result):
        table.add_row(*row)
    Console().print(table)


def markdown_table(folders: list[Path]) -> str:
    """Returns the table of finished runs, a row each.

    Args:
      folders: each with a `result.json`.
    """
    head = (
        "experiment",
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
    lines = [_row(head), _row("---" for _ in head)]
    for folder in folders:
        path = folder / "result.json"
        try:
            result = json.loads(path.read_text())
        except json.JSONDecodeError as error:
            raise ConfigError(f"{path} is damaged: {error}.") from error
        lines.append(_row(_cells(result)))
    return "\n".join(lines)


def _cells(result: dict[str, Any]) -> tuple[str, ...]:
    paper, trials = result["config"]["paper"], result["trials"]
    solved = [trial for trial in trials if trial["solved"]]
    sequences = [trial["sequences"] for trial in solved]
    spread = f" ({min(sequences):,}–{max(sequences):,})" if sequences else ""
    return (
        f"{paper['row']} (table {paper['table']})",
        f"{paper['weights']}, {result['weights']}",
        f"{paper['sequences']:,}",
        _mean(sequences, ",.0f") + spread,
        f"{len(solved)} of {len(trials)}",
        f"{paper['wrong']} of {paper['test_sequences']}",
        f"{_mean([trial['wrong'] for trial in solved], '.2f', with_sd=False)} of "
        f"{result['config']['test_sequences']}",
        ", ".join(changes(result)) or "-",
        str(result["config"]["seed"]),
        str(result["environment"]["commit"]),
        f"{result['seconds']:.0f}",
    )


def changes(result: dict[str, Any]) -> list[str]:
    """Returns the options that differ from the config's file, the seed apart."""
    try:
        file = to_dict(read_config(config_path(result["name"])))
    except ConfigError:
        return ["no such config now"]
    before, after = _flat(file), _flat(result["config"])
    names = [name for name in after if name not in ("seed", "title")]
    return [
        f"{name} = {json.dumps(after[name])}"
        for name in names
        if after[name] != before.get(name)
    ]


def _flat(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns nested tables as one, with dots in the names."""
    flat = {}
    for key, value in table.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def _mean(values: list[float], form: str, with_sd: bool = True) -> str:
    """Returns mean and standard deviation, as far as there are values for them."""
    if not values:
        return "-"
    mean = format(statistics.mean(values), form)
    if not with_sd or len(values) < 2:
        return mean
    return f"{mean} ± {format(statistics.stdev(values), form)}"


def _row(cells: Any) -> str:
    return f"| {' | '.join(cells)} |"
