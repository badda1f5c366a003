"""Temporal order: Hochreiter and Schmidhuber, 1997, Experiment 6.

A sequence starts with E and ends with the trigger B. In between are random distractors
a, b, c, d, and at a few steps that are far apart a random X or Y. At the end of the
sequence, the network classifies the order of these: 4 classes for two of them (task
6a), 8 classes for three (6b).
"""

import jax
import jax.numpy as jnp

from experiments.paper1997.tasks.sequence import Sequence
from experiments.settings.tasks import TemporalOrder

SYMBOLS = "abcdEBXY"
DISTRACTORS = 4
START, TRIGGER, X = (SYMBOLS.index(symbol) for symbol in "EBX")


def inputs(options: TemporalOrder) -> int:
    """Returns the number of symbols."""
    return len(SYMBOLS)


def outputs(options: TemporalOrder) -> int:
    """Returns the number of classes: for 6a XX, XY, YX, YY."""
    return 2 ** len(options.positions)


def longest(options: TemporalOrder) -> int:
    """Returns the maximum number of steps."""
    return options.lengths[1]


def sample(options: TemporalOrder, key: jax.Array) -> Sequence:
    """Returns a random sequence of symbols."""
    keys = jax.random.split(key, 4)
    shortest, longest = options.lengths
    length = jax.random.randint(keys[0], (), shortest, longest + 1)
    first, last = jnp.array(options.positions).T
    steps = jax.random.randint(keys[1], first.shape, first, last + 1)
    is_y = jax.random.bernoulli(keys[2], shape=first.shape).astype(jnp.int32)
    symbols = jax.random.randint(keys[3], (longest,), 0, DISTRACTORS)
    symbols = symbols.at[0].set(START).at[length - 1].set(TRIGGER)
    symbols = symbols.at[steps].set(X + is_y)
    powers = 2 ** jnp.arange(len(is_y))[::-1]
    target = jax.nn.one_hot(jnp.sum(is_y * powers), outputs(options))
    return Sequence(symbols, length, target, target)


def spell(symbols: jax.Array, length: int) -> str:
    """Returns a sequence in the paper's letters."""
    return "".join(SYMBOLS[symbol] for symbol in symbols[:length])
