"""Copying ten symbols after many blanks; see `experiments/datasets/copying.py`."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.datasets import copying
from experiments.settings.supervised import Supervised
from experiments.supervised.network import SequenceNetwork, dtype_of, rngs
from experiments.supervised.parts import sum_over_parts
from experiments.supervised.task import Array, Examples, Task, evaluation_key

# Sequences of each evaluation.
TESTED = 1000


class CopyingTask(Task):
    """The copy memory task; see `Task`. Every batch is new.

    Args:
      experiment: the config.
    """

    def __init__(self, experiment: Supervised):
        self.lag, self.batch_size = experiment.task.lag, experiment.training.batch
        self.seed = experiment.seed
        self.model = SequenceNetwork(
            experiment.model,
            copying.CLASSES,
            copying.CLASSES,
            dtype=dtype_of(experiment),
        )
        self.sample = jnp.zeros((1, 1), jnp.int32)

    def batch(self, data: tuple, key: Array, update: Array) -> copying.Copying:
        """Returns random sequences, `(batch, lag + 20)`."""
        key = jax.random.fold_in(key, update)
        return copying.sample(key, self.batch_size, self.lag)

    def loss(
        self, params, batch: copying.Copying, carry: tuple, key: Array, update: Array
    ) -> tuple[Array, tuple]:
        """Returns the mean cross-entropy over all steps."""
        logits = self._logits(params, batch, deterministic=False, rngs=rngs(key))
        return self._losses(logits, batch).mean(), carry

    def evaluate(self, params, data: tuple, split: str) -> dict[str, Array]:
        """Returns the loss, and the share of copied symbols that are right."""
        key = evaluation_key(self.seed, split)
        batch = copying.sample(key, TESTED, self.lag)

        def sums(part: copying.Copying, mask: Array) -> tuple[Array, Array]:
            logits = self._logits(params, part)
            is_right = (logits.argmax(-1) == part.targets)[:, -copying.COPIED :]
            loss = self._losses(logits, part).mean(1)
            return jnp.sum(loss, where=mask), jnp.sum(is_right.mean(1), where=mask)

        loss, share = sum_over_parts(sums, batch)
        return {"loss": loss / TESTED, "accuracy": 100 * share / TESTED}

    def examples(self, data: tuple, count: int, steps: int) -> Examples:
        """Returns whole sequences, and the losses of the last symbols."""
        key = evaluation_key(self.seed, "test")
        batch = copying.sample(key, TESTED, self.lag)
        batch = jax.tree.map(lambda leaf: leaf[:count], batch)
        return Examples(
            batch.inputs,
            lambda logits: jnp.sum(self._losses(logits, batch)[:, -1]),
            symbols=[list(map(str, row)) for row in np.asarray(batch.inputs).tolist()],
        )

    def _logits(self, params, batch: copying.Copying, **options) -> Array:
        _, logits = self.model.apply({"params": params}, batch.inputs, **options)
        return logits

    def _losses(self, logits: Array, batch: copying.Copying) -> Array:
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch.targets)
