"""The state of a run that has not ended, on disk."""

import os
from pathlib import Path
from typing import Any

import jax
from flax import serialization

from experiments.settings.rules import ConfigError


def save(path: Path, state: Any) -> None:
    """Writes a pytree of arrays and numbers; what stood there stays until then."""
    beside = path.with_suffix(".new")
    with beside.open("wb") as file:
        file.write(serialization.to_bytes(jax.device_get(state)))
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)


def load(path: Path, like: Any) -> Any:
    """Returns what `save` wrote, in the structure of `like`.

    Raises:
      ConfigError: something else stands there.
    """
    try:
        return serialization.from_bytes(like, path.read_bytes())
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{path} is damaged: {error}; give --overwrite to start anew."
        ) from error
