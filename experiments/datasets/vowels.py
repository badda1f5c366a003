"""Japanese Vowels: naming the speaker of a vowel, from 7 to 29 frames.

Reference: Kudo, Toyama and Shimbo, 1999, "Multidimensional Curve Classification Using
Passing-Through Regions".
"""

import io
from typing import NamedTuple

import numpy as np

from experiments.datasets.files import read_bytes
from experiments.settings.rules import require

SPEAKERS, COEFFICIENTS = 9, 12
# Of the 30 training utterances of each speaker.
UTTERANCES, VALIDATION = 30, 6


class Utterances(NamedTuple):
    """Utterances, padded with zeros to the longest of them.

    Attributes:
      inputs: `(count, time, 12)`, float32, cepstrum coefficients of each frame.
      lengths: `(count,)`, int32, the numbers of frames.
      labels: `(count,)`, int32, the speakers, 0 to 8.
    """

    inputs: np.ndarray
    lengths: np.ndarray
    labels: np.ndarray


class Vowels(NamedTuple):
    """The splits: 216 utterances for training, 54 for validation, 370 for test."""

    train: Utterances
    validation: Utterances
    test: Utterances


def japanese_vowels() -> Vowels:
    """Returns all utterances, as recorded, in the order of the speakers.

    The last 6 of each speaker's 30 training utterances are for validation.

    Raises:
      ConfigError: the file is missing or damaged.

    >>> [part.inputs.shape for part in japanese_vowels()]
    [(216, 26, 12), (54, 25, 12), (370, 29, 12)]
    """
    with np.load(io.BytesIO(read_bytes("japanese_vowels.npz"))) as file:
        train, test = (
            (file[f"{name}_x"], file[f"{name}_len"], file[f"{name}_y"])
            for name in ("train", "test")
        )
    # The file has the 30 utterances of one speaker after another.
    is_validation = np.arange(SPEAKERS * UTTERANCES) % UTTERANCES >= (
        UTTERANCES - VALIDATION
    )
    return Vowels(
        _utterances(*train, ~is_validation),
        _utterances(*train, is_validation),
        _utterances(*test, np.full(len(test[1]), True)),
    )


def _utterances(
    frames: np.ndarray, lengths: np.ndarray, labels: np.ndarray, chosen: np.ndarray
) -> Utterances:
    """Cuts frames `(sum(lengths), 12)` into utterances, and pads the chosen ones."""
    ends = np.cumsum(lengths, dtype=np.int32)
    cut = np.split(frames, ends[:-1])
    parts = [part for part, is_chosen in zip(cut, chosen, strict=True) if is_chosen]
    inputs = np.zeros((len(parts), max(map(len, parts)), COEFFICIENTS), np.float32)
    for row, part in zip(inputs, parts, strict=True):
        row[: len(part)] = part
    return Utterances(
        inputs, lengths[chosen].astype(np.int32), labels[chosen].astype(np.int32)
    )


def joined(*parts: Utterances) -> Utterances:
    """Returns the utterances of several parts, padded to the longest of all."""
    time = max(part.inputs.shape[1] for part in parts)
    padded = [
        np.pad(part.inputs, ((0, 0), (0, time - part.inputs.shape[1]), (0, 0)))
        for part in parts
    ]
    return Utterances(
        np.concatenate(padded),
        np.concatenate([part.lengths for part in parts]),
        np.concatenate([part.labels for part in parts]),
    )


def mask(utterances: Utterances) -> np.ndarray:
    """Returns where frames are not padding, `(count, time)`."""
    time = utterances.inputs.shape[1]
    return np.arange(time) < utterances.lengths[:, None]


def statistics(utterances: Utterances) -> tuple[np.ndarray, np.ndarray]:
    """Returns mean and standard deviation of each coefficient over all frames.

    Both are `(12,)` and float32. Padding does not count.
    """
    frames = utterances.inputs[mask(utterances)].astype(np.float64)
    return frames.mean(0).astype(np.float32), frames.std(0).astype(np.float32)


def normalize(
    utterances: Utterances, mean: np.ndarray, deviation: np.ndarray
) -> Utterances:
    """Returns utterances with `(inputs - mean) / deviation`; padding stays 0.

    Args:
      utterances: the utterances.
      mean: `(12,)`, of the training part; see `statistics`.
      deviation: `(12,)`, of the training part, each > 0.

    >>> parts = japanese_vowels()
    >>> mean, deviation = statistics(parts.train)
    >>> train, validation, test = (normalize(p, mean, deviation) for p in parts)
    """
    inputs = (utterances.inputs - mean) / deviation
    return utterances._replace(inputs=np.where(mask(utterances)[..., None], inputs, 0))


def sequences(utterances: Utterances) -> list[np.ndarray]:
    """Returns the inputs without padding, each `(length, 12)`, for packing."""
    return [
        row[:length]
        for row, length in zip(utterances.inputs, utterances.lengths, strict=True)
    ]


class Buckets(NamedTuple):
    """Groups of sequences of similar lengths.

    Attributes:
      bucket: `(count,)`, int32, the bucket of each sequence.
      padded_lengths: `(buckets,)`, int32, increasing, the length to which the sequences
        of each bucket are padded: that of the longest.
    """

    bucket: np.ndarray
    padded_lengths: np.ndarray


def buckets(lengths: np.ndarray, count: int) -> Buckets:
    """Returns the buckets that need the fewest padded steps in total.

    Args:
      lengths: `(sequences,)`, integers >= 0.
      count: number of buckets, in [1, number of different lengths].

    Raises:
      ConfigError: `count` is out of range.

    >>> bucket, padded_lengths = buckets(np.array([9, 2, 3, 8, 9]), 2)
    >>> bucket.tolist(), padded_lengths.tolist()
    ([1, 0, 0, 1, 1], [3, 9])
    """
    values, numbers = np.unique(lengths, return_counts=True)
    require(
        1 <= count <= len(values),
        f"The number of buckets must be in [1, {len(values)}] (the number of different "
        f"lengths), got {count}.",
    )
    padded = values[_last_lengths(values, numbers, count)].astype(np.int32)
    return Buckets(np.searchsorted(padded, lengths).astype(np.int32), padded)


def _last_lengths(values: np.ndarray, numbers: np.ndarray, count: int) -> list[int]:
    """Returns the index of the longest length of each bucket, by dynamic programming.

    `best[j]` is the least number of steps for the first j lengths, and the choice.
    """
    before = np.concatenate([[0], np.cumsum(numbers)]).tolist()
    infinite = (float("inf"), [])
    best = [(0, []), *[infinite] * len(values)]
    for _ in range(count):
        best = [infinite] + [
            min(
                (steps + (before[j] - before[i]) * int(values[j - 1]), [*chosen, j - 1])
                for i, (steps, chosen) in enumerate(best[:j])
            )
            for j in range(1, len(values) + 1)
        ]
    return best[-1][1]
