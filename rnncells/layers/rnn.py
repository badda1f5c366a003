"""A layer that runs any cell over sequences."""

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.core import FrozenDict
from flax.core.scope import CollectionFilter, PRNGSequenceFilter
from flax.typing import InOutScanAxis

from rnncells.base import RNNCellBase, feature_dims
from rnncells.carry import (
    Carry,
    PyTree,
    carry_dtype,
    cast_like,
    dtype_of,
    sample_structs,
    with_own_dtype,
)
from rnncells.checks import check_count
from rnncells.layers.checks import (
    check_bools,
    check_reset_carry,
    check_sequences,
    resolve_flags,
)
from rnncells.layers.loops import check_no_choice, choose_loop, step_of
from rnncells.recurrence import schedule
from rnncells.recurrence.chunks import Chunk
from rnncells.recurrence.masks import flip
from rnncells.recurrence.memory import MEMORY, PROJECTION, check_choice


class RNN(nn.Module):
    """Runs a cell over the time axis of its inputs.

    The cell may be one of ours, of Flax or your own: a module that is called as
    `carry, output = cell(carry, inputs)`, with `num_feature_dims` (or Flax's
    `num_feature_axes`) and `initialize_carry`. Inputs, outputs and carries may be
    pytrees; there may be any number of batch axes, also none.

    >>> import jax, jax.numpy as jnp, rnncells
    >>> rnn = rnncells.RNN(rnncells.LSTMCell(features=4), return_carry=True)
    >>> x = jnp.ones((2, 5, 3))  # (batch, time, features)
    >>> lengths = jnp.array([5, 0])
    >>> ((c, h), y), params = rnn.init_with_output(
    ...     jax.random.key(0), x, seq_lengths=lengths
    ... )
    >>> y.shape, h.shape
    ((2, 5, 4), (2, 4))

    Which steps count. A step counts if it lies before its row's `seq_lengths` and the
    `mask` is true there. The others leave the carry as it was, to the bit, and what
    their inputs hold, nan included, reaches neither values nor gradients of steps that
    count (the one exception: see `padded_outputs`). The final carry is that after the
    last step that counts (after none: the initial one); it is selected inside the loop,
    so memory does not grow with it.

    Attributes:
      cell: the cell.
      time_major: inputs and outputs are `(time, *batch, *features)` instead of
        `(*batch, time, *features)`; masks and resets likewise.
      return_carry: returns `(final carry, outputs)` instead of the outputs.
      reverse: goes through time from right to left. The outputs are then in the order
        of processing, padding after `seq_lengths` last, unless `keep_order`.
      keep_order: puts the outputs of `reverse` in the order of the inputs.
      unroll: steps in one iteration of the loop.
      variable_axes: for `flax.linen.scan`: collections scanned over, and their axes.
      variable_broadcast: for `flax.linen.scan`: collections shared by all steps.
      variable_carry: for `flax.linen.scan`: collections carried from step to step.
      split_rngs: for `flax.linen.scan`: the random streams that the cell gets, and
        whether each differs by step. A cell with dropout needs
        `{"params": False, "dropout": True}`; a stream that is named neither here nor by
        the cell (as `ZoneoutCell` and `VariationalDropout` do: `streams`) is not there.
      return_all_carries: returns `(carries, outputs)`, the carry after every step, its
        time axis where that of the outputs is; instead of the final carry.
      padded_outputs: what the outputs hold at steps that do not count. `'run'`: as in
        flax.linen, what the cell computes when it runs on from the last step before
        `seq_lengths`, and from the held carry where the mask is false; nan and infinite
        inputs are taken as 0. `'zero'`: zeros. `'hold'`: the last output that counts,
        or zeros before the first. With the last two the cell sees zeros there. (With
        `'run'` a cell whose state is not bounded can overflow in long padding, and
        0 * inf then makes the gradients nan; with the last two it cannot.)
      memory: what is kept for the gradient if the cell is of `project` and `recur`; the
        gradient is the same to rounding. `'full'`: all that the way back reads, the
        fastest choice. `'recompute'`: the carries, from which gates are formed again, a
        chunk at once. `'sqrt'`: the carries before chunks of about sqrt(time) steps,
        from which each chunk is run again; `Chunk(k)`: the same with chunks of about k.
      projection: how many steps are projected at once: `'auto'`, `'whole'` for all, or
        `Chunk(k)`. (Where `memory` makes chunks, those.)
      implementation: `'auto'`: the fast loop where the cell is of `project` and `recur`
        and a function of params, carry, inputs and random streams alone, else a loop
        over the cell's calls. It differentiates in reverse mode (of any order; forward
        over reverse too). `'scan'`: always the loop over calls, differentiated by JAX:
        in forward mode too, under `grad` of a `vmap` whose axis the cell names, and for
        `jax.debug_nans` (the fast loop also runs a step on zeros, to look at it).

    Source: the fields up to `split_rngs` are those of `flax.linen.RNN`, with the same
    parameter tree and values. Different on purpose: a length of 0 gives the initial
    carry; lengths outside `[0, time]` raise (under `jit`: are clipped); lengths with
    `return_carry` work for any number of batch axes; inputs may be pytrees; the carry
    keeps its dtype from step to step, so that cells in half precision can be scanned,
    and is complex for complex inputs; flags that are no bools raise.
    """

    cell: nn.Module
    time_major: bool = False
    return_carry: bool = False
    reverse: bool = False
    keep_order: bool = False
    unroll: int = 1
    variable_axes: Mapping[CollectionFilter, InOutScanAxis] = FrozenDict()
    variable_broadcast: CollectionFilter = "params"
    variable_carry: CollectionFilter = False
    split_rngs: Mapping[PRNGSequenceFilter, bool] = FrozenDict({"params": False})
    return_all_carries: bool = False
    padded_outputs: str = "run"
    memory: str | Chunk = "full"
    projection: str | Chunk = "auto"
    implementation: str = "auto"

    def __post_init__(self):
        if isinstance(self.cell, type):
            raise TypeError(
                f"`cell` of RNN must be an instance, as "
                f"{self.cell.__name__}(features), got the class."
            )
        if not isinstance(self.cell, nn.Module):
            raise TypeError(f"`cell` of RNN must be a cell, got {self.cell!r}.")
        check_bools(
            "RNN",
            time_major=self.time_major,
            return_carry=self.return_carry,
            reverse=self.reverse,
            keep_order=self.keep_order,
            return_all_carries=self.return_all_carries,
        )
        check_count("RNN", "unroll", self.unroll)
        if self.padded_outputs not in schedule.PADDED_OUTPUTS:
            raise ValueError(
                "`padded_outputs` of RNN must be one of "
                f"{list(schedule.PADDED_OUTPUTS)}, got {self.padded_outputs!r}."
            )
        if self.implementation not in ("auto", "scan"):
            raise ValueError(
                "`implementation` of RNN must be 'auto' or 'scan', got "
                f"{self.implementation!r}."
            )
        for name in ("variable_axes", "split_rngs"):
            # A layer is hashed by its fields, as a static argument of jit.
            object.__setattr__(self, name, FrozenDict(getattr(self, name)))
        check_choice("memory", self.memory, MEMORY)
        check_choice("projection", self.projection, PROJECTION)
        if self.implementation == "scan":
            check_no_choice(self, "which implementation='scan' is not")
        super().__post_init__()

    def __call__(
        self,
        inputs: PyTree,
        *,
        initial_carry: Carry | None = None,
        init_key: jax.Array | None = None,
        seq_lengths: jax.Array | None = None,
        return_carry: bool | None = None,
        time_major: bool | None = None,
        reverse: bool | None = None,
        keep_order: bool | None = None,
        mask: jax.Array | None = None,
        resets: jax.Array | None = None,
        reset_carry: Carry | None = None,
        return_all_carries: bool | None = None,
    ) -> Any:
        """Applies the cell to every step.

        Args:
          inputs: pytree of `(*batch, time, *features)`; the first array has the cell's
            number of feature axes.
          initial_carry: carry before the first step; the cell's own if None.
          init_key: key of the cell's own carry, `jax.random.key(0)` if None.
          seq_lengths: integers `(*batch,)` in `[0, time]`, the steps of each row that
            are not padding.
          return_carry: overrides the field, as do the next three.
          time_major: whether time is the first axis.
          reverse: whether to go from right to left.
          keep_order: whether reversed outputs are put in the order of the inputs.
          mask: booleans `(*batch, time)`, false at steps to pass over; holes allowed.
          resets: booleans `(*batch, time)`, true at the first step of each new
            sequence: the carry starts anew there (in reverse: between that step and the
            one before it). A reset at a step that does not count acts at the row's next
            step that does, on the way that the layer goes: in reverse, one in trailing
            padding, said by the mask, acts before the last step. (Steps after
            `seq_lengths` are not run, and their resets do nothing.)
          reset_carry: carry at resets; the cell's own if None, never `initial_carry`.
          return_all_carries: overrides the field.

        Returns:
          The outputs, or `(carry, outputs)`, or `(carries, outputs)`.

        Raises:
          ValueError: shapes, or known lengths, that do not fit.
          TypeError: lengths that are no integers, masks that are not boolean.
        """
        flags = resolve_flags(
            self,
            return_carry=return_carry,
            time_major=time_major,
            reverse=reverse,
            keep_order=keep_order,
            return_all_carries=return_all_carries,
        )
        inputs = jax.tree.map(jnp.asarray, inputs)
        axis, seq_lengths, mask, resets = check_sequences(
            inputs,
            self._feature_dims(),
            flags["time_major"],
            seq_lengths=seq_lengths,
            mask=mask,
            resets=resets,
        )
        own_carry = None
        if initial_carry is None or (resets is not None and reset_carry is None):
            own_carry = self._own_carry(init_key, inputs, axis)
        carry = own_carry if initial_carry is None else initial_carry
        carry = jax.tree.map(with_own_dtype, carry)
        fresh = own_carry
        if reset_carry is not None:
            check_reset_carry(reset_carry, carry, resets is not None)
            fresh = reset_carry
        inputs, arranged = schedule.arrange(
            inputs,
            axis,
            seq_lengths=seq_lengths,
            mask=mask,
            resets=resets,
            reverse=flags["reverse"],
            padded_outputs=self.padded_outputs,
        )
        steps = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, axis, 0), inputs)
        loop = choose_loop(self, carry, steps)
        carry, carries, outputs = schedule.scan(
            loop(self, axis),
            None if resets is None else cast_like(fresh, carry),
            carry,
            inputs,
            arranged,
            keep_final=flags["return_carry"],
            keep_all=flags["return_all_carries"],
        )
        if flags["reverse"] and flags["keep_order"]:
            carries, outputs = flip((carries, outputs), seq_lengths, axis)
        if flags["return_all_carries"]:
            return carries, outputs
        return (carry, outputs) if flags["return_carry"] else outputs

    @nn.nowrap
    def _feature_dims(self) -> int:
        return feature_dims(self.cell)

    def step(
        self, carry: Carry | None, inputs: PyTree, *, init_key: jax.Array | None = None
    ) -> tuple[Carry, PyTree]:
        """Applies the cell to one step: `carry, output = rnn.step(carry, x_t)`.

        It equals the call on sequences, step by step, with the same parameters: for
        data that come one step at a time.

        >>> import jax, jax.numpy as jnp, rnncells
        >>> rnn, x = rnncells.RNN(rnncells.GRUCell(4)), jnp.ones((2, 5, 3))
        >>> y, params = rnn.init_with_output(jax.random.key(0), x)
        >>> carry = None
        >>> for t in range(5):
        ...     carry, y_t = rnn.apply(params, carry, x[:, t], method="step")
        >>> bool(jnp.allclose(y_t, y[:, 4], atol=1e-6))
        True

        Args:
          carry: as the step before returned it; None before the first: the cell's own.
          inputs: pytree of `(*batch, *features)`.
          init_key: key of the cell's own carry, `jax.random.key(0)` if None.

        Raises:
          ValueError: a layer that is `reverse`; a carry that does not fit.
        """
        if self.reverse:
            raise ValueError(
                "`step` of RNN needs `reverse` False: going backward begins at the end "
                "of the sequence."
            )
        inputs = jax.tree.map(jnp.asarray, inputs)
        if carry is None:
            carry = self.initialize_carry(init_key, inputs)
        carry = jax.tree.map(with_own_dtype, carry)
        return step_of(self.cell, carry, inputs)

    @property
    def streams(self) -> dict[PRNGSequenceFilter, bool]:
        """The random streams of the cell: what it asks for, and `split_rngs`."""
        return {**getattr(self.cell, "streams", {}), **self.split_rngs}

    def initialize_carry(
        self, key: jax.Array | None = None, sample_input: PyTree = None
    ) -> Carry:
        """Returns the carry before the first step, for `step`: that of the cell.

        Args:
          key: random key; `jax.random.key(0)` if None.
          sample_input: one step of input, `(*batch, *features)`; see
            `RNNCellBase.initialize_carry`.
        """
        sample = sample_structs(sample_input)
        batched = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct((1, *leaf.shape), leaf.dtype), sample
        )
        return self._own_carry(key, batched, 0)

    def _own_carry(self, key: jax.Array | None, inputs: PyTree, axis: int) -> Carry:
        """Returns the cell's initial carry; of a foreign cell from a shape."""
        key = jax.random.key(0) if key is None else key
        sample = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(
                leaf.shape[:axis] + leaf.shape[axis + 1 :], leaf.dtype
            ),
            inputs,
        )
        if isinstance(self.cell, RNNCellBase):
            return self.cell.initialize_carry(key, sample)
        shapes = jax.tree.map(lambda leaf: leaf.shape, sample)
        carry = self.cell.initialize_carry(key, shapes)

        def complex_if_sample_is(leaf):
            dtype = dtype_of(leaf)
            if not jnp.issubdtype(dtype, jnp.inexact):
                return leaf
            return jnp.asarray(leaf, carry_dtype(dtype, sample))

        return jax.tree.map(complex_if_sample_is, carry)
