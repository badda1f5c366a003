"""The adding problem: the sum of two marked numbers of a sequence.

Each step is a pair of a random number in [0, 1) and a marker. Two different steps have
marker 1, the others have 0. The target, after the last step, is the sum of the two
numbers. The loss is the mean squared error.

Reference: Bai, Kolter and Koltun, 2018, "An Empirical Evaluation of Generic
Convolutional and Recurrent Networks for Sequence Modeling"; after Hochreiter and
Schmidhuber, 1997, whose own version is in `experiments.paper1997.tasks.marked_pairs`.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from experiments.settings.rules import require


class Adding(NamedTuple):
    """Sequences of the adding problem.

    Attributes:
      inputs: `(count, length, 2)`, float32: numbers, then markers.
      targets: `(count,)`, float32, in [0, 2).
    """

    inputs: jax.Array
    targets: jax.Array


def sample(key: jax.Array, count: int, length: int) -> Adding:
    """Returns random sequences of the problem.

    All pairs of different steps are equally likely, as in the program of Bai et al.

    Args:
      key: random key.
      count: number of sequences.
      length: T, number of steps, at least 2. Bai et al. use 200, 400 and 600.

    Raises:
      ConfigError: `length` is below 2.
    """
    require(length >= 2, f"`length` must be at least 2, got {length}.")
    keys = jax.random.split(key, 3)
    numbers = jax.random.uniform(keys[0], (count, length))
    one = jax.random.randint(keys[1], (count, 1), 0, length)
    # A different step: skip the first one.
    other = jax.random.randint(keys[2], (count, 1), 0, length - 1)
    other = other + (other >= one)
    steps = jnp.arange(length)
    is_marked = (steps == one) | (steps == other)
    inputs = jnp.stack([numbers, is_marked.astype(numbers.dtype)], axis=-1)
    return Adding(inputs, jnp.sum(numbers, -1, where=is_marked))
