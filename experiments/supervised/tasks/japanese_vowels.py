"""Naming the speaker of a vowel (Kudo, Toyama and Shimbo, 1999).

Utterances have 7 to 29 frames. There are three layouts of a batch: padded to the
longest training utterance; packed, several utterances in a row; or bucketed, utterances
of similar lengths, padded to the longest of the bucket. All networks of a run read the
same batches.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.datasets import vowels
from experiments.settings.supervised import Supervised
from experiments.supervised.classification import (
    ClassificationTask,
    Labelled,
    check_batch,
    mean_loss,
)
from experiments.supervised.network import (
    SequenceNetwork,
    dtype_of,
    mean_over_time,
    rngs,
)
from experiments.supervised.task import Array
from rnncells import packing

# After this number of epochs, the orders of the epochs repeat.
EPOCHS = 50
BUCKETS = 3
ROW_LENGTH = 64


class JapaneseVowelsTask(ClassificationTask):
    """Utterances of nine speakers; see `Task`.

    Args:
      experiment: the config.
    """

    classes = vowels.SPEAKERS

    def __init__(self, experiment: Supervised):
        options = experiment.task
        self.layout, self.noise = options.layout, options.noise
        self.offset, size = options.offset, experiment.training.batch
        recorded = vowels.japanese_vowels()
        if not options.held_out:
            recorded = recorded._replace(train=vowels.joined(*recorded[:2]))
            self.splits = ("test",)
        measured = vowels.statistics(recorded.train)
        parts = {
            split: vowels.normalize(utterances, *measured)
            for split, utterances in recorded._asdict().items()
        }
        data: dict[str, Any] = {s: Labelled(*part) for s, part in parts.items()}
        lengths = parts["train"].lengths
        check_batch(size, len(lengths))
        random = np.random.RandomState(experiment.seed)
        if self.layout == "bucketed":
            order, bucket, self.padded_lengths = bucketed(lengths, size, random)
            data |= {"order": order, "bucket": bucket}
        else:
            data["order"] = orders(len(lengths), size, random)
        if self.layout == "packed":
            data["plan"] = plans(lengths[data["order"]])
        self.data = data
        self.model = SequenceNetwork(
            experiment.model,
            self.classes,
            pool=mean_over_time,
            dtype=dtype_of(experiment),
        )
        self.sample = jnp.zeros((1, 1, vowels.COEFFICIENTS))

    def batch(self, data: Any, key: Array, update: Array) -> tuple[Labelled, Any]:
        """Returns utterances, and the plan or the bucket of the batch."""
        at = update % len(data["order"])
        batch = jax.tree.map(lambda leaf: leaf[data["order"][at]], data["train"])
        batch = batch._replace(inputs=batch.inputs + self._noise(key, update, batch))
        if self.layout == "packed":
            return batch, jax.tree.map(lambda leaf: leaf[at], data["plan"])
        return batch, data["bucket"][at] if self.layout == "bucketed" else None

    def _noise(self, key: Array, update: Array, batch: Labelled) -> Array:
        """Returns noise of each frame, plus an offset of each utterance."""
        of_frame, of_utterance = jax.random.split(jax.random.fold_in(key, update))
        count, _, coefficients = batch.inputs.shape
        offsets = jax.random.normal(of_utterance, (count, 1, coefficients))
        noise = jax.random.normal(of_frame, batch.inputs.shape)
        return self.noise * noise + self.offset * offsets

    def loss(
        self, params: Any, batch: tuple, carry: tuple, key: Array, update: Array
    ) -> tuple[Array, tuple]:
        """Returns the mean cross-entropy of a batch."""
        utterances, of_layout = batch
        if self.layout == "packed":
            return self._packed_loss(params, utterances, of_layout, key), carry
        loss = partial(mean_loss, self.model, params, key=key)
        if self.layout == "padded":
            return loss(utterances), carry

        def at_length(length: int, utterances: Labelled) -> Array:
            return loss(utterances._replace(inputs=utterances.inputs[:, :length]))

        branches = [partial(at_length, int(n)) for n in self.padded_lengths]
        return jax.lax.switch(of_layout, branches, utterances), carry

    def _packed_loss(
        self, params: Any, utterances: Labelled, plan: packing.Plan, key: Array
    ) -> Array:
        """Returns the mean cross-entropy of a batch, computed on packed rows."""
        model = self.model.clone(pool=lambda states, _: mean_of_packed(states, plan))
        _, logits = model.apply(
            {"params": params},
            plan.pack(utterances.inputs),
            resets=plan.resets,
            mask=plan.mask,
            deterministic=False,
            rngs=rngs(key),
        )
        losses = optax.softmax_cross_entropy_with_integer_labels(
            logits, utterances.labels
        )
        return losses.mean()


def orders(count: int, size: int, random: np.random.RandomState) -> np.ndarray:
    """Returns the utterances of each batch, `(batches, size)`, for `EPOCHS` epochs."""
    in_epoch = count // size
    epochs = [random.permutation(count)[: in_epoch * size] for _ in range(EPOCHS)]
    return np.concatenate(epochs).reshape(-1, size).astype(np.int32)


def bucketed(
    lengths: np.ndarray, size: int, random: np.random.RandomState
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns batches of utterances from one bucket each, in a random order.

    Returns:
      The utterances of each batch, `(batches, size)`; its bucket, `(batches,)`; and the
      padded length of each bucket.
    """
    bucket, padded_lengths = vowels.buckets(lengths, BUCKETS)
    batches, numbers = [], []
    for _ in range(EPOCHS):
        epoch = []
        for k in range(BUCKETS):
            inside = random.permutation(np.flatnonzero(bucket == k))
            # The last batch of a bucket is filled up with some of its utterances.
            filled = np.resize(inside, -(-len(inside) // size) * size)
            epoch += [(rows, k) for rows in filled.reshape(-1, size)]
        for at in random.permutation(len(epoch)):
            batches.append(epoch[at][0])
            numbers.append(epoch[at][1])
    return np.array(batches, np.int32), np.array(numbers, np.int32), padded_lengths


def plans(lengths: np.ndarray) -> Any:
    """Returns the plans of all batches, each array stacked over batches.

    Args:
      lengths: `(batches, size)`.
    """
    rows = max(len(packing.plan(of, ROW_LENGTH).mask) for of in lengths)
    each = [packing.plan(of, ROW_LENGTH, rows=rows) for of in lengths]
    return jax.tree.map(lambda *leaves: np.stack(leaves), *each)


def mean_of_packed(states: Array, plan: packing.Plan) -> Array:
    """Returns the mean state of each packed utterance, `(utterances, features)`."""
    unpacked = plan.unpack(states, time=ROW_LENGTH)
    return mean_over_time(unpacked, plan.seq_lengths)
