"""Long time lags: Hochreiter and Schmidhuber, 1997, Experiments 2a and 2b.

The network predicts every next symbol of sequences (y, ..., y) and (x, ..., x), with
p - 1 symbols in between in a fixed order (2a) or at random (2b). The last symbol equals
the first, p steps before. Symbols are a_1 ... a_{p-1}, x, y in this order.
"""

import jax
import jax.numpy as jnp

from experiments.paper1997.tasks.sequence import Sequence
from experiments.settings.tasks import LongLags


def inputs(options: LongLags) -> int:
    """Returns the number of symbols."""
    return options.lag + 1


def outputs(options: LongLags) -> int:
    """Returns the number of symbols."""
    return options.lag + 1


def longest(options: LongLags) -> int:
    """Returns the number of predictions."""
    return options.lag


def sample(options: LongLags, key: jax.Array) -> Sequence:
    """Returns a random sequence; the targets are the symbols one step later."""
    first, rest = jax.random.split(key)
    p = options.lag
    end = p - 1 + jax.random.bernoulli(first).astype(jnp.int32)
    middle = jnp.arange(p - 1)
    if options.is_random:
        middle = jax.random.randint(rest, (p - 1,), 0, p - 1)
    symbols = jnp.concatenate([end[None], middle, end[None]])
    first_measured = 0 if options.measured == "all" else p - 1
    measured = jnp.arange(p) >= first_measured
    return Sequence(symbols[:-1], jnp.int32(p), symbols[1:], symbols[1:], measured)
