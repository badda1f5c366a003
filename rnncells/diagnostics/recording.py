"""The values of all steps of all recurrent layers in a module, and their cotangents."""

import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from copy import copy
from functools import partial
from typing import Any, NamedTuple

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp

from rnncells.cells.any_cell import feature_dims
from rnncells.cells.any_step import step_of
from rnncells.cells.carry import Carry
from rnncells.diagnostics.named_step import NamedStep, StepValues, marked
from rnncells.layers.loops import count_from, pure_function
from rnncells.layers.rnn import RNN
from rnncells.recurrence import masks
from rnncells.recurrence.pytrees import inexact, structs

# Collections of variables, and the name of the variable in each layer.
_RECORDS, _TAPS = "rnncells_records", "rnncells_taps"
_VARIABLE = "of_layer"


class Recorded(NamedTuple):
    """What one recurrent layer computed at every step, or the cotangents of that.

    All arrays have the axes `(*batch, time, ...)`, also with `time_major`, and are in
    the order of the inputs, also with `reverse`. At steps where `mask` is false, the
    cell ran on padding, or its result was not used: ignore the values there.

    Attributes:
      values: arrays by name, see `record`.
      carry: the carry after each step, in the form of the cell's carry.
      mask: true at valid steps, booleans `(*batch, time)`.
      jacobians: derivatives of the carry after a step by the carry before it,
        `(*batch, time, size, size)`, or None; see `record`.
    """

    values: dict[str, jax.Array]
    carry: Carry
    mask: jax.Array
    jacobians: jax.Array | None = None


def record(
    layer: nn.Module,
    variables: Mapping[str, Any],
    *args: Any,
    jacobians: bool = False,
    rngs: Any = None,
    method: Any = None,
    mutable: Iterable[str] = (),
    **kwargs: Any,
) -> dict[str, Recorded]:
    """Returns the values of every step of every recurrent layer in a module.

    The module can be a layer, such as `RNN`, `Bidirectional`, `Stack` or `LSTM`, or a
    model that calls such layers. It is applied as `layer.apply(variables, *args,
    **kwargs)`. The cells are not changed.

    >>> import jax, jax.numpy as jnp, rnncells
    >>> from rnncells import diagnostics
    >>> rnn, x = rnncells.RNN(rnncells.LSTMCell(4)), jnp.ones((2, 5, 3))
    >>> params = rnn.init(jax.random.key(0), x)
    >>> found = diagnostics.record(rnn, params, x)[""]
    >>> sorted(found.values)
    ['a', 'c', 'f', 'g', 'h', 'i', 'o']
    >>> found.values["f"].shape
    (2, 5, 4)

    The names are those of the local variables in the code of the cell: when a method of
    the cell returns (`recur`, `project`, `__call__` or another one), each local variable
    that holds an array names this array. So a name stands for the last array that was
    assigned to it; above, `i` is the input gate after the sigmoid. The rules in full:

    * Names of a cell inside of a cell start with its path: `'layers_0/i'`.
    * Arguments of a method that it does not assign to have no name, nor have names that
      start with `_`, arrays that depend on parameters alone, and arrays that do not
      start with the batch axes.
    * Variables of the methods of other modules in a cell count if the modules are
      yours, not if they are Flax's (`nn.Dense`).
    * Variables inside of functions for `jax.lax.scan`, `cond` or `while_loop` do not
      count.
    * If several methods of a cell assign to one name, the last one to return counts.

    It can run under `jax.jit`: `jax.jit(partial(record, rnn))(params, x)`.

    Args:
      layer: a Flax module, unbound.
      variables: its variables.
      *args: arguments of its call.
      jacobians: whether to compute the Jacobians of the steps. The carry of a row is
        taken as one vector: its leaves, in the order of `jax.tree.leaves`, one after
        the other; integer leaves are left out. A step at a reset has zeros, a step
        outside of the mask the identity. The rows of a batch must not depend on each
        other. They need memory for `time * size**2` numbers in each row.
      rngs: random keys, as in `apply`.
      method: the method to call, as in `apply`.
      mutable: other collections that the module writes to.
      **kwargs: keyword arguments of the call, such as `seq_lengths`.

    Returns:
      A `Recorded` for each recurrent layer, by its path in the module: `''` for an
      `RNN` itself, `'forward_rnn'`. If a module calls a layer more than once, later
      calls have the paths `'encoder#1'`, `'encoder#2'`.

    Raises:
      ValueError: no layer ran, or a layer cannot be recorded: its cell has other
        collections than params, or its fields lift some.
    """
    with _recording(jacobians):
        _, written = layer.apply(
            variables,
            *args,
            rngs=rngs,
            method=method,
            mutable=[_RECORDS, *mutable],
            **kwargs,
        )
    found = dict(_by_path(written.get(_RECORDS, {})))
    if not found:
        raise ValueError(
            f"`layer` must call an rnncells.RNN, got {type(layer).__name__}, which "
            "called none. Use rnncells.RNN in place of flax.linen.RNN. (Its methods "
            "`step` and `decode` are not recorded.)"
        )
    return found


def cotangents(
    loss: Callable[[Any], jax.Array],
    layer: nn.Module,
    variables: Mapping[str, Any],
    *args: Any,
    rngs: Any = None,
    method: Any = None,
    mutable: Iterable[str] = (),
    **kwargs: Any,
) -> dict[str, Recorded]:
    """Returns the derivatives of a loss by every value of every step.

    The result has the form that `record` returns. The entry of a value is dL/d(value)
    at that step, through all later values: `found[''].carry` of an LSTM are dL/dc_t and
    dL/dh_t. Where a step did not count (`mask`), they are zero. The cotangents of
    integers are zeros. For complex values, they are what `jax.grad` returns.

    >>> import jax, jax.numpy as jnp, rnncells
    >>> from rnncells import diagnostics
    >>> rnn, x = rnncells.RNN(rnncells.GRUCell(4)), jnp.ones((2, 5, 3))
    >>> params = rnn.init(jax.random.key(0), x)
    >>> def loss(outputs):
    ...     return jnp.sum(outputs[:, -1])
    >>> found = diagnostics.cotangents(loss, rnn, params, x)[""]
    >>> found.values["r"].shape, found.carry.shape
    ((2, 5, 4), (2, 5, 4))

    Args:
      loss: function from what the call of the module returns to a scalar.
      layer: a Flax module, unbound.
      variables: its variables.
      *args: arguments of its call.
      rngs: random keys, as in `apply`.
      method: the method to call, as in `apply`.
      mutable: other collections that the module writes to.
      **kwargs: keyword arguments of the call.

    Raises:
      ValueError: see `record`.
      TypeError: the loss is no real scalar.
    """
    options = {"rngs": rngs, "method": method, "mutable": mutable, **kwargs}
    values = record(layer, variables, *args, **options)
    taps = {
        path: (inexact(one.values), inexact(one.carry)) for path, one in values.items()
    }
    zeros = jax.tree.map(jnp.zeros_like, taps)

    def loss_of(taps):
        given = {**variables, _TAPS: _nested(taps)}
        with _recording(False):
            outputs, _ = layer.apply(
                given,
                *args,
                **options | {"mutable": [_RECORDS, *mutable]},
            )
        return loss(outputs)

    gradients = jax.grad(loss_of)(zeros)

    def filled(gradient, value):
        return jnp.zeros_like(value) if gradient is None else gradient

    def with_zeros(gradients, like):
        is_none = partial(jax.tree.map, is_leaf=lambda leaf: leaf is None)
        return is_none(filled, gradients, like)

    return {
        path: Recorded(
            with_zeros(gradients[path][0], one.values),
            with_zeros(gradients[path][1], one.carry),
            one.mask,
        )
        for path, one in values.items()
    }


def step_values(
    cell: nn.Module,
    variables: Mapping[str, Any],
    carry: Carry,
    inputs: chex.ArrayTree,
    *,
    rngs: Any = None,
    deterministic: bool | None = None,
) -> dict[str, jax.Array]:
    """Returns the values of one step of a cell by name; see `record` for the names.

    >>> import jax, jax.numpy as jnp, rnncells
    >>> from rnncells import diagnostics
    >>> cell, x = rnncells.SimpleCell(4), jnp.ones((2, 3))
    >>> h = cell.initialize_carry(jax.random.key(0), x)
    >>> params = cell.init(jax.random.key(1), h, x)
    >>> sorted(diagnostics.step_values(cell, params, h, x))
    ['a', 'h']

    Args:
      cell: a cell, unbound.
      variables: its variables.
      carry: carry before the step.
      inputs: one step of input, `(*batch, *features)`.
      rngs: random keys, as in `apply`.
      deterministic: see `RNN`.
    """
    method = marked(partial(step_of, deterministic=deterministic))

    def step(given, inputs, carry):
        variables, rngs = given
        return cell.apply(variables, carry, inputs, rngs=rngs, method=method)

    operands = (variables, rngs), inputs, carry
    _, found = NamedStep(step, *operands)(*operands)
    return dict(found.values)


def _recording(jacobians: bool) -> AbstractContextManager:
    """Makes every call of an RNN write what it computes to the collection _RECORDS."""

    def intercept(call, args, kwargs, context):
        rnn = context.module
        is_call = isinstance(rnn, RNN) and context.method_name == "__call__"
        if not is_call or "_loop" in vars(rnn):
            return call(*args, **kwargs)
        return _run(rnn, args, kwargs, jacobians)

    return nn.intercept_methods(intercept)


def _run(rnn: RNN, args: tuple, kwargs: dict[str, Any], jacobians: bool) -> Any:
    """Calls an RNN with a loop that records, and writes the record."""
    order = _order(rnn, *args, **kwargs)
    number = len(rnn.get_variable(_RECORDS, _VARIABLE, ()))
    taps = None
    if rnn.has_variable(_TAPS, _VARIABLE):
        taps = order.to_steps(rnn.get_variable(_TAPS, _VARIABLE)[number])
    found: list[Recorded] = []
    recording = copy(rnn)  # of the same scope
    loop = partial(_loop, rnn, found, order, taps, jacobians)
    # Flax modules are frozen.
    object.__setattr__(recording, "_loop", loop)
    outputs = recording(*args, **kwargs)
    rnn.sow(_RECORDS, _VARIABLE, *found)
    return outputs


class _Order(NamedTuple):
    """The order of steps in the arguments of a layer, and in its loop.

    Attributes:
      batch: sizes of the batch axes.
      mask: true at valid steps, `(*batch, time)`, in the order of the arguments.
      reverse: whether the loop runs from the last step to the first.
      seq_lengths: `(*batch,)`, or None.
    """

    batch: tuple[int, ...]
    mask: jax.Array
    reverse: bool
    seq_lengths: jax.Array | None

    def from_steps(self, tree: chex.ArrayTree) -> chex.ArrayTree:
        """Returns `(time, *batch, ...)` of the loop as `(*batch, time, ...)`."""
        return self._flip(self._move(tree, 0, len(self.batch)))

    def to_steps(self, tree: chex.ArrayTree) -> chex.ArrayTree:
        """Returns `(*batch, time, ...)` as `(time, *batch, ...)` of the loop."""
        return self._move(self._flip(tree), len(self.batch), 0)

    def _move(self, tree, source, target):
        return jax.tree.map(lambda leaf: jnp.moveaxis(leaf, source, target), tree)

    def _flip(self, tree):
        if not self.reverse:
            return tree
        return masks.flip(tree, self.seq_lengths, len(self.batch))


def _order(
    rnn: RNN,
    inputs: chex.ArrayTree,
    *,
    time_major: bool | None = None,
    reverse: bool | None = None,
    seq_lengths: jax.Array | None = None,
    mask: jax.Array | None = None,
    **_: Any,
) -> _Order:
    """Returns the order of the steps of a call of an RNN."""
    first = jnp.asarray(jax.tree.leaves(inputs)[0])
    sizes = first.shape[: first.ndim - feature_dims(rnn.cell)]
    time_major = rnn.time_major if time_major is None else time_major
    axis = 0 if time_major else len(sizes) - 1
    batch, steps = sizes[:axis] + sizes[axis + 1 :], sizes[axis]
    valid = jnp.ones((*batch, steps), bool)
    if mask is not None:
        valid &= jnp.moveaxis(jnp.asarray(mask), axis, -1)
    if seq_lengths is not None:
        seq_lengths = jnp.clip(jnp.asarray(seq_lengths), 0, steps)
        valid &= masks.before_end(seq_lengths, steps, len(batch))
    reverse = rnn.reverse if reverse is None else reverse
    return _Order(batch, valid, reverse, seq_lengths)


def _loop(
    rnn: RNN,
    found: list[Recorded],
    order: _Order,
    taps: Any,
    jacobians: bool,
    axis: int,
    step: Callable,
) -> Callable:
    """Returns a loop over time that adds what it computes to `found`."""

    def loop(body, reset_carry, carry, xs):
        xs = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, axis, 0), xs)
        pure, reason = pure_function(rnn, carry, xs, body, reset_carry, marked(step))
        if reason is not None:
            raise ValueError(f"Recording an RNN {reason}")
        now, treedef = structs(pure.now, drop_axis=0), jax.tree.structure(carry[0])
        named = NamedStep(
            lambda given, now, carry: pure.function(given, carry, now),
            *(pure.given, now, carry),
        )

        def one_step(carry, now):
            now, taps = now
            if taps is not None:
                taps = StepValues(taps[0], taps[1])
            result, values = named(pure.given, now, carry, taps)
            new, (output, _) = result
            matrices = None
            if jacobians:

                def of_state(state):
                    return named(pure.given, now, (state, carry[1]))[0][0][0]

                matrices = _jacobian(of_state, carry[0], len(order.batch))
            return new, (output, values, matrices)

        each_tap = taps
        if taps is not None:
            values, new = taps
            leaves = jax.tree.leaves(new, is_leaf=lambda leaf: leaf is None)
            each_tap = values, leaves
        carry, (ys, values, matrices) = jax.lax.scan(
            one_step, carry, (pure.now, each_tap)
        )
        count_from(pure.counters, rnn.cell.scope.rng_counters)
        found.append(_recorded(values, treedef, matrices, order))
        return carry, jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, axis), ys)

    return loop


def _recorded(values: StepValues, treedef, matrices, order: _Order) -> Recorded:
    """Returns the values of all steps, `(time, *batch, ...)`, as a record."""
    cut = len(order.batch) + 1
    sizes = (order.mask.shape[-1], *order.batch)
    named = {k: v for k, v in values.values.items() if v.shape[:cut] == sizes}
    carry = jax.tree.unflatten(treedef, values.carry)
    named, carry, matrices = order.from_steps((named, carry, matrices))
    if matrices is not None:
        is_valid = masks.expand_right(order.mask, matrices.ndim)
        identity = jnp.eye(matrices.shape[-1], dtype=matrices.dtype)
        matrices = jnp.where(is_valid, matrices, identity)
    return Recorded(named, carry, order.mask, matrices)


def _jacobian(function: Callable, carry: Carry, batch_dims: int) -> jax.Array:
    """Returns the Jacobian of a function of a carry, `(*batch, size, size)`."""
    leaves, treedef = jax.tree.flatten(carry)
    chosen = [k for k, x in enumerate(leaves) if jnp.issubdtype(x.dtype, jnp.inexact)]
    primals = [leaves[k] for k in chosen]

    def of_chosen(primals):
        given = dict(zip(chosen, primals, strict=True))
        full = [given.get(k, leaf) for k, leaf in enumerate(leaves)]
        new = jax.tree.leaves(function(jax.tree.unflatten(treedef, full)))
        return [new[k] for k in chosen]

    sizes = [leaf.shape[batch_dims:] for leaf in primals]
    counts = [math.prod(size) for size in sizes]

    def column(direction):
        """Returns the derivative in one direction, which is the same in all rows."""
        tangents, start = [], 0
        for leaf, size, count in zip(primals, sizes, counts, strict=True):
            part = direction[start : start + count].reshape(size).astype(leaf.dtype)
            tangents.append(jnp.broadcast_to(part, leaf.shape))
            start += count
        _, results = jax.jvp(of_chosen, (primals,), (tangents,))
        batch = primals[0].shape[:batch_dims]
        return jnp.concatenate([leaf.reshape(*batch, -1) for leaf in results], -1)

    dtype = jnp.result_type(*primals)
    return jax.vmap(column, out_axes=-1)(jnp.eye(sum(counts), dtype=dtype))


def _by_path(tree: Mapping[str, Any], path: tuple[str, ...] = ()):
    """Yields the records of a collection, and the path of each."""
    for name, value in tree.items():
        if name != _VARIABLE:
            yield from _by_path(value, (*path, name))
            continue
        for number, one in enumerate(value):
            yield "/".join(path) + (f"#{number}" if number else ""), one


def _nested(taps: Mapping[str, Any]) -> dict[str, Any]:
    """Returns taps by path as a collection of variables."""
    nested: dict[str, Any] = {}
    for path, tap in taps.items():
        place = nested
        for name in filter(None, path.partition("#")[0].split("/")):
            place = place.setdefault(name, {})
        place[_VARIABLE] = (*place.get(_VARIABLE, ()), tap)
    return nested
