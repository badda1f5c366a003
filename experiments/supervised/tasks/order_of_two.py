"""The order of two symbols; see `experiments/paper1997/tasks/temporal_order.py`."""

import jax
import jax.numpy as jnp

from experiments.paper1997.tasks import temporal_order
from experiments.settings.supervised import Supervised
from experiments.settings.tasks import TemporalOrder
from experiments.supervised.classification import ClassificationTask, Labelled
from experiments.supervised.network import SequenceNetwork, dtype_of, last_step
from experiments.supervised.task import Array, evaluation_key

# Sequences of each evaluation, as in the paper.
TESTED = 2560
# Positions and lengths of task 6a.
OPTIONS = TemporalOrder()


class OrderOfTwoTask(ClassificationTask):
    """Task 6a of 1997 with batches; see `Task`. Every batch is new.

    Args:
      experiment: the config.
    """

    classes = temporal_order.outputs(OPTIONS)

    def __init__(self, experiment: Supervised):
        self.seed, self.batch_size = experiment.seed, experiment.training.batch
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

    def tested(self, data: tuple, split: str) -> Labelled:
        """Returns random sequences, the same for all networks."""
        return sample(evaluation_key(self.seed, split), TESTED)


def sample(key: Array, count: int) -> Labelled:
    """Returns random sequences of the task and the numbers of their classes."""
    keys = jax.random.split(key, count)
    found = jax.vmap(lambda key: temporal_order.sample(OPTIONS, key))(keys)
    return Labelled(found.inputs, found.length, found.target.argmax(-1))
