"""Checkpoints: the state of an unfinished run, on disk."""

import os
from pathlib import Path
from typing import Any

import jax
from flax import serialization

from experiments.settings.rules import ConfigError


def save(path: Path, state: Any) -> None:
    """Writes a pytree of arrays and numbers atomically."""
    beside = path.with_suffix(".new")
    with beside.open("wb") as file:
        file.write(serialization.to_bytes(jax.device_get(state)))
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)


def load(path: Path, like: Any) -> Any:
    """Reads a checkpoint in the structure of `like`.

    Raises:
      ConfigError: the file is damaged.
    """
    try:
        return serialization.from_bytes(like, path.read_bytes())
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{path} is damaged: {error}. Pass --overwrite to start again."
        ) from error
