"""Committed results: `experiments/results/CONFIG/READING.json` for each reading.

The modules `results` of `paper1997` and `data` have the folder `RESULTS` of their
results, and what is special about them: `FREE`, the option, or the section of options,
that can differ from the config; `check(folder, result)`; `curve(folder, result)`, the
learning curve that is stored with a result; and `keep_files(folder, result, path)`,
which copies other files. That of `league` has its own `keep`.
"""

from pathlib import Path
from types import ModuleType
from typing import Any

from experiments.reports.tables import changes, commits
from experiments.runs.folder import RESULT, is_of_data, read_result, to_json, write
from experiments.settings.reading import config_path, readings
from experiments.settings.rules import ConfigError

RESULTS = Path(__file__).resolve().parents[1] / "results"
LITERAL = "as-written"


def read_results(folder: Path) -> dict[str, dict[str, Any]]:
    """Returns the committed results of a config by reading, the literal one first.

    Args:
      folder: the folder of the results; its name is that of the config.

    Raises:
      ConfigError: there is a result of a reading that the config does not have.
    """
    known = [LITERAL, *readings(config_path(folder.name))]
    paths = sorted(folder.glob("*.json"), key=lambda path: (path.stem != LITERAL, path))
    for path in paths:
        if path.stem not in known:
            raise ConfigError(
                f"{path}: the config `{folder.name}` has no reading `{path.stem}`."
            )
    return {path.stem: read_result(path) for path in paths}


def result_path(results: Path, result: dict[str, Any]) -> Path:
    """Returns the path of a committed result in a folder of results."""
    return results / result["name"] / f"{result.get('reading') or LITERAL}.json"


def keep(folder: Path) -> Path:
    """Copies the result of a run or of a league to the committed results.

    Args:
      folder: folder of the run or of the league.

    Returns:
      The new path.

    Raises:
      ConfigError: the run has other values or another seed than its config, or ran with
        uncommitted code; or a file is damaged. `check` of its kind names more reasons.
    """
    # Imported here because they import this module.
    from experiments.reports.data import results as of_data
    from experiments.reports.league import results as of_league
    from experiments.reports.paper1997 import results as of_paper

    if of_league.is_league(folder):
        return of_league.keep(folder)
    is_on_data = is_of_data(read_result(folder / RESULT))
    return keep_run(folder, of_data if is_on_data else of_paper)


def keep_run(folder: Path, kind: ModuleType) -> Path:
    """Does `keep` for a run, whose kind is a module `results`."""
    result = read_result(folder / RESULT)
    changed = [
        change
        for change in changes(result)
        if not change.startswith((f"{kind.FREE} =", f"{kind.FREE}."))
    ]
    if changed:
        raise ConfigError(
            f"`{folder}` must have the values of its config, got {', '.join(changed)}."
        )
    check_commits(folder, result)
    kind.check(folder, result)
    result["curve"] = kind.curve(folder, result)
    path = result_path(kind.RESULTS, result)
    path.parent.mkdir(parents=True, exist_ok=True)
    kind.keep_files(folder, result, path)
    write(path, to_json(result) + "\n")
    return path


def check_commits(folder: Path, result: dict[str, Any]) -> None:
    """Checks that a result was computed by committed code.

    Raises:
      ConfigError: it was not.
    """
    for commit in commits(result):
        if commit is None or commit.endswith("-dirty"):
            raise ConfigError(
                f"`{folder}` must be a run of committed code, got the commit {commit}."
            )
