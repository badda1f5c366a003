"""Shared parts of the classification tasks."""

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from experiments.settings.rules import require
from experiments.supervised.network import rngs
from experiments.supervised.parts import SIZE, sum_over_parts
from experiments.supervised.task import Array, Examples, Task


class Labelled(NamedTuple):
    """Sequences and their classes.

    Attributes:
      inputs: `(count, time, inputs)`.
      lengths: number of steps of each sequence, `(count,)`; None: all steps.
      labels: the classes, `(count,)`.
    """

    inputs: Any
    lengths: Any
    labels: Any


class ClassificationTask(Task):
    """Base of the tasks that name the class of a sequence; see `Task`.

    Attributes:
      classes: number of classes.
    """

    classes: int

    def loss(
        self, params: Any, batch: Any, carry: tuple, key: Array, update: Array
    ) -> tuple[Array, tuple]:
        """Returns the mean cross-entropy of a batch."""
        return mean_loss(self.model, params, batch, key), carry

    def evaluate(self, params: Any, data: Any, split: str) -> dict[str, Array]:
        """Returns loss, accuracy and confusion matrix."""

        def logits_of(part: Labelled) -> Array:
            options = {"lengths": part.lengths}
            return self.model.apply({"params": params}, part.inputs, **options)[1]

        return scores(logits_of, self.tested(data, split), self.classes)

    def tested(self, data: Any, split: str) -> Labelled:
        """Returns the sequences of a split."""
        return data[split]

    def examples(self, data: Any, count: int, steps: int) -> Examples:
        """Returns whole sequences, and the cross-entropies of their classes."""
        inputs, lengths, labels = jax.tree.map(
            lambda leaf: jnp.asarray(leaf[:count]), self.tested(data, "test")
        )

        def loss(logits: Array) -> Array:
            losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
            return losses.sum()

        return Examples(inputs, loss, lengths)


def check_batch(batch: int, count: int) -> None:
    """Checks that a batch is not larger than the training split.

    Raises:
      ConfigError: it is.
    """
    require(
        batch <= count,
        f"`training.batch` must be at most {count}, the number of training sequences, "
        f"got {batch}.",
    )


def drawn(data: Labelled, key: Array, update: Array, batch: int) -> Labelled:
    """Returns a batch; no sequence is drawn twice in an epoch.

    Args:
      data: the training split.
      key: random key; each epoch has its own order.
      update: number of the update.
      batch: number of sequences, at most that of `data`.
    """
    count = len(data.labels) // batch
    key = jax.random.fold_in(key, update // count)
    order = jax.random.permutation(key, len(data.labels))
    chosen = jax.lax.dynamic_slice_in_dim(order, update % count * batch, batch)
    return jax.tree.map(lambda leaf: leaf[chosen], data)


def scores(
    logits_of: Callable[[Labelled], Array],
    data: Labelled,
    classes: int,
    size: int = SIZE,
) -> dict[str, Array]:
    """Returns the mean loss, the accuracy and the confusion matrix.

    Args:
      logits_of: function of some sequences; returns their logits, `(count, classes)`.
      data: the sequences and their labels.
      classes: number of classes.
      size: number of sequences in one call of `logits_of`, at least 1.

    Returns:
      `loss` in nats; `accuracy` in percent; `confusion`, `(classes, classes)`: the
      number of sequences of each class (row) that were given each class (column).
    """

    def sums(part: Labelled, mask: Array) -> tuple[Array, Array]:
        logits, labels = logits_of(part), part.labels
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
        confusion = jnp.zeros((classes, classes), jnp.int32)
        confusion = confusion.at[labels, logits.argmax(-1)].add(mask)
        return jnp.sum(losses, where=mask), confusion

    loss, confusion = sum_over_parts(sums, data, size)
    count = len(data.labels)
    return {
        "loss": loss / count,
        "accuracy": 100 * jnp.trace(confusion) / count,
        "confusion": confusion,
    }


def mean_loss(model: nn.Module, params: Any, batch: Labelled, key: Array) -> Array:
    """Returns the mean cross-entropy of a batch, with dropout."""
    _, logits = model.apply(
        {"params": params},
        batch.inputs,
        lengths=batch.lengths,
        deterministic=False,
        rngs=rngs(key),
    )
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch.labels)
    return losses.mean()
