"""The base class of the tasks on data sets."""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

import flax.linen as nn
import jax

from experiments.settings.rules import ConfigError

Array = jax.Array
Batch = Any


class Examples(NamedTuple):
    """Sequences of the test split, for looking at.

    Attributes:
      inputs: `(count, time, inputs)`, or symbols `(count, time)`.
      loss: function from the outputs of the model to the sum of the losses of the
        sequences, each at the end of its sequence.
      lengths: number of steps of each sequence, `(count,)`; None: all steps.
      symbols: for each sequence, one string for each step; None: inputs are numbers.
    """

    inputs: Any
    loss: Callable[[Array], Array]
    lengths: Any = None
    symbols: list[list[str]] | None = None


class Task:
    """Base of the tasks in `experiments/supervised/tasks`.

    A task has its data as arrays, which the trainer puts on the devices once and passes
    to every method, a model, and these methods, which are pure functions. A batch is a
    function of a key and the number of the update, so a resumed run needs no position
    in the data.

    Attributes:
      data: pytree of NumPy arrays.
      model: the network, a Flax module.
      sample: one batch of inputs, to initialize the model.
      splits: names of the splits to evaluate after training.
      identity: what identifies data that come from files: `sha256`, and other JSON
        values. A resumed run must have the same. Default: empty.
      origin: name of these files, for errors.
      by_module: the tasks, by the names of their modules.
    """

    by_module: ClassVar[dict[str, type["Task"]]] = {}
    data: Any = ()
    identity: Mapping[str, Any] = MappingProxyType({})
    origin: str = ""
    model: nn.Module
    sample: Any
    splits: tuple[str, ...] = ("validation", "test")

    def __init_subclass__(cls) -> None:
        Task.by_module[cls.__module__] = cls

    def init(self, key: Array) -> Any:
        """Returns the initial parameters."""
        return self.model.init(key, self.sample)["params"]

    def initial_carry(self) -> Any:
        """Returns what one update hands to the next: the carry of a language model."""
        return ()

    def batch(self, data: Any, key: Array, update: Array) -> Batch:
        """Returns a batch for training: arrays whose first axis is `batch`.

        Args:
          data: the arrays of `data`.
          key: random key of this network, the same for all updates.
          update: number of the update, from 0.
        """
        raise NotImplementedError

    def loss(
        self, params: Any, batch: Batch, carry: Any, key: Array, update: Array
    ) -> tuple[Array, Any]:
        """Returns the mean loss of a batch and the carry for the next batch.

        Args:
          params: the parameters.
          batch: result of `batch`.
          carry: what the update before returned.
          key: random key of this update, for dropout and teacher forcing.
          update: number of the update, from 0.
        """
        raise NotImplementedError

    def evaluate(self, params: Any, data: Any, split: str) -> dict[str, Array]:
        """Returns the metrics of one network on a split.

        Args:
          params: the parameters.
          data: the arrays of `data`.
          split: `"validation"` or `"test"`.

        Returns:
          Arrays, and among them the scalar `loss`, whose minimum decides which
          parameters are kept.
        """
        raise NotImplementedError

    def examples(self, data: Any, count: int, steps: int) -> Examples:
        """Returns sequences of the test split, for `inspect`.

        Args:
          data: the arrays of `data`.
          count: number of sequences, at least 1.
          steps: number of steps, if the task cuts its sequences out of a longer one.

        Raises:
          ConfigError: the task has none.
        """
        raise ConfigError("`inspect` does not support the task of this run.")

    def save_pictures(self, params: Any, data: Any, folder: Path) -> None:
        """Writes pictures of what a trained network does, if the task has any.

        Args:
          params: the parameters of one network.
          data: the arrays of `data`.
          folder: folder of the run.
        """

    def together(self, splits: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        """Returns the metrics of splits taken together, by the names of such a union.

        Args:
          splits: the metrics of each split, `(seeds, ...)`.
        """
        return {}


def evaluation_key(seed: int, split: str) -> Array:
    """Returns the key that draws the sequences of a split, the same for all networks.

    The keys are also the roots of the keys of networks 1 and 2. These fold in the
    number of each update, so no batch for training repeats these sequences.
    """
    number = {"validation": 1, "test": 2}[split]
    return jax.random.fold_in(jax.random.key(seed), number)
