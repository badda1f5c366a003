"""The copy memory task: repeating ten symbols after many blanks.

A sequence has T + 20 steps: 10 random symbols of 1 to 8, T - 1 blanks (0), a delimiter
(9) and 10 more delimiters. The target is 0 at every step but the last 10, where it is
the 10 symbols in their order. The loss is the mean cross-entropy over all steps.

Reference: Bai, Kolter and Koltun, 2018, "An Empirical Evaluation of Generic
Convolutional and Recurrent Networks for Sequence Modeling"; after Hochreiter and
Schmidhuber, 1997, and Arjovsky, Shah and Bengio, 2016.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from experiments.settings.rules import require

SYMBOLS, BLANK, DELIMITER = 8, 0, 9
CLASSES = 10
COPIED = 10


class Copying(NamedTuple):
    """Sequences of the copy memory task.

    Attributes:
      inputs: `(count, blanks + 20)`, int32, in [0, 10).
      targets: `(count, blanks + 20)`, int32, in [0, 9).
    """

    inputs: jax.Array
    targets: jax.Array


def sample(key: jax.Array, count: int, blanks: int) -> Copying:
    """Returns random sequences of the task.

    Args:
      key: random key.
      count: number of sequences.
      blanks: T, at least 1. Bai et al. use 500, 1,000 and 2,000.

    Raises:
      ConfigError: `blanks` is below 1.
    """
    require(blanks >= 1, f"`blanks` must be at least 1, got {blanks}.")
    symbols = jax.random.randint(key, (count, COPIED), 1, SYMBOLS + 1, jnp.int32)

    def padded(before: int, blank: int, after: int) -> jax.Array:
        rows = jnp.pad(symbols, ((0, 0), (before, blank)))
        return jnp.pad(rows, ((0, 0), (0, after)), constant_values=DELIMITER)

    return Copying(padded(0, blanks - 1, COPIED + 1), padded(blanks + COPIED, 0, 0))
