"""Reads the files in `configs`.

Nothing here imports jax, so the command line answers immediately.
"""

import dataclasses
import json
import tomllib
from pathlib import Path
from typing import Any

from experiments.settings.config import Experiment
from experiments.settings.data_tasks import DATA_TASKS
from experiments.settings.league import Budget, LeagueTask
from experiments.settings.rules import ConfigError, from_table, require
from experiments.settings.supervised import Supervised
from experiments.settings.tasks import TASK_OPTIONS
from experiments.settings.wording import nearest

# UTF-8, after the mark that some editors write at the start.
ENCODING = "utf-8-sig"
# Tables and lists around a value; configs need four.
DEEPEST = 16
TOO_DEEP = f"tables and lists must be nested at most {DEEPEST} deep."
TOO_LARGE = "integers must have at most 64 bits."

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
# One file for each published number of Hochreiter and Schmidhuber (1997) is in
# `CONFIGS` itself, one for each experiment on a data set is in this folder.
ON_DATA = CONFIGS / "data"
# One file for each task of the league.
LEAGUE = CONFIGS / "league"
# Readings of every config of the paper.
EVERY_ROW = Path(__file__).resolve().parent / "every_row.toml"


def paper_names() -> list[str]:
    """Returns the names of the configs of the paper of 1997, sorted."""
    return sorted(path.stem for path in CONFIGS.glob("*.toml"))


def data_names() -> list[str]:
    """Returns the names of the configs on data sets, sorted."""
    return sorted(path.stem for path in ON_DATA.glob("*.toml"))


def config_names() -> list[str]:
    """Returns the names of all configs: the files in `configs`, without `.toml`."""
    return data_names() + paper_names()


def config_path(name_or_path: str | Path) -> Path:
    """Returns the file of a config, given its name or a path to a `.toml` file.

    Raises:
      ConfigError: the config does not exist; the error suggests names.
    """
    path = Path(name_or_path)
    if path.suffix == ".toml" and path.is_file():
        return path
    for folder in (CONFIGS, ON_DATA):
        if (folder / f"{name_or_path}.toml").is_file():
            return folder / f"{name_or_path}.toml"
    stem = path.name.removesuffix(".toml")
    raise ConfigError(f"no config `{name_or_path}`{nearest(stem, config_names())}")


@dataclasses.dataclass(frozen=True)
class Reading:
    """A reading of a config, other than the literal one.

    Attributes:
      kind: `"silent"`: the paper does not say; `"contradictory"`: the paper says two
        things; `"departure"`: the paper says otherwise; `"baseline"`: another network
        or gradient; `"competitor"`: a network that the paper compares LSTM with.
        Experiments on data sets have only `"variant"`.
      changes: values of the config by dotted name.
    """

    kind: str
    changes: dict[str, Any]


KINDS = "silent", "contradictory", "departure", "baseline", "competitor"
DATA_KINDS = ("variant",)


def readings(path: str | Path) -> dict[str, Reading]:
    """Returns the readings of a config by name: of its file, then those of every row.

    Raises:
      ConfigError: a reading has no kind, or `read_config` fails.
    """
    found = readings_of(path, "readings")
    if is_on_data(_load(path)):
        return found
    return found | {k: v for k, v in readings_of(EVERY_ROW).items() if k not in found}


def baselines() -> list[str]:
    """Returns the names of the readings that are other networks or gradients."""
    return [k for k, v in readings_of(EVERY_ROW).items() if v.kind == "baseline"]


def is_on_data(table: dict[str, Any]) -> bool:
    """Says whether the table of a config is that of an experiment on a data set."""
    task = table.get("task")
    name = task.get("name") if isinstance(task, dict) else None
    return isinstance(name, str) and name in DATA_TASKS


def readings_of(path: str | Path, section: str | None = None) -> dict[str, Reading]:
    """Returns the readings of one file, or of one section of it."""
    where, table, found = _shown(Path(path)), _load(path), {}
    kinds, default = (DATA_KINDS, "variant") if is_on_data(table) else (KINDS, None)
    section_of = table.get(section, {}) if section else table
    if not isinstance(section_of, dict):
        raise ConfigError(f"{where}: `{section}` must be a section.")
    for name, changes in section_of.items():
        if not isinstance(changes, dict):
            raise ConfigError(f"{where}: the reading `{name}` must be a section.")
        kind = changes.pop("kind", default)
        if kind not in kinds:
            raise ConfigError(
                f"{where} [{f'{section}.' if section else ''}{name}]: `kind` must be "
                f"one of {list(kinds)}, got {kind!r}."
            )
        found[name] = Reading(kind, changes)
    return found


def read_config(
    path: str | Path, reading: str | None = None
) -> Experiment | Supervised:
    """Reads and checks a TOML file.

    Args:
      path: of the file.
      reading: name of one of its readings; None for the literal one.

    Raises:
      ConfigError: the file cannot be read or is not TOML, has unknown or missing keys,
        values of a wrong type, or values that break a rule.
    """
    where, table = _shown(Path(path)), _load(path)
    table.pop("readings", None)
    if reading is not None:
        known = readings(path)
        if reading not in known:
            raise ConfigError(
                f"{where}: no reading `{reading}`{nearest(reading, known)}"
            )
        for name, value in known[reading].changes.items():
            *sections, key = name.split(".")
            inner = table
            for section in sections:
                inner = inner.setdefault(section, {})
                if not isinstance(inner, dict):
                    raise ConfigError(
                        f"{where}: `{name}` of the reading `{reading}` must be a key "
                        f"in a section, but `{section}` is a value."
                    )
            inner[key] = value
    return from_dict(table, where)


def league_names() -> list[str]:
    """Returns the names of the tasks of the league, sorted."""
    return sorted(path.stem for path in LEAGUE.glob("*.toml"))


def read_league(name: str) -> LeagueTask:
    """Reads and checks the file of a task of the league.

    The file is a config on a data set without `model.cell` and `model.features`, and
    with a section `[league]`.

    Raises:
      ConfigError: there is no such task; else as `read_config`.
    """
    if name not in league_names():
        raise ConfigError(f"no task `{name}`{nearest(name, league_names())}")
    path = LEAGUE / f"{name}.toml"
    where, table = _shown(path), _load(path)
    for section in ("league", "model"):
        if not isinstance(table.setdefault(section, {}), dict):
            raise ConfigError(
                f"{where}: `{section}` must be a section, got {table[section]!r}."
            )
    budget = from_table(Budget, table.pop("league"), f"{where} [league]")
    # `LeagueTask.of` sets the cell and the width.
    table["model"].setdefault("features", 1)
    return LeagueTask(name=name, budget=budget, experiment=from_dict(table, where))


def from_dict(table: dict[str, Any], where: str) -> Experiment | Supervised:
    """Returns the experiment of a table, such as that of `to_dict`.

    Args:
      table: sections and values.
      where: the file, for error messages.

    Raises:
      ConfigError: as `read_config`.
    """
    task, known = table.get("task"), TASK_OPTIONS | DATA_TASKS
    if isinstance(task, dict):
        name = task.get("name")
        if name is None:
            raise ConfigError(f"{where} [task]: missing key `name`.")
        if str(name) not in known:
            suggestion = nearest(str(name), known)
            raise ConfigError(f"{where} [task]: unknown task `{name}`{suggestion}")
    # Without a task, the section of the optimizer tells which kind was meant.
    kind = Supervised if is_on_data(table) or "optimizer" in table else Experiment
    return from_table(kind, table, where)


def _load(path: str | Path) -> dict[str, Any]:
    where = _shown(Path(path))
    try:
        table = tomllib.loads(Path(path).read_text(ENCODING))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{where}: {error}") from error
    except RecursionError as error:
        raise ConfigError(f"{where}: {TOO_DEEP}") from error
    except ValueError as error:  # Python reads integers of at most 4300 digits.
        raise ConfigError(f"{where}: {TOO_LARGE}") from error
    _check_value(table, where)
    return table


def _check_value(value: Any, where: str, depth: int = 0) -> None:
    """Checks that JSON has a value of a TOML file too.

    Args:
      value: the file's table, or a value in it.
      where: the file and the key, for the error.
      depth: number of tables and lists around the value.
    """
    require(depth <= DEEPEST, f"{where}: {TOO_DEEP}")
    if isinstance(value, dict):
        for key, inner in value.items():
            joint = "." if depth else ": "
            _check_value(inner, f"{where}{joint}{key}", depth + 1)
    elif isinstance(value, list):
        for inner in value:
            _check_value(inner, where, depth + 1)
    elif isinstance(value, int):
        require(-(2**63) <= value < 2**63, f"{where}: {TOO_LARGE}")
    else:
        require(
            isinstance(value, str | float),
            f"{where}: a value must not be a date or a time, got {value}. Write text "
            "in quotes.",
        )


def config_header(path: str | Path) -> str:
    """Returns the comment lines that open a config file."""
    lines = Path(path).read_text(ENCODING).splitlines()
    end = next((i for i, x in enumerate(lines) if not x.startswith("#")), len(lines))
    return "\n".join(lines[:end])


def to_dict(experiment: Experiment | Supervised) -> dict[str, Any]:
    """Converts an experiment to JSON types: dictionaries, lists, scalars and None."""
    return json.loads(json.dumps(dataclasses.asdict(experiment)))


def toml_lines(table: dict[str, Any]) -> list[str]:
    """Converts a table to lines of TOML, with its values before its sections."""
    lines, sections = [], []
    for key, value in table.items():
        if isinstance(value, dict):
            sections += ["", f"[{key}]", *toml_lines(value)]
        elif value is None:
            lines.append(f"# {key} is not set")
        else:
            lines.append(f"{key} = {json.dumps(value, ensure_ascii=False)}")
    return lines + sections


def _shown(path: Path) -> str:
    """Returns the path relative to the working folder, if it is inside."""
    path, here = path.resolve(), Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
