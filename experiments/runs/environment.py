"""The environment of a result: versions, settings of JAX, devices and commit."""

import contextlib
import importlib.metadata
import os
import platform
import re
import subprocess
from collections.abc import Iterator, Set
from pathlib import Path
from typing import Any

import jax

from experiments.runs.checkpoint import saved_steps
from experiments.runs.folder import CHECKPOINTS, ENVIRONMENT, read_json, to_json, write
from experiments.settings.rules import ConfigError

# Differences that do not stop a run from resuming. The Python version does not affect
# numbers, few commits do, and the number of devices does by rounding only; the result
# lists all of them.
MAY_CHANGE = "commit", "python", "devices", "processes"
# Settings of JAX that change random numbers, dtypes, or how numbers are rounded.
SETTINGS = (
    *("jax_default_prng_impl", "jax_threefry_partitionable", "jax_random_seed_offset"),
    *("jax_enable_x64", "jax_allow_f16_reductions", "jax_default_dtype_bits"),
    *("jax_default_matmul_precision", "jax_optimization_level", "jax_disable_jit"),
    *("jax_disable_most_optimizations", "jax_use_hlo_logistic_lowering"),
    *("jax_use_direct_linearize", "jax_softmax_custom_jvp", "jax_accurate_erf_inv"),
    *("jax_high_dynamic_range_gumbel", "jax_threefry_gpu_kernel_lowering"),
)
# Flags in XLA_FLAGS that do not change numbers, or only as the number of devices does.
HARMLESS = "--xla_dump", "--xla_force_host_platform_device_count"
CPU_INFO = Path("/proc/cpuinfo")


def describe_environment() -> dict[str, Any]:
    """Returns the versions, settings, devices, processor and commit of a run."""
    packages = ("jax", "jaxlib", "flax", "optax", "numpy")
    versions = {name: importlib.metadata.version(name) for name in packages}
    return {
        "python": platform.python_version(),
        **versions,
        "device": jax.devices()[0].device_kind,
        "devices": jax.device_count(),
        "processes": jax.process_count(),
        "processor": _processor(),
        "commit": _commit(),
        **_settings(),
    }


def _settings() -> dict[str, Any]:
    """Returns the settings of JAX and XLA that change numbers."""
    values, flags = jax.config.values, os.environ.get("XLA_FLAGS", "").split()
    return {name: values[name] for name in SETTINGS if name in values} | {
        "XLA_FLAGS": " ".join(x for x in flags if not x.startswith(HARMLESS)),
        "NVIDIA_TF32_OVERRIDE": os.environ.get("NVIDIA_TF32_OVERRIDE"),
    }


@contextlib.contextmanager
def usual_promotion() -> Iterator[None]:
    """Lets JAX promote dtypes and ranks, whatever the user's settings are.

    The programs of experiments multiply by booleans and add axes on the left.
    """
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def note_environment(folder: Path) -> list[dict[str, Any]]:
    """Records the current environment of a run; returns all of them in order.

    Args:
      folder: folder of the run.

    Raises:
      ConfigError: the run was started with other versions or settings of JAX, or on
        another device, so its numbers could change; or the file is damaged.
    """
    path, now = folder / ENVIRONMENT, describe_environment()
    is_resumed = bool(saved_steps(folder / CHECKPOINTS))
    # Not every version has the same settings.
    found = _read(path, now.keys() - _settings().keys()) if is_resumed else []
    # The processor next to an accelerator does not compute the numbers.
    may_change = MAY_CHANGE if now["device"] == "cpu" else (*MAY_CHANGE, "processor")
    changed = [
        f"{name} {found[0][name]}, now {value}"
        for name, value in now.items()
        if found and name not in may_change and found[0].get(name, value) != value
    ]
    if changed:
        raise ConfigError(
            f"the run in `{folder}` was started with {'; '.join(changed)}, so its "
            "numbers could change. Resume it with the versions, settings of JAX and "
            "device of its start, or pass --overwrite to start again."
        )
    if now not in found[-1:]:
        found.append(now)
    # Always, so that a folder without write permission is an error before the training.
    write(path, to_json(found))
    return found


def _read(path: Path, names: Set[str]) -> list[dict[str, Any]]:
    found = read_json(path) if path.is_file() else []
    is_whole = isinstance(found, list) and all(
        isinstance(one, dict) and names <= one.keys() for one in found
    )
    if not (is_whole and found):
        raise ConfigError(
            f"{path} is missing or damaged. Pass --overwrite to start again."
        )
    return found


def _processor() -> str:
    """Returns the name of the processor, or its architecture if the name is unknown."""
    try:
        text = CPU_INFO.read_text(encoding="utf-8")
    except OSError:
        text = ""
    named = re.search(r"^model name\s*: (.+)$", text, re.MULTILINE)
    return named[1] if named else platform.processor() or platform.machine()


def _commit() -> str | None:
    """Returns this clone's commit, with `-dirty` if files differ; None outside git."""
    root = Path(__file__).resolve().parents[1]
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
