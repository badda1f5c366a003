"""What every task makes: one sequence, and what is to be said of it."""

from typing import NamedTuple

import jax


class Sequence(NamedTuple):
    """One sequence, or many of them with further axes.

    Attributes:
      inputs: `(time, inputs)`, or of symbols their indices `(time,)`; whatever follows
        the first `length` steps is padding.
      length: number of steps.
      target: what the outputs are to be. With an error at the end alone, numbers
        `(outputs,)`; with one at every step, the index `(time,)` of the output unit
        that is to be 1.
      truth: as `target`, without the noise that some tasks put on it.
      legal: `(time, outputs)`, whether each symbol may come next; None where the task
        does not ask.
    """

    inputs: jax.Array
    length: jax.Array
    target: jax.Array
    truth: jax.Array
    legal: jax.Array | None = None
