"""Writers of the metrics of a run: JSON lines always, TensorBoard as an option."""

import json
import os
import time
import types
from pathlib import Path
from typing import Any

import numpy as np

from experiments.runs.folder import check_kept, writing
from experiments.settings.rules import ConfigError


class Metrics:
    """Appends to `metrics.jsonl`, one line for each call of `write`.

    A context manager, which closes the files.

    Args:
      path: the file; None writes nothing, as in all processes but the first.
      tensorboard: folder for TensorBoard; None: no such files.

    Raises:
      ConfigError: tensorboardX is not installed.
    """

    def __init__(self, path: Path | None, tensorboard: Path | None = None):
        self.path = path
        self.tensorboard = None if path is None else tensorboard
        self.writer: Any = None
        if self.tensorboard is not None:
            _tensorboard()

    def __enter__(self) -> "Metrics":
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()

    def restart(self, size: int, update: int = 0) -> None:
        """Continues after the first bytes of the file, whose other lines are dropped.

        TensorBoard hides what earlier processes wrote after that update.

        Args:
          size: number of bytes to keep.
          update: number of updates before.

        Raises:
          ConfigError: these bytes are missing or damaged, or cannot be written.
        """
        if self.path is None:
            return
        check_kept(self.path, size)
        with writing(self.path):
            self.path.touch()
            os.truncate(self.path, size)
        self.close()
        if self.tensorboard is not None:
            with writing(self.tensorboard):
                # Names have the time in seconds only, and one must not replace another.
                self.writer = _tensorboard().SummaryWriter(
                    str(self.tensorboard),
                    purge_step=update + 1,
                    filename_suffix=f".{time.time_ns()}",
                )

    def write(self, update: int, split: str, metrics: dict[str, np.ndarray]) -> None:
        """Writes the metrics of all networks after an update.

        Args:
          update: number of updates before.
          split: `"train"`, `"validation"` or `"test"`.
          metrics: arrays `(seeds,)`; arrays with more axes are left out.
        """
        if self.path is None:
            return
        scalars = {name: array for name, array in metrics.items() if array.ndim == 1}
        line: dict[str, Any] = {"update": update, "split": split}
        line |= {name: to_numbers(array) for name, array in scalars.items()}
        with writing(self.path), self.path.open("a") as file:
            print(json.dumps(line), file=file)
        if self.writer is not None:
            for name, array in scalars.items():
                for seed, value in enumerate(array):
                    tag = f"{split}/{name}/{seed}"
                    self.writer.add_scalar(tag, float(value), update)

    def sync(self) -> int:
        """Writes the lines to disk; returns the size of the file in bytes."""
        if self.path is None:
            return 0
        if self.writer is not None:
            self.writer.flush()
        with writing(self.path), self.path.open("a") as file:
            os.fsync(file.fileno())
            return file.tell()

    def close(self) -> None:
        """Closes the files of TensorBoard."""
        writer, self.writer = self.writer, None
        if writer is not None:
            writer.close()


def to_numbers(array: np.ndarray) -> Any:
    """Returns an array as lists of numbers; NaN and infinity become None."""
    if array.ndim:
        return [to_numbers(row) for row in array]
    return array.item() if np.isfinite(array) else None


def _tensorboard() -> types.ModuleType:
    try:
        import tensorboardX
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"`--tensorboard` needs the package {error.name}: in a clone, pip install "
            "-e '.[experiments,tensorboard]'."
        ) from error
    return tensorboardX
