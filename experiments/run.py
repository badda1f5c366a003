"""Runs an experiment and writes its folder.

RUN/config.json      the resolved config
RUN/metrics.jsonl    learning curves, a line for each chunk of sequences
RUN/result.json      each trial, their summary, versions, seed, commit, seconds
RUN/learning_curve.png
"""

import importlib.metadata
import json
import math
import platform
import subprocess
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.config import Experiment, to_dict
from experiments.online import Trainer
from experiments.plots import save_learning_curve
from experiments.progress import Progress
from experiments.report import print_table

# Sequences presented by one call: long enough that the host costs nothing, short enough
# for a progress bar that moves.
CHUNK = 500
CURVE = "learning_curve.png"


def run(experiment: Experiment, folder: Path, name: str) -> None:
    """Trains and tests all trials, writes the folder and prints the table.

    Args:
      experiment: the config.
      folder: where the files go; made if need be, its old files overwritten.
      name: of the config.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for old in ("result.json", CURVE):
        (folder / old).unlink(missing_ok=True)
    (folder / "config.json").write_text(_to_json(to_dict(experiment)))
    start, environment = time.monotonic(), describe_environment()
    trainer = Trainer(experiment)
    trials, presented = train(trainer, folder / "metrics.jsonl")
    wrong, error = jax.device_get(trainer.test(trials.params))
    result = {
        "name": name,
        "config": to_dict(experiment),
        "weights": count_weights(trials.params),
        "presented": presented,
        "trials": [
            {
                "trial": trial,
                "solved": bool(solved_after > 0),
                "sequences": int(solved_after),
                "wrong": int(wrong[trial]),
                "mean_error": float(error[trial]),
            }
            for trial, solved_after in enumerate(np.asarray(trials.solved_after))
        ],
        "seconds": time.monotonic() - start,
        "environment": environment,
    }
    (folder / "result.json").write_text(_to_json(result))
    save_learning_curve(folder / "metrics.jsonl", result, folder / CURVE)
    print_table(result)
    print(f"wrote {folder}")


def train(trainer: Trainer, metrics: Path) -> tuple[Any, int]:
    """Presents sequences until every trial has succeeded or the cap is reached.

    Args:
      trainer: of the experiment.
      metrics: file of the learning curves.

    Returns:
      The trials, and the number of sequences presented.
    """
    learning = trainer.experiment.learning
    trials, presented = trainer.init(), 0
    with metrics.open("w") as lines, Progress(trainer.experiment) as progress:
        while presented < learning.max_sequences:
            # The last chunk ends at the cap: a success after it would not count.
            count = min(CHUNK, learning.max_sequences - presented)
            trials, errors, rights = trainer.advance(trials, presented, count)
            presented += count
            solved = int(jnp.sum(trials.solved_after > 0))
            line = {
                "sequences": presented,
                "error": np.mean(errors, 0).tolist(),
                "right": np.mean(rights, 0).tolist(),
                "solved": solved,
            }
            print(_to_json(line, indent=None), file=lines, flush=True)
            progress.show(presented, float(jnp.mean(errors)), solved)
            if solved == trainer.experiment.trials:
                break
    return trials, presented


def count_weights(params: Any) -> int:
    """Returns the number of trainable weights of one trial."""
    return sum(leaf[0].size for leaf in jax.tree.leaves(params))


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


def _to_json(value: Any, indent: int | None = 2) -> str:
    return json.dumps(_finite(value), indent=indent, allow_nan=False)


def _finite(value: Any) -> Any:
    """Returns a value with None for NaN and infinity, which JSON does not have."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
