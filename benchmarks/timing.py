"""Interleaved timing of calls, and statistics of the ratios of their times."""

import gc
import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

# Shorter calls are repeated for this time in each round, because clock and scheduler
# are coarse.
LEAST_SECONDS = 0.02
# Slow cases get fewer rounds, but at least as many as quartiles need.
LEAST_ROUNDS = 3


class Spread(NamedTuple):
    """The median of values, between their quartiles."""

    low: float
    median: float
    high: float


def spread(values: Sequence[float]) -> Spread:
    """Returns the median and the quartiles of one or more values."""
    if len(values) == 1:
        return Spread(*values * 3)
    return Spread(*statistics.quantiles(values, n=4, method="inclusive"))


def ratios(times: dict[str, Sequence[float]], base: str) -> dict[str, Spread]:
    """Returns the times of all contenders, divided by those of one of them.

    Both times of a ratio are from the same round, so a slowdown of the whole round,
    such as other work on the machine, cancels.

    Args:
      times: by name, the times of all rounds.
      base: name of the contender to divide by.
    """
    return {
        name: spread([a / b for a, b in zip(own, times[base], strict=True)])
        for name, own in times.items()
    }


def interleave(
    runs: dict[str, Callable[[], Any]],
    rounds: int,
    limit_seconds: float = math.inf,
    least_seconds: float = LEAST_SECONDS,
) -> dict[str, list[float]]:
    """Times each call once per round, in a new random order in each round.

    Args:
      runs: the calls. Each returns when its work is done, and has been called before,
        because a first call can allocate and load.
      rounds: number of rounds.
      limit_seconds: time limit, after at least three rounds.
      least_seconds: shorter calls are repeated for about this time, and the round's
        time is the mean.

    Returns:
      By name, the seconds of one call in each round.
    """
    repetitions = {
        name: math.ceil(least_seconds / max(_seconds(run, 1), 1e-7))
        for name, run in runs.items()
    }
    times: dict[str, list[float]] = {name: [] for name in runs}
    order, generator = list(runs), random.Random(0)
    gc.disable()
    start = time.perf_counter()
    try:
        for done in range(rounds):
            if done >= LEAST_ROUNDS and time.perf_counter() - start > limit_seconds:
                break
            gc.collect()
            generator.shuffle(order)
            for name in order:
                times[name].append(_seconds(runs[name], repetitions[name]))
    finally:
        gc.enable()
    return times


def _seconds(run: Callable[[], Any], repetitions: int) -> float:
    """Returns the mean time of a call."""
    if repetitions > 1:
        # Not timed, because the previous contender's data is still in the caches.
        run()
    start = time.perf_counter()
    for _ in range(repetitions):
        run()
    return (time.perf_counter() - start) / repetitions
