"""The plain loop: it calls the cell at each step, and JAX differentiates it.

A collection besides the params that the cell only reads is the same at each step. A
collection that it changes needs an option of the layer, which says how the steps share
it.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
from flax.core.scope import in_filter, union_filters
from flax.errors import FlaxError, InvalidRngError

from rnncells import flax_internals
from rnncells.flax_internals import (
    draw_counts,
    put_missing,
    rng_counters,
    set_draw_counts,
    unbound,
)
from rnncells.loops.request import Loop, Obstacle, StepEffects, StepRequest
from rnncells.recurrence import jaxprs
from rnncells.recurrence.mesh import varying_axes, varying_over
from rnncells.recurrence.pytrees import structs, zeros
from rnncells.recurrence.schedule import StepInputs

Variables = Mapping[str, Any]

# Of an error of `flax.linen.scan`, also for side effects such as `jax.debug.print`.
_DEPENDS_ON_STEP = "data dependency on the scan body"


class PlainLoop(Loop):
    """`flax.linen.scan`, or `jax.lax.scan` of a step that Flax cannot scan."""

    name = "plain loop"
    options = {
        "gradient": ("exact", "backward", "hooked"),
        "implementation": ("auto", "scan"),
    }

    def check(self, request: StepRequest) -> None:
        """Does nothing: the loop runs every cell."""

    def run(self, request: StepRequest) -> tuple[tuple, tuple]:
        rnn = request.rnn
        cell = request.cell if rnn.is_initializing() else request.unbound_cell
        is_new = rnn.is_initializing() and not _carried(rnn, cell.variables)
        if is_new and rnn.variable_carry:
            # flax.linen.scan takes carried variables from before the loop.
            created = _created(request)
            for collection in _carried(rnn, dict.fromkeys(created.varying)):
                raise ValueError(
                    f"variable_carry={rnn.variable_carry!r} of RNN needs initial "
                    f"values that depend on no step, but {request.cell_name} makes "
                    f"those of the collection {collection!r} from its inputs or its "
                    "carry. Initialize the collection with constants, such as zeros."
                )
            put_missing(request.cell, _carried(rnn, created.create()))
        constants = _not_lifted(rnn, cell.variables)
        for name in _carried(rnn, cell.variables):
            # flax.linen.scan fails to carry collections that are not mutable.
            constants |= set() if rnn.is_mutable_collection(name) else {name}
        shared = {c for c in cell.variables if _is_shared(rnn, c)}
        if constants | shared:
            mutated, _ = _effects(request)
            if shared & mutated and not rnn.is_initializing():
                raise _change_error(rnn, shared & mutated)
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
    before = draw_counts(counters)
    try:
        return _flax_scan(request, constants)
    except InvalidRngError:
        raise
    except (FlaxError, ValueError) as error:
        if not (isinstance(error, FlaxError) or _DEPENDS_ON_STEP in str(error)):
            raise
        failure: Exception = error
    drawn = draw_counts(counters)
    set_draw_counts(counters, {name: before.get(name, 0) for name in drawn})
    mutated: set[str] = set()
    if rnn.is_initializing():
        created = _created(request)
        new = _not_lifted(rnn, created.constants) - constants
        if new and not created.has_effects:
            return _run(request, constants | new)
        if created.has_effects and unbound(request.cell).has_outside_modules:
            # Initial values of modules elsewhere depend on their place.
            operands = request.carry[0], structs(request.xs.inputs, drop_axis=0)
            request.step(request.cell, *zeros(structs(operands)))
        elif created.has_effects:
            put_missing(request.cell, created.create())
        mutated = created.varying
        request = replace(request)  # without what it read of the cell before
    changed, has_effects = _effects(request)
    if has_effects and not changed:
        request.count_draws()
        return _scan_function(request)
    mutated |= changed
    if isinstance(failure, FlaxError):
        mutated = {name for name in mutated if f'"{name}"' in str(failure)}
    raise _change_error(rnn, mutated) if mutated else failure


def _effects(request: StepRequest) -> StepEffects:
    """Returns the effects of a step on its cell; none if they are not known."""
    try:
        updates, has_effects = request.effects
    except Obstacle:
        return StepEffects(set(), False)
    return StepEffects(updates & request.unbound_cell.variables.keys(), has_effects)


def _scan_function(request: StepRequest) -> tuple[tuple, Any]:
    """Runs `jax.lax.scan` over the step as a function."""
    function, consts, xs, _ = request.function

    def step(carry: tuple, x: tuple) -> tuple[tuple, Any]:
        carry, (ys, _) = function(consts, carry, x)
        return carry, ys

    return jax.lax.scan(step, request.carry, xs, unroll=request.unroll)


def _flax_scan(request: StepRequest, constants: set[str]) -> Any:
    """Runs `flax.linen.scan` over the step."""
    rnn, carry, xs = request.rnn, request.carry, request.xs
    assert rnn.scope is not None
    operands = request.reset_carry, carry, xs
    axes = varying_axes((request.cell.variables, request.cell.scope.rngs, operands))

    def step(cell: nn.Module, carry: tuple, x: StepInputs) -> tuple:
        cell_step = partial(request.step, cell)
        carry, ys = request.body(cell_step, request.reset_carry, carry, x)
        return varying_over(carry, axes), ys

    scan = nn.scan(
        step,
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


def _is_shared(rnn: nn.Module, collection: str) -> bool:
    """Says whether `variable_broadcast` names a collection besides the params."""
    return collection != "params" and in_filter(rnn.variable_broadcast, collection)


def _carried(rnn: nn.Module, variables: Variables) -> dict[str, Any]:
    """Returns the collections that a step continues with from the step before it."""
    return {
        name: tree
        for name, tree in variables.items()
        if not in_filter(rnn.variable_broadcast, name)
        and in_filter(rnn.variable_carry, name)
    }


def _not_lifted(rnn: nn.Module, collections: Iterable[str]) -> set[str]:
    """Returns the collections for which no option of the layer says what they are."""
    filters = rnn.variable_broadcast, rnn.variable_carry, *rnn.variable_axes
    return {c for c in collections if not any(in_filter(f, c) for f in filters)}


def _change_error(rnn: nn.Module, collections: Iterable[str]) -> ValueError:
    """Returns the error of a cell that writes to collections at each step."""
    name, names = type(rnn.cell).__name__, sorted(collections)
    return ValueError(
        f"{name} writes to the collections {names} at each step, and RNN must know how "
        f"the steps share them. Pass variable_carry={names[0]!r} to RNN if a step "
        "continues with the values of the step before it, or variable_axes="
        f"{{{names[0]!r}: axis}} if each step has its own values. "
        "(`variable_broadcast` is for collections that the cell only reads; they need "
        "no option.)"
    )


class _InitialVariables(NamedTuple):
    """The variables that a cell creates in its first step."""

    constants: set[str]  # collections that depend on neither the carry nor the inputs
    varying: set[str]  # the other collections
    has_effects: bool  # of the step, such as `jax.debug.print`
    create: Callable[[], dict[str, Any]]  # returns `constants`, without a step


def _created(request: StepRequest) -> _InitialVariables:
    """Returns the variables that the cell creates in its first step."""
    cell = request.cell

    def init(_: tuple, operands: tuple) -> Variables:
        scope = flax_internals.initializing_scope(cell)
        clone = unbound(cell).module.clone(parent=scope, _deep_clone=True)
        request.step(clone, *operands)
        return scope.mutable_variables()

    operands = structs(request.carry[0]), structs(request.xs.inputs, drop_axis=0)
    equations, shapes = jaxprs.trace(init, (), operands)
    stages = equations.stages
    variables = jax.tree.unflatten(jax.tree.structure(shapes), equations.results)
    varying = {
        name
        for name, tree in variables.items()
        if any(jaxprs.is_variable(v) and stages[v] for v in jax.tree.leaves(tree))
    }
    constants = {name: variables[name] for name in variables.keys() - varying}

    def create() -> dict[str, Any]:
        atoms, treedef = jax.tree.flatten(constants)
        values = dict(equations.constants)
        jaxprs.evaluate(jaxprs.live_equations(equations.equations, atoms), values)
        return jax.tree.unflatten(treedef, jaxprs.read(values, atoms))

    has_effects = jaxprs.has_side_effects(equations.jaxpr)
    return _InitialVariables(set(constants), varying, has_effects, create)
