"""Naming a handwritten digit, pixel by pixel (Le, Jaitly and Hinton, 2015)."""

import hashlib

import jax.numpy as jnp
import numpy as np

from experiments.datasets import digits
from experiments.settings.data_tasks import Pixels
from experiments.settings.supervised import Supervised
from experiments.supervised.classification import (
    Labelled,
    check_batch,
    drawn,
    examples_of,
    mean_loss,
    scores,
)
from experiments.supervised.network import SequenceNetwork, dtype_of, last_step
from experiments.supervised.task import Array, Examples, Task


class PixelsTask(Task):
    """Digits as sequences; see `Task`.

    Args:
      experiment: the config.
    """

    def __init__(self, experiment: Supervised):
        options, found = experiment.task, images_of(experiment.task)
        if options.data == "mnist":
            self.origin = f"the data in {options.folder}"
            self.identity = {"sha256": sha256_of(found)}
        self.data = {
            split: Labelled(sequences(images.images, options), None, images.labels)
            for split, images in found._asdict().items()
        }
        self.batch_size = experiment.training.batch
        check_batch(self.batch_size, len(self.data["train"].labels))
        self.model = SequenceNetwork(
            experiment.model,
            digits.CLASSES,
            pool=last_step,
            dtype=dtype_of(experiment),
        )
        self.sample = jnp.asarray(self.data["train"].inputs[:1])

    def batch(self, data: dict, key: Array, update: Array) -> Labelled:
        """Returns random images, `(batch, time, inputs)`."""
        return drawn(data["train"], key, update, self.batch_size)

    def loss(self, params, batch: Labelled, carry: tuple, key: Array, update: Array):
        """Returns the mean cross-entropy of a batch."""
        return mean_loss(self.model, params, batch, key), carry

    def evaluate(self, params, data: dict, split: str) -> dict[str, Array]:
        """Returns loss, accuracy and confusion matrix."""

        def logits_of(part: Labelled) -> Array:
            return self.model.apply({"params": params}, part.inputs)[1]

        return scores(logits_of, data[split], digits.CLASSES)

    def examples(self, data: dict, count: int, steps: int) -> Examples:
        """Returns whole sequences, and the cross-entropies of their classes."""
        return examples_of(data["test"], count)


def images_of(options: Pixels) -> digits.Digits:
    """Returns the images of a config."""
    return (
        digits.mnist(options.folder) if options.data == "mnist" else digits.digits8x8()
    )


def sha256_of(found: digits.Digits) -> str:
    """Returns the SHA-256 of all images and labels."""
    sha256 = hashlib.sha256()
    for images in found:
        for array in images:
            sha256.update(np.ascontiguousarray(array))
    return sha256.hexdigest()


def sequences(images, options: Pixels):
    """Returns images as sequences, `(count, time, inputs)`."""
    if options.order == "rows":
        return images
    count = images[0].size
    is_permuted = options.order == "permuted"
    return digits.by_pixels(images, digits.permutation(count) if is_permuted else None)
