"""Command line options of a run, one for each value of a config.

Only this file imports tyro.
"""

import contextlib
import dataclasses
import io
import re
import types
import typing
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any

from experiments.settings.config import Experiment
from experiments.settings.reading import describe, nearest
from experiments.settings.rules import ConfigError

HELP = {"-h", "--help"}
INSTALL = "in a clone, pip install -e '.[experiments]'"
# Not options: the published numbers, the task, and the title.
FIXED = ("--paper.", "--task.name", "--title")


@dataclasses.dataclass(frozen=True)
class Run:
    """The parsed arguments of `run`.

    Attributes:
      experiment: the config, with the values of the options.
      out: folder of the results; None: the default folder.
      overwrite: whether to overwrite a folder that is not empty.
    """

    experiment: Experiment
    out: Path | None
    overwrite: bool


def parse_run(
    experiment: Experiment,
    arguments: list[str],
    readings: Collection[str] = (),
    prog: str = "",
) -> Run | None:
    """Parses the options of `run`; prints the help and returns None for `--help`.

    Args:
      experiment: the config with the default values.
      arguments: the arguments after the config's name, without `--reading`.
      readings: names of the config's readings, for the help.
      prog: the command before them, for the help.

    Raises:
      ConfigError: an option is unknown, or a value has a wrong type or breaks a rule.
    """
    if HELP & set(arguments):
        with contextlib.suppress(SystemExit):
            _parse(_without_fixed(experiment), ["--help"], readings, prog)
        return None
    known = option_types(experiment) | {"--out": Path | None, "--overwrite": bool}
    groups = _groups(arguments)
    for option, *values in groups:
        _check_option(option, values, known)
    try:
        return _parse(experiment, sum(groups, []), prog)
    except SystemExit as stop:
        text = _broken_rule(stop) or _misused(experiment, groups, known)
        raise ConfigError(text) from stop


def _parse(
    experiment: Experiment,
    arguments: list[str],
    readings: Collection[str] = (),
    prog: str = "",
) -> Run:
    """Parses the options with tyro, without its error messages."""
    tyro = _tyro()
    names = tyro.conf.arg(
        metavar=f"{{{','.join(readings)}}}",
        help_behavior_hint="(default: the values of the file)",
    )

    def command(
        experiment: Annotated[type(experiment), tyro.conf.arg(name="")] = experiment,
        reading: Annotated[str | None, names] = None,
        out: Path | None = None,
        overwrite: bool = False,
    ) -> Run:
        """Train and test one config.

        The defaults below are the values of its file, or of the given reading.

        Args:
          experiment: the config.
          reading: Another reading of the paper, or a baseline; `show` prints them.
          out: Folder of the results; None: runs/NAME-seedSEED.
          overwrite: Start a new run, even if the folder is not empty.
        """
        return Run(experiment, out, overwrite)

    with contextlib.redirect_stderr(io.StringIO()):
        # Without this marker, tyro turns the union of tasks into subcommands.
        markers = (tyro.conf.AvoidSubcommands,)
        return tyro.cli(command, args=arguments, prog=prog, config=markers)


def _tyro() -> types.ModuleType:
    """Returns tyro, or raises an error that says how to install it."""
    try:
        import tyro
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"`run` needs the package {error.name}: {INSTALL}."
        ) from error
    return tyro


def _without_fixed(settings: Any, prefix: str = "--") -> Any:
    """Returns equal settings of a subclass that hides the fixed fields from tyro."""
    kind, values, annotations = type(settings), {}, []
    for field in dataclasses.fields(settings):
        value, option = getattr(settings, field.name), prefix + field.name
        if is_fixed(option):
            annotations.append((field.name, _tyro().conf.Suppress[field.type]))
        elif dataclasses.is_dataclass(value):
            value = _without_fixed(value, f"{option}.")
            annotations.append((field.name, type(value)))
        values[field.name] = value
    shown = dataclasses.make_dataclass(
        kind.__name__,
        annotations,
        bases=(kind,),
        namespace={"__doc__": kind.__doc__},
        frozen=True,
        kw_only=True,
    )
    return shown(**values)


def option_types(settings: Any, prefix: str = "") -> dict[str, Any]:
    """Returns the options of all fields, with their annotations."""
    options = {}
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        name = field.name.replace("_", "-")
        if dataclasses.is_dataclass(value):
            options |= option_types(value, f"{prefix}{name}.")
        else:
            options[f"--{prefix}{name}"] = field.type
    return {name: kind for name, kind in options.items() if not is_fixed(name)}


def is_fixed(option: str) -> bool:
    """Says whether only the config file can set an option."""
    return option.startswith(FIXED)


def _groups(arguments: list[str]) -> list[list[str]]:
    """Splits arguments into groups of an option and its values."""
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
        raise ConfigError(
            f"`{option}` cannot be an option: only the config file sets it."
        )
    if option not in known:
        # Handled before the other options.
        suggestion = nearest(option, [*known, "--reading"])
        raise ConfigError(f"unknown option `{option}`{suggestion}")
    if bool(values) == (known[option] is bool):
        raise ConfigError(_misuse(option, values, known[option]))


def _broken_rule(error: BaseException | None) -> str | None:
    """Returns the message of the rule that stopped tyro, or None."""
    while error is not None and not isinstance(error, ConfigError):
        error = error.__context__
    return None if error is None else str(error)


def _misused(
    experiment: Experiment, groups: list[list[str]], known: dict[str, Any]
) -> str:
    """Returns an error message for the first option that tyro rejects."""
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
