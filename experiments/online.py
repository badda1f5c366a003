"""On-line learning as published: one sequence, one update, until a rule says stop.

Hochreiter and Schmidhuber, 1997: batch size 1, constant learning rate, plain gradient
descent on half the squared error at the end of the sequence (equations 19 to 28 of
their appendix have no factor 2). A trial succeeds after the first training sequence at
which the most recent `window` sequences were all right and their average error is below
`mean_error` (ST3 of their Table 11). It learns no more from then on.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from experiments.config import Experiment
from experiments.model import Network, network
from experiments.tasks import TASKS


class Trial(NamedTuple):
    """A trial under way; with a leading axis, all trials of an experiment.

    Attributes:
      params: the weights.
      streak: number of right sequences since the last wrong one.
      errors: mean absolute error over the outputs, of the last `window` sequences, in
        a ring: sequence `n` is at `n % window`.
      solved_after: number of training sequences until success, 0 before it.
    """

    params: Any
    streak: jax.Array
    errors: jax.Array
    solved_after: jax.Array


class Trainer:
    """An experiment's compiled programs; every one runs all trials at once.

    Args:
      experiment: the config.
    """

    def __init__(self, experiment: Experiment):
        self.experiment = experiment
        self.task = TASKS[experiment.task.name]
        outputs = self.task.outputs(experiment.task)
        self.network: Network = network(experiment.model, outputs)
        self.optimizer = optax.sgd(experiment.learning.rate)
        # Trials have streams of their own: more of them leave the first ones as are.
        root = jax.random.key(experiment.seed)
        trials = jnp.arange(experiment.trials)
        keys = jax.vmap(lambda trial: jax.random.fold_in(root, trial))(trials)
        self.init_keys, self.train_keys, self.test_keys = jnp.moveaxis(
            jax.vmap(partial(jax.random.split, num=3))(keys), 1, 0
        )

    @partial(jax.jit, static_argnums=0)
    def init(self) -> Trial:
        """Returns the trials before the first sequence."""
        return jax.vmap(self._init)(self.init_keys)

    @partial(jax.jit, static_argnums=(0, 3), donate_argnums=1)
    def advance(
        self, trials: Trial, start: jax.Array, count: int
    ) -> tuple[Trial, jax.Array, jax.Array]:
        """Presents the next sequences, each with its update.

        Args:
          trials: all trials.
          start: number of sequences presented before.
          count: number of sequences to present now.

        Returns:
          The trials, and for each sequence and trial, `(count, trials)`: the mean
          absolute error over the outputs, and whether the sequence was right.
        """
        indices = start + jnp.arange(count)
        # All data of the chunk at once: in the loop it would cost six times as much.
        data = jax.vmap(
            lambda n: jax.vmap(lambda key: self._sample(key, n))(self.train_keys)
        )(indices)

        def present(trials, now):
            index, sequences = now
            step = jax.vmap(self._present, in_axes=(0, None, 0))
            trials, error, right = step(trials, index, sequences)
            return trials, (error, right)

        trials, (errors, rights) = jax.lax.scan(present, trials, (indices, data))
        return trials, errors, rights

    @partial(jax.jit, static_argnums=0)
    def test(self, params: Any) -> tuple[jax.Array, jax.Array]:
        """Tests every trial on new sequences.

        Returns:
          The number of wrong sequences, and the mean absolute error: `(trials,)` each.
        """

        def one_trial(params, key):
            indices = jnp.arange(self.experiment.test_sequences)
            sequences = jax.vmap(lambda n: self._sample(key, n))(indices)
            _, errors = jax.vmap(partial(self._loss, params))(sequences)
            return jnp.sum(~self._is_right(errors)), jnp.mean(errors)

        return jax.vmap(one_trial)(params, self.test_keys)

    def _init(self, key: jax.Array) -> Trial:
        shortest = self.experiment.task.lengths[0]
        inputs = jax.ShapeDtypeStruct((shortest, self.task.INPUTS), jnp.float32)
        params = self.network.lazy_init(key, inputs, jnp.int32(shortest))
        window = self.experiment.learning.window
        return Trial(params, jnp.int32(0), jnp.zeros(window), jnp.int32(0))

    def _sample(self, key: jax.Array, index: jax.Array) -> Any:
        return self.task.sample(self.experiment.task, jax.random.fold_in(key, index))

    def _loss(self, params: Any, sequence: Any) -> tuple[jax.Array, jax.Array]:
        """Returns half the squared error, and the outputs' absolute errors."""
        inputs = jax.nn.one_hot(sequence.symbols, self.task.INPUTS)
        y = self.network.apply(params, inputs, sequence.length)
        error = jax.nn.one_hot(sequence.label, len(y)) - y
        return 0.5 * jnp.sum(error**2), jnp.abs(error)

    def _is_right(self, errors: jax.Array) -> jax.Array:
        return jnp.all(errors < self.experiment.learning.tolerance, axis=-1)

    def _present(
        self, trial: Trial, index: jax.Array, sequence: Any
    ) -> tuple[Trial, jax.Array, jax.Array]:
        """Presents one sequence to one trial, and applies the stopping rule."""
        learning = self.experiment.learning
        gradient, errors = jax.grad(self._loss, has_aux=True)(trial.params, sequence)
        updates, _ = self.optimizer.update(gradient, self.optimizer.init(trial.params))
        params = optax.apply_updates(trial.params, updates)

        error, right = jnp.mean(errors), self._is_right(errors)
        streak = jnp.where(right, trial.streak + 1, 0)
        ring = trial.errors.at[index % learning.window].set(error)
        success = (streak >= learning.window) & (jnp.mean(ring) < learning.mean_error)
        solved_after = jnp.where(success, index + 1, 0)

        new = Trial(params, streak, ring, solved_after)
        is_over = trial.solved_after > 0
        trial = jax.tree.map(partial(jnp.where, is_over), trial, new)
        return trial, error, right
