"""Sequences with lengths, masks and resets, and a loop over their rows and steps."""

from functools import cache, partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from cases import random_like, random_params

import rnncells

ROWS, STEPS = 4, 6
LENGTHS = np.array([6, 4, 0, 1])
MASK = np.array(
    [[1, 0, 1, 1, 0, 1], [0, 1, 0, 1, 1, 0], [1, 1, 1, 1, 1, 1], [0, 1, 0, 0, 0, 0]],
    bool,
)
RESETS = np.array(
    [[0, 1, 0, 0, 1, 0], [1, 0, 1, 0, 1, 1], [0, 0, 1, 0, 0, 0], [0, 0, 0, 0, 0, 1]],
    bool,
)
# One object, so that cells of equal options are equal.
ONES = nn.initializers.ones_init()
WAYS = {
    "lengths": {"seq_lengths": LENGTHS},
    "mask": {"mask": MASK},
    "resets": {"resets": RESETS},
    "lengths+mask": {"seq_lengths": LENGTHS, "mask": MASK},
    "lengths+resets": {"seq_lengths": LENGTHS, "resets": RESETS},
    "mask+resets": {"mask": MASK, "resets": RESETS},
    "all": {"seq_lengths": LENGTHS, "mask": MASK, "resets": RESETS},
}


def walk(length, mask, resets, reverse):
    """Yields the steps of a row in order: the step, whether it counts, and a reset.

    A reset restores the carry before the step, also at a step that does not count.
    """
    for t in reversed(range(length)) if reverse else range(length):
        # In reverse, a new sequence is entered between two steps, from the right.
        boundary = t + 1 if reverse else t
        yield t, mask[t], boundary < length and resets[boundary]


@cache
def step_of(cell):
    """Returns the compiled step of a cell; equal cells share it."""
    return jax.jit(cell.apply)


@cache
def compiled(layer, reverse, keep_order):
    """Returns a compiled layer; equal layers share it."""
    return jax.jit(partial(layer.apply, reverse=reverse, keep_order=keep_order))


def row_by_row(cell, params, carry, fresh, inputs, ways, reverse):
    """Returns each row's last carry, and its carry and output at each step."""
    apply = step_of(cell)
    lengths = ways.get("seq_lengths", np.full(ROWS, STEPS))
    mask = ways.get("mask", np.ones((ROWS, STEPS), bool))
    resets = ways.get("resets", np.zeros((ROWS, STEPS), bool))
    lasts, visits = [], []
    for row in range(ROWS):
        state, new = (jax.tree.map(lambda x, r=row: x[r], c) for c in (carry, fresh))
        for t, counts, reset in walk(lengths[row], mask[row], resets[row], reverse):
            state = new if reset else state
            if counts:
                state, y = apply(params, state, inputs[row, t])
                visits.append(((row, t), state, y))
        lasts.append(state)
    return jax.tree.map(lambda *x: jnp.stack(x), *lasts), visits


def run(layer, params, inputs, reverse=False, keep_order=True, **arguments):
    """Applies a compiled layer."""
    return compiled(layer, reverse, keep_order)(params, inputs, **arguments)


def setting(case, rng, **options):
    inputs = case.inputs(rng, ROWS, STEPS)
    rnn = rnncells.RNN(case.make(carry_init=ONES), **options)
    params = random_params(rng, rnn, inputs)
    fresh = rnn.cell.initialize_carry(jax.random.key(0), inputs[:, 0])
    return rnn, params, inputs, fresh, random_like(rng, fresh)
