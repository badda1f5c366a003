"""The training loop around an experiment's compiled programs, which can be interrupted.

The rounding of a trial can depend on the number of trials in the same batch. Therefore
only counts decide when trials leave the loop, and a resumed run is bit-identical to an
uninterrupted one.
"""

import json
import os
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.paper1997.training.hopeless import Watched, watch_of
from experiments.paper1997.training.trainer import (
    Trainer,
    Trials,
    first_reached,
    trials_at,
)
from experiments.runs.checkpoint import Checkpoints
from experiments.runs.folder import CHECKPOINTS, METRICS, check_kept, writing
from experiments.runs.interruption import Interrupted, Interruption
from experiments.runs.progress import Progress
from experiments.settings.config import CHUNK

# A test first tries this many sequences; most networks already fail on them.
FIRST = 64
# Size of a vector of the processor: fewer trials are not faster.
FEW = 8


class Run:
    """The training of an experiment.

    Args:
      trainer: the trainer of the experiment.
      folder: folder of the run, for the learning curves.
      checkpoints: its checkpoints; the newest is restored. Default: those in `folder`.
      interruption: the signals that end the training. Default: none.

    Raises:
      ConfigError: a file of an earlier process is damaged.
    """

    def __init__(
        self,
        trainer: Trainer,
        folder: Path,
        checkpoints: Checkpoints | None = None,
        interruption: Interruption | None = None,
    ):
        self.trainer, self.folder = trainer, folder
        self.checkpoints = checkpoints or Checkpoints(folder / CHECKPOINTS)
        self.interruption = Interruption() if interruption is None else interruption
        self.experiment = trainer.experiment
        self.trials: Trials = jax.device_get(trainer.init())
        self.presented = 0
        self.numbers = np.arange(self.experiment.trials)
        self.watch = watch_of(trainer)
        self.seen: Watched | None = None
        if self.watch is not None:
            self.seen = self.watch.start(self.trials)
        self.seconds = 0.0
        self.size = self.saved_at = 0
        self._resume()

    def _state(self) -> dict[str, Any]:
        """Returns the state for a checkpoint."""
        return {
            "trials": self.trials,
            "presented": self.presented,
            "in_batch": np.isin(np.arange(self.experiment.trials), self.numbers),
            "seconds": self.seconds,
            "size": self.size,
            "seen": self.seen,
        }

    def _resume(self) -> None:
        metrics = self.folder / METRICS
        found = self.checkpoints.restore(self._state())
        if found is None:
            with writing(metrics):
                metrics.write_text("")
            return
        self.saved_at, state = found
        self.numbers = np.flatnonzero(state.pop("in_batch"))
        vars(self).update(state)
        check_kept(metrics, self.size)
        # Lines after the checkpoint will be written again.
        os.truncate(metrics, self.size)

    def train(self) -> None:
        """Trains until every trial has succeeded or was stopped, or to the cap.

        Raises:
          ConfigError: a file cannot be written.
          Interrupted: a signal has come; the state was saved.
        """
        cap = self.experiment.learning.max_sequences
        started = time.monotonic()
        before = self.seconds
        now = self._taken()
        with Progress(cap, "sequences", can_stop_early=True) as progress:
            while self.presented < cap and not np.all(self._are_over(now)):
                now = self._advance(now, self._count(cap), progress)
                self.seconds = before + time.monotonic() - started
                # Before the checkpoint, so that a resumed run has as many trials in
                # its batch.
                now = self._without_those_over(now)
                if self.interruption.requested or self.checkpoints.are_due():
                    self._put(now)
                    self.stop_if_interrupted()
                    self._save()
        self._put(now)

    def stop_if_interrupted(self) -> None:
        """Saves the state and raises `Interrupted` if a signal has come."""
        number = self.interruption.requested
        if number is None:
            return
        self._save()
        self.checkpoints.wait()
        raise Interrupted(
            number, f"saved at sequence {self.presented:,} in {self.folder}"
        )

    def _save(self) -> None:
        """Writes the metrics to disk, then the checkpoint that refers to them."""
        if self.presented == self.saved_at:
            return
        metrics = self.folder / METRICS
        with writing(metrics), metrics.open("a") as file:
            os.fsync(file.fileno())
        self.checkpoints.save(self.presented, self._state())
        self.saved_at = self.presented

    def _count(self, cap: int) -> int:
        """Returns the number of sequences of the next chunk."""
        stopping = self.experiment.stopping
        # The last chunk ends at the cap, after which a success would not count.
        count = min(CHUNK, cap - self.presented)
        if stopping.on == "test":
            count = min(count, stopping.every - self.presented % stopping.every)
        return count

    @property
    def stopped(self) -> np.ndarray:
        """For each trial, the sequences after which it was stopped; 0 for others."""
        has_failed = self.trials.solved_after[-1] == 0
        return has_failed * (0 if self.seen is None else self.seen.stopped)

    def _are_over(self, now: Trials) -> np.ndarray:
        """Returns which trials of the batch have succeeded or were stopped."""
        return np.asarray(now.is_over) | (self.stopped[self.numbers] > 0)

    def _advance(self, now: Trials, count: int, progress: Progress) -> Trials:
        over = self._are_over(now)
        now, errors, rights = self.trainer.advance(now, self.presented, count)
        self.presented += count
        stopping = self.experiment.stopping
        is_cap = self.presented == self.experiment.learning.max_sequences
        if stopping.on == "test" and (self.presented % stopping.every == 0 or is_cap):
            now = self._test(now)
        errors, rights = np.asarray(errors), np.asarray(rights)
        solved = np.array(self.trials.solved_after)
        solved[:, self.numbers] = now.solved_after
        self.trials = self.trials._replace(solved_after=solved)
        self._look(now, self.presented - count)
        line = {
            "sequences": self.presented,
            "trials": self.numbers[~over].tolist(),
            "error": errors.mean(0)[~over].tolist(),
            "right": rights.mean(0)[~over].tolist(),
        }
        self._write(line)
        done = int((solved[-1] > 0).sum())
        error = errors.mean(0)[~over].mean()
        text = f"error {error:.3f}, {done}/{self.experiment.trials} solved"
        stopped = int((self.stopped > 0).sum())
        progress.show(self.presented, text + f", {stopped} stopped" * (stopped > 0))
        return now

    def _look(self, now: Trials, before: int) -> None:
        """Stops trials that can no longer succeed, if it is time to test for it."""
        if self.watch is None or not self.watch.is_due(before, self.presented):
            return
        seen = self.watch.look(_take(self.seen, self.numbers), now, self.presented)
        self.seen = self._with(self.seen, seen)

    def _write(self, line: dict[str, Any]) -> None:
        line["error"] = [x if np.isfinite(x) else None for x in line["error"]]
        metrics = self.folder / METRICS
        with writing(metrics), metrics.open("a") as file:
            print(json.dumps(line), file=file, flush=True)
            self.size = file.tell()

    def _test(self, now: Trials) -> Trials:
        """Records the stopping points that trials reach on test sequences."""
        stopping = self.experiment.stopping
        # The first test sequences are reserved for the test after training.
        start = self.experiment.test_sequences + self.presented * stopping.window
        start %= 2**31 - stopping.window
        may_pass = np.asarray(~now.is_over & (now.streak >= stopping.streak))
        if stopping.streak == 0:
            # All trials in one batch are faster than one by one.
            may_pass = may_pass & self._passes_first(now, start)
        # On the host, because JAX would compile a program to index each array.
        solved, on_host = np.array(now.solved_after), jax.device_get(now)
        for k in np.flatnonzero(may_pass):
            one = jax.tree.map(jnp.asarray, _take(on_host, [k]))
            if stopping.streak > 0 and not self._passes_first(one, start)[0]:
                continue
            reached = self._reached(one, start)
            after = first_reached(
                solved[:, k : k + 1], reached[:, None], self.presented
            )
            solved[:, k] = np.asarray(after)[:, 0]
        before = now.solved_after
        return trials_at(now._replace(solved_after=jnp.asarray(solved)), before)

    def _passes_first(self, trials: Trials, start: int) -> np.ndarray:
        """Returns which trials can still pass a test after its first sequences."""
        stopping = self.experiment.stopping
        first = self.trainer.test(trials, start, min(FIRST, stopping.window))
        return np.asarray(first.wrong) <= max(stopping.wrong)

    def _reached(self, one: Trials, start: int) -> np.ndarray:
        """Returns which stopping points one trial reaches on test sequences."""
        stopping = self.experiment.stopping
        bounds = np.array(stopping.mean_error or (np.inf,) * len(stopping.wrong))
        wrong, error, *_ = self.trainer.test(one, start, stopping.window)
        return (wrong[0] <= np.array(stopping.wrong)) & (np.asarray(error[0]) < bounds)

    def _without_those_over(self, now: Trials) -> Trials:
        """Drops finished trials once they are at least half of the batch."""
        are_over = self._are_over(now)
        count = len(are_over)
        if count <= FEW or 2 * are_over.sum() < count:
            return now
        self._put(now)
        self.numbers = self.numbers[~are_over]
        return self._taken()

    def _taken(self) -> Trials:
        return jax.tree.map(jnp.asarray, _take(self.trials, self.numbers))

    def _put(self, now: Trials) -> None:
        """Writes the trials of the batch back to all trials."""
        self.trials = self._with(self.trials, jax.device_get(now))

    def _with(self, of_all: Any, of_batch: Any) -> Any:
        """Returns arrays of all trials, with those of the batch replaced."""

        def put(leaf, part):
            leaf = np.array(leaf)
            leaf[..., self.numbers] = part
            return leaf

        return jax.tree.map(put, of_all, of_batch)


def _take(of_all: Any, numbers: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf[..., np.asarray(numbers)], of_all)
