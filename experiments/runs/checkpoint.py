"""Checkpoints of an unfinished run: the only file that knows Orbax.

Orbax's `CheckpointManager` writes each checkpoint in the background. In some cases it
silently saves nothing or casts, and it does not notice damaged files. So this file adds
checksums, compares dtypes and shapes, and reports errors in one line that names a path.
"""

import contextlib
import logging
import os
import re
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from experiments.runs.checkpoint_arrays import (
    PyTree,
    described,
    restored,
    stored,
    template,
)
from experiments.runs.checksums import MANIFEST, Damaged, is_sealed, seal, verified
from experiments.runs.processes import is_first, meet, of_first, raise_together
from experiments.settings.rules import ConfigError

SECONDS_BETWEEN_CHECKPOINTS = 20.0
AGAIN = "Pass --overwrite to start again."


def saved_steps(folder: Path) -> list[int]:
    """Returns the steps of all complete checkpoints in a folder, in order."""
    return [step for step in _steps(folder) if is_sealed(folder / str(step))]


class Checkpoints:
    """The checkpoints of a run; a context manager, which waits for the last one.

    With several processes, each of them must make the same calls, and see the same
    folder.

    Args:
      folder: the folder of the checkpoints; it is made when the first one is saved.
      keep: how many of the newest checkpoints to keep, at least 1. Default: 2.

    Example:

      with Checkpoints(folder / "checkpoints") as checkpoints:
          step, state = checkpoints.restore(like=state) or (0, state)
          ...
          if checkpoints.are_due():
              checkpoints.save(step, state)
    """

    def __init__(self, folder: Path, keep: int = 2):
        if keep < 1:
            raise ValueError(f"`keep` must be at least 1, got {keep}.")
        self.folder, self.keep = Path(folder), keep
        self._manager: Any = None
        self._damaged: set[int] = set()
        self._saving: threading.Thread | None = None
        self._failure: Exception | None = None
        self._is_closed = False
        self._last = time.monotonic()

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, kind: type | None, *exception: Any) -> None:
        if kind is None:
            self.close()
        else:
            # The error on its way out matters more than one in the background.
            with contextlib.suppress(Exception):
                self.close()

    def are_due(self) -> bool:
        """Says whether the last checkpoint is old enough for the next one.

        Saving takes a tenth of a second, so runs save after a time, not after a number
        of steps. With several processes, the first one decides.
        """
        seconds = time.monotonic() - self._last
        return bool(of_first(seconds > SECONDS_BETWEEN_CHECKPOINTS))

    def save(self, step: int, state: PyTree) -> None:
        """Saves a state in the background; the caller may change it afterwards.

        Args:
          step: number of the checkpoint, above those of all others.
          state: a pytree of arrays, typed PRNG keys, Python numbers and None.

        Raises:
          ConfigError: this checkpoint, or the one before, could not be written.
          ValueError: `step` is not above the newest checkpoint.
        """
        self.wait()
        newest = max(set(saved_steps(self.folder)) - self._damaged, default=-1)
        if step <= newest:
            raise ValueError(
                f"`step` must be above the newest checkpoint of {self.folder}, "
                f"{newest}, got {step}."
            )
        arrays, notes = stored(state), described(state)
        with self._named(step):
            manager = self._opened()
            self._remove_unusable()
            from orbax.checkpoint import args

            # True and False are Orbax's words for saved and refused.
            if not manager.save(step, args=args.StandardSave(arrays)):
                raise RuntimeError(f"Orbax did not save step {step}.")
        self._saving = threading.Thread(target=self._finish, args=(step, notes))
        self._saving.start()
        self._last = time.monotonic()

    def restore(
        self, like: PyTree, step: int | None = None
    ) -> tuple[int, PyTree] | None:
        """Returns the newest checkpoint that is whole, or None if there is none.

        A damaged checkpoint prints one line on stderr, and the one before it is used.

        Args:
          like: a pytree with the structure, dtypes and shapes of the state. Arrays are
            restored on the devices of `like`: on the default device, if an array is not
            committed or a `jax.ShapeDtypeStruct` has no sharding.
          step: the step to restore; default: the newest.

        Returns:
          The step, and the state.

        Raises:
          ConfigError: all checkpoints are damaged, `step` is missing or damaged, or a
            leaf has another dtype or shape than in `like`.
        """
        self.wait()
        if step is not None and step not in saved_steps(self.folder):
            raise ConfigError(f"{self.folder} has no checkpoint {step}.")
        steps = _steps(self.folder) if step is None else [step]
        faults, incomplete = [], []
        for number in reversed(steps):
            folder = self.folder / str(number)
            if not is_sealed(folder):
                incomplete.append(f"{folder} is incomplete: it has no {MANIFEST}")
                continue
            try:
                notes = verified(folder)
            except Damaged as damage:
                self._damaged.add(number)
                faults.append(str(damage))
                continue
            _compare(notes, described(like), folder)
            for fault in incomplete + faults:
                _say(f"{fault}. Going on from {folder}.")
            return number, self._read(number, like)
        if faults:
            raise ConfigError(f"{faults[0]}. {AGAIN}")
        for fault in incomplete:
            _say(f"{fault}. There is no other, so the run starts again.")
        return None

    def wait(self) -> None:
        """Waits until the last checkpoint is on disk.

        Raises:
          ConfigError: it could not be written.
        """
        if self._is_closed:
            raise ValueError("these checkpoints are closed.")
        if self._saving is None:
            return
        self._saving.join()
        self._saving = None
        failure, self._failure = self._failure, None
        raise_together(failure)

    def close(self) -> None:
        """Waits for the last checkpoint, and ends the threads of Orbax.

        Raises:
          ConfigError: the last checkpoint could not be written.
        """
        if self._is_closed:
            return
        try:
            self.wait()
        finally:
            self._is_closed = True
            manager, self._manager = self._manager, None
            if manager is not None:
                manager.close()

    def _opened(self) -> Any:
        """Returns Orbax's manager of the folder."""
        if self._manager is None:
            # Imported here because the import takes half a second.
            import orbax.checkpoint as ocp

            # After the import: absl makes its own kind of log.
            _quiet()
            options = ocp.CheckpointManagerOptions(save_root_metadata=False)
            # Orbax saves nothing in a relative folder, and does not say so.
            self._manager = ocp.CheckpointManager(
                self.folder.absolute(), options=options
            )
        return self._manager

    def _read(self, step: int, like: PyTree) -> PyTree:
        manager = self._opened()
        from orbax.checkpoint import args

        found = manager.restore(step, args=args.StandardRestore(template(like)))
        return restored(like, found)

    def _finish(self, step: int, notes: dict[str, str]) -> None:
        """Seals a checkpoint when Orbax has written it, and removes old ones."""
        try:
            with self._named(step):
                self._manager.wait_until_finished()
                if is_first():
                    seal(self.folder / str(step), notes)
                    self._remove_old()
        except Exception as failure:  # Raised by the next call of the main thread.
            self._failure = failure

    def _remove_old(self) -> None:
        """Removes all but the newest complete checkpoints."""
        kept = saved_steps(self.folder)[-self.keep :]
        for step in _steps(self.folder):
            if step not in kept:
                _remove(self.folder / str(step))

    def _remove_unusable(self) -> None:
        """Removes damaged checkpoints, and what killed processes have left."""
        steps = set(_steps(self.folder))
        found = (steps - set(saved_steps(self.folder))) | (steps & self._damaged)
        meet("checkpoints are listed")
        if is_first():
            for step in found:
                _remove(self.folder / str(step))
            for left in self.folder.glob("*.orbax-checkpoint-tmp*"):
                shutil.rmtree(left, ignore_errors=True)
        meet("checkpoints are removed")
        self._damaged.clear()
        if found:
            self._manager.reload()

    @contextlib.contextmanager
    def _named(self, step: int) -> Iterator[None]:
        """Turns errors of the disk into one that names the folder."""
        folder = self.folder / str(step)
        try:
            yield
        except Exception as error:
            reason = _reason(error)
            if reason is None:
                raise
            self._discard(step)
            raise ConfigError(
                f"cannot write the checkpoint {folder}: {reason}. Repeat the command "
                "to go on from the checkpoint before it."
            ) from error

    def _discard(self, step: int) -> None:
        """Frees the space of a checkpoint that could not be written."""
        manager, self._manager = self._manager, None
        if manager is not None:
            # It would raise the same error again.
            with contextlib.suppress(Exception):
                manager.close()
        for left in self.folder.glob(f"{step}.orbax-checkpoint-tmp*"):
            shutil.rmtree(left, ignore_errors=True)
        # The file system may have become read-only.
        with contextlib.suppress(OSError):
            _remove(self.folder / str(step))


def _steps(folder: Path) -> list[int]:
    if not folder.is_dir():
        return []
    return sorted(int(path.name) for path in folder.iterdir() if path.name.isdecimal())


def _remove(folder: Path) -> None:
    # First what makes it a checkpoint: a killed process leaves no half of one.
    (folder / MANIFEST).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def _say(text: str) -> None:
    if is_first():
        print(f"warning: {text}", file=sys.stderr, flush=True)


def _reason(error: BaseException) -> str | None:
    """Returns what the system says about a failed write; None for other errors."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    # TensorStore reports errors of the system in the text of a ValueError.
    found = re.search(r"os_error_code='(\d+)'", str(error))
    return os.strerror(int(found[1])) if found else None


def _compare(found: dict[str, str], wanted: dict[str, str], folder: Path) -> None:
    """Raises a ConfigError at the first leaf that differs."""
    for name in [*wanted, *found]:
        if found.get(name) != wanted.get(name):
            raise ConfigError(
                f"`{name}` in {folder} must be {wanted.get(name, 'absent')}, got "
                f"{found.get(name, 'none')}. The checkpoint is of another config or "
                f"another version. {AGAIN}"
            )


def _quiet() -> None:
    """Stops tracebacks on stderr of errors that are raised as well.

    If many arrays cannot be written, Orbax raises the first error and closes its event
    loop, to which the threads of TensorStore report the others.
    """
    for name in ("absl", "asyncio"):
        log = logging.getLogger(name)
        if _is_of_others not in log.filters:
            log.addFilter(_is_of_others)
    hook = sys.unraisablehook
    if getattr(hook, "func", None) is not _unraisable:
        sys.unraisablehook = partial(_unraisable, hook)


def _unraisable(hook: Callable, unraisable: Any) -> None:
    if str(unraisable.exc_value) != "Event loop is closed":
        hook(unraisable)


def _is_of_others(record: logging.LogRecord) -> bool:
    text = record.getMessage()
    # After the first error, Orbax waits for no other of its futures.
    if record.name == "asyncio" and "exception was never retrieved" in text:
        return False
    return "orbax" not in record.pathname and "/orbax/" not in text
