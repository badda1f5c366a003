"""Tables and figures of finished runs."""

from pathlib import Path
from typing import Any

from experiments.reports.data import tables as of_data
from experiments.reports.paper1997 import tables as of_paper
from experiments.reports.tables import print_table
from experiments.runs.folder import (
    CURVE,
    METRICS,
    RESULT,
    is_of_data,
    read_result,
    writing,
)


def markdown_tables(folders: list[Path]) -> str:
    """Returns a Markdown table of runs of the paper, and one of runs on data sets.

    A table without rows is left out.

    Args:
      folders: folders of runs, each with a `result.json`.

    Raises:
      ConfigError: a result is damaged.
    """
    results = [read_result(folder / RESULT) for folder in folders]
    on_data = [result for result in results if is_of_data(result)]
    others = [result for result in results if not is_of_data(result)]
    tables = (of_paper, others), (of_data, on_data)
    return "\n\n".join(kind.runs_table(runs) for kind, runs in tables if runs)


def show(folder: Path, result: dict[str, Any]) -> None:
    """Prints the table of a finished run, and draws its learning curve.

    Runs on data sets have none.

    Raises:
      ConfigError: the curves are damaged, or the figure cannot be written.
    """
    tables = of_data if is_of_data(result) else of_paper
    title, rows = tables.summary_title(result), tables.summary(result)
    print_table(title, tables.SUMMARY_HEAD, rows)
    if tables is of_paper and not (folder / CURVE).exists():
        # Imported here because tables need no matplotlib.
        from experiments.reports.paper1997.learning_curve import save_learning_curve

        with writing(folder / CURVE):
            save_learning_curve(folder / METRICS, result, folder / CURVE)
