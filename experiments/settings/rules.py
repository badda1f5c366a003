"""Checks of the values of a config, and the error that they raise."""

import dataclasses
import math
import typing
from typing import Any

# Numbers are float32 on the device.
FLOAT32_MAX = 3.4e38


class ConfigError(ValueError):
    """A user error: the command line prints only its message."""


def require(rule: bool, text: str) -> None:
    if not rule:
        raise ConfigError(text)


def check_counts(options: Any, *names: str, least: int = 1) -> None:
    for name in names:
        value = getattr(options, name)
        # Counts are 32-bit integers on the device.
        rule = f"`{name}` must be in [{least}, 2**31), got {value}."
        require(least <= value < 2**31, rule)


def check_choices(options: Any) -> None:
    for field in dataclasses.fields(options):
        value, choices = getattr(options, field.name), typing.get_args(field.type)
        if typing.get_origin(field.type) is typing.Literal:
            require(
                value in choices,
                f"`{field.name}` must be one of {list(choices)}, got {value!r}.",
            )


def check_positive(options: Any, *names: str) -> None:
    for name in names:
        value = getattr(options, name)
        # Also rejects NaN.
        require(0 < value < math.inf, f"`{name}` must be > 0, got {value}.")
        require(
            value < FLOAT32_MAX, f"`{name}` must be below {FLOAT32_MAX:g}, got {value}."
        )


def check_share(options: Any, *names: str) -> None:
    for name in names:
        value = getattr(options, name)
        require(0 <= value < 1, f"`{name}` must be in [0, 1), got {value}.")
