"""Networks that the paper compares LSTM with: RTRL, BPTT and Elman nets.

Units a with inputs x, both at time t, and outputs y:

  z(t) = [x(t), a(t-1)]
  a(t) = f(W z(t))
  y(t) = f(V a(t) + D x(t))      layered
  y(t) = the first units of a(t)  fully recurrent

RTRL (Williams & Zipser, 1989, A learning algorithm for continually running fully
recurrent neural networks) computes p^k_ij = da_k / dw_ij forward in time:

  p^k_ij(t) = f'(net_k(t)) [ sum_l w_kl p^l_ij(t-1) + delta_ik z_j(t) ]

and changes each w_ij by the learning rate times sum_k e_k(t) p^k_ij(t), after each
step. BPTT gives the same sum for fixed weights, so `bptt` adds it up over a sequence
and changes the weights at its end. In Elman's nets (1990, Finding structure in time)
errors do not flow back in time: the sum over l is left out. f is logistic, and there
are no biases, as the paper's numbers of weights require.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from experiments.paper1997.learners.network import Array
from experiments.paper1997.learners.without_cells import WithoutCells, count
from experiments.paper1997.tasks import TASKS
from experiments.paper1997.tasks.sequence import Sequence
from experiments.settings.config import Experiment

f = jax.nn.sigmoid


class CompetitorWeights(NamedTuple):
    """The weights of one trial; those of several have the last axis `trials`.

    Attributes:
      units: to units from inputs, then from units, `(inputs + units, units)`: W.
      outputs: to outputs from units, `(units, outputs)`: V; None: fully recurrent.
      direct: to outputs from inputs, `(inputs, outputs)`: D; None: none.
    """

    units: Array
    outputs: Array | None
    direct: Array | None


class CompetitorLearner(WithoutCells):
    """Learns online: one update for each step, or for each sequence.

    Args:
      experiment: the config, whose `competitor` has a method. The task has symbols as
        inputs and a target at every step.
    """

    batch, is_along = 1, True

    def __init__(self, experiment: Experiment):
        self.config, options = experiment.competitor, experiment.task
        self.rate = experiment.learning.rate
        self.limit = experiment.model.weight_range
        task = TASKS[options.name]
        self.inputs, self.outputs = task.inputs(options), task.outputs(options)
        is_full = self.config.outputs == "units"
        self.units = self.config.units + (self.outputs if is_full else 0)

    def init(self, key: Array) -> CompetitorWeights:
        """Returns the weights of one trial, uniform in the range of the config."""
        shapes = CompetitorWeights((self.inputs + self.units, self.units), None, None)
        if self.config.outputs != "units":
            shapes = shapes._replace(outputs=(self.units, self.outputs))
        if self.config.outputs == "direct":
            shapes = shapes._replace(direct=(self.inputs, self.outputs))
        keys = jax.random.split(key, len(shapes))
        return CompetitorWeights(
            *(
                shape and jax.random.uniform(k, shape, float, -self.limit, self.limit)
                for k, shape in zip(keys, shapes, strict=True)
            )
        )

    def learn(
        self, w: CompetitorWeights, sequence: Sequence
    ) -> tuple[CompetitorWeights, Array]:
        """Trains each trial on a sequence; see `PublishedLearner.learn`."""
        return jax.vmap(self._learn, in_axes=-1, out_axes=-1)(w, sequence)

    def _learn(
        self, w: CompetitorWeights, sequence: Sequence
    ) -> tuple[CompetitorWeights, Array]:
        is_per_step = self.config.method != "bptt"
        x = jax.nn.one_hot(sequence.inputs, self.inputs)
        target = jax.nn.one_hot(sequence.target, self.outputs)

        def step(carry, now):
            w, change, a, p = carry
            x, target, is_on = now
            z = jnp.concatenate([x, a])
            a = f(z @ w.units)
            p = a * (1 - a) * self._before_slope(w, p, z)
            y, pulled = jax.vjp(lambda w, a: self._respond(w, a, x), w, a)
            of_w, e = pulled((target - y) * is_on)
            step_change = of_w._replace(units=jnp.einsum("jik,k->ji", p, e))
            if is_per_step:
                w = _changed(w, self.rate, step_change)
            else:
                change = _changed(change, 1.0, step_change)
            return (w, change, a, p), y

        none = jax.tree.map(jnp.zeros_like, w)
        start = w, none, jnp.zeros(self.units), jnp.zeros((*w.units.shape, self.units))
        is_on = jnp.arange(len(x)) < sequence.length
        (w, change, _, _), y = jax.lax.scan(step, start, (x, target, is_on))
        return _changed(w, self.rate, change), y

    def _before_slope(self, w: CompetitorWeights, p: Array, z: Array) -> Array:
        """Returns p without f'(net), `(inputs + units, units, units)`."""
        own = z[:, None, None] * jnp.eye(self.units)
        if self.config.method == "elman":
            return own
        return jnp.einsum("jil,lk->jik", p, w.units[self.inputs :]) + own

    def _respond(self, w: CompetitorWeights, a: Array, x: Array) -> Array:
        """Returns y, given a and x of the same step."""
        if w.outputs is None:
            return a[: self.outputs]
        net = a @ w.outputs
        return f(net if w.direct is None else net + x @ w.direct)

    def respond(self, w: CompetitorWeights, inputs: Array, lengths: Array) -> Array:
        """Returns the outputs of one network; see `PublishedLearner.respond`."""

        def step(a, x):
            a = f(jnp.concatenate([x, a]) @ w.units)
            return a, self._respond(w, a, x)

        def one(symbols):
            x = jax.nn.one_hot(symbols, self.inputs)
            return jax.lax.scan(step, jnp.zeros(self.units), x)[1]

        return jax.vmap(one, in_axes=-1, out_axes=-1)(inputs)

    def count(self, w: CompetitorWeights) -> int:
        """Returns the number of trainable weights of one trial."""
        return count(w)


def _changed(
    w: CompetitorWeights, rate: float, change: CompetitorWeights
) -> CompetitorWeights:
    """Returns the weights plus the rate times a change."""
    return jax.tree.map(lambda leaf, by: leaf + rate * by, w, change)
