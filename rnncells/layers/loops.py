"""The loops over time of a cell: the plain loop, and the fast loop."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.core.scope import union_filters
from flax.errors import FlaxError, InvalidRngError

from rnncells.cells.any_step import apply_step
from rnncells.cells.carry import Carry
from rnncells.layers.constants import (
    InitialVariables,
    carried,
    change_error,
    changed,
    check_known,
    initial_variables,
    is_per_step,
    is_shared,
    not_lifted,
    put_missing,
    writable,
)
from rnncells.layers.rng_streams import (
    RngStreams,
    available_streams,
    copied,
    count_draws,
    is_key,
    rewind,
    set_counters,
)
from rnncells.layers.unbinding import UnboundCell, unbound
from rnncells.recurrence import engine, memory
from rnncells.recurrence.mesh import has_mesh_types, varying_axes, varying_over
from rnncells.recurrence.pytrees import inexact, structs, zeros
from rnncells.recurrence.split_step import SplitStep
from rnncells.recurrence.vmap_limits import has_side_effects, why_not_vmapped

FAST_LOOP_OPTIONS = {"memory": "full", "projection": "auto"}  # with their defaults
# Measured on an H200 (docs/benchmarks-gpu.md): 2 are slower, 8 and 16 gain little.
_STEPS_ON_GPU = 4
# Of an error of `flax.linen.scan`, also for side effects such as `jax.debug.print`.
_DEPENDS_ON_STEP = "data dependency on the scan body"
_OUTSIDE_MODULES_DRAW = (
    "needs modules that draw random numbers to belong to the cell; {} contains others. "
    "If nn.compact creates both, create them in `setup`."
)
_USES_OUTSIDE_VARIABLES = (
    "needs a cell that uses only its own variables; {} uses others. If it contains a "
    "cell and nn.compact creates both, create them in `setup`."
)


def single_step(cell: nn.Module, step: Callable) -> Callable:
    """Returns a loop over sequences of one step, time first; it calls the cell once."""

    def loop(body: Callable, reset_carry: Any, carry: tuple, xs: Any) -> tuple:
        x = jax.tree.map(lambda leaf: leaf[0], xs)
        carry, ys = body(partial(step, cell), reset_carry, carry, x)
        return carry, jax.tree.map(lambda leaf: leaf[None], ys)

    return loop


def plain_loop(rnn: nn.Module, axis: int, step: Callable) -> Callable:
    """Returns the plain loop: it calls the cell at each step; JAX differentiates it."""

    def loop(*operands: Any) -> tuple:
        cell = rnn.cell if rnn.is_initializing() else unbound(rnn.cell)
        is_new = rnn.is_initializing() and not carried(rnn, cell.variables)
        if is_new and rnn.variable_carry:
            # flax.linen.scan takes carried variables from before the loop.
            created = _created(rnn, axis, step, operands)
            check_known(rnn, created.varying)
            put_missing(rnn.cell, carried(rnn, created.create()))
        constants = not_lifted(rnn, cell.variables)
        for name in carried(rnn, cell.variables):
            # flax.linen.scan fails to carry collections that are not mutable.
            constants |= set() if rnn.is_mutable_collection(name) else {name}
        shared = {c for c in cell.variables if is_shared(rnn, c)}
        if constants | shared:
            mutated = _as_function(rnn, axis, step, operands).changed
            if shared & mutated and not rnn.is_initializing():
                raise change_error(rnn, shared & mutated)
            constants -= mutated
        return _plain(rnn, axis, step, constants, operands)

    return loop


def _plain(
    rnn: nn.Module, axis: int, step: Callable, constants: set[str], operands: tuple
) -> Any:
    """Runs the plain loop; `constants` are collections that no option names."""
    counters = rnn.cell.scope.root.rng_counters  # also of modules elsewhere
    before = copied(counters)
    try:
        return _flax_scan(rnn, axis, step, constants, *operands)
    except InvalidRngError:
        raise
    except (FlaxError, ValueError) as error:
        if not (isinstance(error, FlaxError) or _DEPENDS_ON_STEP in str(error)):
            raise
        failure: Exception = error
    rewind(counters, before)
    mutated: set[str] = set()
    if rnn.is_initializing():
        created = _created(rnn, axis, step, operands)
        new = not_lifted(rnn, created.constants) - constants
        if new and not created.has_effects:
            return _plain(rnn, axis, step, constants | new, operands)
        if created.has_effects:
            _create_variables(rnn, axis, step, created, operands)
        mutated = created.varying
    as_function = _as_function(rnn, axis, step, operands)
    mutated |= as_function.changed
    if (
        as_function.pure is not None
        and as_function.has_effects
        and not as_function.changed
    ):
        return _scan_function(rnn, axis, as_function.pure, operands[2])
    if isinstance(failure, FlaxError):
        mutated = {name for name in mutated if f'"{name}"' in str(failure)}
    raise change_error(rnn, mutated) if mutated else failure


def _created(
    rnn: nn.Module, axis: int, step: Callable, operands: tuple
) -> InitialVariables:
    """Returns the variables that the cell creates; `operands` are those of the loop."""
    (state, _), xs = operands[2:]
    return initial_variables(rnn, step, state, structs(xs[0], drop_axis=axis))


def _create_variables(
    rnn: nn.Module, axis: int, step: Callable, created: InitialVariables, operands: Any
) -> None:
    """Creates the variables of a cell with side effects."""
    if not unbound(rnn.cell).has_outside_modules:
        put_missing(rnn.cell, created.create())
        return
    # Initial values of modules elsewhere depend on their place, so they are called.
    (state, _), xs = operands[2:]
    step(rnn.cell, *zeros((structs(state), structs(xs[0], drop_axis=axis))))


class _AsFunction(NamedTuple):
    """The step of a layer's cell as a function, for the plain loop.

    Attributes:
      pure: the function, or None.
      changed: the collections of the cell that a step changes.
      has_effects: whether a step has side effects.
    """

    pure: "PureFunction | None"
    changed: set[str]
    has_effects: bool


def _as_function(
    rnn: nn.Module, axis: int, step: Callable, operands: tuple
) -> _AsFunction:
    """Traces the step of a cell as a function; `operands` are those of the loop."""
    body, reset_carry, carry, xs = operands
    xs = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, axis, 0), xs)
    try:
        pure, _ = pure_function(rnn, carry, xs, body, reset_carry, step)
        if pure is None:
            return _AsFunction(None, set(), False)
        args = pure.consts, carry, structs(pure.xs, drop_axis=0)
        jaxpr, shapes = jax.make_jaxpr(pure.function, return_shape=True)(*args)
    except FlaxError:
        return _AsFunction(None, set(), False)
    _, (_, updates) = shapes
    names = unbound(rnn.cell).variables.keys() & updates.keys()
    return _AsFunction(pure, names, has_side_effects(jaxpr))


def _scan_function(
    rnn: nn.Module, axis: int, pure: "PureFunction", carry: tuple
) -> Any:
    """Runs `jax.lax.scan` over the step as a function."""

    def one_step(carry: tuple, x: tuple) -> tuple[tuple, Any]:
        carry, (ys, _) = pure.function(pure.consts, carry, x)
        return carry, ys

    set_counters(pure.counters, rnn.cell.scope.rng_counters)
    unroll = _unroll(rnn, jax.tree.leaves(pure.xs)[0].shape[0])
    carry, ys = jax.lax.scan(one_step, carry, pure.xs, unroll=unroll)
    return carry, jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, axis), ys)


def _flax_scan(
    rnn: nn.Module,
    axis: int,
    step: Callable,
    constants: set[str],
    body: Callable,
    reset_carry: chex.ArrayTree,
    carry: tuple,
    xs: tuple,
) -> Any:
    """Runs `flax.linen.scan` over the step."""

    assert rnn.scope is not None
    keys = rnn.cell.scope.rngs
    axes = varying_axes((rnn.cell.variables, keys, reset_carry, carry, xs))

    def one_step(cell: nn.Module, carry: tuple, x: tuple) -> tuple:
        carry, ys = body(partial(step, cell), reset_carry, carry, x)
        return varying_over(carry, axes), ys

    scan = nn.scan(
        one_step,
        in_axes=axis,
        out_axes=axis,
        unroll=_unroll(rnn, jax.tree.leaves(xs)[0].shape[axis]),
        variable_axes=rnn.variable_axes,
        variable_broadcast=union_filters(rnn.variable_broadcast, constants),
        variable_carry=rnn.variable_carry,
        split_rngs=rnn.rng_streams,
    )
    try:
        return scan(rnn.cell, varying_over(carry, axes), xs)
    except InvalidRngError as error:
        missing = sorted(set(rnn.scope.rngs) - set(rnn.rng_streams))
        if not missing:
            raise
        raise InvalidRngError(
            f"{type(rnn.cell).__name__} draws random numbers, but RNN passes only "
            f"the streams {sorted(rnn.rng_streams)} to it. Add the stream to "
            f"`split_rngs` of RNN: {{'params': False, {missing[0]!r}: True}}. "
            f"({error})"
        ) from error


def fast_loop(rnn: nn.Module, axis: int, step: Callable) -> Callable:
    """Returns the fast loop; for a cell that it cannot run, the plain loop.

    The loop raises ValueError if `memory` or `projection` of the layer is set, but the
    fast loop cannot run.

    Args:
      rnn: the layer, bound.
      axis: position of the time axis.
      step: `(cell, carry, inputs) -> (carry, output)`, see `apply_step`.
    """
    plain = plain_loop(rnn, axis, step)
    if rnn.implementation == "scan" or rnn.is_initializing():
        return plain

    def loop(body: Callable, reset_carry: Any, carry: tuple, xs: Any) -> tuple:
        by_time = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, axis, 0), xs)
        if jax.tree.leaves(by_time)[0].shape[0] == 0:
            return plain(body, reset_carry, carry, xs)
        pure, reason = pure_step(rnn, carry, by_time, body, reset_carry, step)
        if reason is not None:
            check_default_options(rnn, f"which {reason}")
        if pure is None:
            return plain(body, reset_carry, carry, xs)
        full = _without_policy(rnn, pure, carry)
        plan = _plan(rnn, pure, carry, rnn.memory, full)
        if plan.saves_all and not pure.step.products and rnn.projection == "auto":
            return plain(body, reset_carry, carry, xs)
        if plan.saves_all and rnn.memory != "full":
            # The program is that of memory='full', with its chunks of the projection.
            pure, plan = full, _plan(rnn, full, carry, "full", full)
        set_counters(pure.counters, rnn.cell.scope.rng_counters)
        carry, (ys, _) = _run_engine(rnn, pure, carry, plan)
        return carry, jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, axis), ys)

    return loop


def run_fast(
    rnn: nn.Module, pure: "PureStep", carry: chex.ArrayTree
) -> tuple[chex.ArrayTree, chex.ArrayTree]:
    """Runs the fast loop; returns the last carry and the outputs, time first."""
    return _run_engine(rnn, pure, carry, _plan(rnn, pure, carry, rnn.memory, pure))


def _run_engine(
    rnn: nn.Module, pure: "PureStep", carry: chex.ArrayTree, plan: memory.Plan
) -> tuple:
    steps = jax.tree.leaves(pure.xs)[0].shape[0]
    recurrence = engine.Recurrence(pure.step, plan, _unroll(rnn, steps))
    weights = pure.step.weights(pure.consts)
    return engine.run(recurrence, engine.EngineOperands(weights, carry, pure.xs))


def _plan(
    rnn: nn.Module,
    pure: "PureStep",
    carry: chex.ArrayTree,
    choice: memory.Memory,
    full: "PureStep",
) -> memory.Plan:
    """Returns the chunks of the fast loop and the residuals that it saves.

    Args:
      rnn: the layer, bound.
      pure: the step.
      carry: before the first step.
      choice: of `memory`.
      full: the step without the values that a policy chooses to save.
    """
    weights = jax.eval_shape(pure.step.weights, pure.consts)
    z = engine.projected_structs(pure.step, weights, pure.xs)
    steps = jax.tree.leaves(pure.xs)[0].shape[0]
    operands = memory.OperandStructs(inexact(pure.consts), carry, pure.xs)
    if pure is not full:
        pairs = zip(weights.products, pure.step.chosen, strict=True)
        chosen = [product.result for product, is_chosen in pairs if is_chosen]
        weights = jax.eval_shape(full.step.weights, full.consts)
        full_operands = engine.EngineOperands(weights, carry, full.xs)
        saved = engine.saved_by_full(full.step, full_operands)
        operands = operands._replace(chosen=chosen, full=saved)
    return memory.plan(steps, z, choice, rnn.projection, operands)


def _without_policy(
    rnn: nn.Module, pure: "PureStep", carry: chex.ArrayTree
) -> "PureStep":
    """Returns the step without the values that a policy chooses to save."""
    if memory.checkpoint_policy_of(rnn.memory) is None:
        return pure
    x = structs(pure.xs, drop_axis=0)
    return pure._replace(step=SplitStep(pure.function, pure.consts, carry, x))


def _unroll(rnn: nn.Module, steps: Any) -> int:
    """Returns the number of steps in one iteration of the loop, of `steps` in all."""
    if not isinstance(steps, int):  # `jax.lax.scan` unrolls no symbolic length
        return 1
    if rnn.unroll is not None:
        return rnn.unroll
    return _STEPS_ON_GPU if jax.default_backend() == "gpu" else 1


def check_default_options(rnn: nn.Module, why: str) -> None:
    """Raises ValueError if an option of the fast loop is set and it cannot run."""
    for name, default in FAST_LOOP_OPTIONS.items():
        value = getattr(rnn, name)
        if value != default:
            raise ValueError(
                f"{name}={value!r} of RNN needs the fast loop, {why} Remove `{name}`, "
                "or use a cell that the fast loop supports (see `implementation` of "
                "RNN)."
            )


def why_not_pure(
    rnn: nn.Module, variables: Mapping, carry: Carry, inputs: chex.ArrayTree
) -> str | None:
    """Returns the reason why a step is not a pure function of arrays, or None.

    Args:
      rnn: the layer, bound.
      variables: of its cell.
      carry: before the first step.
      inputs: of all steps.
    """
    name = type(rnn.cell).__name__
    by_step = sorted(c for c in variables if is_per_step(rnn, c))
    if by_step:
        return (
            f"needs collections that are the same at each step; `variable_axes` of RNN "
            f"has {by_step} of {name}."
        )
    if not all(isinstance(stream, str) for stream in rnn.rng_streams):
        return f"needs the names of random streams; got {list(rnn.rng_streams)}."
    if any(is_key(leaf) for leaf in jax.tree.leaves(dict(variables))):
        return f"needs variables that are numbers; {name} has random keys among them."
    if has_mesh_types((variables, carry, inputs)):
        return (
            "does not support arrays with mesh types, as in explicit sharding or "
            "`shard_map` with `check_vma`."
        )
    return None


class PureFunction(NamedTuple):
    """The step of a layer's cell as a pure function, with its operands.

    Attributes:
      function: `(consts, carry, x) -> (carry, (output, changed))`; `changed` are the
        collections that the cell changes.
      consts: the same at each step: variables, keys, and the carry of resets.
      xs: one for each step, `(time, ...)`: inputs, masks and resets, and keys.
      counters: of random draws, after the loop.
    """

    function: Callable
    consts: chex.ArrayTree
    xs: chex.ArrayTree
    counters: dict


class PureStep(NamedTuple):
    """The step of a layer's cell, split by the engine, with its operands.

    Attributes:
      step: `(consts, carry, x) -> (carry, output)`, as the engine runs it.
      function: the same step as a function.
      consts: the same at each step: variables, keys, and the carry of resets.
      xs: one for each step, `(time, ...)`: inputs, masks and resets, and keys.
      counters: of random draws, after the loop.
    """

    step: SplitStep
    function: Callable
    consts: chex.ArrayTree
    xs: chex.ArrayTree
    counters: dict


def one_call(step: Callable, reset_carry: None, carry: tuple, x: tuple) -> tuple:
    """Calls a step, as the body of a loop without lengths, masks and resets."""
    (state, _), (inputs,) = carry, x
    new, output = step(state, inputs)
    return (new, None), (None, output)


def pure_step(
    rnn: nn.Module,
    carry: tuple[Carry, Carry | None],
    xs: tuple,
    body: Callable = one_call,
    reset_carry: chex.ArrayTree = None,
    step: Callable | None = None,
) -> tuple[PureStep | None, str | None]:
    """Returns the step of a layer's cell, or None and why the fast loop cannot run it.

    Args:
      rnn: the layer, bound.
      carry: carry of `body` before the first step; its first element is the cell's.
      xs: arguments of `body` at each step, `(time, ...)`; first inputs of the cell.
      body: `(step, reset_carry, carry, x) -> (carry, (history, output))`, see
        `schedule.scan`.
      reset_carry: carry after a reset.
      step: `(cell, carry, inputs) -> (carry, output)`; default: `apply_step`.
    """
    try:
        pure, reason = pure_function(rnn, carry, xs, body, reset_carry, step)
        if reason is not None:
            return None, reason
        assert pure is not None
        x = structs(pure.xs, drop_axis=0)
        policy = memory.checkpoint_policy_of(rnn.memory)
        split = SplitStep(pure.function, pure.consts, carry, x, policy)
    # The plain loop has the missing random stream or variable, or raises, too.
    except InvalidRngError as error:
        return None, (
            "needs each random stream of the cell in `rngs` and in `split_rngs`, as in "
            f"split_rngs={{'params': False, 'dropout': True}}: {error}"
        )
    except FlaxError:
        return None, _USES_OUTSIDE_VARIABLES.format(type(rnn.cell).__name__)
    _, (_, updates) = split.result
    name = type(rnn.cell).__name__
    if jax.tree.leaves(updates):
        return None, (
            "needs a cell that writes to no collection; "
            f"{name} writes to {sorted(updates)}, for example with `sow`."
        )
    limit = why_not_vmapped(split.jaxpr, split.varying)
    if limit is not None:
        return None, (
            "needs a step that `jax.vmap` can map, because it takes the derivatives of "
            f"all steps at once; {name} {limit}."
        )
    return PureStep(split, pure.function, pure.consts, pure.xs, pure.counters), None


def pure_function(
    rnn: nn.Module,
    carry: tuple[Carry, Carry | None],
    xs: tuple,
    body: Callable = one_call,
    reset_carry: chex.ArrayTree = None,
    step: Callable | None = None,
) -> tuple[PureFunction | None, str | None]:
    """Returns the step of a layer's cell as a function, or None and why there is none.

    Arguments are those of `pure_step`.

    Raises:
      FlaxError: the cell needs a random stream or a variable that it does not have.
    """
    step = apply_step if step is None else step
    state, inputs = carry[0], xs[0]
    cell = unbound(rnn.cell)
    if reason := why_not_pure(rnn, cell.variables, state, inputs):
        return None, reason
    streams = available_streams(rnn, jax.tree.leaves(inputs)[0].shape[0])
    consts = (cell.variables, streams.fixed), reset_carry
    counters, after = _counters(rnn, cell, step, state, inputs, streams)
    draws = _draws(counters) != _draws(rnn.cell.scope.rng_counters)
    if cell.has_outside_modules and draws:
        # Their keys would depend on their place in the cell.
        return None, _OUTSIDE_MODULES_DRAW.format(type(rnn.cell).__name__)
    function = _step_function(rnn, cell.module, step, body, streams, counters)
    return PureFunction(function, consts, (xs, streams.stepwise), after), None


def _step_function(
    rnn: nn.Module,
    cell: nn.Module,
    step: Callable,
    body: Callable,
    streams: RngStreams,
    counters: dict,
) -> Callable:
    """Returns a step as a function, `(consts, carry, x) -> (carry, output)`.

    The output is a pair: that of the body, and the collections that the cell changes.
    """
    mutable = writable(rnn.cell)

    def call(cell: Any, carry: Carry, inputs: Any) -> tuple:
        set_counters(counters, cell.scope.rng_counters)
        return step(cell, carry, inputs)

    def pure(consts: tuple, carry: tuple, x: tuple) -> tuple:
        ((variables, fixed), reset_carry), (inputs, keys) = consts, x
        options: dict[str, Any] = {"rngs": streams.rngs(fixed, keys)}
        options |= {"mutable": mutable, "method": call}

        def apply(carry: Carry, inputs: chex.ArrayTree) -> tuple:
            results = cell.apply(variables, carry, inputs, **options)
            (carry, output), updates = results
            return carry, (output, changed(variables, updates))

        carry, (history, (output, updates)) = body(apply, reset_carry, carry, inputs)
        return carry, ((history, output), updates)

    return pure


def _draws(counters: dict) -> int:
    """Returns the number of random draws that counters have counted."""
    # The keys cannot be sorted, so the dictionary is no pytree.
    values = counters.values()
    return sum(_draws(v) if isinstance(v, dict) else v for v in values)


def _counters(
    rnn: nn.Module,
    cell: UnboundCell,
    step: Callable,
    carry: Carry,
    inputs: chex.ArrayTree,
    streams: RngStreams,
) -> tuple[dict, dict]:
    """Returns counters of random draws: before a step, and after the loop."""
    if not streams.like:
        return {}, {}
    x_t = structs(inputs, drop_axis=0)
    count = partial(count_draws, cell.module, step)
    initial = rnn.cell.scope.rng_counters
    counters = count(initial, cell.variables, carry, x_t, streams.like)
    # Later draws continue with the counters that flax.linen.scan leaves.
    return counters, count(counters, cell.variables, carry, x_t, streams.like)
