"""Hand-written digits as sequences, by rows or by pixels: the 8 by 8 digits, or MNIST.

References: Alpaydin and Kaynak, 1998, "Optical Recognition of Handwritten Digits";
LeCun, Bottou, Bengio and Haffner, 1998 (MNIST); Le, Jaitly and Hinton, 2015 (pixel by
pixel, and permuted pixels).
"""

import io
from pathlib import Path
from typing import NamedTuple

import numpy as np

from experiments.datasets.files import DATA, read_bytes
from experiments.datasets.idx import read_idx
from experiments.settings.rules import require

CLASSES = 10
MNIST = DATA / "mnist"
MNIST_FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
PERMUTATION_SEED = 1


class Images(NamedTuple):
    """Images and what they show.

    Attributes:
      images: `(count, rows, columns)`, float32, in [0, 1]. As sequences, each step is a
        row; see `by_pixels` for single pixels.
      labels: `(count,)`, int32, the digits, 0 to 9.
    """

    images: np.ndarray
    labels: np.ndarray


class Digits(NamedTuple):
    """The splits of a set of digits."""

    train: Images
    validation: Images
    test: Images


def digits8x8() -> Digits:
    """Returns the 8 by 8 digits: 1,147 for training, 200 for validation, 450 for test.

    Neighbours in the file tend to share a writer, so the splits are contiguous.

    Raises:
      ConfigError: the file is missing or damaged.

    >>> [part.images.shape for part in digits8x8()]
    [(1147, 8, 8), (200, 8, 8), (450, 8, 8)]
    """
    with np.load(io.BytesIO(read_bytes("digits8x8.npz"))) as file:
        images, labels = file["x"], file["y"]
    train, test = _hold_out(_images(images, labels, largest=16), 450)
    return Digits(*_hold_out(train, 200), test)


def mnist(folder: str | Path = MNIST, validation: int = 5_000) -> Digits:
    """Returns MNIST: 55,000 images for training, 5,000 for validation, 10,000 for test.

    The validation images are the last of the 60,000 training images. The folder must
    have the four files of MNIST, such as `train-images-idx3-ubyte`, each with or
    without `.gz`. Other data in this format is read too, if the images have 28 by 28
    pixels and the labels are 0 to 9.

    Args:
      folder: folder of the files. Default: `experiments/data/mnist`.
      validation: number of validation images, at least 1. Default: 5,000.

    Raises:
      ConfigError: a file is missing or damaged, or has other sizes than MNIST.
    """
    train, test = (
        _images(*_read_pair(Path(folder), *names), largest=255)
        for names in MNIST_FILES.values()
    )
    require(
        1 <= validation < len(train.labels),
        f"`validation` must be in [1, {len(train.labels)}) (the number of training "
        f"images), got {validation}.",
    )
    return Digits(*_hold_out(train, validation), test)


def _read_pair(folder: Path, *names: str) -> tuple[np.ndarray, np.ndarray]:
    images, labels = (read_idx(folder, n, axes) for n, axes in zip(names, (3, 1)))
    image_name, label_name = (folder / name for name in names)
    require(
        images.shape[1:] == (28, 28),
        f"{image_name} must have images of 28 by 28 pixels, got {images.shape[1:]}.",
    )
    require(
        len(images) == len(labels),
        f"{label_name} must have one label for each image of {image_name}, got "
        f"{len(labels)} labels and {len(images)} images.",
    )
    largest = labels.max(initial=0)
    require(
        largest < CLASSES,
        f"{label_name} must have labels in [0, {CLASSES}), got {largest}.",
    )
    return images, labels


def _images(images: np.ndarray, labels: np.ndarray, largest: int) -> Images:
    """Scales pixels from [0, largest] to [0, 1]."""
    return Images(images / np.float32(largest), labels.astype(np.int32))


def _hold_out(images: Images, count: int) -> tuple[Images, Images]:
    """Returns all images but the last `count`, and those."""
    first, last = zip(*((array[:-count], array[-count:]) for array in images))
    return Images(*first), Images(*last)


def by_pixels(images: np.ndarray, order: np.ndarray | None = None) -> np.ndarray:
    """Returns images `(count, rows, columns)` as sequences of pixels.

    Args:
      images: the images.
      order: `(rows * columns,)`, the pixel of each step, for example of `permutation`.
        None: row by row.

    Returns:
      `(count, rows * columns, 1)`.
    """
    pixels = images.reshape(len(images), -1, 1)
    return pixels if order is None else pixels[:, order]


def permutation(pixels: int, seed: int = PERMUTATION_SEED) -> np.ndarray:
    """Returns a random order of pixels, `(pixels,)`, equal in every version of NumPy.

    Published results use other random orders.

    Args:
      pixels: number of pixels, 64 or 784.
      seed: seed in [0, 2**32). Default: 1.
    """
    # NumPy guarantees the numbers of this generator, unlike those of `default_rng`.
    return np.random.RandomState(seed).permutation(pixels)
