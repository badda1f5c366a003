"""A layer that runs any cell over sequences."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal, get_args

import flax.linen as nn
import jax
import jax.numpy as jnp
from chex import ArrayTree, PRNGKey
from flax.core import FrozenDict
from flax.core.scope import CollectionFilter, PRNGSequenceFilter
from flax.typing import InOutScanAxis
from jax import Array

from rnncells.cells.contract import any_cell
from rnncells.cells.contract.carry import Carry, cast_like, strongly_typed
from rnncells.cells.contract.checks import check_not_states
from rnncells.cells.contract.parameters import LearnedCarry
from rnncells.gradients import Bptt, Gradient, check_gradient
from rnncells.layers.contract import checks
from rnncells.layers.contract.decoding import check_decodes, check_feedback, decode
from rnncells.layers.contract.sequence_layer import RecurrentLayer
from rnncells.loops import table
from rnncells.loops.plain import run_once
from rnncells.loops.request import StepRequest
from rnncells.loops.rows import exact_certificate
from rnncells.recurrence import schedule
from rnncells.recurrence.engine.memory import Memory, Projection, check_memory
from rnncells.recurrence.mesh import sharded_as_batch
from rnncells.recurrence.newton import Newton
from rnncells.recurrence.pytrees import StructTree
from rnncells.recurrence.schedule import Call, PaddedOutputs, Results

_Name = Literal["auto", "scan", "associative", "newton"]
Implementation = _Name | Newton


class RNN(RecurrentLayer):
    """Runs a cell over the time axis of its inputs.

    The cell can come from rnncells, from Flax or from you. It is a module that is
    called as `carry, output = cell(carry, inputs)` and has `initialize_carry` and
    `num_feature_dims` (or Flax's `num_feature_axes`). Inputs, outputs and carries are
    pytrees of arrays with any number of batch axes, including none.

    >>> import jax, jax.numpy as jnp, rnncells
    >>> rnn = rnncells.RNN(rnncells.LSTMCell(features=4), return_carry=True)
    >>> x = jnp.ones((2, 5, 3))  # (batch, time, features)
    >>> lengths = jnp.array([5, 0])
    >>> ((c, h), y), params = rnn.init_with_output(
    ...     jax.random.key(0), x, seq_lengths=lengths
    ... )
    >>> y.shape, h.shape
    ((2, 5, 4), (2, 4))

    A step is valid if it is before the end of its row, which `seq_lengths` gives, and
    its `mask` is true. All other steps are padded or masked. They leave the carry
    bit-identical, and their inputs, even NaN, never affect the values or gradients of
    valid steps (see `padded_outputs` for one exception). The final carry is the carry
    after the last valid step, or the initial carry if a row has no valid step.

    Attributes:
      cell: the cell.
      time_major: inputs, outputs, masks and resets have time as their first axis,
        `(time, *batch, *features)` instead of `(*batch, time, *features)`.
        Default: False.
      return_carry: returns `(final carry, outputs)` instead of the outputs.
        Default: False.
      reverse: runs from the last step to the first. Outputs are in the order of
        processing, followed by the padding, unless `keep_order` is true.
        Default: False.
      keep_order: returns the outputs of `reverse` in the order of the inputs.
        Default: False.
      unroll: number of steps in one iteration of the loop. None: 4 on a GPU, where an
        iteration costs as much as a small step, else 1 as in Flax. Symbolic lengths of
        `jax.export` are not unrolled. Default: None.
      variable_axes: for `flax.linen.scan`: collections scanned over, and their axes.
        Default: `{}`.
      variable_broadcast: for `flax.linen.scan`: collections shared by all steps.
        Collections that the cell only reads are shared without this option.
        Default: `'params'`.
      variable_carry: for `flax.linen.scan`: collections carried from step to step.
        Default: False.
      split_rngs: for `flax.linen.scan`: the random streams that the cell receives. True
        draws a new key for each step, False uses one key for all steps. A cell with
        dropout needs `{"params": False, "dropout": True}`. Cells with an `rng_streams`
        attribute (`ZoneoutCell`, `VariationalDropout`) declare their own streams.
        Default: `{"params": False}`.
      return_all_carries: returns `(carries, outputs)` with the carry after every step
        instead of the final carry. Carries and outputs have the same time axis.
        Default: False.
      padded_outputs: values of the outputs at padded and masked steps. `'run'`: the
        cell's own outputs, as in flax.linen: the state runs on past `seq_lengths`, and
        masked steps see the last valid carry. NaN and infinite inputs are replaced by
        0. (Huge inputs or an unbounded state can still overflow there, and 0 * inf
        makes the gradients NaN.) `'zero'`: zeros. `'hold'`: the last valid output, or
        zeros before the first one. With these two the cell sees zero inputs there,
        and nothing can overflow.
        Default: `'run'`.
      memory: residuals that the fast loop keeps for the gradient, which is the same to
        rounding. `'full'`: all residuals; the fastest. `'recompute'`: the carries; the
        gates are recomputed, one chunk at a time. `'sqrt'`: the carry before each chunk
        of about sqrt(time) steps; each chunk is run again. `Chunk(k)`: like `'sqrt'`,
        with chunks of about k steps. A policy of `jax.checkpoint`, such as
        `jax.checkpoint_policies.save_only_these_names("gates")`: the carries, and the
        values of a step that the policy chooses (calls of `jit` are inlined). Where a
        choice would keep more than `'full'`, `'full'` is taken. Default: `'full'`.
      projection: number of steps that the fast loop projects at once: `'auto'`,
        `'whole'` for all, or `Chunk(k)`. A gradient takes the chunks of `memory`
        instead, if it is not `'full'`. Default: `'auto'`.
      implementation: which loop runs; the results are the same to rounding. `'auto'`:
        for a cell derived from `LinearRNNCellBase` or `MatrixRNNCellBase`, and for
        `CausalConvCell`, all steps at once, or some at once (see docs/parallel.md). For
        other cells, the fast loop if it pays and if the step is a pure function of the
        cell's variables, carry, inputs and random streams that `jax.vmap` can map;
        otherwise the plain loop, which calls the cell at every step. `'scan'`: always
        the plain loop, which JAX differentiates. `'associative'`: for linear cells, an
        associative scan also on CPU. `'newton'` or `Newton(...)`: for contractive
        cells, all carries by Newton's method, within its tolerance; where it does not
        converge, a loop. Default: `'auto'`.
      gradient: how the gradient is formed: a method of `help(rnncells.gradients)`,
        which goes back in time, such as `TruncatedBptt(steps)`, or forward with memory
        that does not depend on time, such as `Rtrl()`. The values are the same for all.
        The method `step` has the gradient of its one step, in which nothing is cut but
        h by `Truncated1997`. Default: Bptt().
      learn_initial_carry: makes the initial carry a parameter, `initial_carry` in the
        parameter tree, which starts with the values of the cell's `initialize_carry`
        for one row. Resets use it too. Default: False.
      return_certificate: with `implementation='newton'`, returns a pair: the results,
        and a `Certificate` that says whether the method converged. Default: False.

    Source: the fields up to `split_rngs` are those of `flax.linen.RNN`, with the same
    parameter tree and values. Differences: a length of 0 returns the initial carry;
    lengths outside `[0, time]` raise an error (under `jit` they are clipped; with
    `jax.enable_checks(True)` they raise there too); lengths with `return_carry` work
    for any number of batch axes; inputs can be pytrees; the carry keeps its dtype from
    step to step, so cells in half precision can be scanned; the carry is complex for
    complex inputs; flags that are not bools raise an error.
    """

    cell: nn.Module
    time_major: bool = False
    return_carry: bool = False
    reverse: bool = False
    keep_order: bool = False
    unroll: int | None = None
    variable_axes: Mapping[CollectionFilter, InOutScanAxis] = FrozenDict()
    variable_broadcast: CollectionFilter = "params"
    variable_carry: CollectionFilter = False
    split_rngs: Mapping[PRNGSequenceFilter, bool] = FrozenDict({"params": False})
    return_all_carries: bool = False
    padded_outputs: PaddedOutputs = "run"
    memory: Memory = "full"
    projection: Projection = "auto"
    implementation: Implementation = "auto"
    learn_initial_carry: bool = False
    gradient: Gradient = Bptt()
    return_certificate: bool = False

    _final_carry = {
        "return_carry": True,
        "return_all_carries": False,
        "return_certificate": False,
    }

    def __post_init__(self) -> None:
        if not isinstance(self.cell, nn.Module):
            raise checks.cell_error("RNN", self.cell)
        super().__post_init__()
        names, implementation = get_args(_Name), self.implementation
        if not (isinstance(implementation, Newton) or implementation in names):
            raise ValueError(
                f"`implementation` of RNN must be one of {list(names)} or a "
                f"Newton(...), got {implementation!r}."
            )
        for name in ("variable_axes", "split_rngs"):
            # A layer is hashed by its fields, as a static argument of jit.
            object.__setattr__(self, name, FrozenDict(getattr(self, name)))
        check_gradient("RNN", self.gradient)
        check_memory(self.memory, self.projection)
        table.check_options(self)
        if self.return_certificate:
            checks.check_certificate(self)

    def __call__(
        self,
        inputs: ArrayTree,
        *,
        initial_carry: Carry | None = None,
        init_key: PRNGKey | None = None,
        seq_lengths: Array | None = None,
        return_carry: bool | None = None,
        time_major: bool | None = None,
        reverse: bool | None = None,
        keep_order: bool | None = None,
        mask: Array | None = None,
        resets: Array | None = None,
        reset_carry: Carry | None = None,
        return_all_carries: bool | None = None,
        return_certificate: bool | None = None,
        padded_outputs: PaddedOutputs | None = None,
        deterministic: bool | None = None,
    ) -> Any:
        """Applies the cell to every step.

        Arguments with the name of a field override the field.

        Args:
          inputs: pytree of `(*batch, time, *features)`; the first array has the cell's
            number of feature axes.
          initial_carry: carry before the first step; default: the cell's
            `initialize_carry`.
          init_key: key for `initialize_carry`; default: `jax.random.key(0)`.
          seq_lengths: integers `(*batch,)` in `[0, time]`: the number of steps of each
            row before its padding.
          mask: booleans `(*batch, time)`, false at steps to skip, anywhere in a row.
          resets: booleans `(*batch, time)`, true at the first step of each new
            sequence. The carry is reset before that step; with `reverse`, between that
            step and the one before it. A reset at a masked step takes effect at
            once: the step holds the carry after the reset. Resets after `seq_lengths`
            have no effect.
          reset_carry: carry after a reset; default: the cell's `initialize_carry`, even
            if `initial_carry` is given.
          deterministic: whether dropout and zoneout are off; overrides the field
            `deterministic` of our cells, also inside of other cells. Other cells get it
            if their call takes an argument of this name.

        Returns:
          `outputs`, `(carry, outputs)` with `return_carry`, or `(carries, outputs)`
          with `return_all_carries`. With `return_certificate`, a pair of this and a
          `Certificate`.

        Raises:
          ValueError: a shape does not fit, or a known length is out of range.
          TypeError: `seq_lengths` are not integers, or a mask is not boolean.
        """
        call = checks.resolve_call(
            self,
            inputs,
            seq_lengths=seq_lengths,
            mask=mask,
            resets=resets,
            padded_outputs=padded_outputs,
            deterministic=deterministic,
            time_major=time_major,
            reverse=reverse,
            keep_order=keep_order,
            return_carry=return_carry,
            return_all_carries=return_all_carries,
            return_certificate=return_certificate,
        )
        carries = initial_carry, init_key, reset_carry
        return self._results(call, self._run_loop(table.run, call, *carries))

    def step(
        self,
        carry: Carry | None,
        inputs: ArrayTree,
        *,
        init_key: PRNGKey | None = None,
        mask: Array | None = None,
        resets: Array | None = None,
        reset_carry: Carry | None = None,
        deterministic: bool | None = None,
    ) -> tuple[Carry, ArrayTree]:
        """Applies the cell to one step: `carry, output = rnn.step(carry, x_t)`.

        Use it for data that arrive one step at a time. It takes the same parameters
        and returns the same values as the call on whole sequences.

        >>> import jax, jax.numpy as jnp, rnncells
        >>> rnn, x = rnncells.RNN(rnncells.GRUCell(4)), jnp.ones((2, 5, 3))
        >>> y, params = rnn.init_with_output(jax.random.key(0), x)
        >>> carry = None
        >>> for t in range(5):
        ...     carry, y_t = rnn.apply(params, carry, x[:, t], method="step")
        >>> bool(jnp.allclose(y_t, y[:, 4], atol=1e-6))
        True

        Args:
          carry: the carry that the previous step returned; None before the first step.
          inputs: pytree of `(*batch, *features)`.
          init_key: key for `initialize_carry`; default: `jax.random.key(0)`.
          mask: booleans `(*batch,)`, false for rows whose carry must not change.
          resets: booleans `(*batch,)`, true for rows that start a new sequence: their
            carry is reset before the step, also where `mask` is false.
          reset_carry: carry after a reset; default: the cell's `initialize_carry`.
          deterministic: as in the call.

        Raises:
          ValueError: the layer has `reverse=True`, a shape does not fit, or there is a
            `mask`, but `padded_outputs` is `'hold'`, which needs the last output.
        """
        checks.check_call(self, deterministic)
        if self.reverse:
            raise ValueError(
                "`step` of RNN needs `reverse=False`, got True: a reversed layer "
                "starts at the end of the sequence. Call it on the whole sequence."
            )
        if mask is not None and self.padded_outputs == "hold":
            raise ValueError(
                "`mask` of `step` needs padded_outputs='run' or 'zero', got 'hold': a "
                "step does not know the output of the step before it."
            )
        rows = {"mask": mask, "resets": resets}
        call = checks.resolve_step(self, inputs, deterministic, **rows)
        if carry is None:
            checks.warn_sequence_input(call.batch)
        result = self._run_loop(run_once, call, carry, init_key, reset_carry)
        return result.carry, jax.tree.map(lambda leaf: leaf[0], result.outputs)

    def decode(
        self,
        first_input: ArrayTree,
        steps: int | None = None,
        *,
        feed: Callable[..., ArrayTree] | None = None,
        feed_key: PRNGKey | None = None,
        targets: ArrayTree | None = None,
        teacher_forcing_rate: float | Array | None = None,
        initial_carry: Carry | None = None,
        init_key: PRNGKey | None = None,
        return_carry: bool | None = None,
        return_all_carries: bool | None = None,
        return_inputs: bool = False,
        time_major: bool | None = None,
        deterministic: bool | None = None,
    ) -> Any:
        """Runs the cell on its own outputs: those of a step are the next inputs.

        >>> import flax.linen as nn, jax, jax.numpy as jnp, rnncells
        >>> cell = rnncells.StackedCell([rnncells.LSTMCell(4), nn.Dense(3)])
        >>> rnn, x = rnncells.RNN(cell, return_carry=True), jnp.ones((2, 5, 3))
        >>> (carry, y), params = rnn.init_with_output(jax.random.key(0), x)
        >>> carry, forecast = rnn.apply(
        ...     params, y[:, -1], steps=10, initial_carry=carry, method="decode"
        ... )
        >>> forecast.shape
        (2, 10, 3)

        In training with teacher forcing, some steps see targets in place of outputs:

        >>> rngs = {"teacher_forcing": jax.random.key(1)}
        >>> forcing = {"targets": jnp.zeros((2, 10, 3)), "teacher_forcing_rate": 0.5}
        >>> carry, y = rnn.apply(
        ...     params, x[:, -1], **forcing, rngs=rngs, method="decode"
        ... )

        To sample tokens, let the cell embed them, and let `feed` draw them:

        >>> cell = rnncells.StackedCell(
        ...     [nn.Embed(20, 3), rnncells.GRUCell(4), nn.Dense(20)]
        ... )
        >>> rnn, start = rnncells.RNN(cell), jnp.array([0, 0])  # two rows
        >>> params = rnn.init(jax.random.key(0), start[:, None])
        >>> def draw(logits, key):
        ...     return jax.random.categorical(key, logits)
        >>> feedback = {"feed": draw, "feed_key": jax.random.key(2)}
        >>> logits, tokens = rnn.apply(
        ...     params, start, 10, **feedback, return_inputs=True, method="decode"
        ... )
        >>> logits.shape, tokens.shape
        ((2, 10, 20), (2, 10))

        Values and gradients are those of a Python loop over `step`. Gradients flow
        through the outputs that are fed back; `feed=jax.lax.stop_gradient` stops them.
        Arguments with the name of a field override the field.

        Args:
          first_input: inputs of the first step, pytree of `(*batch, *features)`.
          steps: number of steps, at least 1; default: that of `targets`.
          feed: function from the outputs of a step to the inputs of the next step,
            which must have the structure and shapes of `first_input`. It must be a
            function of arrays; put modules into the cell. Default: identity.
          feed_key: random key. It is split into `steps` keys, and step `t` calls
            `feed(outputs, keys[t])`.
          targets: pytree of `(*batch, steps, *features)` in the form of `first_input`:
            the inputs that should follow each step. The last ones are not read.
          teacher_forcing_rate: probability in [0, 1] that a row sees its target after a
            step, drawn for each row and step from the random stream
            `'teacher_forcing'`. It can be a traced scalar, which is clipped to the
            range. 0 and 1 need no stream, unless traced. With 1, decoding is the call
            on the targets, shifted by one step. Default: 1 with `targets`.
          initial_carry: carry before the first step, for example the final carry of an
            encoder; default: the cell's `initialize_carry`.
          init_key: key for `initialize_carry`; default: `jax.random.key(0)`.
          return_inputs: also returns the inputs that follow each step, such as sampled
            tokens: `(outputs, inputs)` in place of the outputs.
          deterministic: as in the call.

        Returns:
          The outputs, `(*batch, steps, *features)`, or pairs as in the call.

        Raises:
          ValueError: `steps` is less than 1; the outputs or results of `feed` do not
            have the form of `first_input`, or `targets` do not; a known rate is not in
            [0, 1] or has no targets; the layer has `reverse=True`.
          TypeError: neither `steps` nor `targets` is given; `feed` is no function.
          InvalidRngError: the random stream is missing.
        """
        flags = checks.check_call(
            self,
            deterministic,
            return_carry=return_carry,
            return_all_carries=return_all_carries,
            return_inputs=return_inputs,
            time_major=time_major,
        )
        check_decodes(self)
        call = checks.resolve_step(self, first_input, deterministic)._replace(
            return_carry=flags["return_carry"],
            return_all_carries=flags["return_all_carries"],
        )
        axis = 0 if flags["time_major"] else len(call.batch)
        feedback = check_feedback(
            call, axis, steps, feed, feed_key, targets, teacher_forcing_rate
        )
        carry, _ = self._carries(call, initial_carry, init_key, None)
        results = decode(self, feedback, carry, call)
        by_step = results.carries, results.outputs
        carries, (outputs, inputs) = schedule.move_axis(by_step, 0, axis)
        outputs = (outputs, inputs) if return_inputs else outputs
        return self._results(call, results._replace(carries=carries, outputs=outputs))

    @property
    def rng_streams(self) -> dict[PRNGSequenceFilter, bool]:
        """The random streams that the cell declares, and those in `split_rngs`."""
        # Parameters have no time axis, also where `split_rngs` lacks their stream.
        streams: dict[Any, bool] = {"params": False}
        return streams | any_cell.declared_streams(self.cell) | dict(self.split_rngs)

    def setup(self) -> None:
        """Creates the parameters of the initial carry."""
        if self.learn_initial_carry:
            self.initial_carry = LearnedCarry()

    @nn.nowrap
    def _run_loop(
        self,
        run: Callable[[StepRequest], tuple],
        call: Call,
        initial_carry: Carry | None,
        init_key: PRNGKey | None,
        reset_carry: Carry | None,
    ) -> Results:
        """Runs a loop over the steps of a call, such as `table.run`."""
        carry, reset_carry = self._carries(call, initial_carry, init_key, reset_carry)
        cell_step = partial(any_cell.apply_step, deterministic=call.deterministic)
        step = self.gradient.of_step(cell_step)
        # The gradient of `step` is that of its one step.
        cuts = None if run is run_once else self.gradient.cuts(call.sizes, call.axis)
        plan = schedule.prepare(call, carry, cuts)
        request = StepRequest(self, plan.carry, plan.xs, step, plan.body, reset_carry)
        return plan.results(*run(request))

    @nn.nowrap
    def _results(self, call: Call, results: Results) -> Any:
        """Selects the results of a call by its flags."""
        carry, carries, outputs, certificate = results
        returned = outputs
        if call.return_all_carries:
            returned = carries, outputs
        elif call.return_carry:
            returned = carry, outputs
        if not call.return_certificate:
            return returned
        # There is none if there was nothing to solve for.
        return returned, certificate or exact_certificate(call.batch)

    @nn.nowrap
    def _feature_dims(self) -> int:
        return any_cell.feature_dims(self.cell)

    @nn.nowrap
    def _carries(
        self,
        call: Call,
        initial_carry: Carry | None,
        init_key: PRNGKey | None,
        reset_carry: Carry | None,
    ) -> tuple[Carry, Carry | None]:
        """Returns the carry before the first step, and the one after a reset.

        Both have the sharding of the batch axes of the inputs.
        """
        cell_carry, has_resets = None, call.resets is not None
        needs_reset_carry = has_resets and reset_carry is None
        creates_params = self.learn_initial_carry and self.is_initializing()
        if initial_carry is None or needs_reset_carry or creates_params:
            cell_carry = self._initial_carry(init_key, call.sample)
        carry = cell_carry if initial_carry is None else initial_carry
        carry = jax.tree.map(strongly_typed, carry)
        if initial_carry is not None:
            check_not_states(type(self.cell).__name__, carry)
            checks.warn_narrow_carry(self.cell, carry, call.sample)
        if reset_carry is None:
            reset_carry = cell_carry
        else:
            checks.check_reset_carry(reset_carry, carry, has_resets)
        reset_carry = cast_like(reset_carry, carry) if has_resets else None
        first = jax.tree.leaves(call.inputs)[0]
        carries = carry, reset_carry
        return sharded_as_batch(carries, first, len(call.batch), call.axis)

    @nn.nowrap
    def _initial_carry(self, key: PRNGKey | None, sample: StructTree) -> Carry:
        """Returns the initial carry of the cell, or the learned one."""
        if not self.learn_initial_carry:
            return any_cell.initialize_carry(self.cell, key, sample)
        batch, _ = any_cell.split_shape(self.cell, jax.tree.leaves(sample)[0].shape)
        row = jax.tree.map(lambda x: x.update(shape=x.shape[len(batch) :]), sample)
        learned = self.initial_carry(any_cell.initialize_carry(self.cell, key, row))
        return jax.tree.map(
            lambda leaf: jnp.broadcast_to(leaf, batch + jnp.shape(leaf)), learned
        )
