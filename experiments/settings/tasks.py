"""The options of each task: the section `[task]` of a config.

A config can choose every subclass of `PaperTask`, by its name.
"""

from functools import reduce
from operator import or_
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from experiments.settings.rules import Count, NotNegative, require, task_settings


class PaperTask:
    """Base of the options.

    Attributes:
      is_symbolic: whether inputs are indices of symbols.
      is_along: whether there is a target at every step, not only at the end.
      asked_from_end: for `is_along`, the position of the prediction that needs the
        first symbols, counted from the end; 1 is the last step.
    """

    is_symbolic: ClassVar[bool] = False
    is_along: ClassVar[bool] = False
    asked_from_end: ClassVar[int] = 1


@task_settings
class EmbeddedReber(PaperTask):
    """Predicting the next symbols of the embedded Reber grammar (Experiment 1), or of
    the plain one."""

    is_symbolic: ClassVar[bool] = True
    is_along: ClassVar[bool] = True
    asked_from_end: ClassVar[int] = 2

    strings: Count = 256
    """Number of strings of the training set, and of the test set, at least 1."""
    pairs: Count = 3
    """Pairs of training and test sets; trials use them in turn; at least 1."""
    distinct: bool = False
    """Whether the strings of a training set are all different."""
    embedded: bool = True
    """Whether strings of the grammar stand between two equal symbols."""


@task_settings
class LongLags(PaperTask):
    """Predicting every next symbol; the last equals the first (2a, 2b)."""

    is_symbolic: ClassVar[bool] = True
    is_along: ClassVar[bool] = True

    lag: Annotated[int, Field(ge=2, lt=2**31)] = 100
    """Steps from the first symbol to the last, p, at least 2."""
    is_random: bool = False
    """Whether the symbols in between are random (2b) or in a fixed order (2a)."""
    measured: Literal["all", "end"] = "all"
    """Steps whose error is measured, for success and for growth: all, or only the last
    symbol."""


@task_settings
class VeryLongLags(PaperTask):
    """Remembering the second symbol until a trigger (2c)."""

    is_symbolic: ClassVar[bool] = True

    lag: Count = 50
    """Minimum number of distractors, q, at least 1."""
    distractors: Count = 50
    """Number of different distractors, p, at least 1."""
    go_on: Annotated[float, Field(gt=0, lt=1)] = 0.9
    """Probability of each further distractor, in (0, 1)."""


@task_settings
class TwoClasses(PaperTask):
    """Classifying a noisy sequence by its first numbers (3)."""

    length: Count = 100
    """Minimum length, T; the maximum is T + T/10; at least 1."""
    information: Count = 3
    """Number of first values that encode the class, N, in [1, length]."""
    variance: NotNegative = 0.2
    """Variance of the noise, at least 0."""
    noisy_signal: bool = False
    """Whether the first values have noise too (3b)."""
    targets: tuple[float, float] = (1.0, 0.0)
    """Targets of the two classes."""
    target_variance: NotNegative = 0.0
    """Variance of the noise on training targets, at least 0 (3c)."""

    def __post_init__(self):
        require(
            self.information <= self.length,
            f"`information` must be at most `length` {self.length}, got "
            f"{self.information}.",
        )


@task_settings
class MarkedPairs(PaperTask):
    """Adding or multiplying two marked numbers (4, 5)."""

    length: Annotated[int, Field(ge=24, lt=2**31)] = 100
    """Minimum length, T; the maximum is T + T/10; at least 24."""
    operation: Literal["sum", "product"] = "sum"
    """Operation on the two numbers."""
    first_pair: Literal["first", "both", "input"] = "both"
    """Marked numbers that count as neutral (0 in sums, 1 in products) in the first
    pair: only the one picked first, or both; their marker stays -1. input: the number
    itself is set to the neutral one, and its marker is 1."""


@task_settings
class TemporalOrder(PaperTask):
    """Classifying the order of symbols that are far apart (6)."""

    is_symbolic: ClassVar[bool] = True

    positions: tuple[tuple[int, int], ...] = ((10, 20), (50, 60))
    """First and last possible step of each X or Y, counted from 0."""
    lengths: tuple[Count, Count] = (100, 110)
    """Minimum and maximum length of a sequence, in steps, inclusive."""

    def __post_init__(self):
        ranges = (*self.positions, self.lengths)
        ordered = all(first <= last for first, last in ranges)
        require(
            ordered and bool(self.positions),
            "`positions` and `lengths` must be ranges with first <= last, with at "
            f"least one of `positions`, got {self.positions} and {self.lengths}.",
        )
        starts_and_ends = zip(self.positions[1:], self.positions, strict=False)
        require(
            all(start > end for (start, _), (_, end) in starts_and_ends),
            f"`positions` must increase without overlap, got {self.positions}.",
        )
        # The first step is the symbol E, the last one the symbol B.
        last = self.lengths[0] - 2
        require(
            self.positions[0][0] >= 1 and self.positions[-1][1] <= last,
            f"`positions` must lie in [1, {last}], between the first and the last step "
            f"of the shortest sequence, got {self.positions}.",
        )


TASK_OPTIONS = {task.name: task for task in PaperTask.__subclasses__()}
AnyTask = reduce(or_, TASK_OPTIONS.values())
