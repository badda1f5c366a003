"""Grids of options: every run tests chosen rows, or rows with all pairs of values."""

from collections.abc import Sequence
from itertools import combinations

import pytest


def covering(rows: Sequence[tuple]) -> list[tuple]:
    """Returns few rows that hold every pair of values that the rows of a grid hold.

    Args:
      rows: a row for each test, a column for each option.

    Raises:
      ValueError: rows of one column, which have no pairs.
    """
    if any(len(row) < 2 for row in rows):
        raise ValueError("`rows` must have two columns or more to have pairs.")

    def pairs(row):
        return set(combinations(enumerate(row), 2))

    missing, chosen = set().union(*map(pairs, rows)), []
    while missing:
        row = max(rows, key=lambda row: len(pairs(row) & missing))
        chosen.append(row)
        missing -= pairs(row)
    return chosen


def exhaustive_but(rows: Sequence[tuple], always: Sequence[tuple]) -> list:
    """Returns the rows of a grid; `-m exhaustive` runs those that are not in `always`.

    Args:
      rows: the whole grid.
      always: rows that every run tests.

    Raises:
      ValueError: a row of `always` that the grid does not have.
    """
    unknown = [row for row in always if row not in rows]
    if unknown:
        raise ValueError(f"`always` must be rows of the grid, got {unknown}.")
    return [
        pytest.param(*row, marks=[] if row in always else pytest.mark.exhaustive)
        for row in rows
    ]


def each_pair(names: str, rows: Sequence[tuple]):
    """Parametrizes a test by a grid: all pairs in every run, `-m exhaustive` the rest.

    Args:
      names: names of the columns, as for `pytest.mark.parametrize`.
      rows: the grid; values must be hashable.
    """
    return pytest.mark.parametrize(names, exhaustive_but(rows, covering(rows)))
