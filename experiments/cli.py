"""The command line, `python -m experiments`.

A user error prints one line to stderr and exits with status 2. jax is imported only
when a run starts, so all other commands answer immediately.
"""

import os
import sys
import traceback
from pathlib import Path
from typing import Any

from experiments.runs.folder import (
    CHECKPOINTS,
    ENVIRONMENT,
    RESULT,
    check,
    locked,
    read_result,
    remove,
)
from experiments.runs.interruption import Interrupted, Interruption
from experiments.settings.options import (
    HELP,
    Run,
    parse_inspect,
    parse_run,
    parse_sample,
)
from experiments.settings.reading import (
    config_header,
    config_names,
    config_path,
    league_names,
    paper_names,
    read_config,
    read_league,
    readings,
    to_dict,
    toml_lines,
)
from experiments.settings.rules import ConfigError
from experiments.settings.supervised import Supervised
from experiments.settings.wording import INSTALL, nearest

RUNS = Path("runs")

USAGE = """\
usage: python -m experiments VERB ...

  list                  print the names and titles of the configs
  list --conditions     print the conditions of each row of 1997: Tables 10 and 11
  show NAME             print a config as TOML: its header, values and readings;
                        with `--reading R`, the values of that reading
  run NAME [OPTION ...] train and test; `run NAME --help` lists the options
  run NAME --reading R  train and test with another reading of the paper; `show NAME`
                        lists the readings
  run-all [ROW ...]     run many rows in parallel; ROW is NAME or NAME:R, and can
                        contain `*`; default: all rows of 1997 as written
  league [OPTION ...]   train every cell on the tasks of configs/league, with equal
                        numbers of parameters; see below
  report [RUN ...]      print Markdown tables of finished runs (default: all in runs/)
  report paper1997      compare the committed results with the paper; write
                        docs/experiments.md, docs/paper1997.md, docs/paper1997/*.svg
  report data           compare the committed results on data sets with published
                        figures; write docs/results.md and docs/results/*.svg
  report league         compare the cells of the league by the committed results; write
                        docs/league.md and docs/league/*.svg
  sample RUN [OPTION ...]  print text that a language model writes; `sample RUN --help`
                        lists the options
  inspect RUN [OPTION ...]  print how the trained cells work and write pictures of their
                        gates, gradients, spectra and saturation to RUN/inspect;
                        `inspect RUN --help` lists the options
  keep RUN ...          copy results to experiments/results, so that you can commit them
                        (RUN: the folder of a run, or of a league)

NAME is a name that `list` prints, or a path to a .toml file. Every value of a config is
an option of `run`, except the title, the task's name and the published results. Results
go to runs/NAME-seedSEED, or to the folder that --out names:

  python -m experiments run temporal-order-6a --trials 5 --learning.rate 0.4
  python -m experiments run-all 'reber-*' 'reber-*:direct' --processes 2 --trials 8

After the rows, `run-all` takes `--processes N` (default: one per core), `--out FOLDER`,
which contains the folders of the runs (default: runs), and options for all runs.
Finished runs are not repeated, interrupted runs are resumed.

`league` takes `--tasks TASK,...` and `--cells CELL,...` (default: all), `--out FOLDER`
(default: runs/league) and `--overwrite`, which trains finished cells again. Finished
cells are not repeated, an interrupted cell is resumed.

--traceback, with any verb, prints the traceback of an error."""

PROG = "python -m experiments"


def main(argv: list[str] | None = None) -> int:
    """Runs a command line and returns its exit status.

    Args:
      argv: the arguments after `python -m experiments`; default: those of the process.

    Returns:
      0 on success, 1 if stdout was closed, 2 after a user error, 130 after SIGINT
      (Ctrl-C), 143 after SIGTERM.
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
        # The reader, such as `head`, has closed the pipe.
        sys.stdout = None
        return 1
    except OSError as error:
        if with_traceback:
            traceback.print_exc()
        else:
            print(f"error: {error}", file=sys.stderr)
        return 2
    except Interrupted as interrupted:
        without = " without --overwrite" if "--overwrite" in arguments else ""
        again = f"Repeat the command{without} to go on."
        print(f"interrupted: {interrupted}. {again}", file=sys.stderr)
        return interrupted.status
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
    """Prints each config's name and title, or the conditions of the rows of 1997."""
    if arguments == ["--conditions"]:
        from experiments.reports.paper1997.conditions import tables

        print(*tables().values(), sep="\n\n")
        return
    if arguments:
        given = " ".join(arguments)
        raise ConfigError(f"`list` takes only `--conditions`, got `{given}`.")
    names = config_names()
    width = max(map(len, names), default=0)
    for name in names:
        print(f"{name:{width}}  {read_config(config_path(name)).title}")


def show_config(arguments: list[str]) -> None:
    """Prints a config's header and all its values, as TOML that can be read again."""
    name, rest = _config_name("show", arguments)
    reading, rest = _option("--reading", rest)
    if rest:
        raise ConfigError(f"`show` takes one config, also got `{' '.join(rest)}`.")
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
    """Trains and tests a config; options override the values of the file."""
    # Until training starts, there is nothing to save.
    with Interruption(at_once=True):
        _run_config(arguments)


def _run_config(arguments: list[str]) -> None:
    name, rest = _config_name("run", arguments)
    path = config_path(name)
    reading, rest = _option("--reading", rest)
    experiment = read_config(path, reading)
    command = parse_run(experiment, rest, readings(path), f"{PROG} run {name}")
    if command is None:
        return
    run_name = path.stem if reading is None else f"{path.stem}-{reading}"
    flags, experiment = command.flags, command.experiment
    folder = flags.out or RUNS / f"{run_name}-seed{experiment.seed}"
    # Several processes check it together, so that none waits for one that has ended.
    is_alone = getattr(flags, "coordinator", None) is None
    if is_alone and check(folder, experiment, flags.overwrite):
        _show_finished(folder)
        return
    start = _run_on_data if isinstance(experiment, Supervised) else _run_of_paper
    try:
        result = start(command, folder, path.stem, reading)
        # Of several processes, one has the result.
        if result is not None:
            _show(folder, result)
            print(f"the results are in {folder}")
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"`run` needs the package {error.name}: {INSTALL}."
        ) from error


def _show(folder: Path, result: dict[str, Any]) -> None:
    # Imported here because a run that starts does not need it yet.
    from experiments.reports.runs import show

    show(folder, result)


def _show_finished(folder: Path) -> None:
    result = read_result(folder / RESULT)
    # A process that was killed after it had written the result leaves its checkpoints.
    if (folder / CHECKPOINTS).exists():
        with locked(folder):
            remove(folder, CHECKPOINTS, ENVIRONMENT)
    _show(folder, result)
    print(f"the run in {folder} is already finished; pass --overwrite to repeat it")


def _run_of_paper(
    command: Run, folder: Path, name: str, reading: str | None
) -> dict[str, Any]:
    # Imported here because it imports jax.
    from experiments.paper1997.run import run

    return run(command.experiment, folder, name, reading, command.flags.overwrite)


def _run_on_data(
    command: Run, folder: Path, name: str, reading: str | None
) -> dict[str, Any] | None:
    # Imported here because they import jax.
    from experiments.supervised.distributed import join

    flags = command.flags
    if flags.coordinator is not None:
        join(flags)
    from experiments.supervised.run import run

    return run(command.experiment, folder, name, reading, flags)


def sample_text(arguments: list[str]) -> None:
    """Prints text that a trained language model writes, as it is drawn."""
    if not arguments or arguments[0].startswith("-"):
        raise ConfigError("`sample` needs the folder of a run, got nothing.")
    folder, *rest = arguments
    options = parse_sample(rest, f"{PROG} sample {folder}")
    if options is None:
        return
    # Imported here because it imports jax.
    from experiments.supervised.sampling import print_sample

    print_sample(Path(folder), options)


def inspect_run(arguments: list[str]) -> None:
    """Prints how the cells of a trained network work, and writes pictures of it."""
    if not arguments or arguments[0].startswith("-"):
        raise ConfigError("`inspect` needs the folder of a run, got nothing.")
    folder, *rest = arguments
    options = parse_inspect(rest, f"{PROG} inspect {folder}")
    if options is None:
        return
    try:
        # Imported here because it imports jax.
        from experiments.supervised.inspection import inspect
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"`inspect` needs the package {error.name}: {INSTALL}."
        ) from error

    inspect(Path(folder), options)


def run_rows(arguments: list[str]) -> None:
    """Runs many rows, each in its own process."""
    # Imported here because no other verb needs it.
    from experiments.runs.sweep import chosen, run_all

    at = next((k for k, word in enumerate(arguments) if word.startswith("-")), None)
    words, options = arguments[:at], arguments[len(arguments) if at is None else at :]
    if HELP & set(options):
        print(USAGE)
        return
    processes, options = _option("--processes", options)
    out, options = _option("--out", options)
    if any(word.startswith("--reading") for word in options):
        raise ConfigError(
            "`run-all` does not take `--reading`. Write readings as ROW:READING."
        )
    processes = str(os.cpu_count() if processes is None else processes)
    if not processes.isdecimal() or int(processes) < 1:
        raise ConfigError(f"`--processes` must be at least 1, got `{processes}`.")
    runs = RUNS if out is None else Path(out)
    if not run_all(chosen(words or paper_names()), options, int(processes), runs):
        raise ConfigError("some runs failed; see above.")


def run_league(arguments: list[str]) -> None:
    """Trains every cell on every task of the league."""
    if HELP & set(arguments):
        print(USAGE)
        return
    out, arguments = _option("--out", arguments)
    tasks, arguments = _option("--tasks", arguments)
    cells, arguments = _option("--cells", arguments)
    overwrite = "--overwrite" in arguments
    others = [word for word in arguments if word != "--overwrite"]
    if others:
        options = ("--tasks", "--cells", "--out", "--overwrite")
        raise ConfigError(
            f"unknown option `{others[0]}` of `league`{nearest(others[0], options)}"
        )
    chosen = league_names() if tasks is None else _names("--tasks", tasks)
    of_tasks = [read_league(name) for name in chosen]
    # Until training starts, there is nothing to save.
    with Interruption(at_once=True):
        # Imported here because it imports jax.
        from experiments.supervised import league

        named = [] if cells is None else _names("--cells", cells)
        folder = RUNS / "league" if out is None else Path(out)
        entries = league.entries(of_tasks, named, folder)
        league.run_league(entries, overwrite)


def report_runs(arguments: list[str]) -> None:
    """Prints Markdown tables of the given runs, or of all runs in `runs`."""
    from experiments.reports.report import KINDS

    if len(arguments) == 1 and arguments[0] in KINDS:
        report_committed(arguments[0])
        return
    finished = sorted(path.parent for path in RUNS.glob("*/result.json"))
    folders = [_finished(word, finished) for word in arguments] or finished
    if not folders:
        raise ConfigError(f"no finished run in `{RUNS}`. Start one with `run`.")
    from experiments.reports.runs import markdown_tables

    print(markdown_tables(folders))


def report_committed(kind: str) -> None:
    """Prints the tables of the committed results, and writes tables and figures.

    Args:
      kind: one of `experiments.reports.report.KINDS`.
    """
    from experiments.reports.report import modules_of, write_figures, write_pages

    try:
        page, figures = modules_of(kind)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"`report {kind}` needs the package {error.name}: {INSTALL}."
        ) from error
    tables = page.tables()
    print(*tables.values(), sep="\n\n")
    for path in [*write_pages(page, tables), *write_figures(figures)]:
        print(f"wrote {path}", file=sys.stderr)


def keep_runs(arguments: list[str]) -> None:
    """Copies the results of runs to the committed results."""
    if not arguments:
        raise ConfigError("`keep` needs at least one folder of a run, got nothing.")
    from experiments.reports.committed import keep
    from experiments.reports.league.results import is_league

    finished = sorted(path.parent for path in RUNS.glob("*/result.json"))
    for word in arguments:
        folder = Path(word) if is_league(Path(word)) else _finished(word, finished)
        print(f"wrote {keep(folder)}")


VERBS = {
    "list": list_configs,
    "show": show_config,
    "run": run_config,
    "run-all": run_rows,
    "league": run_league,
    "sample": sample_text,
    "inspect": inspect_run,
    "report": report_runs,
    "keep": keep_runs,
}


def _finished(word: str, finished: list[Any]) -> Path:
    """Returns the folder of a finished run."""
    if not (Path(word) / "result.json").is_file():
        raise ConfigError(
            f"no finished run `{word}` (expected a folder with result.json)"
            + nearest(word, [str(folder) for folder in finished])
        )
    return Path(word)


def _option(option: str, arguments: list[str]) -> tuple[str | None, list[str]]:
    """Returns the value of an option, or None, and the other arguments."""
    arguments = [
        part
        for word in arguments
        for part in (word.split("=", 1) if word.startswith(f"{option}=") else [word])
    ]
    if option not in arguments:
        return None, arguments
    at = arguments.index(option)
    if at + 1 == len(arguments):
        raise ConfigError(f"`{option}` needs a value, got nothing.")
    rest = arguments[:at] + arguments[at + 2 :]
    if option in rest:
        raise ConfigError(f"`{option}` must be given once, got it more than once.")
    return arguments[at + 1], rest


def _names(option: str, value: str) -> list[str]:
    """Returns the names in a list with commas, each once."""
    names = [name.strip() for name in value.split(",")]
    if not all(names):
        raise ConfigError(f"`{option}` must be names with commas, got `{value}`.")
    return list(dict.fromkeys(names))


def _config_name(verb: str, arguments: list[str]) -> tuple[str, list[str]]:
    """Returns the config's name, which is the first argument, and the others."""
    if arguments and not arguments[0].startswith("-"):
        return arguments[0], arguments[1:]
    got = f"`{arguments[0]}`" if arguments else "nothing"
    names = ", ".join(f"`{name}`" for name in config_names())
    raise ConfigError(f"`{verb}` needs a config, one of {names}, got {got}.")
