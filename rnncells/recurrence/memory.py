"""What is kept of a recurrence for its gradient, and in which chunks time is taken."""

import math
from typing import Any

import jax

from rnncells.recurrence.chunks import Chunk, Segment, cut, square_root

PyTree = Any
Memory = str | Chunk
MEMORY = ("full", "recompute", "sqrt")
PROJECTION = ("auto", "whole")
# Measured on CPU: projected inputs of this size are still in its cache when used, and
# are enough for the products that follow; below the other, chunks do not pay.
_PROJECTED_BYTES = 2**22
_SMALL_BYTES = 2**16


def check_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    """Raises unless a value is one of the choices or a Chunk."""
    if not (isinstance(value, Chunk) or value in choices):
        raise ValueError(
            f"`{name}` of RNN must be one of {list(choices)} or a Chunk(steps), got "
            f"{value!r}."
        )


def plan(
    steps: int, z: PyTree, memory: Memory, projection: Memory
) -> tuple[tuple[Segment, ...], str]:
    """Returns the segments of time, and what is kept of each step.

    Args:
      steps: size of the time axis.
      z: shapes and dtypes of the projected inputs, `(time, ...)`.
      memory: a choice of `MEMORY`, or the steps from one kept carry to the next.
      projection: a choice of `PROJECTION`, or the steps projected at once.
    """
    if not isinstance(steps, int):  # a symbolic dimension of jax.export
        return (Segment(0, 1, steps),), "values" if memory == "full" else "carries"
    if memory == "sqrt":
        return cut(steps, square_root(steps)), "starts"
    if isinstance(memory, Chunk):
        return cut(steps, memory.steps), "starts"
    keeps = {"full": "values", "recompute": "carries"}[memory]
    if projection == "whole":
        return cut(steps, steps), keeps
    if isinstance(projection, Chunk):
        return cut(steps, projection.steps), keeps
    return cut(steps, _chunk_length(steps, z)), keeps


def _chunk_length(steps: int, z: PyTree) -> int:
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(z))
    if jax.default_backend() != "cpu" or size <= _SMALL_BYTES:
        return steps
    per_step = math.ceil(size / max(steps, 1))
    return max(1, min(math.ceil(steps / 4), _PROJECTED_BYTES // per_step))
