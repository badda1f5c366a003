"""Very long time lags: Hochreiter and Schmidhuber, 1997, Experiment 2c.

A sequence is b, then x or y, then at least q random distractors, then the trigger e. At
the end of the sequence, the network outputs the second symbol. Symbols are the
distractors a_1 ... a_p, then e, b, x, y.
"""

import math

import jax
import jax.numpy as jnp

from experiments.paper1997.tasks.sequence import Sequence
from experiments.settings.tasks import VeryLongLags


def inputs(options: VeryLongLags) -> int:
    """Returns the number of symbols."""
    return options.distractors + 4


def outputs(options: VeryLongLags) -> int:
    """Returns 2: x and y."""
    return 2


def longest(options: VeryLongLags) -> int:
    """Returns the maximum number of steps.

    The number of distractors has no bound. Fewer than one sequence in 10^9 would be
    longer than this maximum; such sequences are cut.
    """
    return options.lag + 3 + math.ceil(200 * math.log(0.9) / math.log(options.go_on))


def sample(options: VeryLongLags, key: jax.Array) -> Sequence:
    """Returns a random sequence of symbols, the last of which is e."""
    keys = jax.random.split(key, 3)
    p, q, steps = options.distractors, options.lag, longest(options)
    e, b, x = p, p + 1, p + 2
    is_y = jax.random.bernoulli(keys[0]).astype(jnp.int32)
    # Each further distractor comes with probability 9/10.
    further = jnp.floor(
        jnp.log1p(-jax.random.uniform(keys[1])) / jnp.log(options.go_on)
    ).astype(jnp.int32)
    length = jnp.minimum(q + 3 + further, steps)
    symbols = jax.random.randint(keys[2], (steps,), 0, p)
    symbols = symbols.at[0].set(b).at[1].set(x + is_y).at[length - 1].set(e)
    target = jax.nn.one_hot(is_y, 2)
    return Sequence(symbols, length, target, target)
