"""The values of all steps of all recurrent layers in a module, and their cotangents."""

import re
from collections.abc import Callable, Mapping
from functools import partial
from inspect import signature, unwrap
from typing import Any

import flax.linen as nn
import jax
from chex import ArrayTree
from flax import traverse_util
from flax.core.scope import union_filters
from jax import Array

from rnncells.cells.contract.any_cell import apply_step
from rnncells.cells.contract.carry import Carry
from rnncells.diagnostics import recording_loop
from rnncells.layers.contract.checks import resolve_call
from rnncells.layers.rnn import RNN
from rnncells.recurrence.pytrees import combine, inexact, zeros

# Collections of variables, and the name of the variable in each layer.
_RECORDS, _TAPS = "rnncells_records", "rnncells_taps"
_VARIABLE = "of_layer"


def record(
    layer: nn.Module,
    variables: Mapping[str, Any],
    *args: Any,
    jacobians: bool = False,
    **options: Any,
) -> dict[str, recording_loop.Recorded]:
    """Returns the values of every step of every recurrent layer in a module.

    The module can be a layer, such as `RNN`, `Bidirectional`, `Stack` or `LSTM`, or a
    model that calls such layers. It is applied as `layer.apply(variables, *args,
    **options)`, also under `jax.jit`: `jax.jit(partial(record, rnn))(params, x)`.

    >>> import jax, jax.numpy as jnp, rnncells
    >>> rnn, x = rnncells.RNN(rnncells.LSTMCell(4)), jnp.ones((2, 5, 3))
    >>> params = rnn.init(jax.random.key(0), x)
    >>> recorded = rnncells.diagnostics.record(rnn, params, x)[""]
    >>> sorted(recorded.values)
    ['a', 'c', 'f', 'g', 'h', 'i', 'o']
    >>> recorded.values["f"].shape
    (2, 5, 4)

    The names are those of local variables in the code of the cell: when a method of the
    cell returns (`recur`, `project`, `__call__` or another one), each local variable
    that holds an array names this array. So a name stands for the last array that was
    assigned to it; above, `i` is the input gate after the sigmoid. docs/diagnostics.md
    has the rules in full.

    `layer` is not bound. The arguments are those of `layer.apply`, such as `rngs` and
    `method`, and these:

    Args:
      jacobians: whether to compute the Jacobians of the steps. The carry of a row is
        one vector: its leaves, in the order of `jax.tree.leaves`, without integers. A
        step at a reset has zeros, another step outside of the mask the identity. The
        rows of a batch must not depend on each other. Jacobians need memory for
        `time * size**2` numbers in each row.
      **options: of `apply`; `mutable` are other collections that the module writes to.

    Returns:
      A `Recorded` for each recurrent layer, by its path in the module: `''` for an
      `RNN` itself, `'forward_rnn'`. If a module calls a layer more than once, later
      calls have the paths `'encoder#1'`, `'encoder#2'`.

    Raises:
      TypeError: `layer` is no flax.linen module.
      ValueError: no layer ran, or a layer cannot be recorded: its cell changes
        collections at each step, or the layer runs inside of a lifted transformation,
        such as `nn.vmap`, that does not lift `rnncells_records`.
    """
    _check_linen("record", "layer", layer)
    _, records = _apply(layer, variables, args, options, jacobians=jacobians)
    return _by_path(records)


def cotangents(
    loss: Callable[[Any], Array],
    layer: nn.Module,
    variables: Mapping[str, Any],
    *args: Any,
    **options: Any,
) -> dict[str, recording_loop.Recorded]:
    """Returns the derivatives of a loss by every value of every step.

    The result has the form that `record` returns. The entry of a value is dL/d(value)
    at that step, through all later values: the `carry` of an LSTM has dL/dc_t and
    dL/dh_t. Where a step did not count (`mask`), they are zero. The cotangents of
    integers are zeros. For complex values, they are what `jax.grad` returns.

    >>> import jax, jax.numpy as jnp, rnncells
    >>> rnn, x = rnncells.RNN(rnncells.GRUCell(4)), jnp.ones((2, 5, 3))
    >>> params = rnn.init(jax.random.key(0), x)
    >>> def loss(outputs):
    ...     return jnp.sum(outputs[:, -1])
    >>> cotangents = rnncells.diagnostics.cotangents(loss, rnn, params, x)[""]
    >>> cotangents.values["r"].shape, cotangents.carry.shape
    ((2, 5, 4), (2, 5, 4))

    The loss is a function from what the call of the module returns to a scalar; for the
    other arguments see `record`.

    Raises:
      ValueError: see `record`; a lifted transformation must lift `rnncells_taps` too.
      TypeError: the loss is no real scalar, or `layer` is no flax.linen module.
    """
    _check_linen("cotangents", "layer", layer)
    _, records = _apply(layer, variables, args, options)
    taps = jax.tree.map(
        lambda record: inexact((record.values, record.carry)),
        records,
        is_leaf=lambda leaf: isinstance(leaf, recording_loop.Recorded),
    )

    def loss_of(taps: Any) -> Array:
        outputs, _ = _apply(layer, variables, args, options, taps=taps)
        return loss(outputs)

    gradients = _by_path(jax.grad(loss_of)(zeros(taps)))
    cotangents = {}
    for path, record in _by_path(records).items():
        of_integers = zeros((record.values, record.carry))
        values, carry = combine(gradients[path], of_integers)
        cotangents[path] = recording_loop.Recorded(values, carry, record.mask)
    return cotangents


def step_values(
    cell: nn.Module,
    variables: Mapping[str, Any],
    carry: Carry,
    inputs: ArrayTree,
    *,
    rngs: Any = None,
    deterministic: bool | None = None,
) -> dict[str, Array]:
    """Returns the values of one step of a cell by name; see `record` for the names.

    >>> import jax, jax.numpy as jnp, rnncells
    >>> cell, x = rnncells.SimpleCell(4), jnp.ones((2, 3))
    >>> h = cell.initialize_carry(jax.random.key(0), x)
    >>> params = cell.init(jax.random.key(1), h, x)
    >>> sorted(rnncells.diagnostics.step_values(cell, params, h, x))
    ['a', 'h']

    `carry` is the one before the step, `inputs` one step of input, `(*batch,
    *features)`; for the other arguments see `record` and `RNN`.
    """
    _check_linen("step_values", "cell", cell)
    method = recording_loop.marked(partial(apply_step, deterministic=deterministic))

    def step(consts: tuple, inputs: ArrayTree, carry: Carry) -> Any:
        variables, rngs = consts
        return cell.apply(variables, carry, inputs, rngs=rngs, method=method)

    operands = (variables, rngs), inputs, carry
    return recording_loop.NamedStep(step, *operands)(*operands)[1].values


def _check_linen(function: str, argument: str, module: Any) -> None:
    """Raises TypeError unless an argument is an instance of a linen module."""
    if not isinstance(module, nn.Module):
        is_class = isinstance(module, type)
        got = f"the class {module.__name__}" if is_class else type(module).__name__
        raise TypeError(
            f"`{argument}` of diagnostics.{function} must be a flax.linen module, got "
            f"{got}. Pass an instance; of a module of rnncells.nnx, its linen module "
            f"and variables: {function}({argument}.linen, {argument}.variables, ...)."
        )


def _apply(
    layer: nn.Module,
    variables: Mapping[str, Any],
    args: tuple,
    options: dict[str, Any],
    *,
    jacobians: bool = False,
    taps: Mapping[str, Any] | None = None,
) -> tuple[Any, Mapping[str, Any]]:
    """Applies a module, and returns the records that each call of an RNN writes, too.

    `taps` are arrays that are added to the values, in the form of the records.
    """
    running: list[RNN] = []

    def intercept(call: Any, args: Any, kwargs: Any, context: Any) -> Any:
        rnn = context.module
        # Calls of subclasses reach the call of RNN, with its arguments.
        is_call = unwrap(context.orig_method.func) is unwrap(RNN.__call__)
        if not is_call or running:
            return call(*args, **kwargs)
        try:
            bound = signature(RNN.__call__).bind(rnn, *args, **kwargs)
        except TypeError:
            return call(*args, **kwargs)  # raises an error that explains the arguments
        _check_lifted(rnn, taps is not None)
        running.append(rnn)
        try:
            return _run(rnn, jacobians, bound.arguments)
        finally:
            running.pop()

    variables = variables if taps is None else {**variables, _TAPS: taps}
    mutable = union_filters(_RECORDS, options.get("mutable", ()))
    with nn.intercept_methods(intercept):
        outputs, written = layer.apply(
            variables, *args, **options | {"mutable": mutable}
        )
    if not written.get(_RECORDS):
        raise ValueError(
            f"`layer` must call an rnncells.RNN, got {type(layer).__name__}, which "
            "called none. Use rnncells.RNN in place of flax.linen.RNN."
        )
    return outputs, written[_RECORDS]


def _check_lifted(rnn: RNN, is_tapped: bool) -> None:
    """Raises ValueError if a lifted transformation hides the collections of records."""
    assert rnn.scope is not None
    missing = [] if rnn.is_mutable_collection(_RECORDS) else [_RECORDS]
    if is_tapped and not rnn.has_variable(_TAPS, _VARIABLE):
        missing.append(_TAPS)
    if missing:
        path, axes = rnn.scope.path_text, ", ".join(f'"{name}": 0' for name in missing)
        lifted = " and ".join(f"nn.{name}" for name in re.findall(r"(\w+)\(", path))
        raise ValueError(
            f"{type(rnn).__name__} {path!r} runs inside of {lifted}, which must pass "
            f"on what is recorded. Pass variable_axes={{..., {axes}}} to {lifted}."
        )


def _run(rnn: RNN, jacobians: bool, arguments: dict[str, Any]) -> Any:
    """Calls an RNN with a loop that records, and writes the record."""
    taps = None
    if rnn.has_variable(_TAPS, _VARIABLE):
        number = len(rnn.get_variable(_RECORDS, _VARIABLE, ()))
        taps = rnn.get_variable(_TAPS, _VARIABLE)[number]
    names = "initial_carry", "init_key", "reset_carry"
    carries = [arguments.pop(name, None) for name in names]
    call = resolve_call(arguments.pop("self"), **arguments)
    order = recording_loop.order_of(call)
    loop = recording_loop.RecordingLoop(order, taps, jacobians)
    results = rnn._results(call, rnn._run_loop(loop.run, call, *carries))
    rnn.sow(_RECORDS, _VARIABLE, loop.recorded)
    return results


def _by_path(records: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the records of each call of a layer, by its path and number."""
    return {
        "/".join(path) + (f"#{number}" if number else ""): record
        for (*path, _), calls in traverse_util.flatten_dict(dict(records)).items()
        for number, record in enumerate(calls)
    }
