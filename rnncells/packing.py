"""Many sequences in few rows: the steps of a padded batch without most of its padding.

Sequences of many lengths in one batch `(batch, time, *features)` are padded to the
longest, and a layer runs the padding too. Packed, they stand one after another in rows
of one length, and `resets` tell `RNN` where each begins. One concept, the `Plan`, says
which sequence goes where; it serves lists of sequences, on the host,

>>> import jax, jax.numpy as jnp, numpy as np, rnncells
>>> from rnncells import packing
>>> sequences = [np.ones((n, 3)) for n in (4, 1, 0, 2)]
>>> inputs, plan = packing.pack(sequences, row_length=4)
>>> plan.segment_ids
array([[1, 1, 1, 1],
       [1, 1, 2, 0]], dtype=int32)
>>> rnn = rnncells.RNN(rnncells.GRUCell(5))
>>> params = rnn.init(jax.random.key(0), inputs)
>>> outputs = rnn.apply(params, inputs, resets=plan.resets, mask=plan.mask)
>>> [y.shape for y in packing.unpack(outputs, plan)]
[(4, 5), (1, 5), (0, 5), (2, 5)]

and padded batches, under any transformation:

>>> @jax.jit
... def last_outputs(params, plan, batch):
...     rows = plan.pack(batch)
...     return plan.last(rnn.apply(params, rows, resets=plan.resets, mask=plan.mask))
>>> last_outputs(params, plan, jnp.ones((4, 6, 3))).shape
(4, 5)

`Bidirectional` takes the same arguments. With `reverse=True`, give `keep_order=True`:
rows are unpacked in the order of the inputs. Each sequence begins with the cell's own
carry; for another one, give the same to `reset_carry` and `initial_carry` (the first
sequence that a row enters in reverse begins without a reset).

Sources: PyTorch's `PackedSequence` interleaves sequences step by step, and its shapes
follow the lengths; here they are fixed, so that programs are compiled once. Segment ids
are those of T5 (Raffel et al., 2020, https://arxiv.org/abs/1910.10683); where its
attention is masked to keep sequences apart, the carry is reset.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rnncells.carry import Carry, PyTree, cast_like
from rnncells.checks import check_count
from rnncells.layers.checks import check_bools, describe, is_alike
from rnncells.recurrence.masks import select


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Plan:
    """Which sequence goes where; a pytree of integer arrays, made by `plan`.

    Attributes:
      segment_ids: `(rows, time)`, 1, 2, ... for the sequences of each row, 0 at
        padding, which is at the end of rows.
      positions: `(rows, time)`, which step of its sequence each is, 0 at padding.
      seq_ids: `(rows, time)`, the index of the sequence, 0 at padding.
      seq_rows: `(sequences,)`, the row of each sequence, 0 for empty ones.
      seq_starts: `(sequences,)`, where in that row it starts, 0 for empty ones.
      seq_lengths: `(sequences,)`, its steps.
    """

    segment_ids: jax.Array
    positions: jax.Array
    seq_ids: jax.Array
    seq_rows: jax.Array
    seq_starts: jax.Array
    seq_lengths: jax.Array

    @property
    def mask(self) -> jax.Array:
        """The steps that are no padding, booleans `(rows, time)`."""
        return self.segment_ids > 0

    @property
    def resets(self) -> jax.Array:
        """The first step of each sequence, booleans `(rows, time)`."""
        return self.mask & (self.positions == 0)

    def pack(self, batch: PyTree) -> PyTree:
        """Returns the rows of a padded batch, `(rows, row_length, *features)`.

        Args:
          batch: pytree of `(sequences, time, *features)`. What it holds past the
            lengths, nan included, goes nowhere; rows are padded with 0.

        Raises:
          ValueError: shapes that do not fit; fewer steps than the longest sequence has
            (a traced plan does not know: what is missing is 0).
        """
        batch = jax.tree.map(jnp.asarray, batch)
        shapes = [leaf.shape for leaf in jax.tree.leaves(batch)]
        time = shapes[0][1] if shapes and len(shapes[0]) > 1 else 0
        _check_axes("batch", batch, (self.seq_lengths.shape[0], time))
        self._check_time("batch", time)
        return _take(batch, self.seq_ids, self.positions, self.mask)

    def unpack(self, rows: PyTree, time: int | None = None) -> PyTree:
        """Returns the padded batch of rows, the inverse of `pack`.

        Args:
          rows: pytree of `(rows, row_length, *features)`, in the order of the inputs.
          time: steps of the batch; the row length if None.

        Returns:
          Pytree of `(sequences, time, *features)`, 0 past the lengths.

        Raises:
          ValueError: shapes that do not fit; a `time` shorter than the longest sequence
            (a traced plan does not know: it is cut off).
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
        self, rows: PyTree, reverse: bool = False, initial: Carry | None = None
    ) -> PyTree:
        """Returns the last step of each sequence, `(sequences, *features)`.

        It is the final output, or of all carries, which are what
        `RNN(cell, return_all_carries=True)` returns, the final carry.

        Args:
          rows: pytree of `(rows, row_length, *features)`, in the order of the inputs.
          reverse: takes the first steps, with which a layer ends that goes in reverse.
          initial: what empty sequences have, whose final carry is the one before the
            first step: pytree of `(sequences, *features)`, as
            `cell.initialize_carry(key, (sequences, features_in))`. Zeros if None, which
            is right for cells whose carry starts with zeros.

        Raises:
          ValueError: shapes that do not fit.
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
                f"`initial` must be as the last steps, {describe(last)}, got "
                f"{describe(initial)}."
            )
        return select(has_steps, last, cast_like(initial, last))

    def _check_time(self, name: str, time: int) -> None:
        """Raises if a known length is beyond the time axis of a padded batch."""
        if isinstance(self.seq_lengths, jax.core.Tracer) or not self.seq_lengths.size:
            return
        longest = int(np.argmax(self.seq_lengths))
        if self.seq_lengths[longest] > time:
            raise ValueError(
                f"`{name}` must have at least the {self.seq_lengths[longest]} steps of "
                f"sequence {longest}, got {time}."
            )


class Packed(NamedTuple):
    """Sequences in rows, and their plan, whose `mask` and `resets` it has too.

    Attributes:
      inputs: pytree of `(rows, row_length, *features)`, 0 at padding.
      plan: where each sequence is.
    """

    inputs: PyTree
    plan: Plan

    @property
    def mask(self) -> jax.Array:
        return self.plan.mask

    @property
    def resets(self) -> jax.Array:
        return self.plan.resets


def plan(seq_lengths: Any, row_length: int, rows: int | None = None) -> Plan:
    """Plans by first-fit decreasing, on the host; the arrays are NumPy's.

    The longest sequence goes first, each into the first row with room for it. Where n
    rows would do, this takes at most 11/9 n + 2/3 (Dósa, 2007,
    https://doi.org/10.1007/978-3-540-74450-4_1). Rows of several times the longest
    length have less padding; a loop over them has more steps.

    Programs that take a plan are compiled once if its shapes stay from batch to batch:
    fix `rows`, and fill up `seq_lengths` with zeros; empty sequences take no room.

    >>> plan([3, 5, 0, 2], row_length=6).segment_ids
    array([[1, 1, 1, 1, 1, 0],
           [1, 1, 1, 2, 2, 0]], dtype=int32)

    Args:
      seq_lengths: integers `(sequences,)` in `[0, row_length]`, known values.
      row_length: steps of a row, at least 1.
      rows: number of rows, at least 1; as many as needed, but at least one, if None.

    Raises:
      ValueError: a length outside the range; sequences that do not fit into `rows`.
      TypeError: what is no integer; lengths that are traced.
    """
    check_count("plan", "row_length", row_length)
    lengths = _check_lengths(seq_lengths, row_length)
    seq_rows, seq_starts, segments = _first_fit_decreasing(lengths, row_length)
    needed = int(seq_rows.max(initial=0)) + 1
    rows = needed if rows is None else rows
    check_count("plan", "rows", rows)
    if rows < needed:
        raise ValueError(
            "`rows` must have room for all sequences: first-fit decreasing takes "
            f"{needed} rows of {row_length} steps, got {rows}."
        )
    # Of every step: the sequence, its position there, and its place in the rows.
    which = np.repeat(np.arange(len(lengths)), lengths)
    position = np.arange(len(which)) - np.repeat(_end_to_end(lengths), lengths)
    place = seq_rows[which], seq_starts[which] + position

    def in_rows(values):
        array = np.zeros((rows, row_length), np.int32)
        array[place] = values
        return array

    of_steps = map(in_rows, (segments[which], position, which))
    of_sequences = (seq_rows, seq_starts, lengths)
    return Plan(*of_steps, *(array.astype(np.int32) for array in of_sequences))


def pack(sequences: Any, row_length: int, rows: int | None = None) -> Packed:
    """Packs sequences of different lengths into rows.

    For the host: of known arrays it makes NumPy arrays, without compiling for every
    set of lengths. Within transformations it makes JAX's, and is differentiable.

    Args:
      sequences: list or tuple, for each sequence an array `(length, *features)`, or a
        pytree of those; lengths in `[0, row_length]`.
      row_length: steps of a row, at least 1.
      rows: number of rows; as many as needed if None. See `plan`.

    Raises:
      ValueError: a sequence longer than a row; sequences that do not fit into `rows`;
        shapes or dtypes that differ.
      TypeError: `sequences` is no list.
    """
    sequences, lengths = _check_sequences(sequences)
    where = plan(lengths, row_length, rows)
    # The steps of all sequences, end to end, and one of padding before them.
    first = 1 + _end_to_end(where.seq_lengths)
    index = np.where(where.mask, first[where.seq_ids] + where.positions, 0)

    def join(*leaves):
        numpy = jnp if any(isinstance(x, jax.core.Tracer) for x in leaves) else np
        padding = numpy.zeros((1, *leaves[0].shape[1:]), leaves[0].dtype)
        return numpy.concatenate([padding, *leaves])[index]

    return Packed(jax.tree.map(join, *sequences), where)


def unpack(rows: PyTree, plan: Plan) -> list[PyTree]:
    """Returns rows as a list of sequences, in the order in which `pack` got them.

    Args:
      rows: pytree of `(rows, row_length, *features)`, in the order of the inputs.
      plan: where each sequence is; known values (else take `Plan.unpack`).

    Raises:
      ValueError: shapes that do not fit.
      TypeError: a traced plan.
    """
    if isinstance(plan.seq_lengths, jax.core.Tracer):
        raise TypeError(
            "`plan` must be known to `unpack`, as lengths are shapes, got a traced "
            "one. (Within jit, Plan.unpack makes a padded batch.)"
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
        # The row after those in use has room.
        row = np.argmax(filled[: used + 1] + lengths[k] <= row_length)
        used = max(used, row + 1)
        segments_in[row] += 1
        rows[k], starts[k], segments[k] = row, filled[row], segments_in[row]
        filled[row] += lengths[k]
    return rows, starts, segments


def _end_to_end(lengths: np.ndarray) -> np.ndarray:
    """Returns where each sequence starts if all stand in one row."""
    return np.cumsum(lengths) - lengths


def _take(tree: PyTree, first: Any, second: Any, within: Any) -> PyTree:
    """Returns elements of leaves' first two axes, 0 where the index is not `within`."""

    def take(leaf):
        if 0 in leaf.shape[:2]:
            return jnp.zeros((*within.shape, *leaf.shape[2:]), leaf.dtype)
        index = first, jnp.where(within, second, leaf.shape[1])
        # No step is taken twice, so the gradient is written, not added up.
        return leaf.at[index].get(mode="fill", fill_value=0, unique_indices=True)

    return jax.tree.map(take, tree)


def _to_numpy(leaf: Any) -> Any:
    return leaf if isinstance(leaf, jax.core.Tracer) else np.asarray(leaf)


def _check_lengths(seq_lengths: Any, row_length: int) -> np.ndarray:
    if isinstance(seq_lengths, jax.core.Tracer):
        raise TypeError(
            "`seq_lengths` must be known, got a traced array. (Make the plan outside "
            "of jit, and pass it in.)"
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


def _check_axes(name: str, tree: PyTree, sizes: tuple[int, ...]) -> None:
    shapes = [leaf.shape for leaf in jax.tree.leaves(tree)]
    wrong = [shape for shape in shapes if shape[:2] != sizes]
    if wrong or not shapes:
        got = f"the shape {wrong[0]}" if wrong else "no arrays"
        raise ValueError(f"`{name}` must be arrays {(*sizes, '...')}, got {got}.")


def _check_sequences(sequences: Any) -> tuple[list[PyTree], list[int]]:
    """Returns sequences as pytrees of arrays, and their lengths."""
    if not isinstance(sequences, list | tuple):
        raise TypeError(
            "`sequences` must be a list of arrays (length, *features), got "
            f"{type(sequences).__name__}. (Plan.pack packs a padded batch.)"
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
                "every sequence must be of arrays (length, *features) of one length, "
                f"got {jax.tree.map(np.shape, sequence)} in sequence {k}."
            )
        if jax.tree.flatten(steps[k]) != jax.tree.flatten(steps[0]):
            raise ValueError(
                f"every sequence must have steps as the first, {steps[0]}, got "
                f"{steps[k]} in sequence {k}."
            )
        lengths += sizes.pop()
    return sequences, lengths
