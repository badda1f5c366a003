"""The command line, `python -m experiments`: the only file that imports tyro.

A mistake of the user ends with one line on stderr and exit status 2. Nothing imports
jax before a run starts, so that all other answers come at once.
"""

import contextlib
import dataclasses
import io
import re
import sys
import traceback
import types
import typing
from pathlib import Path
from typing import Annotated, Any

from experiments.config import Experiment
from experiments.reading import (
    config_header,
    config_names,
    config_path,
    describe,
    nearest,
    read_config,
    readings,
    to_dict,
    toml_lines,
)
from experiments.rules import ConfigError

RUNS = Path("runs")
INSTALL = "in a clone, pip install -e '.[experiments]'"
# What was published is not ours to choose, and the file chooses its task.
FIXED = ("--paper.", "--task.name", "--title")

USAGE = """\
usage: python -m experiments VERB ...

  list                  names and titles of the configs
  show NAME             a config: its header and its values, as TOML
  run NAME [OPTION ...] train and test; `run NAME --help` lists the options
  run NAME --reading R  the same, by another reading of the paper; `show` lists them
  report [RUN ...]      Markdown table of finished runs (default: all under runs/)
  report paper1997      every row of the paper beside the committed results; writes
                        README.md, docs/paper1997.md and docs/paper1997/*.svg
  keep RUN ...          copies results to experiments/results, to be committed

NAME is a name that `list` prints, or a path to a .toml file. Any value of a config is
an option of `run`; results go to runs/NAME-seedSEED unless --out names a folder:

  python -m experiments run temporal-order-6a --trials 5 --learning.rate 0.4

--traceback, with any verb, shows where an error came from."""

PROG = "python -m experiments"
HELP = {"-h", "--help"}


@dataclasses.dataclass(frozen=True)
class Run:
    """What `run` was asked to do.

    Attributes:
      experiment: the config with the options in place.
      out: folder of the results; None for the default one.
      overwrite: whether a folder that is not empty may be written to.
    """

    experiment: Experiment
    out: Path | None
    overwrite: bool


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
    if rest:
        raise ConfigError(f"`show` takes one config, got also `{' '.join(rest)}`.")
    path = config_path(name)
    experiment = read_config(path)
    print(config_header(path), "", *toml_lines(to_dict(experiment)), sep="\n")
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
    reading, rest = _reading(rest)
    experiment = read_config(path, reading)
    command = parse_run(experiment, rest, prog=f"{PROG} run {name}")
    if command is None:
        return
    run_name = path.stem if reading is None else f"{path.stem}-{reading}"
    default = RUNS / f"{run_name}-seed{command.experiment.seed}"
    folder = command.out or default
    _check_folder(folder, overwrite=command.overwrite)
    try:
        # Here, as it imports jax.
        from experiments.run import run
    except ModuleNotFoundError as error:
        raise ConfigError(f"`run` needs {error.name}: {INSTALL}.") from error

    run(command.experiment, folder, path.stem, reading)


def report_runs(arguments: list[str]) -> None:
    """Prints the Markdown table of the runs given, or of all under `runs`."""
    if arguments == ["paper1997"]:
        report_paper()
        return
    finished = sorted(path.parent for path in RUNS.glob("*/result.json"))
    folders = [_finished(word, finished) for word in arguments] or finished
    if not folders:
        raise ConfigError(f"no finished run under `{RUNS}`: start one with `run`.")
    from experiments.report import markdown_table

    print(markdown_table(folders))


def report_paper() -> None:
    """Prints the tables of the paper's rows, and writes them and the figures."""
    try:
        from experiments import figures, paper1997
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
    from experiments.kept import keep

    finished = sorted(path.parent for path in RUNS.glob("*/result.json"))
    for word in arguments:
        print(f"wrote {keep(_finished(word, finished))}")


VERBS = {
    "list": list_configs,
    "show": show_config,
    "run": run_config,
    "report": report_runs,
    "keep": keep_runs,
}


def parse_run(experiment: Experiment, arguments: list[str], prog: str) -> Run | None:
    """Returns the experiment with options in place, or None if help was asked for.

    Args:
      experiment: the config, whose values are the defaults.
      arguments: the words after the config's name.
      prog: the command so far, for the help.

    Raises:
      ConfigError: an unknown option, a value of a wrong type, or a broken rule.
    """
    if HELP & set(arguments):
        with contextlib.suppress(SystemExit):
            _parse(experiment, ["--help"], prog)
        return None
    known = _options(experiment) | {"--out": Path | None, "--overwrite": bool}
    groups = _groups(arguments)
    for option, *values in groups:
        _check_option(option, values, known)
    try:
        return _parse(experiment, sum(groups, []), prog)
    except SystemExit as stop:
        text = _broken_rule(stop) or _misused(experiment, groups, known)
        raise ConfigError(text) from stop


def _parse(experiment: Experiment, arguments: list[str], prog: str = "") -> Run:
    """Has tyro parse the options; its own error messages are dropped."""
    try:
        import tyro
    except ModuleNotFoundError as error:
        raise ConfigError(f"`run` needs {error.name}: {INSTALL}.") from error

    def command(
        experiment: Annotated[Experiment, tyro.conf.arg(name="")] = experiment,
        out: Path | None = None,
        overwrite: bool = False,
    ) -> Run:
        """Train and test one config; the defaults below are the file's values.

        Args:
          experiment: the config.
          out: Folder of the results; None is runs/NAME-seedSEED.
          overwrite: Write to that folder even if it is not empty.
        """
        return Run(experiment, out, overwrite)

    with contextlib.redirect_stderr(io.StringIO()):
        # Without the marker, a union of tasks would turn into subcommands.
        markers = (tyro.conf.AvoidSubcommands,)
        return tyro.cli(command, args=arguments, prog=prog, config=markers)


def _options(settings: Any, prefix: str = "") -> dict[str, Any]:
    """Returns each option that stands for a field, and its annotation."""
    options = {}
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        name = field.name.replace("_", "-")
        if dataclasses.is_dataclass(value):
            options |= _options(value, f"{prefix}{name}.")
        else:
            options[f"--{prefix}{name}"] = field.type
    return {name: kind for name, kind in options.items() if not is_fixed(name)}


def is_fixed(option: str) -> bool:
    """Says whether only the config file can set an option."""
    return option.startswith(FIXED)


def _groups(arguments: list[str]) -> list[list[str]]:
    """Splits words into groups: an option, then its values."""
    groups = []
    for word in arguments:
        if word.startswith("-") and not re.match(r"-[\d.]", word):
            option, equals, value = word.partition("=")
            groups.append([option.replace("_", "-")] + [value] * bool(equals))
        elif groups:
            groups[-1].append(word)
        else:
            raise ConfigError(f"an option must start with `--`, got `{word}`.")
    return groups


def _check_option(option: str, values: list[str], known: dict[str, Any]) -> None:
    switched_off = re.sub(r"^(--(?:.*\.)?)no-([^.]*)$", r"\1\2", option)
    if known.get(switched_off) is bool:
        option = switched_off
    if is_fixed(option):
        raise ConfigError(f"`{option}` is fixed by the config file.")
    if option not in known:
        # `--rate` is too far from `--learning.rate` by its letters alone.
        end = "." + option.lstrip("-").rpartition(".")[2]
        same = next((f"; did you mean `{x}`?" for x in known if x.endswith(end)), None)
        raise ConfigError(f"unknown option `{option}`{same or nearest(option, known)}")
    if bool(values) == (known[option] is bool):
        raise ConfigError(_misuse(option, values, known[option]))


def _broken_rule(error: BaseException | None) -> str | None:
    """Returns the text of the `__post_init__` that made tyro stop, if one did."""
    while error is not None and not isinstance(error, ConfigError):
        error = error.__context__
    return None if error is None else str(error)


def _misused(
    experiment: Experiment, groups: list[list[str]], known: dict[str, Any]
) -> str:
    """Returns an error about the first option that tyro refuses by itself."""
    for option, *values in groups:
        try:
            _parse(experiment, [option, *values])
        except SystemExit as stop:
            if _broken_rule(stop) is None:
                return _misuse(option, values, known[option])
    return f"cannot read the options `{' '.join(sum(groups, []))}`."


def _misuse(option: str, values: list[str], kind: Any) -> str:
    got = f"got `{' '.join(values)}`." if values else "got nothing."
    if kind is bool:
        head, dot, last = option.removeprefix("--").rpartition(".")
        return f"`{option}` or `--{head}{dot}no-{last}` takes no value, {got}"
    optional = " or None" if types.NoneType in typing.get_args(kind) else ""
    return f"`{option}` must be {describe(kind)}{optional}, {got}"


def _finished(word: str, finished: list[Any]) -> Path:
    """Returns the folder of a finished run."""
    if not (Path(word) / "result.json").is_file():
        raise ConfigError(
            f"no finished run `{word}` (a folder with result.json)"
            + nearest(word, [str(folder) for folder in finished])
        )
    return Path(word)


def _reading(arguments: list[str]) -> tuple[str | None, list[str]]:
    """Returns the reading that is asked for, and the other words."""
    if "--reading" not in arguments:
        return None, arguments
    at = arguments.index("--reading")
    if at + 1 == len(arguments):
        raise ConfigError("`--reading` must be the name of a reading, got nothing.")
    return arguments[at + 1], arguments[:at] + arguments[at + 2 :]


def _config_name(verb: str, arguments: list[str]) -> tuple[str, list[str]]:
    """Returns the config's name, which comes first, and the other words."""
    if arguments and not arguments[0].startswith("-"):
        return arguments[0], arguments[1:]
    got = f"`{arguments[0]}`" if arguments else "nothing"
    names = ", ".join(f"`{name}`" for name in config_names())
    raise ConfigError(f"`{verb}` needs a config first, one of {names}, got {got}.")


def _check_folder(folder: Path, overwrite: bool) -> None:
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"`--out` must be a folder, got the file `{folder}`.")
    if not folder.is_dir() or overwrite:
        return
    names = {path.name for path in folder.iterdir()}
    # A run that did not end may be started again.
    is_unfinished = "config.json" in names and "result.json" not in names
    if names and not is_unfinished:
        raise ConfigError(
            f"the folder `{folder}` is not empty: give --overwrite, or --out another."
        )
