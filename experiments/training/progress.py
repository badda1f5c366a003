"""Shows how far a run is: a bar on a terminal, a line now and then elsewhere."""

import time

import rich.progress
from rich.console import Console

from experiments.settings.config import Experiment

SECONDS_BETWEEN_LINES = 15


class Progress:
    """A context in which `show` reports how far the trials are.

    Args:
      experiment: the config, of which the cap and the number of trials are shown.
    """

    def __init__(self, experiment: Experiment):
        self.trials = experiment.trials
        self.console = Console(stderr=True)
        self.last_line = self.start = time.monotonic()
        self.bar = rich.progress.Progress(
            rich.progress.TextColumn("{task.description}"),
            rich.progress.BarColumn(),
            rich.progress.TextColumn("{task.completed}/{task.total} trials solved"),
            rich.progress.TimeElapsedColumn(),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        self.task = self.bar.add_task("compiling", total=self.trials)

    def __enter__(self) -> "Progress":
        self.bar.start()
        return self

    def __exit__(self, *exception) -> None:
        self.bar.stop()

    def show(self, presented: int, error: float, solved: int) -> None:
        """Reports progress.

        Args:
          presented: training sequences so far.
          error: recent mean absolute error.
          solved: number of trials that have succeeded.
        """
        text = f"{presented:,} sequences, recent error {error:.3f}"
        self.bar.update(self.task, description=text, completed=solved)
        now = time.monotonic()
        is_due = now - self.last_line >= SECONDS_BETWEEN_LINES or solved == self.trials
        if is_due and not self.console.is_terminal:
            self.last_line = now
            seconds = now - self.start
            print(
                f"{seconds:5.0f} s: {text}, {solved}/{self.trials} trials solved",
                file=self.console.file,
                flush=True,
            )
