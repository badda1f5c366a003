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
from typing import Annotated, Any, TypeVar

from pydantic import Field

from experiments.settings.config import Experiment
from experiments.settings.rules import (
    ConfigError,
    Count,
    CountOrZero,
    NotNegative,
    Seed,
    require,
    settings,
)
from experiments.settings.supervised import Supervised
from experiments.settings.wording import INSTALL, describe, nearest

HELP = {"-h", "--help"}
# Not options: the published numbers, the task, and the title.
FIXED = ("--paper.", "--published.", "--task.name", "--title")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flags:
    """Options of `run` that are not values of a config."""

    out: Path | None = None
    """Folder of the results; None: runs/NAME-seedSEED."""
    overwrite: bool = False
    """Start a new run, even if the folder is not empty."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataFlags(Flags):
    """Options of runs on data sets."""

    tensorboard: bool = False
    """Write the metrics for TensorBoard too."""
    profile: bool = False
    """Write a trace of one compiled call to the folder `profile` of the run."""
    coordinator: str | None = None
    """Address of process 0 as HOST:PORT, if several processes train one run."""
    processes: int = 1
    """Number of processes, at least 1."""
    process: int = 0
    """Number of this process, in [0, processes)."""

    def __post_init__(self):
        require(
            self.processes >= 1,
            f"`--processes` must be at least 1, got {self.processes}.",
        )
        has_address = self.coordinator is not None
        require(
            not has_address or re.fullmatch(r".+:\d+", self.coordinator) is not None,
            f"`--coordinator` must be HOST:PORT, got {self.coordinator}.",
        )
        require(
            0 <= self.process < self.processes,
            f"`--process` must be in [0, {self.processes}), got {self.process}.",
        )
        require(
            has_address or self.processes == 1,
            f"`--processes {self.processes}` needs `--coordinator`, the address of "
            "process 0, got nothing.",
        )


@dataclasses.dataclass(frozen=True)
class Run:
    """The parsed arguments of `run`.

    Attributes:
      experiment: the config, with the values of the options.
      flags: the other options.
    """

    experiment: Experiment | Supervised
    flags: Flags


def parse_run(
    experiment: Experiment | Supervised,
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
    known = option_types(experiment) | option_types(flags_of(experiment))
    groups = _groups(arguments)
    for option, *values in groups:
        _check_option(option, values, known)
    try:
        return _parse(experiment, sum(groups, []))
    except SystemExit as stop:
        text = _broken_rule(stop) or _misused(experiment, groups, known)
        raise ConfigError(text) from stop


def _parse(
    experiment: Experiment | Supervised,
    arguments: list[str],
    readings: Collection[str] = (),
    prog: str = "",
) -> Run:
    """Parses the options with tyro, without its error messages."""
    tyro, flags = _tyro(), flags_of(experiment)
    names = tyro.conf.arg(
        metavar=f"{{{','.join(readings)}}}",
        help_behavior_hint="(default: the values of the file)",
    )

    def command(
        experiment: Annotated[type(experiment), tyro.conf.arg(name="")] = experiment,
        reading: Annotated[str | None, names] = None,
        flags: Annotated[type(flags), tyro.conf.arg(name="")] = flags,
    ) -> Run:
        """Train and test one config.

        The defaults below are the values of its file, or of the given reading.

        Args:
          experiment: the config.
          reading: Other settings, such as another reading of the paper; `show` prints
            them.
          flags: other options.
        """
        return Run(experiment, flags)

    with contextlib.redirect_stderr(io.StringIO()):
        # Without this marker, tyro turns the union of tasks into subcommands.
        markers = (tyro.conf.AvoidSubcommands,)
        return tyro.cli(command, args=arguments, prog=prog, config=markers)


def flags_of(experiment: Experiment | Supervised) -> Flags:
    """Returns the options of a run that are not values of its config."""
    return DataFlags() if isinstance(experiment, Supervised) else Flags()


def _tyro() -> types.ModuleType:
    """Returns tyro, or raises an error that says how to install it."""
    try:
        import tyro
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"`run` needs the package {error.name}: {INSTALL}."
        ) from error
    return tyro


@settings
class Sample:
    """Options of `sample`."""

    prompt: str = ""
    """The text before the drawn characters; empty: a newline, or the first symbol of
    the alphabet if the text of the run has no newline."""
    characters: Count = 500
    """Number of characters to draw, at least 1."""
    temperature: NotNegative = 1.0
    """Divides the logits, at least 0; 0 always takes the likeliest character."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Draws from the smallest set of characters with at least this probability, in
    (0, 1]."""
    seed: Seed = 0
    """Random seed, in [0, 2**32)."""
    network: CountOrZero = 0
    """Number of the network, if the run trained several."""


@settings
class Inspect:
    """Options of `inspect`."""

    sequences: Count = 4
    """Number of test sequences, at least 1."""
    steps: Count = 100
    """Number of steps whose Jacobians are computed, and length of the sequences that
    are cut out of a text, at least 1."""
    network: CountOrZero = 0
    """Number of the network, if the run trained several."""


T = TypeVar("T", Sample, Inspect)


def parse_sample(arguments: list[str], prog: str) -> Sample | None:
    """Parses the options of `sample`; see `parse_options`."""
    return parse_options(Sample, arguments, prog)


def parse_inspect(arguments: list[str], prog: str) -> Inspect | None:
    """Parses the options of `inspect`; see `parse_options`."""
    return parse_options(Inspect, arguments, prog)


def parse_options(kind: type[T], arguments: list[str], prog: str) -> T | None:
    """Parses the options of a verb; prints the help and returns None for `--help`.

    Args:
      kind: the class of the options.
      arguments: the options on the command line.
      prog: the command before them, for the help.

    Raises:
      ConfigError: an option is unknown, or a value has a wrong type or breaks a rule.
    """
    tyro, known = _tyro(), option_types(kind())
    if HELP & set(arguments):
        with contextlib.suppress(SystemExit):
            tyro.cli(kind, args=["--help"], prog=prog)
        return None
    groups = _groups(arguments)
    for option, *values in groups:
        _check_option(option, values, known)
    for option, *values in groups:
        try:
            with contextlib.redirect_stderr(io.StringIO()):
                tyro.cli(kind, args=_joined([[option, *values]]), prog=prog)
        except SystemExit as stop:
            text = _broken_rule(stop) or _misuse(option, values, known[option])
            # The error names the field, such as `top_p`.
            name = option.removeprefix("--").replace("-", "_")
            raise ConfigError(text.replace(f"`{name}`", f"`{option}`")) from stop
    return tyro.cli(kind, args=_joined(groups), prog=prog)


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


def _joined(groups: list[list[str]]) -> list[str]:
    """Returns words such as `--prompt=-x`, whose values can begin with a dash."""
    words = []
    for option, value, *others in groups:
        words += [f"{option}={value}", *others]
    return words


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
    experiment: Experiment | Supervised, groups: list[list[str]], known: dict[str, Any]
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
