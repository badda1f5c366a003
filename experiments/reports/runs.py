"""Tables of finished runs."""

from pathlib import Path

from experiments.reports.data_tables import data_table, print_data_table
from experiments.reports.tables import paper_table, print_table
from experiments.runs.folder import RESULT, is_of_data, read_result


def markdown_tables(folders: list[Path]) -> str:
    """Returns a Markdown table of runs of the paper, and one of runs on data sets.

    A table without rows is left out.

    Args:
      folders: folders of runs, each with a `result.json`.

    Raises:
      ConfigError: a result is damaged.
    """
    results = [read_result(folder / RESULT) for folder in folders]
    of_paper = [result for result in results if not is_of_data(result)]
    on_data = [result for result in results if is_of_data(result)]
    tables = []
    if of_paper:
        tables.append(paper_table(of_paper))
    if on_data:
        tables.append(data_table(on_data, with_changes=True))
    return "\n\n".join(tables)


def print_finished(folder: Path) -> None:
    """Prints the table of a run that had finished before.

    Raises:
      ConfigError: its result is damaged.
    """
    result = read_result(folder / RESULT)
    (print_data_table if is_of_data(result) else print_table)(result)
    print(f"the run in {folder} is already finished; pass --overwrite to repeat it")
