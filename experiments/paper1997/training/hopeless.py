"""Trials that can no longer succeed, and need not be trained until the cap.

`stopping.gives_up` stops them. Ten times within the paper's mean number of training
sequences, every trial is tested. A trial is stopped if one of these holds ten times in
a row:

dead class       the same class is wrong in all test sequences, another is right in all
saturated cells  all test sequences are wrong, and no weight into an input gate or a
                 cell has moved by 0.001 since the first of the ten tests

The rules are for the paper's networks in tasks with a target at the end.
docs/paper1997.md compares them with runs that went on.
"""

from typing import NamedTuple

import jax
import numpy as np

from experiments.paper1997.learners.network import Network, Weights
from experiments.paper1997.learners.published import PublishedLearner
from experiments.paper1997.training.trainer import Tests, Trainer, Trials

# Tests of a trial before it is stopped, and their sequences.
TESTS, TESTED = 10, 256
MOVED = 1e-3


class Watched(NamedTuple):
    """What the tests have shown so far; the last axis of every array is `trials`.

    Attributes:
      missed: for each class, the number of tests in a row at which it was wrong in all
        sequences, and another class right in all, `(classes, trials)`.
      still: number of tests in a row at which all sequences were wrong and no weight
        had moved.
      weights: the weights into input gates and cells before the first of these tests,
        `(weights, trials)`.
      stopped: number of training sequences after which a trial was stopped, or 0.
    """

    missed: np.ndarray
    still: np.ndarray
    weights: np.ndarray
    stopped: np.ndarray


class Watch:
    """The rules, for an experiment of the paper's networks with a target at the end.

    Args:
      trainer: the trainer of the experiment.
    """

    def __init__(self, trainer: Trainer):
        self.trainer, self.network = trainer, trainer.learner.network
        self.every = max(1, trainer.experiment.paper.sequences[-1] // TESTS)

    def start(self, trials: Trials) -> Watched:
        """Returns what is known of trials before the first sequence."""
        weights = into_cells(self.network, trials.weights)
        none = np.zeros(weights.shape[-1], np.int32)
        # A single output unit has numeric targets.
        classes = self.network.outputs if self.network.outputs > 1 else 0
        missed = np.zeros((classes, len(none)), np.int32)
        return Watched(missed, none, weights, none)

    def is_due(self, before: int, presented: int) -> bool:
        """Says whether a test lies between two numbers of training sequences."""
        return before // self.every < presented // self.every

    def look(self, seen: Watched, trials: Trials, presented: int) -> Watched:
        """Tests trials.

        Args:
          seen: what is known of them.
          trials: the trials.
          presented: number of training sequences so far.
        """
        tests = jax.device_get(self.trainer.test(trials, 0, TESTED))
        weights = into_cells(self.network, trials.weights)
        missed = seen.missed
        if len(missed):
            missed = np.where(_missed(tests), missed + 1, 0)
        is_still = np.abs(weights - seen.weights).max(0) < MOVED
        is_still &= tests.wrong == TESTED
        still = np.where(is_still, seen.still + 1, 0)
        stops = (still >= TESTS) | (missed >= TESTS).any(0)
        stops &= ~np.asarray(trials.is_over) & (seen.stopped == 0)
        return Watched(
            missed.astype(np.int32),
            still.astype(np.int32),
            np.where(is_still, seen.weights, weights),
            np.where(stops, presented, seen.stopped).astype(np.int32),
        )


def watch_of(trainer: Trainer) -> Watch | None:
    """Returns what stops hopeless trials of a run, or None if nothing does.

    Args:
      trainer: the trainer of the run.
    """
    config = trainer.experiment
    if not config.stopping.gives_up or config.task.is_along:
        return None
    return Watch(trainer) if isinstance(trainer.learner, PublishedLearner) else None


def _missed(tests: Tests) -> np.ndarray:
    """Returns which classes are missed while another is right, `(classes, trials)`."""
    wrong, total = tests.wrong_by_target.T, tests.by_target.T
    is_right = (wrong == 0) & (total > 0)
    return (wrong == total) & (total > 0) & is_right.any(0)


def into_cells(network: Network, w: Weights) -> np.ndarray:
    """Returns the weights into input gates and cells, `(weights, trials)`."""
    units = network.blocks + network.cells
    parts = [
        np.asarray(leaf)[..., :units, :].reshape(-1, leaf.shape[-1])
        for leaf in (w.inputs, w.hidden, w.bias)
        if leaf is not None
    ]
    return np.concatenate(parts)
