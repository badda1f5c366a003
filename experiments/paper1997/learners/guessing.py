"""Random weight guessing: Schmidhuber, Hochreiter and Bengio (2001), Evaluating
benchmark problems by random guessing.

Weights are drawn again until a network classifies the training sequences. The network
is their architecture A1, which is fully connected: an output unit and n biased hidden
units, each of which gets the inputs and all units of the step before.

  a(t) = f(W [x(t), a(t-1), 1])      f logistic, y = a_0 at the last step

A training sequence here is used once. A guess stays if at most `stopping.wrong` of a
batch are wrong, judged by targets without noise, as in the stopping rule; the next
batch follows. So there are at most as many guesses as batches.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from experiments.paper1997.learners.network import Array
from experiments.paper1997.learners.online import at_last_step
from experiments.paper1997.learners.without_cells import WithoutCells
from experiments.paper1997.tasks import TASKS
from experiments.paper1997.tasks.sequence import Sequence
from experiments.settings.config import PER_GUESS, Experiment


class Guess(NamedTuple):
    """A guess of one trial; guesses of several trials have the last axis `trials`.

    Attributes:
      units: to units from inputs, units and 1, `(inputs + units + 1, units)`: W.
      key: data of the random key of the next guess.
    """

    units: Array
    key: Array


class GuessingLearner(WithoutCells):
    """Draws all weights again if too many sequences of a batch are wrong.

    Args:
      experiment: the config, whose `competitor.method` is `"guessing"`. The task has
        numbers as inputs, and a target at the end.
    """

    batch, is_along = PER_GUESS, False

    def __init__(self, experiment: Experiment):
        task, options = TASKS[experiment.task.name], experiment.task
        self.inputs, self.units = task.inputs(options), 1 + experiment.competitor.units
        self.limit = experiment.model.weight_range
        judge = partial(Sequence.judge, tolerance=experiment.stopping.tolerance)
        self.judge = jax.vmap(judge, in_axes=-1, out_axes=-1)
        self.wrong = max(experiment.stopping.wrong)

    def init(self, key: Array) -> Guess:
        """Returns the first guess of one trial."""
        now, later = jax.random.split(key)
        shape = self.inputs + self.units + 1, self.units
        w = jax.random.uniform(now, shape, float, -self.limit, self.limit)
        # The output unit, unit 0, has no bias.
        return Guess(w.at[-1, 0].set(0), jax.random.key_data(later))

    def learn(self, w: Guess, sequences: Sequence) -> tuple[Guess, Array]:
        """Tries each trial's guess on a batch; leaves are `(..., batch, trials)`."""
        return jax.vmap(self._learn, in_axes=-1, out_axes=-1)(w, sequences)

    def _learn(self, w: Guess, sequences: Sequence) -> tuple[Guess, Array]:
        y = self.respond(w, sequences.inputs, sequences.length)
        _, is_right = self.judge(sequences, y)
        new = self.init(jax.random.wrap_key_data(w.key))
        keeps = jnp.sum(~is_right) <= self.wrong
        return jax.tree.map(lambda now, other: jnp.where(keeps, now, other), w, new), y

    def respond(self, w: Guess, inputs: Array, lengths: Array) -> Array:
        """Returns the outputs of one network; see `PublishedLearner.respond`."""
        one = jnp.ones((1, inputs.shape[-1]))

        def step(a, x):
            a = jax.nn.sigmoid(w.units.T @ jnp.concatenate([x, a, one]))
            return a, a[:1]

        start = jnp.zeros((self.units, inputs.shape[-1]))
        return at_last_step(jax.lax.scan(step, start, inputs)[1], lengths)

    def count(self, w: Guess) -> int:
        """Returns the number of weights of one trial."""
        return (self.inputs + self.units) * self.units + self.units - 1
