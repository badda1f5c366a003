"""The compiled programs that train and test all trials of an experiment.

Hochreiter and Schmidhuber, 1997, train online: batch size 1, constant learning rate,
plain gradient descent on half the squared error (equations 19 to 28 of their appendix
have no factor 2). A learner defines the networks and their updates, see
`experiments/paper1997/learners/published.py`. The programs generate their own data. A
trial stops learning when it has succeeded.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from experiments.paper1997.learners.baseline import BaselineLearner
from experiments.paper1997.learners.competitor import CompetitorLearner
from experiments.paper1997.learners.guessing import GuessingLearner
from experiments.paper1997.learners.network import Array
from experiments.paper1997.learners.published import PublishedLearner
from experiments.paper1997.tasks import TASKS
from experiments.paper1997.tasks.reber_sets import Sets, draw_sets
from experiments.paper1997.tasks.sequence import Sequence
from experiments.settings.config import PARTS, Experiment

# In place of infinity, so that `jax_debug_infs` finds only mistakes.
LARGEST = float(jnp.finfo(jnp.float32).max)
# Number of test sequences for the largest state.
LOOKED_AT = 64


class Trials(NamedTuple):
    """The state of training; the last axis of every array is `trials`.

    Attributes:
      numbers: numbers of the trials, which determine their random numbers.
      weights: the weights of the learner.
      streak: number of right sequences since the last wrong one.
      wrongs: ring buffer of the number of wrong sequences in each of the last batches:
        batch `n` is at `n % len(wrongs)`. It has one element if tests decide.
      errors: ring buffer of the mean absolute errors of the same batches.
      wrong: sum of `wrongs`; sequences before the first count as wrong.
      solved_after: for each stopping point, the number of training sequences until it
        was reached, 0 before.
      reached: the weights at each stopping point, `(points, ...)`; before it is
        reached, the current weights.
      added: output weights for hidden units that will be added (see `Growth`), and the
        number of sequences after which they were added, 0 before; None without growth.
      watched: sums of the errors in this window and in the previous one; None without
        growth.
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
    """Results of trials on test sequences; the first axis is `trials`.

    Attributes:
      wrong: number of wrong sequences.
      error: mean absolute error.
      wrong_by_target: number of wrong sequences for each class, or for each bin of
        numeric targets, `(trials, kinds)`. With targets at every step: wrong at the
        step that needs the first symbols, and wrong at other steps.
      by_target: total number of sequences of each kind.
    """

    wrong: Array
    error: Array
    wrong_by_target: Array
    by_target: Array


def learner_of(
    experiment: Experiment,
) -> PublishedLearner | BaselineLearner | CompetitorLearner | GuessingLearner:
    """Returns the learner of a config."""
    if experiment.competitor.method == "guessing":
        return GuessingLearner(experiment)
    if experiment.baseline.cell:
        return BaselineLearner(experiment)
    if experiment.competitor.method:
        return CompetitorLearner(experiment)
    return PublishedLearner(experiment)


class Trainer:
    """The compiled programs of an experiment; each runs all trials at once.

    Args:
      experiment: the config.
      learner: the learner; default: that of the config.
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
        """Returns each trial's keys: for initial weights, training and tests.

        Each trial has its own stream, so additional trials do not change the others.
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
            watched = jnp.stack([jnp.zeros(count), jnp.full(count, LARGEST)])
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
        """Trains on the next sequences.

        Args:
          trials: some or all trials.
          start: number of earlier training sequences.
          count: number of sequences, a multiple of the batch size.

        Returns:
          The trials, and for each sequence and trial, `(count, trials)`: the mean
          absolute error, and whether the sequence was right.
        """
        batch = self.learner.batch
        # 32 bits also if JAX has 64-bit types, as all counts of `Trials`.
        indices = jnp.int32(start) + jnp.arange(count, dtype=jnp.int32)
        _, train_keys, _ = self.keys(trials.numbers)
        # Draw all data of the chunk at once, which is faster than drawing in the loop.
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
          start: number of the first test sequence.
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
        """Returns the largest absolute cell state, averaged over test sequences."""

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
          sequences: the sequences of these outputs.
        """
        tolerance = self.experiment.stopping.tolerance
        judge = partial(Sequence.judge, tolerance=tolerance)
        for _ in sequences.length.shape:
            judge = jax.vmap(judge, in_axes=-1, out_axes=-1)
        return judge(sequences, y)

    def _by_target(
        self, y: Array, sequences: Sequence, right: Array
    ) -> tuple[Array, Array]:
        """Returns the numbers of wrong and of all sequences, by target."""
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
        """Trains each trial on one batch, and applies the stopping rule."""
        batch = self.learner.batch
        has_grown = () if trials.added is None else (trials.added[1] > 0,)
        weights, y = self.learner.learn(trials.weights, sequence, *has_grown)
        error, right = self._judge(y, sequence)
        wrong, mean = jnp.int32(~right), error
        if batch > 1:
            wrong, mean = wrong.sum(0, dtype=wrong.dtype), error.mean(0)
        streak = jnp.where(wrong > 0, 0, trials.streak + batch)
        new = trials._replace(weights=weights, streak=streak)
        if trials.added is not None:
            new = self._grow(new, index, mean)
        if self.experiment.stopping.on == "training":
            new = self._look_back(new, index, mean, wrong)
        new = trials_at(new, trials.solved_after)
        # The ring buffers of finished trials are not read. Keeping their values would
        # copy the buffers for every sequence.
        rings = {"wrongs": new.wrongs, "errors": new.errors}
        trials = jax.tree.map(
            partial(jnp.where, trials.is_over), trials._replace(**rings), new
        )
        return trials, error, right

    def _look_back(
        self, trials: Trials, index: Array, error: Array, wrong: Array
    ) -> Trials:
        """Records the stopping points that the most recent sequences reach."""
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
                lambda: jnp.full_like(error, LARGEST),
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
        # Before units are added, their output weights are 0, and so are their errors.
        w = jnp.where(grows, outputs, trials.weights.outputs)
        watched = jnp.where(is_end, jnp.stack([now * 0, now]), jnp.stack([now, before]))
        return trials._replace(
            weights=trials.weights._replace(outputs=w),
            added=(outputs, after),
            watched=watched,
        )


def _batched(leaf: Array, size: int) -> Array:
    """Reshapes `(count, ..., trials)` to `(count / size, ..., size, trials)`."""
    leaf = leaf.reshape(-1, size, *leaf.shape[1:])
    return jnp.moveaxis(leaf, 1, -2)


def trials_at(trials: Trials, solved_before: Array) -> Trials:
    """Stores the current weights at stopping points that were not reached before."""

    def at(before, now):
        is_before = solved_before > 0
        shape = (len(before), *(1,) * (now.ndim - 1), now.shape[-1])
        return jnp.where(is_before.reshape(shape), before, now)

    return trials._replace(reached=jax.tree.map(at, trials.reached, trials.weights))


def first_reached(solved_after: Array, reached: Array, presented: Array) -> Array:
    """Returns when each stopping point was first reached, in their order.

    Args:
      solved_after: the previous value, see `Trials`.
      reached: which stopping points hold now, `(points, trials)`.
      presented: number of training sequences so far.
    """
    are_before = jnp.cumprod((solved_after > 0) | reached, axis=0).astype(bool)
    return jnp.where((solved_after == 0) & are_before, presented, solved_after)
