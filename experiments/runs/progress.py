"""Progress of a run: a progress bar on a terminal, occasional lines elsewhere."""

import time
from collections import deque
from datetime import timedelta

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

SECONDS_BETWEEN_LINES = 15
# The speed is that of the last so many seconds.
SECONDS_OF_SPEED = 60
BAR_WIDTH = 12


class Progress:
    """A context manager; `show` reports the progress of a run.

    Args:
      total: number of units after which the run ends.
      unit: name of the units: "sequences" or "updates".
      title: text in front of each line. Default: none.
      can_stop_early: whether the run can end before `total`: the time left is then
        shown as an upper bound. Default: `False`.
      console: where to write. Default: stderr.
    """

    def __init__(
        self,
        total: int,
        unit: str,
        title: str = "",
        can_stop_early: bool = False,
        console: Console | None = None,
    ):
        self.total, self.unit, self.title = total, unit, title
        self.can_stop_early = can_stop_early
        self.console = Console(stderr=True) if console is None else console
        self.start = self.last_line = time.monotonic()
        # Units and times of the latest reports. The first report comes after
        # compilation, and after the work of earlier processes.
        self.reports: deque[tuple[int, float]] = deque()
        self.done, self.text, self.is_printed = 0, "compiling", True
        self.live = Live(
            get_renderable=self._rendered,
            console=self.console,
            refresh_per_second=4,
            auto_refresh=self.console.is_terminal,
        )

    def __enter__(self) -> "Progress":
        if self.console.is_terminal:
            self.live.start()
        return self

    def __exit__(self, *exception) -> None:
        if self.console.is_terminal:
            self.live.stop()
        elif not self.is_printed:
            self._print(time.monotonic())

    def show(self, done: int, text: str) -> None:
        """Reports progress.

        Args:
          done: units so far, also those of earlier processes.
          text: what else to show, such as "loss 1.532, valid 1.61".
        """
        now = time.monotonic()
        self.done, self.text, self.is_printed = done, text, False
        self.reports.append((done, now))
        # At least two remain.
        while len(self.reports) > 2 and self.reports[1][1] < now - SECONDS_OF_SPEED:
            self.reports.popleft()
        if now - self.last_line >= SECONDS_BETWEEN_LINES:
            if not self.console.is_terminal:
                self._print(now)

    def _print(self, now: float) -> None:
        self.last_line, self.is_printed = now, True
        seconds = f"{now - self.start:5.0f} s: "
        line = self._line(self.console.width - len(seconds))
        print(f"{seconds}{line}", file=self.console.file, flush=True)

    def _rendered(self) -> Table | Text:
        """Returns the line, behind a bar if all of it fits."""
        beside = self.console.width - BAR_WIDTH - 1
        line = next((line for line in self._lines()[:4] if len(line) <= beside), None)
        if line is None:
            return Text(self._line(self.console.width), no_wrap=True)
        row = Table.grid(padding=(0, 1))
        bar = ProgressBar(self.total, self.done, width=BAR_WIDTH)
        row.add_row(bar, Text(line, no_wrap=True))
        return row

    def _line(self, width: int) -> str:
        """Returns the most detailed line that fits."""
        lines = self._lines()
        return next((line for line in lines if len(line) <= width), lines[-1][:width])

    def _lines(self) -> list[str]:
        """Returns lines in the order of their details; the first four have all."""
        left = brief = self._left()
        if left:
            left = f"{'at most ' if self.can_stop_early else ''}{left} left"
            brief = f"{'<' if self.can_stop_early else ''}{brief}"
        done, short = f"{self.done:,}", _short(self.done)
        counts = (
            f"{done}/{self.total:,} {self.unit}",
            f"{done} {self.unit}",
            f"{short}/{_short(self.total)} {self.unit}",
        )
        lines = [
            (self.title, counts[0], self.text, left),
            *((count, self.text, left) for count in counts),
            (counts[2], self.text, brief),
            (short, self.text, brief),
            (short, self.text),
        ]
        return [", ".join(filter(None, parts)) for parts in lines]

    def _left(self) -> str:
        """Returns the time left at the recent speed, or nothing before it is known."""
        if self.done >= self.total or len(self.reports) < 2:
            return ""
        (before, then), (done, now) = self.reports[0], self.reports[-1]
        if done <= before:
            return ""
        left = (self.total - done) * (now - then) / (done - before)
        return str(timedelta(seconds=round(left)))


def _short(number: int) -> str:
    """Returns a number in at most five characters, such as `1.25M`."""
    for size, letter in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if number >= size:
            return f"{number / size:.3g}{letter}"
    return str(number)
