"""The order of two symbols; see `experiments/paper1997/tasks/temporal_order.py`."""

import jax
import jax.numpy as jnp

from experiments.paper1997.tasks import temporal_order
from experiments.settings.supervised import Supervised
from experiments.settings.tasks import TemporalOrder
from experiments.supervised.classification import Labelled, mean_loss, scores
from experiments.supervised.network import SequenceNetwork, dtype_of, last_step
from experiments.supervised.task import Array, Task, evaluation_key

# Sequences of each evaluation, as in the paper.
TESTED = 2560
# Positions and lengths of task 6a.
OPTIONS = TemporalOrder()


class OrderOfTwoTask(Task):
    """Task 6a of 1997 with batches; see `Task`. Every batch is new.

    Args:
      experiment: the config.
    """

    def __init__(self, experiment: Supervised):
        self.seed, self.batch_size = experiment.seed, experiment.training.batch
        self.classes = temporal_order.outputs(OPTIONS)
        self.model = SequenceNetwork(
            experiment.model,
            self.classes,
            temporal_order.inputs(OPTIONS),
            pool=last_step,
            dtype=dtype_of(experiment),
        )
        self.sample = jnp.zeros((1, 1), jnp.int32)

    def batch(self, data: tuple, key: Array, update: Array) -> Labelled:
        """Returns random sequences, `(batch, 110)`."""
        return sample(jax.random.fold_in(key, update), self.batch_size)

    def loss(self, params, batch: Labelled, carry: tuple, key: Array, update: Array):
        """Returns the mean cross-entropy of a batch."""
        return mean_loss(self.model, params, batch, key), carry

    def evaluate(self, params, data: tuple, split: str) -> dict[str, Array]:
        """Returns loss, accuracy and confusion matrix."""

        def logits_of(part: Labelled) -> Array:
            options = {"lengths": part.lengths}
            return self.model.apply({"params": params}, part.inputs, **options)[1]

        tested = sample(evaluation_key(self.seed, split), TESTED)
        return scores(logits_of, tested, self.classes)


def sample(key: Array, count: int) -> Labelled:
    """Returns random sequences of the task and the numbers of their classes."""
    keys = jax.random.split(key, count)
    found = jax.vmap(lambda key: temporal_order.sample(OPTIONS, key))(keys)
    return Labelled(found.inputs, found.length, found.target.argmax(-1))
