"""Progress of a run: a progress bar on a terminal, occasional lines elsewhere."""

import time
from datetime import timedelta

import rich.progress
from rich.console import Console

from experiments.settings.config import Experiment

SECONDS_BETWEEN_LINES = 15


class Progress:
    """A context manager; `show` reports the progress of the trials.

    Args:
      experiment: the config, with the cap and the number of trials.
    """

    def __init__(self, experiment: Experiment):
        self.trials = experiment.trials
        self.cap = experiment.learning.max_sequences
        self.console = Console(stderr=True)
        self.start = self.last_line = time.monotonic()
        # Sequences and time after the first chunk, which includes compilation.
        self.first: tuple[int, float] | None = None
        self.bar = rich.progress.Progress(
            # Bar and text fit into 80 columns.
            rich.progress.BarColumn(bar_width=12),
            rich.progress.TextColumn("{task.description}"),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        self.task = self.bar.add_task("compiling", total=self.cap)

    def __enter__(self) -> "Progress":
        self.bar.start()
        return self

    def __exit__(self, *exception) -> None:
        self.bar.stop()

    def show(self, presented: int, error: float, solved: int) -> None:
        """Reports progress.

        Args:
          presented: training sequences so far.
          error: mean absolute error of the last chunk.
          solved: number of trials that have succeeded.
        """
        now = time.monotonic()
        text = (
            f"{presented:,} sequences, error {error:.3f}, "
            f"{solved}/{self.trials} solved{self._left(presented, now)}"
        )
        self.bar.update(self.task, description=text, completed=presented)
        is_due = now - self.last_line >= SECONDS_BETWEEN_LINES or solved == self.trials
        if is_due and not self.console.is_terminal:
            self.last_line = now
            seconds = now - self.start
            print(f"{seconds:5.0f} s: {text}", file=self.console.file, flush=True)

    def _left(self, presented: int, now: float) -> str:
        """Returns the time left at most, until the cap."""
        if self.first is None:
            self.first = presented, now
        before, then = self.first
        if presented == before:
            return ""
        left = (self.cap - presented) * (now - then) / (presented - before)
        return f", at most {timedelta(seconds=round(left))} left"
