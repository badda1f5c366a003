"""Levels of tests, as markers on their rows.

Every test and row without a marker is quick: most properties, on an LSTM and a GRU, and
what depends on the version of JAX. `-m quick` runs those alone. Markers `default` and
`exhaustive` move a module, a test or a row up: `pytest` runs all but the exhaustive
ones, and `-m exhaustive` runs those.
"""

from collections.abc import Iterable, Sequence
from itertools import combinations

import pytest


def pairwise(rows: Sequence[tuple]) -> list[tuple]:
    """Returns few rows that hold every pair of values that the rows of a grid hold."""

    def pairs(row):
        return set(combinations(enumerate(row), 2))

    missing, chosen = set().union(*map(pairs, rows)), []
    while missing:
        row = max(rows, key=lambda row: len(pairs(row) & missing))
        chosen.append(row)
        missing -= pairs(row)
    return chosen


def by_level(rows: Iterable, chosen: Sequence | int, quick: int = 1) -> list:
    """Returns the rows of a grid, each with the marker of its level.

    Args:
      rows: the whole grid; a row is a tuple, or the value of a single column.
      chosen: rows that every run tests, or the number of the first rows that it tests.
        The rows that are not chosen are exhaustive.
      quick: number of the first chosen rows that are quick.

    Raises:
      ValueError: a row of `chosen` that the grid does not have.
    """

    def as_rows(values):
        return [row if isinstance(row, tuple) else (row,) for row in values]

    rows = as_rows(rows)
    if isinstance(chosen, int):
        order = list(range(chosen))
    else:
        chosen = as_rows(chosen)
        unknown = [row for row in chosen if row not in rows]
        if unknown:
            raise ValueError(f"`chosen` must be rows of the grid, got {unknown}.")
        order = [rows.index(row) for row in chosen]

    def level(k):
        if k in order[:quick]:
            return []
        return pytest.mark.default if k in order else pytest.mark.exhaustive

    return [pytest.param(*row, marks=level(k)) for k, row in enumerate(rows)]
