"""Adding and multiplication: Hochreiter and Schmidhuber, 1997, Experiments 4 and 5.

Each step is a pair of a random number and a marker. Two numbers are marked, one of the
first ten and one of the first half. At the end of the sequence, the network outputs
their scaled sum or their product.
"""

import jax
import jax.numpy as jnp

from experiments.paper1997.tasks.sequence import Sequence
from experiments.settings.tasks import MarkedPairs

FIRST_PICKS = 10
END = -1.0


def inputs(options: MarkedPairs) -> int:
    """Returns the size of a pair."""
    return 2


def outputs(options: MarkedPairs) -> int:
    """Returns 1: the sum or the product."""
    return 1


def longest(options: MarkedPairs) -> int:
    """Returns the maximum number of steps."""
    return options.length + options.length // 10


def sample(options: MarkedPairs, key: jax.Array) -> Sequence:
    """Returns a random sequence of pairs (number, marker).

    If a marked number is in the first pair, it counts as 0 in adding and as 1 in
    multiplication, and its marker stays -1, like the marker of the last pair. The paper
    states this for the number picked first; `options.first_pair` decides for the other.
    With `"input"`, a marked number in the first pair is set to 0 or 1 in the sequence,
    and its marker is 1 (the paper: "we set X1 to zero").
    """
    keys = jax.random.split(key, 4)
    steps, is_sum = longest(options), options.operation == "sum"
    length = jax.random.randint(keys[0], (), options.length, steps + 1)
    low = -1.0 if is_sum else 0.0
    numbers = jax.random.uniform(keys[1], (steps,), minval=low, maxval=1.0)
    one = jax.random.randint(keys[2], (), 0, FIRST_PICKS)
    # Another pair, which is not marked yet.
    other = jax.random.randint(keys[3], (), 0, options.length // 2 - 2)
    other = other + (other >= one)
    t = jnp.arange(steps)
    is_marked = (t == one) | (t == other)
    is_end = (t == 0) | (t == length - 1)
    neutral = 0.0 if is_sum else 1.0
    x1 = jnp.where(one == 0, neutral, numbers[one])
    x2 = numbers[other]
    if options.first_pair != "first":
        x2 = jnp.where(other == 0, neutral, x2)
    markers = jnp.where(is_end, END, jnp.where(is_marked, 1.0, 0.0))
    if options.first_pair == "input":
        markers = jnp.where(is_marked, 1.0, markers)
        numbers = jnp.where(is_marked & (t == 0), neutral, numbers)
    target = 0.5 + (x1 + x2) / 4.0 if is_sum else x1 * x2
    pairs = jnp.stack([numbers, markers], axis=-1)
    return Sequence(pairs, length, target[None], target[None])
