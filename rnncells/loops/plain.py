"""The plain loop: it calls the cell at each step, and JAX differentiates it."""

from dataclasses import replace
from functools import partial
from typing import Any

import flax.linen as nn
import jax
from flax.core.scope import union_filters
from flax.errors import FlaxError, InvalidRngError

from rnncells.flax_internals import (
    copy_counters,
    put_missing,
    rewind,
    rng_counters,
    unbound,
)
from rnncells.gradients import is_backward
from rnncells.loops.constants import (
    InitialVariables,
    carried,
    change_error,
    check_known,
    initial_variables,
    is_shared,
    not_lifted,
)
from rnncells.loops.request import Loop, Obstacle, PureFunction, StepRequest, one_of
from rnncells.recurrence.mesh import varying_axes, varying_over
from rnncells.recurrence.pytrees import structs, zeros
from rnncells.recurrence.schedule import StepInputs

# Of an error of `flax.linen.scan`, also for side effects such as `jax.debug.print`.
_DEPENDS_ON_STEP = "data dependency on the scan body"


class PlainLoop(Loop):
    """`flax.linen.scan`, or `jax.lax.scan` of a step that Flax cannot scan."""

    name = "plain loop"
    options = {"gradient": is_backward, "implementation": one_of("auto", "scan")}

    def check(self, request: StepRequest) -> None:
        """Does nothing: the loop runs every cell."""

    def run(self, request: StepRequest) -> tuple[tuple, tuple]:
        rnn = request.rnn
        cell = request.cell if rnn.is_initializing() else request.unbound_cell
        is_new = rnn.is_initializing() and not carried(rnn, cell.variables)
        if is_new and rnn.variable_carry:
            # flax.linen.scan takes carried variables from before the loop.
            created = _created(request)
            check_known(rnn, created.varying)
            put_missing(request.cell, carried(rnn, created.create()))
        constants = not_lifted(rnn, cell.variables)
        for name in carried(rnn, cell.variables):
            # flax.linen.scan fails to carry collections that are not mutable.
            constants |= set() if rnn.is_mutable_collection(name) else {name}
        shared = {c for c in cell.variables if is_shared(rnn, c)}
        if constants | shared:
            mutated = _changed(request)
            if shared & mutated and not rnn.is_initializing():
                raise change_error(rnn, shared & mutated)
            constants -= mutated
        return _run(request, constants)


def run_once(request: StepRequest) -> tuple[tuple, tuple]:
    """Runs a request of one step: calls the cell, without a loop."""
    step = partial(request.step, request.cell)
    x = jax.tree.map(lambda leaf: leaf[0], request.xs)
    carry, ys = request.body(step, request.reset_carry, request.carry, x)
    return carry, jax.tree.map(lambda leaf: leaf[None], ys)


def _run(request: StepRequest, constants: set[str]) -> Any:
    """Runs the plain loop; `constants` are collections that no option names."""
    rnn = request.rnn
    counters = rng_counters(request.cell, whole_model=True)
    before = copy_counters(counters)
    try:
        return _flax_scan(request, constants)
    except InvalidRngError:
        raise
    except (FlaxError, ValueError) as error:
        if not (isinstance(error, FlaxError) or _DEPENDS_ON_STEP in str(error)):
            raise
        failure: Exception = error
    rewind(counters, before)
    mutated: set[str] = set()
    if rnn.is_initializing():
        created = _created(request)
        new = not_lifted(rnn, created.constants) - constants
        if new and not created.has_effects:
            return _run(request, constants | new)
        if created.has_effects:
            _create_variables(request, created)
        mutated = created.varying
        request = replace(request)  # without what it read of the cell before
    mutated |= (changed := _changed(request))
    if not changed and _has_effects(request):
        request.count_draws()
        return _scan_function(request, request.function)
    if isinstance(failure, FlaxError):
        mutated = {name for name in mutated if f'"{name}"' in str(failure)}
    raise change_error(rnn, mutated) if mutated else failure


def _created(request: StepRequest) -> InitialVariables:
    """Returns the variables that the cell creates."""
    x_t = structs(request.xs.inputs, drop_axis=0)
    return initial_variables(request.rnn, request.step, request.carry[0], x_t)


def _create_variables(request: StepRequest, created: InitialVariables) -> None:
    """Creates the variables of a cell with side effects."""
    if not unbound(request.cell).has_outside_modules:
        put_missing(request.cell, created.create())
        return
    # Initial values of modules elsewhere depend on their place, so they are called.
    x_t = structs(request.xs.inputs, drop_axis=0)
    request.step(request.cell, *zeros((structs(request.carry[0]), x_t)))


def _changed(request: StepRequest) -> set[str]:
    """Returns the collections of the cell that a step changes, if that is known."""
    try:
        return request.effects.updates & request.unbound_cell.variables.keys()
    except Obstacle:
        return set()


def _has_effects(request: StepRequest) -> bool:
    """Says whether the step is a function that has side effects."""
    try:
        return request.effects.has_effects
    except Obstacle:
        return False


def _scan_function(request: StepRequest, pure: PureFunction) -> tuple[tuple, Any]:
    """Runs `jax.lax.scan` over the step as a function."""

    def one_step(carry: tuple, x: tuple) -> tuple[tuple, Any]:
        carry, (ys, _) = pure.function(pure.consts, carry, x)
        return carry, ys

    return jax.lax.scan(one_step, request.carry, pure.xs, unroll=request.unroll)


def _flax_scan(request: StepRequest, constants: set[str]) -> Any:
    """Runs `flax.linen.scan` over the step."""
    rnn, carry, xs = request.rnn, request.carry, request.xs
    assert rnn.scope is not None
    operands = request.reset_carry, carry, xs
    axes = varying_axes((request.cell.variables, request.cell.scope.rngs, operands))

    def one_step(cell: nn.Module, carry: tuple, x: StepInputs) -> tuple:
        step = partial(request.step, cell)
        carry, ys = request.body(step, request.reset_carry, carry, x)
        return varying_over(carry, axes), ys

    scan = nn.scan(
        one_step,
        unroll=request.unroll,
        variable_axes=rnn.variable_axes,
        variable_broadcast=union_filters(rnn.variable_broadcast, constants),
        variable_carry=rnn.variable_carry,
        split_rngs=rnn.rng_streams,
    )
    try:
        return scan(request.cell, varying_over(carry, axes), xs)
    except InvalidRngError as error:
        missing = sorted(set(rnn.scope.rngs) - set(rnn.rng_streams))
        if not missing:
            raise
        raise InvalidRngError(
            f"{request.cell_name} draws random numbers, but RNN passes only "
            f"the streams {sorted(rnn.rng_streams)} to it. Add the stream to "
            f"`split_rngs` of RNN: {{'params': False, {missing[0]!r}: True}}. "
            f"({error})"
        ) from error
