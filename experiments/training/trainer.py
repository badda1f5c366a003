"""Training, until a rule says stop: all trials of an experiment, in one compiled loop.

Hochreiter and Schmidhuber, 1997, train on line: batch size 1, constant learning rate,
plain gradient descent on half the squared error (equations 19 to 28 of their appendix
have no factor 2). What is trained, and how, is up to a learner, see
`experiments/learners/published.py`. The loop makes its data itself; a trial that has
succeeded learns no more.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from experiments.learners.baseline import BaselineLearner
from experiments.learners.network import Array
from experiments.learners.published import PublishedLearner
from experiments.settings.config import PARTS, Experiment
from experiments.tasks import TASKS
from experiments.tasks.reber_sets import Sets, draw_sets
from experiments.tasks.sequence import Sequence

# Test sequences in which states are looked at.
LOOKED_AT = 64


class Trials(NamedTuple):
    """Trials under way; the last axis of every array is theirs.

    Attributes:
      numbers: of the trials, which their random numbers depend on.
      weights: what the learner trains.
      streak: number of right sequences since the last wrong one.
      wrongs: how many sequences of each presentation in the `window` were wrong, in a
        ring: presentation `n` is at `n % len(wrongs)`; of one element where the rule
        looks at tests.
      errors: their mean absolute errors, likewise.
      wrong: how many were wrong together; those before the first count as wrong.
      solved_after: for each stopping point, the number of training sequences until it
        was reached, 0 before.
      reached: the weights at each stopping point, `(points, ...)`; those now, before.
      added: output weights of hidden units that are not there yet (see `Growth`), and
        after how many sequences they were added, 0 before; None without growth.
      watched: sums of the errors in this window, and in the one before; likewise.
    """

    numbers: Array
    weights: Any
    streak: Array
    wrongs: Array
    errors: Array
    wrong: Array
    solved_after: Array
    reached: Any
    added: tuple[Array, Array] | None
    watched: Array | None

    @property
    def is_over(self) -> Array:
        """Whether each trial has reached its last stopping point."""
        return self.solved_after[-1] > 0


class Tests(NamedTuple):
    """What trials do on test sequences; the first axis is theirs.

    Attributes:
      wrong: how many sequences are wrong.
      error: mean absolute error.
      wrong_by_target: how many are wrong of each class, or of each part of [0, 1] in
        which a target can lie, `(trials, kinds)`; with targets at every step, how many
        at the one that needs the first symbols, and how many at others.
      by_target: how many there are of each.
    """

    wrong: Array
    error: Array
    wrong_by_target: Array
    by_target: Array


def learner_of(experiment: Experiment) -> PublishedLearner | BaselineLearner:
    """Returns what the trials of a config train."""
    kind = BaselineLearner if experiment.baseline.cell else PublishedLearner
    return kind(experiment)


class Trainer:
    """An experiment's compiled programs; every one runs all trials at once.

    Args:
      experiment: the config.
      learner: what is trained; None is the config's.
    """

    def __init__(self, experiment: Experiment, learner: Any = None):
        self.experiment = experiment
        self.task = TASKS[experiment.task.name]
        self.learner = learner_of(experiment) if learner is None else learner
        self.root = jax.random.key(experiment.seed)
        self.sets: Sets | None = None
        if experiment.task.name == "embedded-reber":
            self.sets = draw_sets(experiment.task, experiment.seed)

    def keys(self, numbers: Array) -> tuple[Array, Array, Array]:
        """Returns each trial's keys: of initial weights, of training, of tests.

        Trials have streams of their own: more of them leave the first ones as are.
        """
        keys = jax.vmap(lambda trial: jax.random.fold_in(self.root, trial))(numbers)
        keys = jax.vmap(partial(jax.random.split, num=3))(keys)
        return keys[:, 0], keys[:, 1], keys[:, 2]

    @partial(jax.jit, static_argnums=0)
    def init(self) -> Trials:
        """Returns the trials before the first sequence."""
        config, count = self.experiment, self.experiment.trials
        numbers = jnp.arange(count)
        w = jax.vmap(self.learner.init, out_axes=-1)(self.keys(numbers)[0])
        stopping, batch = config.stopping, self.learner.batch
        ring = stopping.window // batch if stopping.on == "training" else 1
        added = watched = None
        if config.growth.window:
            added = w.outputs, jnp.zeros(count, jnp.int32)
            watched = jnp.stack([jnp.zeros(count), jnp.full(count, jnp.inf)])
            w = w._replace(outputs=jnp.zeros_like(w.outputs))
        return Trials(
            numbers,
            w,
            jnp.zeros(count, jnp.int32),
            jnp.full((ring, count), batch, jnp.int32),
            jnp.zeros((ring, count)),
            jnp.full(count, ring * batch, jnp.int32),
            jnp.zeros((len(stopping.wrong), count), jnp.int32),
            jax.tree.map(lambda leaf: jnp.stack([leaf] * len(stopping.wrong)), w),
            added,
            watched,
        )

    @partial(jax.jit, static_argnums=(0, 3), donate_argnums=1)
    def advance(
        self, trials: Trials, start: Array, count: int
    ) -> tuple[Trials, Array, Array]:
        """Presents the next sequences, each with its update.

        Args:
          trials: some or all trials.
          start: number of sequences presented before.
          count: number of sequences to present now, whole batches.

        Returns:
          The trials, and for each sequence and trial, `(count, trials)`: the mean
          absolute error, and whether the sequence was right.
        """
        batch = self.learner.batch
        indices = start + jnp.arange(count)
        _, train_keys, _ = self.keys(trials.numbers)
        # All data of the chunk at once: in the loop each draw would be a small program.
        data = jax.vmap(
            lambda n: jax.vmap(
                lambda trial, key: self.sample(trial, jax.random.fold_in(key, n)),
                out_axes=-1,
            )(trials.numbers, train_keys)
        )(indices)
        if batch > 1:
            data = jax.tree.map(partial(_batched, size=batch), data)
            indices = indices[::batch]

        def present(trials, now):
            trials, error, right = self._present(trials, *now)
            return trials, (error, right)

        trials, (errors, rights) = jax.lax.scan(present, trials, (indices, data))
        shape = count, len(trials.numbers)
        return trials, errors.reshape(shape), rights.reshape(shape)

    @partial(jax.jit, static_argnums=(0, 3))
    def test(self, trials: Trials, start: Array, count: int) -> Tests:
        """Tests every trial on new sequences, or on its training and test sets.

        Args:
          trials: some or all trials.
          start: number of the first test sequence; others give others.
          count: number of test sequences.
        """

        def judged(w, sequences):
            y = self.learner.respond(w, sequences.inputs, sequences.length)
            error, right = self._judge(y, sequences)
            by_target = self._by_target(y, sequences, right)
            return Tests(jnp.sum(~right), jnp.mean(error), *by_target)

        return self._map(judged, trials, start, count)

    @partial(jax.jit, static_argnums=0)
    def largest_state(self, trials: Trials) -> Array:
        """Returns the greatest size of a cell's state in test sequences, their mean."""

        def largest(w, sequences):
            given = w, sequences.inputs, sequences.length
            return jnp.mean(self.learner.largest_state(*given))

        return self._map(largest, trials, 0, LOOKED_AT)

    def _map(self, f: Callable, trials: Trials, start: Array, count: int) -> Any:
        """Applies a function to each trial's weights and test sequences."""
        _, _, test_keys = self.keys(trials.numbers)
        weights = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, -1, 0), trials.weights)

        def one_trial(given):
            number, key, w = given
            if self.sets is not None:
                return f(w, self.sets.both(number, count))
            keys = jax.vmap(partial(jax.random.fold_in, key))(start + jnp.arange(count))
            draw = partial(self.sample, number)
            return f(w, jax.vmap(draw, out_axes=-1)(keys))

        return jax.lax.map(one_trial, (trials.numbers, test_keys, weights))

    def sample(self, trial: Array, key: Array) -> Sequence:
        """Returns a random sequence for a trial to learn from."""
        if self.sets is not None:
            return self.sets.sample(trial, key)
        return self.task.sample(self.experiment.task, key)

    def _judge(self, y: Array, sequences: Sequence) -> tuple[Array, Array]:
        """Returns mean absolute errors, and which sequences are right.

        Args:
          y: outputs, `(outputs, *sequences)`, or `(time, outputs, *sequences)`.
          sequences: what they are of.
        """
        tolerance = self.experiment.stopping.tolerance
        judge = partial(Sequence.judge, tolerance=tolerance)
        for _ in sequences.length.shape:
            judge = jax.vmap(judge, in_axes=-1, out_axes=-1)
        return judge(sequences, y)

    def _by_target(
        self, y: Array, sequences: Sequence, right: Array
    ) -> tuple[Array, Array]:
        """Returns how many sequences are wrong by their targets, and how many are."""
        truth, task = sequences.truth, self.experiment.task
        if task.is_along:
            tolerance = self.experiment.stopping.tolerance
            steps = partial(Sequence.right_steps, tolerance=tolerance)
            wrong = ~jax.vmap(steps, in_axes=-1, out_axes=-1)(sequences, y)
            at = sequences.length - task.asked_from_end
            is_asked = jnp.arange(len(wrong))[:, None] == at
            each = (wrong & is_asked).any(0), (wrong & ~is_asked).any(0)
            return jnp.array([of.sum() for of in each]), jnp.full(2, right.size)
        kind, none = truth.argmax(0), jnp.zeros(len(truth), int)
        if len(truth) == 1:
            part = jnp.floor(truth[0] * PARTS).astype(int)
            kind, none = jnp.clip(part, 0, PARTS - 1), jnp.zeros(PARTS, int)
        return none.at[kind].add(~right), none.at[kind].add(1)

    def _present(
        self, trials: Trials, index: Array, sequence: Sequence
    ) -> tuple[Trials, Array, Array]:
        """Presents one batch to each trial, and applies the stopping rule."""
        batch = self.learner.batch
        has_grown = () if trials.added is None else (trials.added[1] > 0,)
        weights, y = self.learner.learn(trials.weights, sequence, *has_grown)
        error, right = self._judge(y, sequence)
        wrong, mean = jnp.int32(~right), error
        if batch > 1:
            wrong, mean = wrong.sum(0), error.mean(0)
        streak = jnp.where(wrong > 0, 0, trials.streak + batch)
        new = trials._replace(weights=weights, streak=streak)
        if trials.added is not None:
            new = self._grow(new, index, mean)
        if self.experiment.stopping.on == "training":
            new = self._look_back(new, index, mean, wrong)
        new = trials_at(new, trials.solved_after)
        # The rings of a trial that is over are not looked at: to keep them as they were
        # would be a copy for each sequence.
        rings = {"wrongs": new.wrongs, "errors": new.errors}
        trials = jax.tree.map(
            partial(jnp.where, trials.is_over), trials._replace(**rings), new
        )
        return trials, error, right

    def _look_back(
        self, trials: Trials, index: Array, error: Array, wrong: Array
    ) -> Trials:
        """Notes the stopping points that the most recent sequences reach."""
        stopping, batch = self.experiment.stopping, self.learner.batch
        presented = index + batch
        at = index // batch % len(trials.wrongs)
        wrongs = trials.wrongs.at[at].set(wrong)
        errors = trials.errors.at[at].set(error)
        wrong = trials.wrong - trials.wrongs[at] + wrong
        reached = wrong <= jnp.array(stopping.wrong)[:, None]
        reached &= presented >= stopping.window
        if stopping.mean_error:
            mean = jax.lax.cond(
                jnp.any(reached),
                lambda: jnp.mean(errors, 0),
                lambda: jnp.full_like(error, jnp.inf),
            )
            reached &= mean < jnp.array(stopping.mean_error)[:, None]
        return trials._replace(
            wrongs=wrongs,
            errors=errors,
            wrong=wrong,
            solved_after=first_reached(trials.solved_after, reached, presented),
        )

    def _grow(self, trials: Trials, index: Array, error: Array) -> Trials:
        """Adds the hidden units to trials whose error has stopped falling."""
        growth = self.experiment.growth
        outputs, after = trials.added
        now, before = trials.watched
        now = now + error
        is_end = (index + 1) % growth.window == 0
        grows = is_end & (after == 0) & (now >= (1 - growth.gain) * before)
        after = jnp.where(grows, index + 1, after)
        # Until they are added, their output weights are 0, and so are their errors.
        w = jnp.where(grows, outputs, trials.weights.outputs)
        watched = jnp.where(is_end, jnp.stack([now * 0, now]), jnp.stack([now, before]))
        return trials._replace(
            weights=trials.weights._replace(outputs=w),
            added=(outputs, after),
            watched=watched,
        )


def _batched(leaf: Array, size: int) -> Array:
    """Returns `(count / size, ..., size, trials)` of `(count, ..., trials)`."""
    leaf = leaf.reshape(-1, size, *leaf.shape[1:])
    return jnp.moveaxis(leaf, 1, -2)


def trials_at(trials: Trials, solved_before: Array) -> Trials:
    """Returns trials that hold the weights at stopping points not reached before."""

    def at(before, now):
        is_before = solved_before > 0
        shape = (len(before), *(1,) * (now.ndim - 1), now.shape[-1])
        return jnp.where(is_before.reshape(shape), before, now)

    return trials._replace(reached=jax.tree.map(at, trials.reached, trials.weights))


def first_reached(solved_after: Array, reached: Array, presented: Array) -> Array:
    """Returns when each stopping point was reached first, each after those before it.

    Args:
      solved_after: as in `Trials`, before.
      reached: which points hold now, `(points, trials)`.
      presented: sequences so far.
    """
    are_before = jnp.cumprod((solved_after > 0) | reached, axis=0).astype(bool)
    return jnp.where((solved_after == 0) & are_before, presented, solved_after)
