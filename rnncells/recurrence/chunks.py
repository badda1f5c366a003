"""How time is cut into chunks."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from chex import ArrayTree
from jax import Array


@dataclass(frozen=True)
class Chunk:
    """A number of steps that are taken together: `RNN(cell, memory=Chunk(8))`.

    Pass it as `memory` or `projection` of `RNN` and of the layers.

    Attributes:
      steps: at least 1. A length within a quarter of it that divides time is taken
        instead, if there is one.
    """

    steps: int

    def __post_init__(self) -> None:
        is_int = hasattr(self.steps, "__index__")
        if not is_int or isinstance(self.steps, bool):
            raise TypeError(f"`steps` of Chunk must be an int, got {self.steps!r}.")
        if self.steps < 1:
            raise ValueError(f"`steps` of Chunk must be at least 1, got {self.steps}.")


class Segment(NamedTuple):
    """Chunks of equal length, one after the other."""

    start: int  # the first step
    chunks: int  # number of chunks
    steps: int  # of each chunk


def split_time(time: int, steps: int) -> tuple[Segment, ...]:
    """Returns segments that cover `[0, time)`: chunks of `steps`, then what is left.

    A length near `steps` that divides `time` needs no second loop for what is left.
    """
    steps = max(1, min(int(steps), time))
    near = range(math.ceil(steps * 3 / 4), steps * 5 // 4 + 1)
    divisors = [k for k in near if not time % k]
    if time and divisors:
        steps = min(divisors, key=lambda k: (abs(k - steps), -k))
    chunks, left = divmod(time, steps)
    segments = [Segment(0, chunks, steps), Segment(chunks * steps, 1, left)]
    return tuple(s for s in segments if s.chunks and s.steps) or (Segment(0, 1, time),)


def square_root(time: int) -> int:
    """Returns the chunk length that keeps least: as many chunks as steps in each."""
    return max(1, math.isqrt(max(time - 1, 0)) + 1)


def scan_chunks(
    body: Callable,
    carry: ArrayTree,
    segments: Sequence[Segment],
    xs: Sequence[ArrayTree] | None = None,
    reverse: bool = False,
) -> tuple[ArrayTree, list[ArrayTree]]:
    """Runs `body(carry, start, steps, x)` over chunks as `jax.lax.scan` does.

    `xs` and the results have one pytree of `(chunks, ...)` for each segment.
    """
    ys = [None] * len(segments)
    order = list(enumerate(segments))
    for k, (start, chunks, steps) in reversed(order) if reverse else order:

        def chunk(carry: ArrayTree, x: tuple, steps: int = steps) -> tuple:
            start, inputs = x
            return body(carry, start, steps, inputs)

        x = None if xs is None else xs[k]
        if chunks > 1:
            starts = start + steps * jnp.arange(chunks)
            carry, ys[k] = jax.lax.scan(chunk, carry, (starts, x), reverse=reverse)
        else:
            x = jax.tree.map(lambda leaf: leaf[0], x)
            carry, y = body(carry, start, steps, x)
            ys[k] = jax.tree.map(lambda leaf: leaf[None], y)
    return carry, ys


def slice_time(tree: ArrayTree, start: Array | int, steps: int) -> ArrayTree:
    def slice_leaf(leaf: Array) -> Array:
        if leaf.shape[0] == steps:
            return leaf
        return jax.lax.dynamic_slice_in_dim(
            leaf, start, steps, allow_negative_indices=False
        )

    return jax.tree.map(slice_leaf, tree)


def write_time(tree: ArrayTree, part: ArrayTree, start: Array | int) -> ArrayTree:
    """Returns the tree with `part`, `(steps, ...)`, from `start` on."""

    def write_leaf(leaf: Array, part: Array) -> Array:
        if leaf.shape[0] == part.shape[0]:
            return part
        return jax.lax.dynamic_update_slice_in_dim(
            leaf, part, start, 0, allow_negative_indices=False
        )

    return jax.tree.map(write_leaf, tree, part)
