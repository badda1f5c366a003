"""Adding two marked numbers of a sequence; see `experiments/datasets/adding.py`."""

import jax
import jax.numpy as jnp

from experiments.datasets import adding
from experiments.settings.supervised import Supervised
from experiments.supervised.network import SequenceNetwork, dtype_of, last_step, rngs
from experiments.supervised.parts import sum_over_parts
from experiments.supervised.task import Array, Examples, Task, evaluation_key

# Sequences of each evaluation.
TESTED = 1000


class AddingTask(Task):
    """The adding problem; see `Task`. Every batch is new.

    Args:
      experiment: the config.
    """

    def __init__(self, experiment: Supervised):
        self.length, self.batch_size = experiment.task.length, experiment.training.batch
        self.seed = experiment.seed
        self.model = SequenceNetwork(
            experiment.model, 1, pool=last_step, dtype=dtype_of(experiment)
        )
        self.sample = jnp.zeros((1, 1, 2))

    def batch(self, data: tuple, key: Array, update: Array) -> adding.Adding:
        """Returns random sequences, `(batch, length, 2)`."""
        key = jax.random.fold_in(key, update)
        return adding.sample(key, self.batch_size, self.length)

    def loss(
        self, params, batch: adding.Adding, carry: tuple, key: Array, update: Array
    ) -> tuple[Array, tuple]:
        """Returns the mean squared error of the output at the last step."""
        errors = self._errors(params, batch, deterministic=False, rngs=rngs(key))
        return jnp.mean(errors**2), carry

    def evaluate(self, params, data: tuple, split: str) -> dict[str, Array]:
        """Returns the mean squared error."""
        key = evaluation_key(self.seed, split)
        batch = adding.sample(key, TESTED, self.length)

        def total(part: adding.Adding, mask: Array) -> Array:
            return jnp.sum(self._errors(params, part) ** 2, where=mask)

        return {"loss": sum_over_parts(total, batch) / TESTED}

    def examples(self, data: tuple, count: int, steps: int) -> Examples:
        """Returns whole sequences, and the squared errors of the last outputs."""
        key = evaluation_key(self.seed, "test")
        batch = adding.sample(key, TESTED, self.length)
        inputs, targets = jax.tree.map(lambda leaf: leaf[:count], batch)
        return Examples(inputs, lambda outputs: jnp.sum((outputs[:, 0] - targets) ** 2))

    def _errors(self, params, batch: adding.Adding, **options) -> Array:
        """Returns the differences of outputs and targets, `(count,)`."""
        _, outputs = self.model.apply({"params": params}, batch.inputs, **options)
        return outputs[:, 0] - batch.targets
