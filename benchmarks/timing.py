"""Times of calls that take turns, and the statistics of their ratios."""

import gc
import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

# Shorter calls are repeated for so long in each round: a clock and a scheduler are
# coarse.
LEAST_SECONDS = 0.02
# Cases that take very long get fewer rounds, but no fewer than quartiles need.
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
    """Returns how long each takes, relative to another.

    Both times of a ratio are from one round, so that what slows a whole round, as other
    work on the machine, cancels.

    Args:
      times: of each name, a time for each round.
      base: the name whose time divides those of all.
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
    """Calls everyone once a round, in an order that is drawn anew for each.

    Args:
      runs: the calls; each returns when its work is done, and was called before, as a
        first call may allocate and load.
      rounds: how often each is timed.
      limit_seconds: no round starts after so long, but for the first three.
      least_seconds: calls that are shorter are repeated for about so long, and the
        round's time is the mean.

    Returns:
      Seconds of one call, of each name, for each round.
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
        # Not timed: the one before has left its data in the caches, its threads awake.
        run()
    start = time.perf_counter()
    for _ in range(repetitions):
        run()
    return (time.perf_counter() - start) / repetitions
