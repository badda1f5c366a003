"""Long time lags: Hochreiter and Schmidhuber, 1997, Experiment 2.

2a and 2b: of sequences (y, ..., y) and (x, ..., x) with p - 1 symbols in between, in a
fixed order (2a) or at random (2b), every next symbol has to be told. The last one is
the first one, p steps before. 2c: b, then x or y, then at least q distractors at
random, then the trigger e; the second symbol has to be told when the sequence has
ended.
"""

import jax
import jax.numpy as jnp

from experiments.task_options import LongLags, VeryLongLags
from experiments.tasks.sequence import Sequence


class between:
    """Tasks 2a and 2b; symbols are a_1 ... a_{p-1}, x, y in this order."""

    @staticmethod
    def inputs(options: LongLags) -> int:
        """Returns the number of symbols."""
        return options.lag + 1

    @staticmethod
    def outputs(options: LongLags) -> int:
        """Returns the number of symbols."""
        return options.lag + 1

    @staticmethod
    def longest(options: LongLags) -> int:
        """Returns the number of predictions."""
        return options.lag

    @staticmethod
    def sample(options: LongLags, key: jax.Array) -> Sequence:
        """Returns a random sequence; the targets are the symbols one step later."""
        first, rest = jax.random.split(key)
        p = options.lag
        end = p - 1 + jax.random.bernoulli(first).astype(jnp.int32)
        middle = jnp.arange(p - 1)
        if options.is_random:
            middle = jax.random.randint(rest, (p - 1,), 0, p - 1)
        symbols = jnp.concatenate([end[None], middle, end[None]])
        return Sequence(symbols[:-1], jnp.int32(p), symbols[1:], symbols[1:])


class trigger:
    """Task 2c; symbols are the distractors a_1 ... a_p, then e, b, x, y."""

    @staticmethod
    def inputs(options: VeryLongLags) -> int:
        """Returns the number of symbols."""
        return options.distractors + 4

    @staticmethod
    def outputs(options: VeryLongLags) -> int:
        """Returns 2: x and y."""
        return 2

    @staticmethod
    def longest(options: VeryLongLags) -> int:
        """Returns the greatest number of steps that are made.

        The number of distractors beyond q has no bound; one sequence in 10^9 would be
        longer than this, and is cut.
        """
        return options.lag + 3 + 200

    @staticmethod
    def sample(options: VeryLongLags, key: jax.Array) -> Sequence:
        """Returns a random sequence of symbols, the last of which is e."""
        keys = jax.random.split(key, 3)
        p, q, steps = options.distractors, options.lag, trigger.longest(options)
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
