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
    kinds = {False: of_paper, True: of_data}
    found = {on: [of for of in results if is_of_data(of) == on] for on in kinds}
    return "\n\n".join(kinds[on].runs_table(of) for on, of in found.items() if of)


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
