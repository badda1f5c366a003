"""What a result depends on beside its config: versions, device and commit."""

import importlib.metadata
import platform
import subprocess
from collections.abc import Set
from pathlib import Path
from typing import Any

import jax

from experiments.folder import ENVIRONMENT, STATE, read_json, to_json, write
from experiments.settings.rules import ConfigError

# What may change while a run is broken off. Python computes no numbers; of commits few
# change any, and a long run should survive the others: they are noted.
MAY_CHANGE = "commit", "python"


def describe_environment() -> dict[str, Any]:
    """Returns what a result depends on beside its config: versions, device, commit."""
    packages = ("jax", "jaxlib", "flax", "optax", "numpy")
    versions = {name: importlib.metadata.version(name) for name in packages}
    return {
        "python": platform.python_version(),
        **versions,
        "device": jax.devices()[0].device_kind,
        "commit": _commit(),
    }


def note_environment(folder: Path) -> list[dict[str, Any]]:
    """Notes what a run goes on with, and returns all it was computed with, in order.

    Args:
      folder: of the run.

    Raises:
      ConfigError: it was begun with other versions, or on another device, and would end
        with other numbers; or the notes are damaged.
    """
    path, now = folder / ENVIRONMENT, describe_environment()
    found = _read(path, now.keys()) if (folder / STATE).is_file() else []
    changed = [
        f"{name} {found[0][name]}, now {value}"
        for name, value in now.items()
        if found and name not in MAY_CHANGE and found[0][name] != value
    ]
    if changed:
        raise ConfigError(
            f"the run in `{folder}` was begun with {'; '.join(changed)}: its numbers "
            "may differ; go on as it was begun, or give --overwrite to start anew."
        )
    if now not in found[-1:]:
        found.append(now)
        write(path, to_json(found))
    return found


def _read(path: Path, names: Set[str]) -> list[dict[str, Any]]:
    found = read_json(path) if path.is_file() else []
    is_whole = isinstance(found, list) and all(
        isinstance(one, dict) and names <= one.keys() for one in found
    )
    if not (is_whole and found):
        raise ConfigError(
            f"{path} is missing or damaged: give --overwrite to start anew."
        )
    return found


def _commit() -> str | None:
    """Returns the commit of this clone, marked if files differ; None outside git."""
    root = Path(__file__).resolve().parent
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=10", "--exclude=*"],
            cwd=root,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return described.stdout.strip()
