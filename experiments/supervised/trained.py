"""The trained parameters in the folder of a finished run."""

import zipfile
import zlib
from functools import partial
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import numpy as np

from experiments.runs.folder import CONFIG, WEIGHTS
from experiments.settings.rules import ConfigError


def read_params(folder: Path, network: int, seeds: int) -> dict[str, Any]:
    """Returns the parameters of one network, as a flat dict of names with `/`.

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
            return {name: array[network] for name, array in arrays.items()}
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
