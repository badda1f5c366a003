"""What is kept of a recurrence for its gradient, and in which chunks time is taken."""

import math
from typing import Any, NamedTuple

import chex
import jax

from rnncells.recurrence.chunks import Chunk, Segment, cut, square_root
from rnncells.recurrence.settling import is_one_function, on_cpu
from rnncells.recurrence.trees import StructTree, Tree, structs

Memory = str | Chunk
MEMORY = ("full", "recompute", "sqrt")
PROJECTION = ("auto", "whole")
# Measured on CPU: projected inputs of this size are still in its cache when used; but
# a product with many weights is worth some steps more. Chunks do not pay where all is
# small, nor, in a pass without gradient, where a step is large beside the weights.
_PROJECTED_BYTES = 2**21
_PROJECTED_STEPS, _MOST_BYTES = 8, 2**22
_SMALL_BYTES = 2**16


def check_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    """Raises unless a value is one of the choices or a Chunk."""
    if not (isinstance(value, Chunk) or value in choices):
        raise ValueError(
            f"`{name}` of RNN must be one of {list(choices)} or a Chunk(steps), got "
            f"{value!r}."
        )


class Plan(NamedTuple):
    """How time is taken.

    Attributes:
      segments: chunks of a pass that a gradient follows, and of the gradient.
      keeps: what such a pass keeps of each step: `'values'` of its products, and what
        else is needed; `'carries'`, from which the values are formed again, at once for
        each chunk; or `'starts'`, the carry before each chunk alone, from which a loop
        over the chunk forms all again.
      alone: chunks of a pass without gradient, which keeps nothing.
    """

    segments: tuple[Segment, ...]
    keeps: str
    alone: tuple[Segment, ...]


def plan(
    steps: int,
    z: StructTree,
    memory: Memory,
    projection: Memory,
    weights: chex.ArrayTree,
) -> Plan:
    """Returns how time is taken.

    Args:
      steps: size of the time axis.
      z: shapes and dtypes of the projected inputs, `(time, ...)`.
      memory: a choice of `MEMORY`, or the steps from one kept carry to the next.
      projection: a choice of `PROJECTION`, or the steps projected at once.
      weights: pytree of the cell's parameters.
    """
    if not isinstance(steps, int):  # a symbolic dimension of jax.export
        whole = (Segment(0, 1, steps),)
        return Plan(whole, "values" if memory == "full" else "carries", whole)
    projected = cut(steps, _projected_at_once(steps, z, projection))
    alone = projected
    if projection == "auto" and _goes_step_by_step(structs(z, drop_axis=True), weights):
        alone = cut(steps, 1)
    if memory == "sqrt":
        return Plan(cut(steps, square_root(steps)), "starts", alone)
    if isinstance(memory, Chunk):
        return Plan(cut(steps, memory.steps), "starts", alone)
    return Plan(projected, {"full": "values", "recompute": "carries"}[memory], alone)


def _projected_at_once(steps: int, z: StructTree, projection: Memory) -> int:
    if isinstance(projection, Chunk):
        return projection.steps
    size = _bytes(z)
    is_symbolic = not isinstance(size, int)  # a batch of jax.export
    if projection == "whole" or not on_cpu() or is_symbolic or size <= _SMALL_BYTES:
        return steps
    per_step = math.ceil(size / max(steps, 1))
    some = min(_PROJECTED_STEPS, _MOST_BYTES // per_step)
    at_once = max(1, some, _PROJECTED_BYTES // per_step)
    return min(math.ceil(steps / 4), at_once)


def _goes_step_by_step(z: StructTree, weights: chex.ArrayTree) -> bool:
    """Says whether a pass without gradient projects each step by itself."""
    # A product ahead of a loop that XLA makes one function of doubles its time.
    if is_one_function(z):
        return True
    size = _bytes(z)
    return on_cpu() and isinstance(size, int) and size >= 2 * _bytes(weights)


def _bytes(tree: Tree) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
