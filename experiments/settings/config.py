"""The fields of the files in `configs`.

A file becomes a frozen `Experiment`. The type of a field states its range;
`__post_init__` checks the rules between fields. Both hold for files and for the command
line. Nothing here imports jax.
"""

import math
from typing import Annotated, Literal

from pydantic import Field

from experiments.settings.rules import (
    Count,
    CountOrZero,
    NotNegative,
    Positive,
    Seed,
    Share,
    require,
    settings,
)
from experiments.settings.tasks import AnyTask, EmbeddedReber

# Sequences trained on by one call. Large enough to hide the overhead of the host, small
# enough for a smooth progress bar and for the memory of their data.
CHUNK = 500
# Sequences on which each guess of random weights is tried; divides `CHUNK`.
PER_GUESS = 250
# Results count numeric targets in [0, 1] in this many bins.
PARTS = 20
HIDDEN_UNITS = ("in", "cell", "out")
Squashing = Literal["logistic", "identity", "1", "2", "4"]


@settings
class Paper:
    """The published numbers that an experiment is compared with."""

    table: str
    """Number of the table in the paper."""
    row: str
    """Row of that table."""
    sequences: tuple[Count, ...]
    """Mean training sequences until each stopping point, at least 1."""
    weights: Count
    """Number of trainable weights, at least 1."""
    trials: Count
    """Number of trials in the mean, at least 1."""
    percent: Annotated[float, Field(ge=0, le=100)] | None = None
    """Percentage of successful trials, from 0 to 100; None: not printed."""
    wrong: NotNegative | None = None
    """Wrong test sequences, from 0 to paper.test_sequences; None: not printed."""
    test_sequences: int | None = None
    """Number of test sequences for `wrong`."""

    def __post_init__(self):
        if self.wrong is not None:
            require(
                self.test_sequences is not None and self.wrong <= self.test_sequences,
                f"`wrong` must be in [0, `test_sequences`], got {self.wrong} of "
                f"{self.test_sequences}.",
            )


@settings
class Model:
    """The network: a hidden layer of memory cell blocks, and output units."""

    blocks: Count
    """Number of memory cell blocks, at least 1."""
    block_size: Count
    """Cells of each block, at least 1."""
    weight_range: Positive
    """Initial weights are uniform in [-weight_range, weight_range), > 0."""
    input_gate_bias: tuple[float, ...] | None = None
    """Initial bias of each block's input gate; None draws it like a weight."""
    output_gate_bias: tuple[float, ...] | None = None
    """Initial bias of each block's output gate; None draws it like a weight."""
    input_gate_offset: tuple[float, ...] = ()
    """Constants added to the net input of each block's input gate; empty: none."""
    biases: tuple[str, ...] = HIDDEN_UNITS
    """Hidden units with biases: in (input gates), cell, out (output gates)."""
    output_bias: bool = True
    """Whether output units have biases."""
    g: Squashing = "2"
    """Squashing of a cell's net input; a number x: a logistic function in [-x, x]."""
    h: Squashing = "1"
    """Squashing of a cell's state; a number x: a logistic function in [-x, x]."""
    output_unit: Squashing = "logistic"
    """Squashing of the output units."""
    output_slope: bool = True
    """Whether an output unit's error has the factor f'(net) of equation 19."""
    output_slope_offset: NotNegative = 0.0
    """Added to this factor, at least 0 (Fahlman, 1988)."""
    output_gates: bool = True
    """Whether blocks have output gates."""
    recurrent: bool = True
    """Whether hidden units have recurrent connections."""
    gate_feedback: bool = True
    """Whether hidden units get the activations of gates, not only of cells."""
    direct: bool = False
    """Whether input units are connected to output units."""

    def __post_init__(self):
        require(
            set(self.biases) <= set(HIDDEN_UNITS)
            and len(set(self.biases)) == len(self.biases),
            f"`biases` must be a subset of {list(HIDDEN_UNITS)}, got "
            f"{list(self.biases)}.",
        )
        require(
            self.output_gates or "out" not in self.biases,
            "`biases` must not contain 'out' if `output_gates` is false, got "
            f"{list(self.biases)}.",
        )
        self._check_gate_bias("input_gate_bias", "in")
        self._check_gate_bias("output_gate_bias", "out")
        require(
            len(self.input_gate_offset) in (0, self.blocks)
            and all(map(math.isfinite, self.input_gate_offset)),
            "`input_gate_offset` must be empty or have one finite number for each of "
            f"{self.blocks} blocks, got {list(self.input_gate_offset)}.",
        )

    def _check_gate_bias(self, name: str, unit: str) -> None:
        bias = getattr(self, name)
        if bias is None:
            return
        require(
            len(bias) == self.blocks and all(map(math.isfinite, bias)),
            f"`{name}` must have one finite number for each of {self.blocks} blocks, "
            f"got {list(bias)}.",
        )
        require(
            unit in self.biases,
            f"`{name}` must not be set if `biases` does not contain {unit!r}, got "
            f"{list(bias)}.",
        )


@settings
class Learning:
    """Online gradient descent on the squared error, or on half of it."""

    rate: Positive
    """Learning rate of gradient descent, > 0."""
    update: Literal["sequence", "step"] = "sequence"
    """When to update the weights; step: only in tasks with an error at every step."""
    error: Literal["half", "whole"] = "half"
    """half: half the squared error, whose steps are equations 19 to 28; whole: the
    squared error of equation 16, whose steps are twice as long."""
    gradient: Literal["truncated", "full"] = "truncated"
    """truncated: errors flow back in time only through the cells' states."""
    max_sequences: Count
    """Training sequences after which a trial fails, at least 1."""

    def __post_init__(self):
        require(
            self.gradient == "truncated" or self.update == "sequence",
            "`update` must be 'sequence' if `gradient` is 'full', got 'step'.",
        )


@settings
class Stopping:
    """When a trial has succeeded. There can be several stopping points in order.

    A sequence is right if every measured absolute error is below the tolerance. In the
    Reber grammar, it is right if the legal next symbols are the most active ones.
    """

    on: Literal["training", "test"]
    """Sequences to check: the most recent training sequences, or test sequences."""
    tolerance: Positive
    """A sequence is right if all measured absolute errors are below this, > 0."""
    window: Count = 2000
    """Number of sequences to check, at least 1."""
    wrong: tuple[CountOrZero, ...] = (0,)
    """Largest number of wrong sequences among them, for each point."""
    mean_error: tuple[Positive, ...] = ()
    """Upper bound of their mean absolute error, for each point, > 0; empty: none."""
    every: Count = 100
    """Training sequences between tests, at least 1."""
    streak: CountOrZero = 0
    """Number of consecutive right training sequences that a test requires."""
    gives_up: bool = False
    """Whether to stop the paper's networks that can no longer succeed, in tasks with a
    target at the end; see `experiments/paper1997/training/hopeless.py`."""

    def __post_init__(self):
        require(
            bool(self.wrong) and max(self.wrong) < self.window,
            f"`wrong` must be counts in [0, {self.window}), got {list(self.wrong)}.",
        )
        require(
            len(self.mean_error) in (0, len(self.wrong)),
            "`mean_error` must be empty or have a bound for each of "
            f"{len(self.wrong)} points, got {list(self.mean_error)}.",
        )


@settings
class Growth:
    """When to add hidden units to a network that starts without them (2a, 2b)."""

    window: CountOrZero = 0
    """Number of sequences over which the measured error is averaged; 0: hidden units
    from the start."""
    gain: Share = 0.01
    """Units are added when the average falls by less than this share, in [0, 1)."""


@settings
class Baseline:
    """A modern network. It replaces [model] except `output_unit`, and [learning] except
    `max_sequences`."""

    cell: Literal["", "elman", "lstm", "gru", "chrono-lstm", "chrono-gru"] = ""
    """The recurrent cell; empty: no baseline."""
    features: Count = 32
    """Number of hidden units, at least 1."""
    rate: Positive = 0.003
    """Learning rate of Adam, > 0."""
    clip: Positive = 1.0
    """Gradients with a larger norm are clipped to this norm, > 0."""
    batch: Count = 20
    """Sequences per update, at least 1."""


@settings
class Competitor:
    """A network that the paper compares LSTM with. It replaces [model] except
    `weight_range`, and `learning.update`."""

    method: Literal["", "rtrl", "bptt", "elman", "guessing"] = ""
    """Its learning rule; guessing: weights are drawn until they are right; empty: no
    competitor."""
    units: Count = 1
    """Number of hidden units, at least 1."""
    outputs: Literal["layer", "direct", "units"] = "layer"
    """Output units. layer: they get the hidden units; direct: the inputs too; units:
    they are units of one fully recurrent layer. Unused by guessing."""
    published: str = ""
    """What the paper reports: the share of successful trials, and their mean."""


@settings
class Experiment:
    """One published number, and the experiment that reproduces it."""

    title: str
    """Short title of the experiment."""
    seed: Seed = 0
    """Random seed of all trials, in [0, 2**32)."""
    trials: Count
    """Number of networks to train, each with its own random stream, at least 1."""
    test_sequences: Count = 2560
    """Number of test sequences for each trained network, at least 1."""
    paper: Paper
    task: Annotated[AnyTask, Field(discriminator="name")]
    model: Model
    learning: Learning
    stopping: Stopping
    growth: Growth = Growth()
    baseline: Baseline = Baseline()
    competitor: Competitor = Competitor()

    def __post_init__(self):
        require(
            len(self.paper.sequences) == len(self.stopping.wrong),
            "`paper.sequences` and `stopping.wrong` must have one number for each "
            f"stopping point, got {len(self.paper.sequences)} and "
            f"{len(self.stopping.wrong)}.",
        )
        require(
            self.learning.update == "sequence" or self.task.is_along,
            "`learning.update` must be 'sequence' in tasks with an error only at the "
            "end, got 'step'.",
        )
        require(
            self.learning.gradient == "truncated"
            or (self.model.output_slope and self.model.output_slope_offset == 0),
            "`learning.gradient` must be 'truncated' if the error of output units has "
            "another factor than f'(net), got 'full'.",
        )
        if self.baseline.cell:
            self._check_batches()
        if self.competitor.method:
            self._check_competitor()
        if isinstance(self.task, EmbeddedReber):
            self._check_sets(2 * self.task.strings)
        require(
            self.growth.window == 0 or self.task.is_along,
            "`growth.window` must be 0 in tasks with an error only at the end, got "
            f"{self.growth.window}.",
        )

    def _check_competitor(self) -> None:
        learns = self.competitor.method != "guessing"
        require(
            self.task.is_along == self.task.is_symbolic == learns,
            "`competitor.method` must be 'rtrl', 'bptt' or 'elman' in tasks of symbols "
            "with a target at every step, and 'guessing' in tasks of numbers, got "
            f"{self.competitor.method!r}.",
        )
        require(
            learns
            or (self.stopping.on, self.stopping.window) == ("training", PER_GUESS),
            f"`stopping` must look at {PER_GUESS} training sequences with guessing, "
            f"got {self.stopping.window} {self.stopping.on} sequences.",
        )
        require(
            learns or self.learning.max_sequences % PER_GUESS == 0,
            f"`learning.max_sequences` must be a multiple of {PER_GUESS} with "
            f"guessing, got {self.learning.max_sequences}.",
        )
        require(
            (self.learning.error, self.learning.gradient) == ("half", "truncated"),
            "`learning.error` and `learning.gradient` must have their defaults with a "
            f"competitor, got {self.learning.error!r} and {self.learning.gradient!r}.",
        )
        require(
            self.growth.window == 0 and not self.baseline.cell,
            "`growth.window` must be 0 and `baseline.cell` empty with a competitor, "
            f"got {self.growth.window} and {self.baseline.cell!r}.",
        )

    def _check_sets(self, strings: int) -> None:
        window, tested = self.stopping.window, self.test_sequences
        require(
            tested == strings and (window == strings or self.stopping.on == "training"),
            "`stopping.window` and `test_sequences` must be the strings of both sets, "
            f"twice `task.strings`, {strings}, got {window} and {tested}.",
        )

    def _check_batches(self) -> None:
        batch, stopping = self.baseline.batch, self.stopping
        looked_at = stopping.window if stopping.on == "training" else stopping.every
        for count in (self.learning.max_sequences, looked_at, CHUNK):
            require(
                count % batch == 0,
                f"`baseline.batch` must divide {count}, got {batch}.",
            )
        require(
            self.growth.window == 0,
            f"`growth.window` must be 0 with a baseline, got {self.growth.window}.",
        )
