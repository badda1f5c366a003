"""The training loop around the compiled programs; it can be interrupted and resumed.

Calls start and end at the same updates, whether a run was interrupted or not, so a
resumed run is bit-identical to an uninterrupted one.
"""

import contextlib
import sys
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

from experiments.runs.checkpoint import Checkpoints
from experiments.runs.folder import CHECKPOINTS
from experiments.runs.interruption import Interrupted, Interruption
from experiments.runs.processes import ending_together, largest
from experiments.runs.progress import Progress
from experiments.settings.rules import ConfigError
from experiments.supervised.metrics import Metrics
from experiments.supervised.trainer import NO_LOSS, State, Trainer


class LossNotFinite(ConfigError):
    """A loss is NaN or infinite."""


class Run:
    """The training of all networks of an experiment.

    Args:
      trainer: the trainer of the experiment.
      folder: folder of the run.
      metrics: writer of the metrics.
      profile: folder for a trace of the second call, or of the first one if it is also
        the last; None: no trace.
    """

    def __init__(
        self,
        trainer: Trainer,
        folder: Path,
        metrics: Metrics,
        profile: Path | None = None,
    ):
        self.trainer, self.folder, self.metrics = trainer, folder, metrics
        self.training = trainer.experiment.training
        self.profile = profile
        self.state: State = trainer.init()
        self.update = 0
        self.seconds = 0.0
        self.last_saved = 0
        self.calls = 0

    def train(self) -> None:
        """Trains until the last update, or until no network gets better.

        Raises:
          LossNotFinite: a loss is NaN or infinite.
          ConfigError: a checkpoint cannot be read or written.
          Interrupted: after SIGINT or SIGTERM; the state is saved.
        """
        with Checkpoints(self.folder / CHECKPOINTS) as checkpoints:
            self._resume(checkpoints)
            started = time.monotonic()
            before = self.seconds
            progress = Progress(
                self.training.updates,
                "updates",
                can_stop_early=self.training.patience > 0,
            )
            with Interruption() as interruption, progress:
                while not self._is_over():
                    self._advance(progress)
                    self.seconds = before + time.monotonic() - started
                    number = largest(interruption.requested)
                    if checkpoints.are_due() or number is not None:
                        self._save(checkpoints)
                    if number is not None:
                        checkpoints.wait()
                        saved = f"saved at update {self.update:,} in {self.folder}"
                        raise Interrupted(number, saved)
                self._save(checkpoints)
            if self.profile is not None:
                print(
                    "warning: no trace was written, because this process made "
                    f"{self.calls} compiled calls of updates.",
                    file=sys.stderr,
                )

    def _is_over(self) -> bool:
        patience = self.training.patience
        is_patient = not patience or bool(np.any(_host(self.state.waited) < patience))
        return self.update >= self.training.updates or not is_patient

    def _resume(self, checkpoints: Checkpoints) -> None:
        """Restores the newest checkpoint, if there is one."""
        shardings = self.trainer.shardings(self.state)
        like = jax.tree.map(
            lambda leaf, sharding: jax.ShapeDtypeStruct(
                leaf.shape, leaf.dtype, sharding=sharding
            ),
            self.state,
            shardings,
        )
        found = checkpoints.restore({"state": like, "seconds": 0.0, "size": 0})
        size = 0
        if found is not None:
            self.update, saved = found
            self.last_saved = self.update
            self.state, self.seconds = saved["state"], float(saved["seconds"])
            size = int(saved["size"])
        with ending_together():
            self.metrics.restart(size, self.update)

    def _save(self, checkpoints: Checkpoints) -> None:
        """Writes the metrics to disk, then the checkpoint that refers to them."""
        if self.update == self.last_saved:
            return
        with ending_together():
            size = self.metrics.sync()
        state = {"state": self.state, "seconds": self.seconds, "size": size}
        checkpoints.save(self.update, state)
        self.last_saved = self.update

    def _count(self) -> int:
        """Returns the number of updates of the next call."""
        training = self.training
        ends = (
            self.update - self.update % training.chunk + training.chunk,
            self.update
            - self.update % training.evaluate_every
            + training.evaluate_every,
            training.updates,
        )
        return min(ends) - self.update

    def _advance(self, progress: Progress) -> None:
        """Makes one compiled call of updates, and an evaluation if it is due."""
        count, data = self._count(), self.trainer.data
        with self._trace(count):
            self.state, losses = self.trainer.advance(
                self.state, data, self.update, count
            )
            losses = _host(losses)
        self.calls += 1
        self._check(losses, "loss")
        self.update += count
        found = {"train": {"loss": losses.mean(0)}}
        is_last = self.update == self.training.updates
        if self.update % self.training.evaluate_every == 0 or is_last:
            self.state, metrics = self.trainer.validate(self.state, data, self.update)
            found["validation"] = jax.tree.map(_host, metrics)
            loss = found["validation"]["loss"][None]
            self._check(loss, "validation loss", before=1)
        # After the compiled calls, which wait for the other processes.
        with ending_together():
            for split, metrics in found.items():
                self.metrics.write(self.update, split, metrics)
        self._show(progress, losses.mean())

    def _trace(self, count: int) -> contextlib.AbstractContextManager:
        """Returns a context manager that writes the trace, if the next call has one."""
        is_only = self.update + count == self.training.updates
        # The first call also compiles; the second one is more typical.
        if self.profile is None or not (self.calls or is_only):
            return contextlib.nullcontext()
        folder, self.profile = self.profile, None
        return jax.profiler.trace(str(folder))

    def _show(self, progress: Progress, loss: float) -> None:
        """Reports the mean loss, and the best validation loss if there is one."""
        text, best = f"loss {loss:.3f}", _host(self.state.best_loss)
        if best.max() < NO_LOSS:
            text += f", best validation {best.mean():.3f}"
        progress.show(self.update, text)

    def _check(self, losses: np.ndarray, name: str, before: int = 0) -> None:
        """Checks that the losses of the next updates `(count, seeds)` are finite.

        Args:
          losses: the losses.
          name: their name.
          before: how many updates the first loss is before the next update.
        """
        wrong = np.argwhere(~np.isfinite(losses))
        if not len(wrong):
            return
        at, seed = wrong[0]
        if self.last_saved:
            kept = f"The checkpoint at update {self.last_saved:,} is kept."
        else:
            kept = "No checkpoint was written before."
        raise LossNotFinite(
            f"the {name} of network {seed} must be finite, got {losses[at, seed]} at "
            f"update {self.update + at + 1 - before:,}. {kept} Try a smaller "
            "`optimizer.rate`."
        )


def _host(array: Any) -> np.ndarray:
    """Returns an array that every process can read."""
    return np.asarray(jax.device_get(array))
