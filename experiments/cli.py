"""The command line, `python -m experiments`.

A mistake of the user ends with one line on stderr and exit status 2. Nothing imports
jax before a run starts, so that all other answers come at once.
"""

import os
import sys
import traceback
from pathlib import Path
from typing import Any

from experiments.folder import check
from experiments.settings.options import HELP, INSTALL, parse_run
from experiments.settings.reading import (
    config_header,
    config_names,
    config_path,
    nearest,
    read_config,
    readings,
    to_dict,
    toml_lines,
)
from experiments.settings.rules import ConfigError

RUNS = Path("runs")

USAGE = """\
usage: python -m experiments VERB ...

  list                  names and titles of the configs
  show NAME             a config: its header, its values, as TOML, and its readings;
                        with `--reading R`, its values by that reading
  run NAME [OPTION ...] train and test; `run NAME --help` lists the options
  run NAME --reading R  the same, by another reading of the paper; `show` lists them
  run-all [ROW ...]     many runs, some at a time: ROW is a name that `list` prints, or
                        NAME:R, and may have `*`; without one, all rows as written
  report [RUN ...]      Markdown table of finished runs (default: all under runs/)
  report paper1997      every row of the paper beside the committed results; writes
                        README.md, docs/paper1997.md and docs/paper1997/*.svg
  keep RUN ...          copies results to experiments/results, to be committed

NAME is a name that `list` prints, or a path to a .toml file. Any value of a config is
an option of `run`, but its title, its task's name and what was published; results go
to runs/NAME-seedSEED unless --out names a folder:

  python -m experiments run temporal-order-6a --trials 5 --learning.rate 0.4
  python -m experiments run-all 'reber-*' 'reber-*:direct' --processes 2 --trials 8

`run-all` takes, behind its rows, `--processes N` (default: one for each core), `--out
FOLDER` in which the folders of its runs go (default: runs), and options for all runs.
What has ended is not run again, and what was broken off goes on.

--traceback, with any verb, shows where an error came from."""

PROG = "python -m experiments"


def main(argv: list[str] | None = None) -> int:
    """Runs a command line and returns its exit status.

    Args:
      argv: the words after `python -m experiments`; None takes the process's own.

    Returns:
      0 if all went well, 2 after a mistake of the user, 130 if interrupted.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    with_traceback = "--traceback" in arguments
    arguments = [word for word in arguments if word != "--traceback"]
    try:
        _dispatch(arguments)
    except ConfigError as error:
        if with_traceback:
            traceback.print_exc()
        else:
            print("error:", *str(error).split(), file=sys.stderr)
        return 2
    except BrokenPipeError:
        # The reader, as `head`, has seen enough; nothing more can be written.
        sys.stdout = None
        return 1
    except OSError as error:
        if with_traceback:
            traceback.print_exc()
        else:
            print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return 0


def _dispatch(arguments: list[str]) -> None:
    if not arguments or arguments[0] in HELP:
        print(USAGE)
        return
    verb, *rest = arguments
    if verb not in VERBS:
        raise ConfigError(f"unknown verb `{verb}`{nearest(verb, VERBS)}")
    if rest and rest[0] in HELP:
        print(USAGE)
    else:
        VERBS[verb](rest)


def list_configs(arguments: list[str]) -> None:
    """Prints each config's name and title."""
    if arguments:
        raise ConfigError(f"`list` takes no arguments, got `{' '.join(arguments)}`.")
    names = config_names()
    width = max(map(len, names), default=0)
    for name in names:
        print(f"{name:{width}}  {read_config(config_path(name)).title}")


def show_config(arguments: list[str]) -> None:
    """Prints a config's header and all its values, as TOML that can be read again."""
    name, rest = _config_name("show", arguments)
    reading, rest = _option("--reading", rest)
    if rest:
        raise ConfigError(f"`show` takes one config, got also `{' '.join(rest)}`.")
    path = config_path(name)
    experiment = read_config(path, reading)
    print(config_header(path), "", *toml_lines(to_dict(experiment)), sep="\n")
    if reading is not None:
        return
    for reading, (kind, changes) in (
        (reading, (found.kind, found.changes))
        for reading, found in readings(path).items()
    ):
        section = {"kind": kind} | {f'"{key}"': value for key, value in changes.items()}
        print("", f"[readings.{reading}]", *toml_lines(section), sep="\n")


def run_config(arguments: list[str]) -> None:
    """Trains and tests a config, with options in place of the file's values."""
    name, rest = _config_name("run", arguments)
    path = config_path(name)
    reading, rest = _option("--reading", rest)
    experiment = read_config(path, reading)
    command = parse_run(experiment, rest, prog=f"{PROG} run {name}")
    if command is None:
        return
    run_name = path.stem if reading is None else f"{path.stem}-{reading}"
    default = RUNS / f"{run_name}-seed{command.experiment.seed}"
    folder = command.out or default
    check(folder, command.experiment, command.overwrite)
    try:
        # Here, as it imports jax.
        from experiments.run import run
    except ModuleNotFoundError as error:
        raise ConfigError(f"`run` needs {error.name}: {INSTALL}.") from error

    run(command.experiment, folder, path.stem, reading, command.overwrite)


def run_rows(arguments: list[str]) -> None:
    """Runs many rows, each in a process of its own."""
    # Here, as no other verb needs it.
    from experiments.sweep import chosen, run_all

    at = next((k for k, word in enumerate(arguments) if word.startswith("-")), None)
    words, options = arguments[:at], arguments[len(arguments) if at is None else at :]
    if HELP & set(options):
        print(USAGE)
        return
    processes, options = _option("--processes", options)
    out, options = _option("--out", options)
    if any(word.startswith("--reading") for word in options):
        raise ConfigError("`run-all` takes readings as `ROW:READING`.")
    processes = str(os.cpu_count() if processes is None else processes)
    if not processes.isdecimal() or int(processes) < 1:
        raise ConfigError(f"`--processes` must be at least 1, got `{processes}`.")
    runs = RUNS if out is None else Path(out)
    if not run_all(chosen(words or ["*"]), options, int(processes), runs):
        raise ConfigError("some runs failed.")


def report_runs(arguments: list[str]) -> None:
    """Prints the Markdown table of the runs given, or of all under `runs`."""
    if arguments == ["paper1997"]:
        report_paper()
        return
    finished = sorted(path.parent for path in RUNS.glob("*/result.json"))
    folders = [_finished(word, finished) for word in arguments] or finished
    if not folders:
        raise ConfigError(f"no finished run under `{RUNS}`: start one with `run`.")
    from experiments.reports.tables import markdown_table

    print(markdown_table(folders))


def report_paper() -> None:
    """Prints the tables of the paper's rows, and writes them and the figures."""
    try:
        from experiments.reports import figures, paper1997
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"`report paper1997` needs {error.name}: {INSTALL}."
        ) from error
    tables = paper1997.tables()
    print(*tables.values(), sep="\n\n")
    for path in [*paper1997.write(tables), *figures.write()]:
        print(f"wrote {path}", file=sys.stderr)


def keep_runs(arguments: list[str]) -> None:
    """Copies the results of runs to those that are committed."""
    if not arguments:
        raise ConfigError("`keep` needs the folders of runs, got nothing.")
    from experiments.reports.kept import keep

    finished = sorted(path.parent for path in RUNS.glob("*/result.json"))
    for word in arguments:
        print(f"wrote {keep(_finished(word, finished))}")


VERBS = {
    "list": list_configs,
    "show": show_config,
    "run": run_config,
    "run-all": run_rows,
    "report": report_runs,
    "keep": keep_runs,
}


def _finished(word: str, finished: list[Any]) -> Path:
    """Returns the folder of a finished run."""
    if not (Path(word) / "result.json").is_file():
        raise ConfigError(
            f"no finished run `{word}` (a folder with result.json)"
            + nearest(word, [str(folder) for folder in finished])
        )
    return Path(word)


def _option(option: str, arguments: list[str]) -> tuple[str | None, list[str]]:
    """Returns the word after an option, if it is there, and the other words."""
    arguments = [
        part
        for word in arguments
        for part in (word.split("=", 1) if word.startswith(f"{option}=") else [word])
    ]
    if option not in arguments:
        return None, arguments
    at = arguments.index(option)
    if at + 1 == len(arguments):
        raise ConfigError(f"`{option}` must have a value, got nothing.")
    rest = arguments[:at] + arguments[at + 2 :]
    if option in rest:
        raise ConfigError(f"`{option}` must be given once.")
    return arguments[at + 1], rest


def _config_name(verb: str, arguments: list[str]) -> tuple[str, list[str]]:
    """Returns the config's name, which comes first, and the other words."""
    if arguments and not arguments[0].startswith("-"):
        return arguments[0], arguments[1:]
    got = f"`{arguments[0]}`" if arguments else "nothing"
    names = ", ".join(f"`{name}`" for name in config_names())
    raise ConfigError(f"`{verb}` needs a config first, one of {names}, got {got}.")
