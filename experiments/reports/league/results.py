"""The committed results of the league, `results/league.json`."""

import math
from pathlib import Path
from typing import Any

from experiments.reports import committed
from experiments.reports.tables import commits
from experiments.runs.folder import (
    FAILURE,
    RESULT,
    read_failure,
    read_json,
    read_result,
    to_json,
    write,
)
from experiments.settings.league import LeagueTask
from experiments.settings.reading import league_names, read_league
from experiments.settings.rules import ConfigError

LEAGUE = committed.RESULTS / "league.json"


def league_results() -> dict[str, dict[str, Any]]:
    """Returns the committed results by task.

    Returns:
      For each task `settings`, see `LeagueTask.settings`, and `cells`: by cell its
      `features`, `parameters`, `values` of the published metric for each seed,
      `updates`, `best_updates`, `seconds`, `processor` and `commits`; or `failure`, the
      reason, and `commits`.

    Raises:
      ConfigError: the file is damaged.
    """
    return read_json(LEAGUE) if LEAGUE.is_file() else {}


def is_league(folder: Path) -> bool:
    """Says whether a folder is that of a league, not that of a run."""
    return not (folder / RESULT).is_file() and any(
        (folder / name).is_dir() for name in league_names()
    )


def keep(folder: Path) -> Path:
    """Adds the results of a league to the committed results.

    Committed results of other cells stay, if the settings of their task are the same.

    Args:
      folder: folder of the league.

    Returns:
      The new file.

    Raises:
      ConfigError: no cell has ended, a run has other settings than its file in
        `configs/league`, or ran with uncommitted code; or a file is damaged.
    """
    before, found = league_results(), {}
    for name in league_names():
        task = read_league(name)
        settings = task.settings()
        old = before.get(name, {})
        cells = old["cells"] if old.get("settings") == settings else {}
        cells |= _ended(task, folder / name)
        if cells:
            cells = {cell: cells[cell] for cell in sorted(cells)}
            found[name] = {"settings": settings, "cells": cells}
    if not found:
        raise ConfigError(f"`{folder}` must have a cell that has ended, got none.")
    write(LEAGUE, to_json(found) + "\n")
    return LEAGUE


def _ended(task: LeagueTask, folder: Path) -> dict[str, Any]:
    """Returns the cells of a task that have ended, by name."""
    found = {}
    for inner in sorted(folder.glob("*/")):
        if (inner / RESULT).is_file():
            result = read_result(inner / RESULT)
            cell = _of_result(result)
        elif (inner / FAILURE).is_file():
            result = read_failure(inner / FAILURE)
            cell = {"failure": result["reason"], "commits": commits(result)}
        else:
            continue
        is_within = result.get("parameters", 0) <= task.budget.parameters
        if not (is_within and task.is_of(inner.name, result["config"])):
            raise ConfigError(
                f"`{inner}` must have the settings of configs/league/{task.name}.toml, "
                "got others."
            )
        committed.check_commits(inner, result)
        found[inner.name] = cell
    return found


def _of_result(result: dict[str, Any]) -> dict[str, Any]:
    split, _, metric = result["config"]["published"]["metric"].partition(".")
    return {
        "features": result["config"]["model"]["features"],
        "parameters": result["parameters"],
        "values": [_digits(value) for value in result["metrics"][split][metric]],
        "updates": result["updates"],
        "best_updates": result["best_updates"],
        "seconds": round(result["seconds"], 1),
        "processor": result["environment"]["processor"],
        "commits": commits(result),
    }


def _digits(value: float | None) -> float:
    return math.nan if value is None else float(f"{value:.6g}")
