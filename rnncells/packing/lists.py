"""Packing of lists of sequences into rows, and unpacking, on the host."""

from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from rnncells.packing.plans import Plan, check_axes, end_to_end, plan


class Packed(NamedTuple):
    """Packed sequences and their plan, with the plan's `mask` and `resets`.

    Attributes:
      inputs: pytree of `(rows, row_length, *features)`, 0 at padding.
      plan: the place of each sequence.
    """

    inputs: chex.ArrayTree
    plan: Plan

    @property
    def mask(self) -> jax.Array:
        return self.plan.mask

    @property
    def resets(self) -> jax.Array:
        return self.plan.resets


def pack(sequences: Any, row_length: int, rows: int | None = None) -> Packed:
    """Packs sequences of different lengths into rows.

    It runs on the host: known arrays give NumPy arrays, and nothing is compiled for new
    lengths. Traced arrays give JAX arrays and can be differentiated.

    To compile a layer once for a stream of batches, give all batches the same
    `row_length`, the same `rows` and the same number of sequences. Extend smaller
    batches by empty sequences, `(0, *features)`.

    Args:
      sequences: list or tuple, for each sequence an array `(length, *features)`, or a
        pytree of those; lengths in `[0, row_length]`.
      row_length: steps of a row, at least 1.
      rows: number of rows; as many as needed if None. See `plan`.

    Raises:
      ValueError: a sequence is longer than a row; the sequences do not fit into `rows`;
        their shapes or dtypes differ.
      TypeError: `sequences` is not a list or tuple.
    """
    sequences, lengths = _check_sequences(sequences)
    packed = plan(lengths, row_length, rows)
    # `index` points into the concatenated sequences, with one step of padding first.
    first = 1 + end_to_end(packed.seq_lengths)
    index = np.where(packed.mask, first[packed.seq_ids] + packed.positions, 0)

    def join(*leaves: Any) -> Any:
        numpy = jnp if any(isinstance(x, jax.core.Tracer) for x in leaves) else np
        padding = numpy.zeros((1, *leaves[0].shape[1:]), leaves[0].dtype)
        return numpy.concatenate([padding, *leaves])[index]

    return Packed(jax.tree.map(join, *sequences), packed)


def unpack(rows: chex.ArrayTree, plan: Plan) -> list[chex.ArrayTree]:
    """Unpacks rows into a list of sequences, in the order that `pack` received.

    Args:
      rows: pytree of `(rows, row_length, *features)`, in the order of the inputs.
      plan: the place of each sequence. Its values must be known; for a traced plan, use
        `Plan.unpack`.

    Raises:
      ValueError: a shape does not fit.
      TypeError: `plan` is traced.
    """
    if not isinstance(plan, Plan):
        raise TypeError(
            f"`plan` of unpack must be a Plan, got {type(plan).__name__}. The "
            "arguments are unpack(rows, plan)."
        )
    if isinstance(plan.seq_lengths, jax.core.Tracer):
        raise TypeError(
            "`plan` must be known, because its lengths become shapes, got a traced "
            "plan. Under jit, use Plan.unpack, which returns a padded batch."
        )
    rows = jax.tree.map(_to_numpy, rows)
    check_axes("rows", rows, plan.segment_ids.shape)
    places = np.stack([plan.seq_rows, plan.seq_starts, plan.seq_lengths], axis=-1)
    return [
        jax.tree.map(lambda leaf: leaf[row, start : start + length], rows)
        for row, start, length in places.tolist()
    ]


def _to_numpy(leaf: Any) -> Any:
    return leaf if isinstance(leaf, jax.core.Tracer) else np.asarray(leaf)


def _check_sequences(sequences: Any) -> tuple[list[chex.ArrayTree], list[int]]:
    """Returns sequences as pytrees of arrays, and their lengths."""
    if not isinstance(sequences, list | tuple):
        raise TypeError(
            "`sequences` must be a list of arrays (length, *features), got "
            f"{type(sequences).__name__}. For a padded batch, use Plan.pack."
        )
    if not sequences:
        raise ValueError("`sequences` must have at least one sequence, got none.")
    sequences = [jax.tree.map(_to_numpy, sequence) for sequence in sequences]
    steps = [
        jax.tree.map(lambda leaf: f"{leaf.dtype}{leaf.shape[1:]}", sequence)
        for sequence in sequences
    ]
    lengths = []
    for k, sequence in enumerate(sequences):
        sizes = {leaf.shape[:1] for leaf in jax.tree.leaves(sequence)}
        if len(sizes) != 1 or sizes == {()}:
            raise ValueError(
                "All arrays of a sequence must be (length, *features) with the same "
                f"length, got {jax.tree.map(np.shape, sequence)} in sequence {k}."
            )
        if jax.tree.flatten(steps[k]) != jax.tree.flatten(steps[0]):
            raise ValueError(
                "All sequences must have the dtype and feature shape of the first, "
                f"{steps[0]}, got {steps[k]} in sequence {k}."
            )
        lengths += sizes.pop()
    return sequences, lengths
