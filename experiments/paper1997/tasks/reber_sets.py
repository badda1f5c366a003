"""Training and test sets of a fixed number of strings (Experiment 1)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.paper1997.tasks import embedded_reber as reber
from experiments.paper1997.tasks.sequence import Sequence
from experiments.settings.rules import require
from experiments.settings.tasks import EmbeddedReber

Array = jax.Array
# Differs from the keys of trials, which are numbered from 0.
STREAM = 2**31 - 1


class Sets(NamedTuple):
    """Pairs of training and test sets; the trials use them in turn.

    Attributes:
      train: sequences, `(pairs, strings, ...)`.
      test: sequences that are not in the training set, `(pairs, strings, ...)`.
    """

    train: Sequence
    test: Sequence

    def sample(self, trial: Array, key: Array) -> Sequence:
        """Returns a random sequence from a trial's training set."""
        pairs, strings = self.train.length.shape
        index = jax.random.randint(key, (), 0, strings)
        return jax.tree.map(lambda leaf: leaf[trial % pairs, index], self.train)

    def both(self, trial: Array, count: int) -> Sequence:
        """Returns the first sequences of a trial's two sets, along the last axis."""
        pair = trial % len(self.train.length)
        return jax.tree.map(
            lambda train, test: jnp.moveaxis(
                jnp.concatenate([train[pair], test[pair]])[:count], 0, -1
            ),
            self.train,
            self.test,
        )


def draw_sets(options: EmbeddedReber, seed: int) -> Sets:
    """Returns random sets; the same seed gives the same sets.

    Raises:
      ConfigError: there are not enough different strings for sets of this size.
    """
    root = jax.random.fold_in(jax.random.key(seed), STREAM)
    drawn = [
        _draw_pair(options, jax.random.fold_in(root, pair))
        for pair in range(options.pairs)
    ]
    return Sets(
        *(jax.tree.map(lambda *leaves: jnp.stack(leaves), *of) for of in zip(*drawn))
    )


def _draw_pair(options: EmbeddedReber, key: Array) -> tuple[Sequence, Sequence]:
    # Many draws, because a quarter of all strings have the shortest length and repeat.
    keys = jax.random.split(key, 64 * options.strings)
    strings = jax.jit(jax.vmap(lambda key: reber.sample(options, key)))(keys)
    strings = jax.tree.map(np.asarray, strings)
    texts = [
        symbols[: length + 1].tobytes()
        for symbols, length in zip(strings.inputs, strings.length, strict=True)
    ]
    train, known = [], set()
    rest = iter(range(len(texts)))
    for k in rest:
        if not (options.distinct and texts[k] in known):
            train.append(k)
            known.add(texts[k])
        if len(train) == options.strings:
            break
    test = [k for k in rest if texts[k] not in known][: options.strings]
    require(
        len(test) == options.strings,
        "`strings` must be smaller: too few different strings were drawn for a "
        f"training set and a test set of this size, got {options.strings}.",
    )
    return tuple(
        jax.tree.map(lambda leaf: jnp.asarray(leaf[index]), strings)
        for index in (np.array(train), np.array(test))
    )
