"""The league: every cell on every task, with equal numbers of parameters.

Each cell of a task gets the largest width whose network has at most the parameters of
the budget. All other settings of a task are equal for all cells. The folder of a run is
`OUT/TASK/CELL`, see `experiments/runs/folder.py`; a cell that cannot be trained has
`failure.json` there in place of a result.
"""

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax

from experiments.reports.data.tables import spread
from experiments.runs.environment import describe_environment
from experiments.runs.folder import (
    FAILURE,
    RESULT,
    clear,
    locked,
    read_failure,
    read_result,
    to_json,
    write,
    writing,
)
from experiments.settings.league import LeagueTask
from experiments.settings.reading import to_dict
from experiments.settings.rules import require
from experiments.settings.wording import nearest
from experiments.supervised.loop import LossNotFinite
from experiments.supervised.network import cell_names
from experiments.supervised.run import run
from experiments.supervised.tasks import TASKS

# Cells that would repeat the run of another cell.
SAME = {"OptimizedLSTMCell": "LSTMCell"}


class Entry(NamedTuple):
    """A cell on a task.

    Attributes:
      task: the task.
      cell: class of the cell.
      folder: folder of its run.
    """

    task: LeagueTask
    cell: str
    folder: Path

    @property
    def name(self) -> str:
        """The name of the result."""
        return f"league-{self.task.name}"


def entries(tasks: list[LeagueTask], cells: list[str], out: Path) -> list[Entry]:
    """Returns the cells of each task.

    Args:
      tasks: the tasks.
      cells: classes of the cells; empty: all that the tasks choose.
      out: folder of the league.

    Raises:
      ConfigError: a cell is unknown, or none of the tasks has it.
    """
    known = [name for name in cell_names() if name not in SAME]
    for cell in cells:
        require(
            cell not in SAME,
            f"`--cells` must not have {cell}, which computes what {SAME.get(cell)} "
            "computes.",
        )
    for cell in [*cells, *(name for task in tasks for name in task.budget.cells)]:
        require(cell in known, f"no cell `{cell}` in the league{nearest(cell, known)}")
    found = [
        Entry(task, cell, out / task.name / cell)
        for task in tasks
        for cell in dict.fromkeys(task.budget.cells) or known
        if not cells or cell in cells
    ]
    require(bool(found), f"none of the tasks has the cells {', '.join(cells)}.")
    return found


def run_league(chosen: list[Entry], overwrite: bool = False) -> None:
    """Trains the networks of all entries, and prints a line for each.

    Finished entries are skipped, and an interrupted run continues.

    Args:
      chosen: the entries.
      overwrite: whether to train finished entries again.

    Raises:
      ConfigError: a folder has other contents or another process uses it.
      Interrupted: a signal has ended the run; its state was saved.
    """
    started = time.monotonic()
    sizes = {entry.task.name: sizes_of(entry.task) for entry in chosen}
    if overwrite:
        # All at once: a run that is interrupted goes on without --overwrite.
        for entry in chosen:
            if entry.folder.is_dir():
                with locked(entry.folder):
                    clear(entry.folder)
    left = [entry for entry in chosen if not has_ended(entry, sizes[entry.task.name])]
    print(f"{len(chosen) - len(left)} of {len(chosen)} runs already finished")
    for number, entry in enumerate(left, len(chosen) - len(left) + 1):
        said = run_entry(entry, sizes[entry.task.name])
        seconds = time.monotonic() - started
        place = f"{entry.task.name}/{entry.cell}"
        print(f"{seconds:7.0f} s  {number}/{len(chosen)} {place}: {said}", flush=True)
        # Compiled programs of other widths are not used again.
        jax.clear_caches()


def has_ended(entry: Entry, size: Callable[[str, int], int]) -> bool:
    """Says whether an entry has a result or a failure.

    Args:
      entry: the entry.
      size: the function of `sizes_of`.

    Raises:
      ConfigError: the run had other settings, or a file is damaged.
    """
    if (entry.folder / RESULT).is_file():
        found = read_result(entry.folder / RESULT)
    elif (entry.folder / FAILURE).is_file():
        found = read_failure(entry.folder / FAILURE)
    else:
        return False
    budget = entry.task.budget.parameters
    require(
        entry.task.is_of(entry.cell, found["config"])
        and is_largest(
            lambda width: size(entry.cell, width),
            budget,
            found["config"]["model"]["features"],
        ),
        f"the run in `{entry.folder}` had other settings. Pass --overwrite, or another "
        "folder with --out.",
    )
    return True


def run_entry(entry: Entry, size: Callable[[str, int], int]) -> str:
    """Trains the networks of one entry, and returns a summary of one line.

    Args:
      entry: the entry.
      size: the function of `sizes_of`.
    """
    budget = entry.task.budget.parameters
    try:
        features = largest_width(lambda width: size(entry.cell, width), budget)
    except (TypeError, ValueError) as error:
        return note_failure(entry, 1, f"the network cannot be built: {error}")
    experiment = entry.task.of(entry.cell, features)
    try:
        result = run(experiment, entry.folder, entry.name, None)
    except LossNotFinite as error:
        return note_failure(entry, features, str(error).partition(".")[0])
    split, _, metric = experiment.published.metric.partition(".")
    return (
        f"{spread(result['metrics'][split][metric])}, {features} units, "
        f"{result['parameters']:,} parameters, {result['seconds']:.0f} s"
    )


def note_failure(entry: Entry, features: int, reason: str) -> str:
    """Writes why an entry has no result, and returns the reason as one line."""
    reason = " ".join(reason.split())
    with writing(entry.folder):
        entry.folder.mkdir(parents=True, exist_ok=True)
    found = {
        "reason": reason,
        "config": to_dict(entry.task.of(entry.cell, features)),
        "environment": describe_environment(),
    }
    write(entry.folder / FAILURE, to_json(found))
    return f"failed: {reason}"


def sizes_of(task: LeagueTask) -> Callable[[str, int], int]:
    """Returns a function of a cell and a width: the number of parameters.

    The data of the task are read once; nothing is computed on a device.
    """
    first = TASKS[task.experiment.task.name](task.experiment)

    def size(cell: str, features: int) -> int:
        config = task.of(cell, features).model
        model = first.model.clone(config=config)
        key = jax.eval_shape(lambda: jax.random.key(0))
        variables = jax.eval_shape(model.init, key, first.sample)
        return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(variables))

    return size


def is_largest(size: Callable[[int], int], budget: int, width: int) -> bool:
    """Says whether a width is that of `largest_width`, or 1 if there is none."""
    if size(width) > budget:
        return width == 1
    return size(width + 1) > budget


def largest_width(size: Callable[[int], int], budget: int) -> int:
    """Returns the largest width with at most `budget` parameters, by bisection.

    Args:
      size: number of parameters for a width; it must not fall.
      budget: largest number of parameters.

    Raises:
      ConfigError: a network of width 1 has more.

    >>> largest_width(lambda width: width**2, 27)
    5
    """
    least = size(1)
    require(
        least <= budget,
        f"a network of width 1 must have at most {budget:,} parameters, got {least:,}.",
    )
    low, high = 1, 2
    while size(high) <= budget:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if size(middle) <= budget else (low, middle)
    return low
