"""The learner of the paper's networks.

A learner creates the weights of one trial (`init`), updates the weights of all trials
with `batch` sequences (`learn`), computes the outputs of one trial (`respond`) and its
states (`largest_state`), and counts weights (`count`). Weights of several trials have
`trials` as last axis. The other learners are `BaselineLearner` in `baseline.py`,
`CompetitorLearner` in `competitor.py` and `GuessingLearner` in `guessing.py`.
"""

from dataclasses import fields

import jax
import jax.numpy as jnp

from experiments.paper1997.learners import online
from experiments.paper1997.learners.network import Array, Network, Weights, count
from experiments.paper1997.tasks import TASKS
from experiments.paper1997.tasks.sequence import Sequence
from experiments.settings.config import Experiment, Model


def network_of(experiment: Experiment) -> Network:
    """Returns the network of a config."""
    options, model = experiment.task, experiment.model
    task = TASKS[options.name]
    # Options of the config and fields of the network have the same names.
    names = {f.name for f in fields(Network)} & {f.name for f in fields(model)}
    return Network(
        inputs=task.inputs(options),
        outputs=task.outputs(options),
        is_symbolic=options.is_symbolic,
        **{name: getattr(model, name) for name in names},
    )


def initial_weights(network: Network, model: Model, key: Array) -> Weights:
    """Returns uniform weights of one trial, with the gate biases of the config."""
    limit = model.weight_range
    shapes = Weights(
        inputs=(network.inputs, network.units),
        hidden=(network.sources, network.units) if network.recurrent else None,
        bias=(network.units,) if network.biases else None,
        outputs=(network.outputs, network.cells),
        output_bias=(network.outputs,) if network.output_bias else None,
        direct=(network.inputs, network.outputs) if network.direct else None,
    )
    keys = Weights(*jax.random.split(key, len(Weights._fields)))
    w = Weights(
        *(
            None
            if shape is None
            else jax.random.uniform(k, shape, float, -limit, limit)
            for k, shape in zip(keys, shapes, strict=True)
        )
    )
    if w.bias is None:
        return w
    bias = w.bias * network.has_bias()[:, 0]
    if model.input_gate_bias is not None:
        bias = bias.at[: network.blocks].set(jnp.array(model.input_gate_bias))
    if model.output_gate_bias is not None:
        bias = bias.at[-network.blocks :].set(jnp.array(model.output_gate_bias))
    return w._replace(bias=bias)


class PublishedLearner:
    """Learns online: one update for each sequence, or for each of its steps.

    Args:
      experiment: the config.
    """

    batch = 1

    def __init__(self, experiment: Experiment):
        self.model, self.learning = experiment.model, experiment.learning
        self.network = network_of(experiment)
        self.is_along = experiment.task.is_along

    def init(self, key: Array) -> Weights:
        """Returns the weights of one trial."""
        return initial_weights(self.network, self.model, key)

    def learn(
        self, w: Weights, sequence: Sequence, has_grown: Array | None = None
    ) -> tuple[Weights, Array]:
        """Trains each trial on a sequence.

        Args:
          w: weights of the trials.
          sequence: leaves are `(..., trials)`.
          has_grown: whether each trial has its hidden units already, `(trials,)`; None:
            all have.

        Returns:
          The new weights, and the outputs of the old weights: `(outputs, trials)`, or
          `(time, outputs, trials)` in tasks with an error at every step.
        """
        config = self.learning
        given = self.network, w, sequence.inputs, sequence.length, sequence.target
        # The derivative of the whole squared error is twice that of half of it.
        given = *given, config.rate * (2 if config.error == "whole" else 1)
        if config.gradient == "full":
            return online.by_full_gradient(*given, self.is_along, has_grown)
        if self.is_along:
            return online.along(*given, config.update, has_grown)
        return online.at_end(*given)

    def respond(self, w: Weights, inputs: Array, lengths: Array) -> Array:
        """Returns the outputs of one network, `(..., sequences)`, as in `learn`.

        Args:
          w: weights of one trial.
          inputs: inputs with the sequences as last axis.
          lengths: lengths of the sequences, `(sequences,)`.
        """
        run = online.respond_along if self.is_along else online.respond
        return run(self.network, _alone(w), inputs, lengths)

    def largest_state(self, w: Weights, inputs: Array, lengths: Array) -> Array:
        """Returns the largest absolute cell state of each sequence, `(sequences,)`."""
        states, _ = online.trace(self.network, _alone(w), inputs, lengths)
        is_on = jnp.arange(len(states.s))[:, None] < lengths
        return jnp.max(jnp.abs(states.s).max(1), 0, where=is_on, initial=0)

    def count(self, w: Weights) -> int:
        """Returns the number of trainable weights of one trial."""
        return count(self.network, w)


def _alone(w: Weights) -> Weights:
    """Adds an axis `trials` of size 1 to the weights of one trial."""
    return jax.tree.map(lambda leaf: leaf[..., None], w)
