"""Naming a handwritten digit, pixel by pixel (Le, Jaitly and Hinton, 2015)."""

import hashlib

import jax.numpy as jnp
import numpy as np

from experiments.datasets import digits
from experiments.settings.data_tasks import Pixels
from experiments.settings.supervised import Supervised
from experiments.supervised.classification import (
    ClassificationTask,
    Labelled,
    check_batch,
    drawn,
)
from experiments.supervised.network import SequenceNetwork, dtype_of, last_step
from experiments.supervised.task import Array


class PixelsTask(ClassificationTask):
    """Digits as sequences; see `Task`.

    Args:
      experiment: the config.
    """

    classes = digits.CLASSES

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
            self.classes,
            pool=last_step,
            dtype=dtype_of(experiment),
        )
        self.sample = jnp.asarray(self.data["train"].inputs[:1])

    def batch(self, data: dict, key: Array, update: Array) -> Labelled:
        """Returns random images, `(batch, time, inputs)`."""
        return drawn(data["train"], key, update, self.batch_size)


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
