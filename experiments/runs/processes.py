"""What the processes of one run tell each other, so that none waits for another.

All processes must make the same calls, in the same order. With one process, each call
returns immediately.
"""

import contextlib
import hashlib
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from experiments.settings.rules import ConfigError

# Bytes of an error message that the other processes print.
LONGEST = 1000


def is_first() -> bool:
    """Says whether this process writes the files of the run."""
    return jax.process_index() == 0


def meet(place: str) -> None:
    """Waits until all processes are here.

    Args:
      place: the same text in all processes.
    """
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(place)


def of_first(value: Any) -> Any:
    """Returns the number that the first process has."""
    if jax.process_count() == 1:
        return value
    return multihost_utils.broadcast_one_to_all(np.asarray(value))


def largest(number: int | None) -> int | None:
    """Returns the largest number that a process has, such as that of a signal.

    A signal reaches the processes of a run at different times, but all of them must
    save the same step.
    """
    if jax.process_count() == 1:
        return number
    return int(multihost_utils.process_allgather(np.int32(number or 0)).max()) or None


def check_same(text: str, what: str) -> None:
    """Checks that all processes have the same text.

    Args:
      text: any text, such as a config.
      what: what it is, for the error.

    Raises:
      ConfigError: the texts differ; all processes raise it.
    """
    if jax.process_count() == 1:
        return
    digest = np.frombuffer(hashlib.sha256(text.encode()).digest(), np.uint8)
    digests = multihost_utils.process_allgather(digest)
    others = np.flatnonzero((digests != digests[0]).any(1))
    if len(others):
        raise ConfigError(
            f"all processes must have the same {what}, but process {others[0]} has "
            "another one than process 0. Start all of them with the same options."
        )


@contextlib.contextmanager
def ending_together() -> Iterator[None]:
    """Raises an error in all processes if the body raises one in any of them.

    Otherwise, the others would wait for a process that has ended. The body may not wait
    for other processes.

    Raises:
      ConfigError: the body has raised an error in another process, which it names.
    """
    failure = None
    try:
        yield
    except Exception as error:
        failure = error
    raise_together(failure)


def raise_together(failure: Exception | None) -> None:
    """Raises the error of this process, or one that names the error of another.

    Args:
      failure: the error; None if this process has none.
    """
    texts = _texts("" if failure is None else str(failure) or repr(failure))
    if failure is not None:
        raise failure
    for number, text in enumerate(texts):
        if text:
            raise ConfigError(f"process {number} has ended: {text}")


def _texts(text: str) -> list[str]:
    """Returns the text of each process, up to `LONGEST` bytes of it."""
    if jax.process_count() == 1:
        return [text]
    row = np.zeros(LONGEST, np.uint8)
    found = text.encode()[:LONGEST]
    row[: len(found)] = np.frombuffer(found, np.uint8)
    rows = multihost_utils.process_allgather(row)
    return [bytes(each).rstrip(b"\0").decode(errors="ignore") for each in rows]
