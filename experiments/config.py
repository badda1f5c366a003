"""The files in `configs`: what may stand in them, and their reader.

A file becomes a frozen `Experiment`. Types, unknown keys and missing keys are checked
before anything is built; rules between values live in `__post_init__`, so that they
hold for the file and for the command line alike. Nothing here imports jax: the command
line must answer at once.
"""

import dataclasses
import difflib
import json
import math
import tomllib
import types
import typing
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

CONFIGS = Path(__file__).resolve().parent.parent / "configs"

# Numbers are float32 on the device.
FLOAT32_MAX = 3.4e38

HIDDEN_UNITS = ("in", "cell", "out")


class ConfigError(ValueError):
    """A mistake of the user: its text is all that has to be shown."""


@dataclass(frozen=True, kw_only=True)
class Paper:
    """The published numbers that an experiment is compared with."""

    table: str
    """Table of the paper, as numbered there."""
    row: str
    """Row of that table."""
    sequences: int
    """Training sequences until success, mean over trials, at least 1."""
    weights: int
    """Number of trainable weights, at least 1."""
    wrong: int
    """Wrong test sequences, from 0 to paper.test_sequences."""
    most_wrong: int
    """Wrong test sequences of the worst trial, from 0 to paper.test_sequences."""
    mean_error: float
    """Bound on the average test error of every trial, > 0."""
    test_sequences: int
    """Number of test sequences, at least 1."""
    trials: int
    """Number of trials behind the mean, at least 1."""

    def __post_init__(self):
        _check_counts(self, "sequences", "weights", "test_sequences", "trials")
        _check_positive(self, "mean_error")
        for name in ("wrong", "most_wrong"):
            wrong = getattr(self, name)
            _require(
                0 <= wrong <= self.test_sequences,
                f"`{name}` must be in [0, {self.test_sequences}], got {wrong}.",
            )


@dataclass(frozen=True, kw_only=True)
class TemporalOrder:
    """The task of classifying the order of symbols far apart (Experiment 6)."""

    name: Literal["temporal-order"] = "temporal-order"
    """The task; only the config file chooses it."""
    positions: tuple[tuple[int, int], ...] = ((10, 20), (50, 60))
    """First and last step at which each X or Y may stand, counted from 0."""
    lengths: tuple[int, int] = (100, 110)
    """Least and greatest length of a sequence, in steps, both included."""

    def __post_init__(self):
        ranges = (*self.positions, self.lengths)
        ordered = all(first <= last for first, last in ranges)
        _require(
            ordered and bool(self.positions),
            "`positions` and `lengths` must be ranges, first <= last, at least one "
            f"of `positions`, got {self.positions} and {self.lengths}.",
        )
        starts_and_ends = zip(self.positions[1:], self.positions, strict=False)
        _require(
            all(start > end for (start, _), (_, end) in starts_and_ends),
            f"`positions` must increase without overlap, got {self.positions}.",
        )
        # The first step is the symbol E, the last one the symbol B.
        last = self.lengths[0] - 2
        _require(
            self.positions[0][0] >= 1 and self.positions[-1][1] <= last,
            f"`positions` must lie in [1, {last}], between the first and the last step "
            f"of the shortest sequence, got {self.positions}.",
        )


TASK_OPTIONS = {"temporal-order": TemporalOrder}


@dataclass(frozen=True, kw_only=True)
class Model:
    """The network: one recurrent layer and a logistic output layer."""

    cell: Literal["LSTM1997Cell"] = "LSTM1997Cell"
    """Public name of the cell in rnncells."""
    blocks: int
    """Number of memory cell blocks, at least 1."""
    block_size: int
    """Cells of each block, at least 1."""
    weight_range: float
    """Initial weights are uniform in [-weight_range, weight_range), > 0."""
    input_gate_bias: tuple[float, ...] | None = None
    """Initial bias of each block's input gate; None draws them like weights."""
    output_gate_bias: tuple[float, ...] | None = None
    """Initial bias of each block's output gate; None draws them like weights."""
    biases: tuple[str, ...] = HIDDEN_UNITS
    """Hidden units with biases: in (input gates), cell, out (output gates)."""
    gate_feedback: bool = True
    """Whether gates are fed back to the hidden layer, as cells are."""
    truncate_gradient: bool = True
    """Whether errors flow back in time through the cells' states alone."""
    output_bias: bool = True
    """Whether output units have biases."""

    def __post_init__(self):
        _check_counts(self, "blocks", "block_size")
        _check_positive(self, "weight_range")
        _require(
            set(self.biases) <= set(HIDDEN_UNITS)
            and len(set(self.biases)) == len(self.biases),
            f"`biases` must be different ones of {list(HIDDEN_UNITS)}, got "
            f"{list(self.biases)}.",
        )
        self._check_gate_bias("input_gate_bias", "in")
        self._check_gate_bias("output_gate_bias", "out")

    def _check_gate_bias(self, name: str, unit: str) -> None:
        bias = getattr(self, name)
        if bias is None:
            return
        _require(
            len(bias) == self.blocks and all(map(math.isfinite, bias)),
            f"`{name}` must have one finite number for each of {self.blocks} blocks, "
            f"got {list(bias)}.",
        )
        _require(
            unit in self.biases,
            f"`{name}` must be left out where `biases` lacks {unit!r}, got "
            f"{list(bias)}.",
        )


@dataclass(frozen=True, kw_only=True)
class Learning:
    """On-line gradient descent, an update after each sequence, and when it ends."""

    rate: float
    """Learning rate: step size of gradient descent, > 0."""
    tolerance: float
    """A sequence is right if the absolute error of every output is below this, > 0."""
    mean_error: float
    """The average absolute training error must be below this for success, > 0."""
    window: int = 2000
    """Number of most recent sequences over which both must hold, at least 1."""
    max_sequences: int
    """Training sequences after which a trial is given up, at least 1."""

    def __post_init__(self):
        _check_positive(self, "rate", "tolerance", "mean_error")
        _check_counts(self, "window", "max_sequences")


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One published number: what was printed, and how it is made again."""

    title: str
    """What the experiment is, in a few words."""
    seed: int = 0
    """Random seed of all trials, in [0, 2**32)."""
    trials: int
    """Networks trained, each on its own random stream, at least 1."""
    test_sequences: int = 2560
    """Sequences each trained network is tested on, at least 1."""
    paper: Paper
    task: TemporalOrder
    model: Model
    learning: Learning

    def __post_init__(self):
        _check_counts(self, "trials", "test_sequences")
        _require(
            0 <= self.seed < 2**32, f"`seed` must be in [0, 2**32), got {self.seed}."
        )


def config_names() -> list[str]:
    """Returns the names of the files in `configs`, without `.toml`, sorted."""
    return sorted(path.stem for path in CONFIGS.glob("*.toml"))


def config_path(name_or_path: str | Path) -> Path:
    """Returns the file of a config, given by its name or by a path to a `.toml`.

    Raises:
      ConfigError: there is no such config; names the nearest.
    """
    path = Path(name_or_path)
    if path.suffix == ".toml" and path.is_file():
        return path
    if str(name_or_path) in config_names():
        return CONFIGS / f"{name_or_path}.toml"
    stem = path.name.removesuffix(".toml")
    raise ConfigError(f"no config `{name_or_path}`{nearest(stem, config_names())}")


def read_config(path: str | Path) -> Experiment:
    """Reads and checks a TOML file.

    Raises:
      ConfigError: the file cannot be read or is not TOML, has unknown or missing keys,
        values of a wrong type, or values that break a rule.
    """
    where = _shown(Path(path))
    try:
        table = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{where}: {error}") from error
    return _build(Experiment, table, where, sections=where + " [{}]")


def config_header(path: str | Path) -> str:
    """Returns the comment lines that open a config file."""
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    end = next((i for i, x in enumerate(lines) if not x.startswith("#")), len(lines))
    return "\n".join(lines[:end])


def to_dict(experiment: Experiment) -> dict[str, Any]:
    """Returns the experiment as JSON has it: dictionaries, lists, scalars and None."""
    return json.loads(json.dumps(dataclasses.asdict(experiment)))


def nearest(name: str, known: Collection[str]) -> str:
    """Returns the end of an error about `name`: the nearest known name, or all."""
    if not known:
        return "."
    matches = difflib.get_close_matches(name, known, n=1)
    if matches:
        return f"; did you mean `{matches[0]}`?"
    return f"; there are {', '.join(f'`{x}`' for x in known)}."


def describe(kind: Any, *, plural: bool = False) -> str:
    """Returns an annotation of a field in words, as in "an integer"."""
    arguments = typing.get_args(kind)
    if typing.get_origin(kind) is Literal:
        return f"one of {list(arguments)}"
    if isinstance(kind, types.UnionType):
        return describe(arguments[0], plural=plural)
    if typing.get_origin(kind) is tuple:
        count = "" if Ellipsis in arguments else f"{len(arguments)} "
        items = describe(arguments[0], plural=True)
        return f"{'lists' if plural else 'a list'} of {count}{items}"
    return _WORDS[kind][plural]


_WORDS = {
    bool: ("true or false", "true or false"),
    int: ("an integer", "integers"),
    float: ("a number", "numbers"),
    str: ("a string", "strings"),
    Path: ("a path", "paths"),
}


def _build(kind: type, table: dict[str, Any], where: str, sections: str = "{}") -> Any:
    """Makes a dataclass of a TOML table.

    Args:
      kind: the dataclass.
      table: what the file holds for it.
      where: file and section, put in front of errors.
      sections: `where` for the tables inside this one, their name left open.
    """
    fields = {field.name: field for field in dataclasses.fields(kind)}
    _check_keys(fields, table, where)
    values = {}
    for key, value in table.items():
        annotation = fields[key].type
        if not _is_section(fields[key]):
            values[key] = _checked(key, value, annotation, where)
        elif isinstance(value, dict):
            inner = sections.format(key)
            annotation = _task_kind(value, inner) if key == "task" else annotation
            values[key] = _build(annotation, value, inner)
        else:
            raise ConfigError(f"{where}: `{key}` must be a section, got {value!r}.")
    try:
        return kind(**values)
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from error


def _is_section(field: dataclasses.Field) -> bool:
    # By name too: of several tasks, the annotation is a union.
    return field.name == "task" or dataclasses.is_dataclass(field.type)


def _check_keys(
    fields: dict[str, dataclasses.Field], table: dict[str, Any], where: str
) -> None:
    for key in table:
        if key not in fields:
            raise ConfigError(f"{where}: unknown key `{key}`{nearest(key, fields)}")
    for name, field in fields.items():
        if name not in table and field.default is dataclasses.MISSING:
            what = "section" if _is_section(field) else "key"
            raise ConfigError(f"{where}: missing {what} `{name}`.")


def _task_kind(table: dict[str, Any], where: str) -> type:
    if "name" not in table:
        raise ConfigError(f"{where}: missing key `name`.")
    name = _checked("name", table["name"], str, where)
    if name not in TASK_OPTIONS:
        raise ConfigError(
            f"{where}: unknown task `{name}`{nearest(name, TASK_OPTIONS)}"
        )
    return TASK_OPTIONS[name]


def _checked(key: str, value: Any, annotation: Any, where: str) -> Any:
    try:
        return _converted(value, annotation)
    except (TypeError, OverflowError) as error:
        raise ConfigError(
            f"{where}: `{key}` must be {describe(annotation)}, got {value!r}."
        ) from error


def _converted(value: Any, kind: Any) -> Any:
    """Returns `value` as `kind` has it: integers pass for floats, lists for tuples."""
    arguments = typing.get_args(kind)
    if isinstance(kind, types.UnionType):
        return _converted(value, arguments[0])
    if typing.get_origin(kind) is tuple and type(value) is list:
        variadic = Ellipsis in arguments
        kinds = arguments[:1] * len(value) if variadic else arguments
        if len(kinds) == len(value):
            return tuple(map(_converted, value, kinds))
    if typing.get_origin(kind) is Literal and value in arguments:
        return arguments[arguments.index(value)]
    # `type` rather than `isinstance`: a bool is an int in Python, not in a config.
    if type(value) is kind:
        return value
    if kind is float and type(value) is int:
        return float(value)
    raise TypeError(f"{value!r} is not {describe(kind)}")


def _shown(path: Path) -> str:
    """Returns the path as seen from the working folder, if it lies there."""
    path, here = path.resolve(), Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def _require(rule: bool, text: str) -> None:
    if not rule:
        raise ConfigError(text)


def _check_counts(options: Any, *names: str) -> None:
    for name in names:
        value = getattr(options, name)
        # Counts are 32-bit integers on the device.
        _require(1 <= value < 2**31, f"`{name}` must be in [1, 2**31), got {value}.")


def _check_positive(options: Any, *names: str) -> None:
    for name in names:
        value = getattr(options, name)
        # NaN fails this too.
        _require(0 < value < math.inf, f"`{name}` must be > 0, got {value}.")
        _require(
            value < FLOAT32_MAX, f"`{name}` must be below {FLOAT32_MAX:g}, got {value}."
        )
