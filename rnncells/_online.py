"""Learning step by step, without a sequence."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from chex import ArrayTree, PRNGKey
from jax import Array

from rnncells.cells.contract.any_cell import apply_step
from rnncells.cells.contract.carry import Carry
from rnncells.flax_internals import placed
from rnncells.gradients import ForwardGradient
from rnncells.layers.contract.checks import resolve_step
from rnncells.layers.rnn import RNN
from rnncells.loops.request import PureFunction, StepRequest
from rnncells.loops.rows import Batch, RowProblem, random_keys, row_problem
from rnncells.loops.table import FORWARD, choose
from rnncells.recurrence.forward.run import advance_rows
from rnncells.recurrence.pytrees import combine, inexact, zeros
from rnncells.recurrence.rows import real_leaves
from rnncells.recurrence.schedule import Call, LoopCarry, StepInputs

CotangentOf = Callable[[ArrayTree], ArrayTree]


class OnlineState(NamedTuple):
    """The state of `Online` between two steps.

    Attributes:
      carry: the carry of the cell.
      influence: the influence of the parameters on the carry of each row, as arrays
        `(rows, ...)` in the form of the gradient method.
    """

    carry: Carry
    influence: ArrayTree


class Online:
    """Learns from data that arrive one step at a time.

    The gradient method of the layer carries the influence of the parameters on the
    carry along. So each step returns the gradient of its own loss, through all earlier
    steps, and no sequence is kept. Parameters may change after every step.

    >>> import jax, jax.numpy as jnp, rnncells
    >>> rnn = rnncells.RNN(rnncells.GRUCell(4), gradient=rnncells.Rtrl())
    >>> x = jnp.ones((2, 5, 3))  # (batch, time, features)
    >>> params = rnn.init(jax.random.key(0), x)
    >>> online = rnncells.Online(rnn)
    >>> state = online.init(params, x[:, 0])
    >>> step = jax.jit(online.step)
    >>> for t in range(5):
    ...     state, y, grads = step(params, state, x[:, t], jnp.ones((2, 4)))
    ...     params = jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)

    Args:
      rnn: an `RNN` with a forward method with an update at each step as `gradient`,
        such as `Rtrl()`, with `learn_initial_carry=False` and `reverse=False`.

    Raises:
      TypeError: `rnn` is no RNN.
      ValueError: its `gradient` has no update at each step, the initial carry is a
        parameter, or the layer runs in reverse.
    """

    def __init__(self, rnn: RNN) -> None:
        if not isinstance(rnn, RNN):
            raise TypeError(
                "`rnn` of Online must be an RNN, such as RNN(GRUCell(4), "
                f"gradient=Rtrl()), got {type(rnn).__name__}."
            )
        method = rnn.gradient
        if not isinstance(method, ForwardGradient) or not method.is_online:
            raise ValueError(
                "`rnn` of Online needs a gradient with an update at each step, such as "
                f"Rtrl(), got gradient={method}."
            )
        if rnn.learn_initial_carry or rnn.reverse:
            raise ValueError(
                "`rnn` of Online needs learn_initial_carry=False and reverse=False."
            )
        self.rnn = rnn

    def init(
        self,
        params: Mapping[str, Any],
        inputs: ArrayTree,
        *,
        initial_carry: Carry | None = None,
        rngs: Mapping[str, PRNGKey] | None = None,
    ) -> OnlineState:
        """Returns the state before the first step.

        Args:
          params: variables of the layer.
          inputs: one step of input, `(*batch, *features)`; values are not read.
          initial_carry: carry before the first step; default: the cell's
            `initialize_carry`.
          rngs: `{"uoro": key}` for `Uoro`.
        """

        def init_of_layer(rnn: Any) -> OnlineState:
            call = resolve_step(rnn, inputs, None)
            carry = initial_carry
            if carry is None:
                carry = rnn.initialize_carry(None, call.sample)
            _, rows, batch = _one_step(rnn, carry, call)
            method, keys = rnn.gradient.method(rows.step), random_keys(rnn, batch)
            influence = jax.vmap(method.initial)(rows.operands.s, *keys)
            return OnlineState(carry, influence)

        # Without mutable variables, `apply` returns the result of the method alone.
        result: Any = self.rnn.apply(
            params, rngs=None if rngs is None else dict(rngs), method=init_of_layer
        )
        return result

    def step(
        self,
        params: Mapping[str, Any],
        state: OnlineState,
        inputs: ArrayTree,
        cotangent: ArrayTree | CotangentOf,
        *,
        resets: Array | None = None,
        deterministic: bool | None = None,
    ) -> tuple[OnlineState, ArrayTree, Mapping[str, Any]]:
        """Takes a step, and returns the gradient of its loss.

        Args:
          params: variables of the layer.
          state: state before the step.
          inputs: one step of input, `(*batch, *features)`.
          cotangent: the derivative of the loss with respect to the output of the step,
            in the form of the output; or a function from the output to it, such as
            `jax.grad(lambda y: loss(y, target))`.
          resets: booleans `(*batch,)`, true for rows that start a new sequence.
          deterministic: as in the call of `RNN`.

        Returns:
          The state after the step; the output, `(*batch, *features)`; and the gradient
          of the parameters, in the form of `params`.

        Raises:
          ValueError: the cotangent does not have the form of the output.
        """

        def step_of_layer(rnn: Any) -> tuple[OnlineState, ArrayTree, Mapping]:
            call = resolve_step(rnn, inputs, deterministic, resets=resets)
            pure, rows, batch = _one_step(rnn, state.carry, call)
            x_t = jax.tree.map(lambda leaf: leaf[0], pure.xs)
            start = LoopCarry(state.carry)
            (carry, _), ((_, y), updates) = pure.function(pure.consts, start, x_t)
            d_y = cotangent(y) if callable(cotangent) else cotangent
            d_outputs = (None, _as_cotangent(d_y, y)), updates
            operands, constants = rows.operands, rows.constants
            (_, _, influence), (d_theta, _, _) = advance_rows(
                rows.step,
                rnn.gradient.method(rows.step),
                operands,
                constants,
                (operands.s, constants.carry, state.influence),
                combine(operands.x, constants.x),
                batch.to_rows(jax.tree.map(lambda leaf: leaf[None], d_outputs), 1),
            )
            d_shared = [d.sum(0) for d in d_theta[: len(operands.shared)]]
            _, vjp = jax.vjp(real_leaves, inexact(pure.consts[0]))
            ((d_variables, _),) = vjp(d_shared)
            # Variables that are no inexact numbers have the gradient 0.
            gradient = combine(d_variables, zeros(pure.consts[0][0]))
            grads: Any = zeros(params)
            for collection, values in gradient.items():
                grads = placed(grads, (collection, *rnn.cell.path), values)
            leaves = jax.tree.leaves(grads)
            grads = jax.tree.unflatten(jax.tree.structure(params), leaves)
            return OnlineState(carry, influence), y, grads

        result: Any = self.rnn.apply(params, method=step_of_layer)
        return result


def _one_step(
    rnn: RNN, carry: Carry, call: Call
) -> tuple[PureFunction, RowProblem, Batch]:
    """Returns the step of the layer's cell, and the same row by row."""
    # The carry after a reset is not learned, so it needs no gradient.
    reset_carry = None
    if call.resets is not None:
        reset_carry = rnn.initialize_carry(None, call.sample)
        reset_carry = jax.tree.map(lambda leaf: leaf[None], reset_carry)
    xs = StepInputs(call.inputs, call.resets, reset_carry=reset_carry)
    start = LoopCarry(jax.tree.map(jnp.asarray, carry))
    cell_step = partial(apply_step, deterministic=call.deterministic)
    request = StepRequest(rnn, start, xs, rnn.gradient.of_step(cell_step))
    choose(request, (FORWARD,))
    return request.function, *row_problem(request)


def _as_cotangent(cotangent: Any, output: ArrayTree) -> ArrayTree:
    """Returns a cotangent as arrays in the dtypes of the output, after a check."""
    shapes = [jax.tree.map(jnp.shape, tree) for tree in (cotangent, output)]
    if shapes[0] != shapes[1]:
        raise ValueError(
            "`cotangent` of Online.step must have the form of the output, "
            f"{shapes[1]}, got {shapes[0]}. It is the derivative of the loss with "
            "respect to the output, or a function from the output to it."
        )
    return jax.tree.map(lambda d, y: jnp.asarray(d, y.dtype), cotangent, output)
