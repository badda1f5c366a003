"""The trained parameters in the folder of a finished run."""

import dataclasses
import zipfile
import zlib
from functools import partial
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import numpy as np
from flax import traverse_util

from experiments.runs.folder import CONFIG, WEIGHTS, read_json
from experiments.settings.config import Experiment
from experiments.settings.reading import from_dict
from experiments.settings.rules import ConfigError
from experiments.settings.supervised import Supervised


def read_run(folder: Path, verb: str, name: str = "run") -> Experiment | Supervised:
    """Returns the config of a finished run, with the layers of rnncells.

    Flax's layers have no `step` and cannot be recorded; the parameters are the same.

    Args:
      folder: folder of the run.
      verb: the command that needs it.
      name: of such a run, for the error.

    Raises:
      ConfigError: the folder has no finished run, or its config is damaged.
    """
    if not (folder / WEIGHTS).is_file() or not (folder / CONFIG).is_file():
        raise ConfigError(
            f"`{verb}` needs the folder of a finished {name}, got `{folder}`. Start "
            "one with `run`."
        )
    experiment = from_dict(read_json(folder / CONFIG), str(folder / CONFIG))
    if not isinstance(experiment, Supervised):
        return experiment
    model = dataclasses.replace(experiment.model, library="rnncells")
    return dataclasses.replace(experiment, model=model)


def read_params(folder: Path, network: int, seeds: int) -> dict[str, Any]:
    """Returns the parameters of one network.

    Args:
      folder: folder of the run.
      network: number of the network, in [0, seeds).
      seeds: number of networks of the run.

    Raises:
      ConfigError: the file is damaged, or there is no network of this number.
    """
    if not 0 <= network < seeds:
        raise ConfigError(f"`--network` must be in [0, {seeds}), got {network}.")
    try:
        with (folder / WEIGHTS).open("rb") as file, np.load(file) as arrays:
            flat = {name: array[network] for name, array in arrays.items()}
            return traverse_util.unflatten_dict(flat, sep="/")
    # `zipfile` and NumPy raise all of these for flipped bits.
    except (
        *(ValueError, EOFError, OSError, RuntimeError, LookupError),
        *(zipfile.BadZipFile, zlib.error),
    ) as error:
        raise ConfigError(f"{folder / WEIGHTS} is damaged: {error}.") from error


def check_params(folder: Path, model: nn.Module, sample: Any, params: Any) -> None:
    """Checks that the parameters in a folder are those of the network of its config.

    Args:
      folder: folder of the run.
      model: the network.
      sample: a batch of inputs.
      params: the parameters.

    Raises:
      ConfigError: they are not.
    """
    expected = jax.eval_shape(model.init, jax.random.key(0), sample)["params"]
    form = partial(jax.tree.map, lambda leaf: (leaf.shape, str(leaf.dtype)))
    if form(expected) != form(params):
        raise ConfigError(
            f"{folder / WEIGHTS} is damaged, or {folder / CONFIG} has changed: the "
            "parameters are not those of the network of the config."
        )
