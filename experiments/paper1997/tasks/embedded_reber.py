"""Embedded Reber grammar: Hochreiter and Schmidhuber, 1997, Experiment 1.

Reber, 1967; Cleeremans, Servan-Schreiber and McClelland, 1989. A string is B, T or P,
a string of the inner grammar, the same T or P, and E. The network predicts every next
symbol, that is, the one or two legal symbols. To predict the last symbol but one, it
must remember the second symbol over the inner string. A string of the plain grammar
(Reber, 1967) is an inner string alone.
"""

import jax
import jax.numpy as jnp
import numpy as np

from experiments.paper1997.tasks.sequence import Sequence
from experiments.settings.tasks import EmbeddedReber

SYMBOLS = "BTPSXVE"
# For each node of the inner grammar: the symbols and targets of its two edges.
EDGES = {
    0: (("T", 1), ("P", 2)),
    1: (("S", 1), ("X", 3)),
    2: (("T", 2), ("V", 4)),
    3: (("X", 2), ("S", 5)),
    4: (("P", 3), ("V", 5)),
}
END = 5
LONGEST = 64


def inputs(options: EmbeddedReber) -> int:
    """Returns the number of symbols."""
    return len(SYMBOLS)


def outputs(options: EmbeddedReber) -> int:
    """Returns the number of symbols."""
    return len(SYMBOLS)


def longest(options: EmbeddedReber) -> int:
    """Returns the largest number of predictions; longer strings are drawn again."""
    return LONGEST


def _tables() -> tuple[np.ndarray, np.ndarray]:
    """Returns, for each state of the whole grammar, its edges' symbols and next states.

    States: 0 before B, 1 before T or P. Then for T and for P a copy of the inner
    grammar: before its B, its nodes, before its E, before the T or P, before the E. The
    last state is after the end. A single edge is listed twice.
    """
    inner = 9  # B, nodes 0 to 4, E, T or P, E
    last = 2 + 2 * inner
    symbol, to = np.zeros((2, last + 1, 2), int)

    def edges(state, *pairs):
        pairs = pairs * (2 // len(pairs))
        symbol[state] = [SYMBOLS.index(letter) for letter, _ in pairs]
        to[state] = [target for _, target in pairs]

    edges(0, ("B", 1))
    edges(1, ("T", 2), ("P", 2 + inner))
    for copy, letter in enumerate("TP"):
        base = 2 + copy * inner
        edges(base, ("B", base + 1))
        for node, ways in EDGES.items():
            edges(base + 1 + node, *((s, base + 1 + target) for s, target in ways))
        edges(base + 1 + END, ("E", base + 7))
        edges(base + 7, (letter, base + 8))
        edges(base + 8, ("E", last))
    edges(last, ("E", last))
    return symbol, to


SYMBOL_OF, NEXT_OF = _tables()
# First state, and state after the end: of the whole grammar, and of the inner grammar
# after T.
WHOLE, INNER = (0, len(SYMBOL_OF) - 1), (2, 9)
LEGAL_OF = (SYMBOL_OF[:, :, None] == np.arange(len(SYMBOLS))).any(axis=1)


def sample(options: EmbeddedReber, key: jax.Array) -> Sequence:
    """Returns a random string without its E; the targets are the symbols one later."""
    symbol_of, next_of = jnp.array(SYMBOL_OF), jnp.array(NEXT_OF)
    start, last = WHOLE if options.embedded else INNER
    next_of = next_of.at[last].set(last)

    def walk(key):
        ways = jax.random.bernoulli(key, shape=(LONGEST + 1,)).astype(jnp.int32)

        def step(state, way):
            return next_of[state, way], (symbol_of[state, way], state)

        end, (symbols, states) = jax.lax.scan(step, start, ways)
        return end == last, symbols, states

    def again(carry):
        key, _ = carry
        key, now = jax.random.split(key)
        return key, walk(now)

    first, key = jax.random.split(key)
    carry = jax.lax.while_loop(lambda carry: ~carry[1][0], again, (key, walk(first)))
    _, (_, symbols, states) = carry
    # The final E is only a target, not an input.
    length = jnp.sum(states < last) - 1
    legal = jnp.array(LEGAL_OF)[states[1:]]
    measured = jnp.arange(LONGEST) < length
    return Sequence(symbols[:-1], length, symbols[1:], symbols[1:], measured, legal)


def spell(symbols: jax.Array, length: int) -> str:
    """Returns a string in letters."""
    return "".join(SYMBOLS[symbol] for symbol in symbols[:length])
