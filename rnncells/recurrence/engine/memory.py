"""Residuals that a recurrence saves for its gradient, and its chunks of time."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
from chex import ArrayTree
from jax import Array

from rnncells.recurrence import chunks
from rnncells.recurrence.chunks import Chunk, Segment
from rnncells.recurrence.engine.fusion_barrier import is_small
from rnncells.recurrence.pytrees import StructTree, Tree, select_leaves, structs, upcast

# As `jax.checkpoint` takes it: `(primitive, *avals, **params)` to whether to save.
Policy = Callable[..., Any]
_MemoryName = Literal["full", "recompute", "sqrt"]
_ProjectionName = Literal["auto", "whole"]
MEMORY_CHOICES = get_args(_MemoryName)
PROJECTION_CHOICES = get_args(_ProjectionName)
Memory = _MemoryName | Chunk | Policy
Projection = _ProjectionName | Chunk
# Measured on CPU: projected inputs of this size are still in its cache when used; but
# a product with many weights is worth some steps more. Chunks do not pay where all is
# small (the temporaries of a gradient are about five times as large, and the allocator
# of Linux takes 32 MiB and more anew from the system at each call), nor, in a pass
# without gradient, where a step is large beside the weights.
_PROJECTED_BYTES = 2**21
_PROJECTED_STEPS = 8
_MOST_BYTES = 2**22
_SMALL_BYTES = 5 * 2**20
# What XLA adds for a loop over chunks, at most.
_LOOP_BYTES = 2**12


class Residuals(NamedTuple):
    """Residuals of one step, or with a leading time axis, of many; None: not saved."""

    carry: ArrayTree  # before the step; in a buffer, also after the last
    z: ArrayTree  # the projected inputs
    values: list[Any]  # of the products


# What a pass with gradient saves: of each step all that its VJP reads, or its carry and
# the values that a policy of `jax.checkpoint` chooses; or the carry before each chunk.
Saves = Literal["all", "carries", "chunk starts"]


def saved_leaves(saves: Saves, reads: Residuals, chosen: list[bool]) -> Residuals:
    """Says for each leaf of the residuals whether a step saves it."""
    if saves == "all":
        return reads
    nothing = jax.tree.map(lambda leaf: False, reads)
    if saves == "chunk starts":
        return nothing
    every = jax.tree.map(lambda leaf: True, reads.carry)
    return nothing._replace(carry=every, values=chosen)


def check_memory(memory: Any, projection: Any) -> None:
    """Raises an error unless `memory` and `projection` of RNN are choices."""
    options = [("projection", projection, PROJECTION_CHOICES, " or a Chunk(steps)")]
    if callable(memory) and not isinstance(memory, type):
        name = getattr(memory, "__qualname__", "")
        is_of_jax = memory is getattr(jax.checkpoint_policies, name, None)
        if is_of_jax and name.startswith(("save_", "offload_")):
            raise TypeError(
                "`memory` of RNN must be a policy of jax.checkpoint, got the function "
                f"{name}, which makes policies. Call it."
            )
    else:
        alternatives = ", a Chunk(steps) or a policy of jax.checkpoint"
        options.append(("memory", memory, MEMORY_CHOICES, alternatives))
    for name, value, choices, alternatives in options:
        if not (isinstance(value, Chunk) or value in choices):
            raise ValueError(
                f"`{name}` of RNN must be one of {list(choices)}{alternatives}, "
                f"got {value!r}."
            )


def is_chosen(equation: Any, policy: Policy) -> bool:
    """Says whether a policy of `jax.checkpoint` saves the results of an equation."""
    avals = [v.aval for v in equation.invars]
    case = policy(equation.primitive, *avals, **equation.params)
    if hasattr(case, "dst"):
        raise ValueError(
            "`memory` of RNN must be a policy that saves or recomputes, got one that "
            f"moves arrays from {case.src!r} to {case.dst!r}."
        )
    return case is True or type(case).__name__ == "SaveableType"


class OperandStructs(NamedTuple):
    weights: StructTree  # of the floating parameters of the cell
    carry: StructTree
    inputs: StructTree  # `(time, ...)`
    chosen: StructTree = ()  # what a policy saves of a step, beside the carry
    full: Any = None  # with a policy, what memory='full' would save of a step


# Steps of a matrix state that are taken at once. Measured on CPU and on an H200
# (docs/parallel-gpu.md): there, 256 are often faster, but need more memory.
_MATRIX_STEPS_ON_CPU = 16
_MATRIX_STEPS = 128


def linear_plan(
    steps: int,
    z: StructTree,
    memory: Memory,
    projection: Projection,
    is_matrix: bool,
    operands: OperandStructs,
) -> tuple[tuple[Segment, ...], Callable]:
    """Returns the chunks of a linear recurrence, and what makes a chunk save less."""
    at_once = _projected_at_once(steps, z, projection)
    if is_matrix and projection == "auto":
        at_once = _MATRIX_STEPS_ON_CPU if _on_cpu() else _MATRIX_STEPS
    recomputed = (
        memory.steps if isinstance(memory, Chunk) else chunks.square_root(steps)
    )
    if memory == "full" or not _pays(steps, recomputed, z, operands):
        return chunks.split_time(steps, at_once), lambda chunk: chunk
    policy = memory if callable(memory) else None
    return chunks.split_time(steps, recomputed), partial(jax.checkpoint, policy=policy)


class Plan(NamedTuple):
    segments: tuple[Segment, ...]  # of a pass with gradient
    saves: Saves
    for_inference: tuple[Segment, ...]  # of a pass without gradient
    z: StructTree  # of a step: its projected inputs


def plan(
    steps: int,
    z: StructTree,
    memory: Memory,
    projection: str | Chunk,
    operands: OperandStructs,
) -> Plan:
    """Returns the plan of a recurrence; `z` is the projection, `(time, ...)`."""
    z_of_step = structs(z, drop_axis=0)
    if not isinstance(steps, int):  # a symbolic dimension of jax.export
        segments = (Segment(0, 1, steps),)
        return Plan(segments, "all", segments, z_of_step)
    projected = chunks.split_time(steps, _projected_at_once(steps, z, projection))
    for_inference = projected
    if projection == "auto" and _on_cpu():
        # A product ahead of a loop that XLA makes one function of doubles its time.
        size = _bytes(z_of_step)
        is_large = isinstance(size, int) and size >= 2 * _bytes(operands.weights)
        if is_large or is_small(z_of_step):
            for_inference = chunks.split_time(steps, 1)
    full = Plan(projected, "all", for_inference, z_of_step)
    if memory == "full":
        return full
    keeps_carries = memory == "recompute" or callable(memory)
    at_once = memory.steps if isinstance(memory, Chunk) else chunks.square_root(steps)
    if keeps_carries:
        at_once = min(at_once, _projected_at_once(steps, z, projection))
    if not _pays(steps, at_once, z, operands):
        return full
    saves: Saves = "carries" if keeps_carries else "chunk starts"
    segments = chunks.split_time(steps, at_once)
    return Plan(segments, saves, for_inference, z_of_step)


def _pays(steps: int, at_once: int, z: StructTree, operands: OperandStructs) -> bool:
    """Estimates whether chunks keep less of `z` and its cotangents than they add.

    They add the carries before them with cotangents, and sums of weight gradients; and
    XLA on CPU copies the inputs of a loop over chunks.
    """
    size = _bytes(z)
    if not isinstance(size, int):  # a batch of jax.export
        return True
    sums = jax.eval_shape(upcast, operands.weights)
    carry = _bytes(operands.carry)
    added_bytes = _LOOP_BYTES + _bytes(operands.inputs) + 2 * _bytes(sums)
    added_bytes += 2 * carry * math.ceil(steps / at_once)
    saved_bytes = 2 * size * (steps - at_once)
    if operands.full is not None:
        less = _bytes(operands.full) - _bytes(operands.chosen) - carry
        saved_bytes = min(saved_bytes, less * steps**2 + size * (steps - 2 * at_once))
    return saved_bytes > added_bytes * steps


def _projected_at_once(steps: int, z: StructTree, projection: str | Chunk) -> int:
    if isinstance(projection, Chunk):
        return projection.steps
    size = _bytes(z)
    is_symbolic = not isinstance(size, int)  # a batch of jax.export
    if projection == "whole" or not _on_cpu() or is_symbolic or size <= _SMALL_BYTES:
        return steps
    per_step = math.ceil(size / max(steps, 1))
    some = min(_PROJECTED_STEPS, _MOST_BYTES // per_step)
    at_once = max(1, some, _PROJECTED_BYTES // per_step)
    return min(math.ceil(steps / 4), at_once)


def _on_cpu() -> bool:
    return jax.default_backend() == "cpu"


def _bytes(tree: Tree) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


class StepBuffers(NamedTuple):
    """Arrays over time, None for what is not written."""

    outputs: list[Array | None]  # leaves, `(time, ...)`
    residuals: Residuals  # `(time, ...)`; its `carry` has `time + 1` steps


class ResidualBuffer(NamedTuple):
    """Shapes of the buffers, and which residuals to save."""

    residuals: Residuals  # shapes and dtypes of a step
    outputs: StructTree  # shapes and dtypes of a step
    saved: Residuals  # for each leaf of the residuals, whether to write it
    outputs_in_carry: list[int]  # see `SplitStep`; such an output is written once

    def empty(self, carry: ArrayTree, time: int) -> StepBuffers:
        def rows(struct: jax.ShapeDtypeStruct, count: int = time) -> Array:
            return jnp.zeros((count, *struct.shape), struct.dtype)

        residuals = jax.tree.map(rows, select_leaves(self.residuals, self.saved))
        carries = jax.tree.map(
            lambda leaf: rows(leaf, time + 1).at[0].set(leaf),
            select_leaves(carry, self.saved.carry),
        )
        outputs = self._outputs_not_in_carry(jax.tree.map(rows, self.outputs))
        return StepBuffers(outputs, residuals._replace(carry=carries))

    def write(
        self, buffers: StepBuffers, i: Array, outputs: ArrayTree, *after: ArrayTree
    ) -> StepBuffers:
        """Returns the buffers with step `i`; `after` has the new carry and values."""
        carry, values = select_leaves(after, (self.saved.carry, self.saved.values))
        rows = buffers.residuals
        outputs = _write(buffers.outputs, i, self._outputs_not_in_carry(outputs))
        carry = _write(rows.carry, i + 1, carry)
        return StepBuffers(
            outputs, Residuals(carry, rows.z, _write(rows.values, i, values))
        )

    def write_projected(
        self, buffers: StepBuffers, z: ArrayTree, start: Array | int
    ) -> StepBuffers:
        """Returns the buffers with the projected inputs of a chunk."""
        rows = buffers.residuals
        z = chunks.write_time(rows.z, select_leaves(z, self.saved.z), start)
        return buffers._replace(residuals=rows._replace(z=z))

    def read_outputs(self, buffers: StepBuffers) -> ArrayTree:
        carry: Any = jax.tree.structure(self.residuals.carry)
        carries = carry.flatten_up_to(buffers.residuals.carry)
        leaves = [
            carries[k][1:] if leaf is None else leaf
            for leaf, k in zip(buffers.outputs, self.outputs_in_carry, strict=True)
        ]
        return jax.tree.unflatten(jax.tree.structure(self.outputs), leaves)

    def _outputs_not_in_carry(self, outputs: ArrayTree) -> list[Array | None]:
        """Returns the leaves of outputs; None for those that the carry has."""
        saved = jax.tree.leaves(self.saved.carry)
        pairs = zip(jax.tree.leaves(outputs), self.outputs_in_carry, strict=True)
        return [None if k >= 0 and saved[k] else leaf for leaf, k in pairs]


def _write(rows: ArrayTree, i: Array, row: ArrayTree) -> ArrayTree:
    return chunks.write_time(rows, jax.tree.map(lambda leaf: leaf[None], row), i)
