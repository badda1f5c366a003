"""Baselines: modern recurrent networks of this library on the paper's tasks.

A network is a recurrent layer and an output layer. It trains with Adam, on batches,
with the full gradient of half the squared error, clipped by norm. Output units, targets
and stopping rules are those of the row. The readings in
`experiments/settings/every_row.toml`, which every config has, choose the cell. The
methods match those of `experiments/paper1997/learners/published.py`.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

import rnncells
from experiments.paper1997.learners.network import SQUASHING, Array
from experiments.paper1997.learners.online import at_last_step, half_squared_error
from experiments.paper1997.learners.without_cells import WithoutCells, count
from experiments.paper1997.tasks import TASKS
from experiments.paper1997.tasks.sequence import Sequence
from experiments.settings.config import Experiment
from rnncells import initializers

Parameters = dict[str, Any]
LSTM = rnncells.OptimizedLSTMCell
Make = Callable[[int, int], rnncells.RNNCellBase]
# Functions of the number of hidden units and of steps; chrono biases need the latter.
CELLS: dict[str, Make] = {
    "elman": lambda n, _: rnncells.SimpleCell(n),
    "lstm": lambda n, _: LSTM(n, bias_init=initializers.forget_gate(1.0)),
    "gru": lambda n, _: rnncells.GRUCell(n),
    "chrono-lstm": lambda n, t: LSTM(n, bias_init=initializers.chrono(t)),
    "chrono-gru": lambda n, t: rnncells.GRUCell(n, bias_init=initializers.chrono(t)),
}


class BaselineNetwork(nn.Module):
    """A recurrent layer and an output layer.

    Attributes:
      cell: a name in `CELLS`.
      features: number of hidden units.
      longest: number of steps.
      outputs: number of output units.
      output_unit: squashing of the output units, a name in `SQUASHING`.
      symbols: number of symbols, which are embedded; None: inputs are numbers.
    """

    cell: str
    features: int
    longest: int
    outputs: int
    output_unit: str
    symbols: int | None = None

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Returns outputs at each step, `(time, batch, outputs)`.

        Args:
          x: `(time, batch, inputs)`, or symbols `(time, batch)`.
        """
        if self.symbols is not None:
            x = nn.Embed(self.symbols, self.features)(x)
        cell = CELLS[self.cell](self.features, self.longest)
        y = rnncells.RNN(cell, time_major=True)(x)
        return SQUASHING[self.output_unit](nn.Dense(self.outputs)(y))[0]


class BaselineLearner(WithoutCells):
    """Learns in batches, with Adam.

    Args:
      experiment: the config, whose `baseline` has a cell.
    """

    def __init__(self, experiment: Experiment):
        config, options = experiment.baseline, experiment.task
        task = TASKS[options.name]
        inputs = task.inputs(options)
        self.batch, self.is_along = config.batch, options.is_along
        self.network = BaselineNetwork(
            config.cell,
            config.features,
            task.longest(options),
            task.outputs(options),
            experiment.model.output_unit,
            inputs if options.is_symbolic else None,
        )
        self.sample = (
            jnp.zeros((1, 1), int) if options.is_symbolic else jnp.zeros((1, 1, inputs))
        )
        self.optimizer = optax.chain(
            optax.clip_by_global_norm(config.clip), optax.adam(config.rate)
        )

    def init(self, key: Array) -> Parameters:
        """Returns the parameters and the optimizer state of one trial."""
        params = self.network.init(key, self.sample)
        return {"params": params, "optimizer": self.optimizer.init(params)}

    def learn(self, w: Parameters, sequences: Sequence) -> tuple[Parameters, Array]:
        """Trains each trial on a batch; leaves are `(..., batch, trials)`."""
        return jax.vmap(self._learn, in_axes=-1, out_axes=-1)(w, sequences)

    def _learn(self, w: Parameters, sequences: Sequence) -> tuple[Parameters, Array]:
        @partial(jax.grad, has_aux=True)
        def gradient(params):
            y = self._outputs(params, sequences.inputs, sequences.length)
            error = half_squared_error(y, sequences.length, sequences.target)
            return error / self.batch, y

        change, y = gradient(w["params"])
        updates, state = self.optimizer.update(change, w["optimizer"])
        params = optax.apply_updates(w["params"], updates)
        return {"params": params, "optimizer": state}, y

    def respond(self, w: Parameters, inputs: Array, lengths: Array) -> Array:
        """Returns the outputs of one trial's network; see `PublishedLearner`."""
        return self._outputs(w["params"], inputs, lengths)

    def _outputs(self, params: Any, inputs: Array, lengths: Array) -> Array:
        """Returns outputs at the end or at all steps, with the batch axis last."""
        y = self.network.apply(params, jnp.moveaxis(inputs, -1, 1))
        y = jnp.moveaxis(y, 1, -1)
        return y if self.is_along else at_last_step(y, lengths)

    def count(self, w: Parameters) -> int:
        """Returns the number of trainable weights of one trial."""
        return count(w["params"])
