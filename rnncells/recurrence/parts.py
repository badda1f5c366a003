"""What the engine's passes over time are given: functions, arrays, moments."""

from collections.abc import Callable
from typing import NamedTuple

import chex
import jax

from rnncells.recurrence.memory import Plan
from rnncells.recurrence.products import Product


class Recurrence(NamedTuple):
    """What runs over time: pure functions.

    Attributes:
      project: `(others, inputs, take) -> (z, taken)`, of one step or of many; see
        `Step`.
      step: `(others, shared, carry, z, flags, take) -> ((carry, outputs), taken)`.
      plan: how time is taken.
      unroll: steps in one iteration of the loop over steps.
    """

    project: Callable
    step: Callable
    plan: Plan | None = None
    unroll: int = 1


class Arrays(NamedTuple):
    """What a recurrence is differentiated by, and the gradients.

    Attributes:
      others: what depends on the parameters alone, without weights of products.
      projections: the products of the projection, with their weights.
      products: those of the recurrence.
      shared: what every step gets beside.
      carry: before the first step; None where only sums over time are meant.
      inputs: `(time, ...)`; None likewise.
    """

    others: chex.ArrayTree
    projections: list[Product]
    products: list[Product]
    shared: chex.ArrayTree
    carry: chex.ArrayTree | None = None
    inputs: chex.ArrayTree | None = None


class Moment(NamedTuple):
    """Residuals of one step, or with a leading time axis, of all steps of a chunk.

    Attributes:
      carry: the carry before the step (on the tape: also the carry after the last).
      z: the projected inputs.
      values: the values of the products.
    """

    carry: chex.ArrayTree
    z: chex.ArrayTree
    values: list[jax.Array]
