"""Interruptions: SIGINT (Ctrl-C) and SIGTERM during a run.

A handler that raises `KeyboardInterrupt` is not safe: JAX calls Python functions where
exceptions are printed and ignored, so the run would continue. Here a signal sets a
flag, and the training loop reads the flag between compiled calls.
"""

import contextlib
import os
import signal
import socket
import sys
import threading
from collections import Counter
from typing import Any

SIGNALS = signal.SIGINT, signal.SIGTERM
# Shows the cursor again, which progress bars hide.
SHOW_CURSOR = "\x1b[?25h"
AGAIN = "Repeat the command to go on."


class Interrupted(Exception):
    """A run was interrupted.

    The command line prints `saved`, says how to go on, and exits with `status`.

    Args:
      number: number of the signal.
      saved: what was saved, such as "saved at update 1,200 in runs/a-seed0".

    Attributes:
      status: the exit status, 128 + number.
    """

    def __init__(self, number: int, saved: str):
        super().__init__(saved)
        self.status = 128 + number


class Interruption:
    """A context manager that handles SIGINT and SIGTERM while a run trains.

    The first signal sets `requested`: the loop must then save and raise `Interrupted`.
    A second signal of the same kind ends the process immediately, without saving, with
    the exit status 128 + number. (`run-all` sends SIGTERM to its runs when a terminal
    has already sent them SIGINT.) Outside of the main thread, signals are not handled.

    Args:
      at_once: whether the first signal already ends the process, for times when there
        is nothing to save. Default: `False`.

    Attributes:
      requested: number of the first signal; None before.

    Example:

      with Interruption() as interruption:
          while unfinished:
              train()
              if interruption.requested:
                  save()
                  raise Interrupted(interruption.requested, "saved at update 7")

    Raises:
      Interrupted: at the end, if `requested` was set and nothing was raised.
    """

    def __init__(self, at_once: bool = False):
        self.requested: int | None = None
        self._patience = 0 if at_once else 1
        self._handled, self._received = Counter(), Counter()
        self._is_ending = threading.Lock()
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Interruption":
        if threading.current_thread() is not threading.main_thread():
            return self
        # Python calls handlers in the main thread, and only between instructions: not
        # while XLA compiles or computes. A thread learns of a signal immediately.
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()
        self._wakeup = signal.set_wakeup_fd(
            self._writer.fileno(), warn_on_full_buffer=False
        )
        self._before = {number: signal.getsignal(number) for number in SIGNALS}
        for number in SIGNALS:
            signal.signal(number, self._handle)
        return self

    def __exit__(self, kind: type | None, *exception: Any) -> None:
        if not self._before:
            return
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup)
        self._writer.close()
        self._thread.join()
        self._reader.close()
        if self.requested is not None and kind is None:
            raise Interrupted(self.requested, "the last steps were not saved")

    def _handle(self, number: int, frame: Any) -> None:
        """Counts a signal even if a library has replaced the wakeup descriptor."""
        self._handled[number] += 1
        self._note(number, self._handled[number])

    def _listen(self) -> None:
        while received := self._reader.recv(1):
            number = received[0]
            if number in SIGNALS:
                self._received[number] += 1
                self._note(number, self._received[number])

    def _note(self, number: int, count: int) -> None:
        if count > self._patience:
            self._end(number)
        elif self.requested is None:
            self.requested = number
            if _is_terminal():
                _say("interrupted: saving. Press Ctrl-C again to end without saving.")

    def _end(self, number: int) -> None:
        """Ends the process; no exception can be lost on the way."""
        # The handler and the thread can both come here.
        if self._is_ending.acquire(blocking=False):
            _say(f"{SHOW_CURSOR if _is_terminal() else ''}interrupted. {AGAIN}")
            os._exit(128 + number)


def _is_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()


def _say(text: str) -> None:
    """Writes a line to stderr without its lock, which the main thread may hold."""
    with contextlib.suppress(OSError):
        os.write(2, f"{text}\n".encode())
