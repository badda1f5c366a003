"""The types and checks of the values in configs, and the error that they raise."""

import functools
import json
import re
from typing import Annotated, Any, Literal, TypeVar, dataclass_transform

from pydantic import Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from experiments.settings.wording import explain

Kind = TypeVar("Kind")
# Counts are 32-bit integers on the device.
Count = Annotated[int, Field(ge=1, lt=2**31)]
CountOrZero = Annotated[int, Field(ge=0, lt=2**31)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]
# Numbers are float32 on the device.
Positive = Annotated[float, Field(gt=0, lt=3.4e38)]
NotNegative = Annotated[float, Field(ge=0, lt=3.4e38)]
Share = Annotated[float, Field(ge=0, lt=1)]


class ConfigError(ValueError):
    """A user error: the command line prints only its message."""


def require(rule: bool, text: str) -> None:
    if not rule:
        raise ConfigError(text)


@dataclass_transform(frozen_default=True, kw_only_default=True)
def settings(kind: type[Kind]) -> type[Kind]:
    """Makes a class a frozen dataclass that checks the types and ranges of its fields.

    Its constructor takes keywords, and raises a `ConfigError` for a wrong value. Only
    integers are converted, to floats.
    """
    config = {"extra": "forbid", "strict": True}
    made = dataclass(kind, frozen=True, kw_only=True, config=config)
    validate = made.__init__

    @functools.wraps(validate)
    def __init__(self, **values):
        try:
            validate(self, **values)
        except ValidationError as error:
            raise ConfigError(explain(kind, values, error.errors())) from error

    made.__init__ = __init__
    return made


@dataclass_transform(frozen_default=True, kw_only_default=True)
def task_settings(kind: type[Kind]) -> type[Kind]:
    """Makes a class the settings of a task, with the field `name`.

    The name is that of the class, `order-of-two` for `OrderOfTwo`. Only the config file
    chooses it.
    """
    name = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", kind.__name__).lower()
    kind.__annotations__ = {"name": Literal[name]} | kind.__annotations__
    kind.name = name
    return settings(kind)


def from_table(kind: type[Kind], table: dict[str, Any], where: str) -> Kind:
    """Converts a TOML table to a class made by `settings`.

    Args:
      kind: the class.
      table: sections and values.
      where: the file, for error messages.

    Raises:
      ConfigError: a key is unknown or missing, or a value is wrong.
    """
    # pydantic takes lists as tuples, and tables as classes, only from JSON.
    try:
        return TypeAdapter(kind).validate_json(json.dumps(table))
    except ValidationError as error:
        raise ConfigError(explain(kind, table, error.errors(), where)) from error
