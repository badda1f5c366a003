"""Sequence packing: several sequences in each row, to save most of the padding.

Pass `resets` and `mask` together. A layer cannot recognize packed rows: without
`resets`, it reads each row as one long sequence and raises no error. See also
docs/api/packing.md: streams of batches, reversed layers and measurements.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
from chex import ArrayTree
from jax import Array

from rnncells._checks import check_bools, check_count
from rnncells.cells.contract.carry import Carry, cast_like, describe, is_alike
from rnncells.recurrence.masks import select

__all__ = ["Packed", "Plan", "pack", "plan", "unpack"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Plan:
    """The place of each sequence in the rows; a pytree of integers, made by `plan`.

    The rows of methods are pytrees of `(rows, row_length, *features)`, in the order of
    the inputs. Methods raise ValueError if a shape does not fit.

    Attributes:
      segment_ids: `(rows, time)`, 1, 2, ... for the sequences of each row, 0 at the
        padding, which is at the end of the row.
      positions: `(rows, time)`, the step within its sequence, 0 at padding.
      seq_ids: `(rows, time)`, the index of the sequence, 0 at padding.
      seq_rows: `(sequences,)`, the row of each sequence, 0 for empty sequences.
      seq_starts: `(sequences,)`, the first step in that row, 0 for empty sequences.
      seq_lengths: `(sequences,)`, the number of steps.
    """

    segment_ids: Array
    positions: Array
    seq_ids: Array
    seq_rows: Array
    seq_starts: Array
    seq_lengths: Array

    @property
    def mask(self) -> Array:
        """True at steps that are not padding, booleans `(rows, time)`."""
        return self.segment_ids > 0

    @property
    def resets(self) -> Array:
        """True at the first step of each sequence and at padding, `(rows, time)`.

        Resets at padding keep a reversed layer from carrying padding into a sequence.
        """
        return self.positions == 0

    def pack(self, batch: ArrayTree) -> ArrayTree:
        """Packs a padded batch, `(sequences, time, *features)`, into rows.

        The padding of the batch, even NaN, is dropped; rows are padded with 0.

        Raises:
          ValueError: the batch has fewer steps than the longest sequence. (With a
            traced plan, missing steps are 0.)
        """
        batch = jax.tree.map(jnp.asarray, batch)
        shapes = [leaf.shape for leaf in jax.tree.leaves(batch)]
        time = shapes[0][1] if shapes and len(shapes[0]) > 1 else 0
        _check_axes("batch", batch, (self.seq_lengths.shape[0], time))
        self._check_time("batch", time)
        return _take(batch, self.seq_ids, self.positions, self.mask)

    def unpack(self, rows: ArrayTree, time: int | None = None) -> ArrayTree:
        """Unpacks rows into a padded batch, `(sequences, time, *features)`.

        It is the inverse of `pack`, and pads with 0; `time` is by default the row
        length. If `time` is shorter than the longest sequence, it raises ValueError.
        (With a traced plan, longer sequences are cut off.)
        """
        rows = jax.tree.map(jnp.asarray, rows)
        _check_axes("rows", rows, self.segment_ids.shape)
        time = self.segment_ids.shape[1] if time is None else time
        check_count("unpack", "time", time, least=0)
        self._check_time("time", time)
        step = np.arange(time)
        column = self.seq_starts[:, None] + step
        within = step < self.seq_lengths[:, None]
        return _take(rows, self.seq_rows[:, None], column, within)

    def last(
        self, rows: ArrayTree, reverse: bool = False, initial: Carry | None = None
    ) -> ArrayTree:
        """Returns the last step of each sequence, `(sequences, *features)`.

        Args:
          rows: outputs, or the carries of `RNN(cell, return_all_carries=True)`.
          reverse: takes the first step of each sequence instead, which is the final
            step of a reversed layer.
          initial: values for empty sequences, pytree of `(sequences, *features)`, such
            as `cell.initialize_carry(key, (sequences, features_in))`. Default: zeros,
            which is correct for cells whose initial carry is zero.
        """
        rows = jax.tree.map(jnp.asarray, rows)
        _check_axes("rows", rows, self.segment_ids.shape)
        check_bools("last", reverse=reverse)
        column = self.seq_starts + (0 if reverse else self.seq_lengths - 1)
        has_steps = self.seq_lengths > 0
        last = _take(rows, self.seq_rows, column, has_steps)
        if initial is None:
            return last
        if not is_alike(initial, last):
            raise ValueError(
                "`initial` must have the structure and shapes of the last steps, "
                f"{describe(last)}, got {describe(initial)}."
            )
        return select(has_steps, last, cast_like(initial, last))

    def last_states(
        self,
        states: ArrayTree,
        *,
        bidirectional: bool,
        initial: ArrayTree | None = None,
    ) -> ArrayTree:
        """Returns the final states of each sequence for `LSTM`, `GRU` or `ElmanRNN`.

        They are a pytree of `(layers * directions, sequences, features)`.

        Args:
          states: the states after every step, from `return_all_states=True`: pytree of
            `(layers * directions, rows, row_length, features)`.
          bidirectional: the layer's field of this name.
          initial: values for empty sequences, in the form of the result, such as the
            learned initial states from `initialize_carry`. Default: zeros.
        """
        check_bools("last_states", bidirectional=bidirectional)

        def of_layers(leaf: Array, *initial: Array) -> Array:
            lasts = [
                self.last(rows, bidirectional and k % 2 == 1, *(x[k] for x in initial))
                for k, rows in enumerate(leaf)
            ]
            return jnp.stack(lasts)

        return jax.tree.map(of_layers, states, *([] if initial is None else [initial]))

    def _check_time(self, name: str, time: int) -> None:
        """Raises ValueError if a known length exceeds the time axis of a batch."""
        if isinstance(self.seq_lengths, jax.core.Tracer) or not self.seq_lengths.size:
            return
        longest = int(np.argmax(self.seq_lengths))
        if self.seq_lengths[longest] > time:
            raise ValueError(
                f"`{name}` must have at least the {self.seq_lengths[longest]} steps of "
                f"sequence {longest}, got {time}."
            )


def plan(seq_lengths: Any, row_length: int, rows: int | None = None) -> Plan:
    """Plans a packed batch by first-fit decreasing, on the host, as NumPy arrays.

    Sequences are placed from the longest to the shortest, each into the first row with
    room for it. This takes at most 11/9 n + 2/3 rows if n rows are the minimum (Dósa,
    2007, https://doi.org/10.1007/978-3-540-74450-4_1). Longer rows have less padding,
    but their loop has more steps.

    Empty sequences take no room: with them, and with `rows`, all plans of a stream of
    batches have equal shapes, so that a program is compiled once.

    >>> plan([3, 5, 0, 2], row_length=6).segment_ids
    array([[1, 1, 1, 1, 1, 0],
           [1, 1, 1, 2, 2, 0]], dtype=int32)

    Args:
      seq_lengths: integers `(sequences,)` in `[0, row_length]`, known values.
      row_length: number of steps of a row, at least 1.
      rows: number of rows, at least 1; default: as many as needed, at least 1.

    Raises:
      ValueError: a length is out of range; the sequences do not fit into `rows`.
      TypeError: an argument is not an integer; the lengths are traced.
    """
    check_count("plan", "row_length", row_length)
    lengths = _check_lengths(seq_lengths, row_length)
    seq_rows, seq_starts, segments = _first_fit_decreasing(lengths, row_length)
    needed = int(seq_rows.max(initial=0)) + 1
    rows = needed if rows is None else rows
    check_count("plan", "rows", rows)
    if rows < needed:
        raise ValueError(
            "`rows` must have room for all sequences: first-fit decreasing needs "
            f"{needed} rows of {row_length} steps, got {rows}."
        )
    # For every step: its sequence, its position there, and its place in the rows.
    which = np.repeat(np.arange(len(lengths)), lengths)
    position = np.arange(len(which)) - np.repeat(_end_to_end(lengths), lengths)
    place = seq_rows[which], seq_starts[which] + position

    def in_rows(values: np.ndarray) -> np.ndarray:
        array = np.zeros((rows, row_length), np.int32)
        array[place] = values
        return array

    of_steps = [in_rows(values) for values in (segments[which], position, which)]
    of_sequences = [x.astype(np.int32) for x in (seq_rows, seq_starts, lengths)]
    fields: Any = (*of_steps, *of_sequences)
    return Plan(*fields)


class Packed(NamedTuple):
    """Packed sequences, `(rows, row_length, *features)`, 0 at padding; their plan."""

    inputs: ArrayTree
    plan: Plan

    @property
    def mask(self) -> Array:
        return self.plan.mask

    @property
    def resets(self) -> Array:
        return self.plan.resets


def pack(sequences: Any, row_length: int, rows: int | None = None) -> Packed:
    """Packs sequences of different lengths into rows.

    It runs on the host: known arrays give NumPy arrays, and nothing is compiled for new
    lengths. Traced arrays give JAX arrays and can be differentiated.

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
    first = 1 + _end_to_end(packed.seq_lengths)
    index = np.where(packed.mask, first[packed.seq_ids] + packed.positions, 0)

    def join(*leaves: Any) -> Any:
        numpy = jnp if any(isinstance(x, jax.core.Tracer) for x in leaves) else np
        padding = numpy.zeros((1, *leaves[0].shape[1:]), leaves[0].dtype)
        return numpy.concatenate([padding, *leaves])[index]

    return Packed(jax.tree.map(join, *sequences), packed)


def unpack(rows: ArrayTree, plan: Plan) -> list[ArrayTree]:
    """Unpacks rows, see `Plan`, into a list of sequences, in the order of `pack`.

    Raises:
      ValueError: a shape does not fit.
      TypeError: `plan` is traced.
    """
    if not isinstance(plan, Plan):
        raise TypeError(
            f"`plan` of unpack(rows, plan) must be a Plan, got {type(plan).__name__}."
        )
    if isinstance(plan.seq_lengths, jax.core.Tracer):
        raise TypeError(
            "`plan` must be known, because its lengths become shapes, got a traced "
            "plan. Under jit, use Plan.unpack."
        )
    rows = jax.tree.map(_to_numpy, rows)
    _check_axes("rows", rows, plan.segment_ids.shape)
    places = np.stack([plan.seq_rows, plan.seq_starts, plan.seq_lengths], axis=-1)
    return [
        jax.tree.map(lambda leaf: leaf[row, start : start + length], rows)
        for row, start, length in places.tolist()
    ]


def _first_fit_decreasing(
    lengths: np.ndarray, row_length: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the row, the start in it and the segment id of every sequence."""
    rows, starts, segments = np.zeros((3, len(lengths)), int)
    filled, segments_in = np.zeros((2, len(lengths)), int)
    used = 0
    for k in np.argsort(-lengths, kind="stable")[: np.count_nonzero(lengths)]:
        # The first unused row always has room.
        row = int(np.argmax(filled[: used + 1] + lengths[k] <= row_length))
        used = max(used, row + 1)
        segments_in[row] += 1
        rows[k], starts[k], segments[k] = row, filled[row], segments_in[row]
        filled[row] += lengths[k]
    return rows, starts, segments


def _end_to_end(lengths: chex.ArrayNumpy) -> chex.ArrayNumpy:
    """Returns where each sequence starts if all are concatenated."""
    return np.cumsum(lengths) - lengths


def _take(tree: ArrayTree, first: Any, second: Any, within: Any) -> ArrayTree:
    """Indexes the first two axes of each leaf; returns 0 where `within` is false."""

    def take(leaf: Array) -> Array:
        if 0 in leaf.shape[:2]:
            return jnp.zeros((*within.shape, *leaf.shape[2:]), leaf.dtype)
        index = first, jnp.where(within, second, leaf.shape[1])
        # Indices are unique, so the gradient is a scatter without additions.
        return leaf.at[index].get(mode="fill", fill_value=0, unique_indices=True)

    return jax.tree.map(take, tree)


def _check_lengths(seq_lengths: Any, row_length: int) -> np.ndarray:
    if isinstance(seq_lengths, jax.core.Tracer):
        raise TypeError(
            "`seq_lengths` must be known, got a traced array. Pass the plan to jit."
        )
    is_list = isinstance(seq_lengths, list | tuple)
    if is_list and any(getattr(length, "ndim", 0) for length in seq_lengths):
        raise TypeError(
            "`seq_lengths` must be a list of integers, got sequences. To pack them, "
            "call packing.pack(sequences, row_length)."
        )
    lengths = np.asarray(seq_lengths)
    if lengths.ndim != 1:
        raise ValueError(f"`seq_lengths` must have one axis, got {lengths.shape}.")
    if lengths.size and not np.issubdtype(lengths.dtype, np.integer):
        raise TypeError(f"`seq_lengths` must be integers, got {lengths.dtype}.")
    wrong = np.flatnonzero((lengths < 0) | (lengths > row_length))
    if len(wrong):
        raise ValueError(
            f"`seq_lengths` must be in [0, {row_length}] (`row_length`), got "
            f"{lengths[wrong[0]]} of sequence {wrong[0]}."
        )
    return lengths.astype(int)


def _check_axes(name: str, tree: ArrayTree, sizes: tuple[int, ...]) -> None:
    shapes = [leaf.shape for leaf in jax.tree.leaves(tree)]
    wrong = [shape for shape in shapes if shape[:2] != sizes]
    if wrong or not shapes:
        got = f"the shape {wrong[0]}" if wrong else "no arrays"
        raise ValueError(f"`{name}` must be arrays {(*sizes, '...')}, got {got}.")


def _to_numpy(leaf: Any) -> Any:
    return leaf if isinstance(leaf, jax.core.Tracer) else np.asarray(leaf)


def _check_sequences(sequences: Any) -> tuple[list[ArrayTree], list[int]]:
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
