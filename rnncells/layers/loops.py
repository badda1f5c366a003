"""The loops over time of a cell: the plain loop for any cell, and the fast loop."""

from collections.abc import Callable
from functools import partial

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.core import DenyList
from flax.errors import FlaxError

from rnncells.base import RNNCellBase
from rnncells.carry import Carry, cast_like
from rnncells.checks import check_stepped
from rnncells.layers.checks import check_kept
from rnncells.layers.streams import (
    Streams,
    copied,
    count_draws,
    count_from,
    streams_of,
)
from rnncells.recurrence import engine, memory
from rnncells.recurrence.mesh import has_mesh_types
from rnncells.recurrence.parts import Recurrence
from rnncells.recurrence.trees import StructTree, structs
from rnncells.recurrence.vmap_limits import drawn, why_not_vmapped


def general_loop(rnn: nn.Module, axis: int) -> Callable:
    """Returns the plain loop: it calls the cell at each step; JAX differentiates it."""

    def loop(body, fresh, carry, xs):
        def one_step(cell, carry, x):
            return body(partial(step_of, cell), fresh, carry, x)

        scan = nn.scan(
            one_step,
            in_axes=axis,
            out_axes=axis,
            unroll=rnn.unroll,
            variable_axes=rnn.variable_axes,
            variable_broadcast=rnn.variable_broadcast,
            variable_carry=rnn.variable_carry,
            split_rngs=rnn.streams,
        )
        return scan(rnn.cell, carry, xs)

    return loop


def choose_loop(rnn: nn.Module, carry: Carry, inputs: chex.ArrayTree) -> Callable:
    """Returns `fast_loop` if it can run the layer, else `general_loop`.

    Args:
      rnn: the layer.
      carry: carry before the first step.
      inputs: `(time, *batch, *features)`.

    Raises:
      ValueError: `memory` or `projection` is set, but the fast loop cannot run.
    """
    is_empty = jax.tree.leaves(inputs)[0].shape[0] == 0
    if rnn.implementation == "scan" or rnn.is_initializing() or is_empty:
        return general_loop
    reason = _why_not_fast(rnn, carry, inputs)
    if reason is None:
        return fast_loop
    check_no_choice(rnn, f"which {reason}")
    return general_loop


def check_no_choice(rnn: nn.Module, why: str) -> None:
    """Raises ValueError if an option of the fast loop is set and it cannot run."""
    for name, default in (("memory", "full"), ("projection", "auto")):
        value = getattr(rnn, name)
        if value != default:
            raise ValueError(
                f"{name}={value!r} of RNN needs the fast loop, {why} Without the fast "
                f"loop, `{name}` must be {default!r}."
            )


def _why_not_fast(rnn: nn.Module, carry: Carry, inputs: chex.ArrayTree) -> str | None:
    """Returns why the fast loop cannot run the cell, or None if it can."""
    cell = rnn.cell
    name, own = type(cell).__name__, {"params"}
    if not isinstance(cell, RNNCellBase):
        return (
            "needs a cell derived from rnncells.RNNCellBase; got "
            f"{type(cell).__module__}.{name}."
        )
    if type(cell).__call__ is not RNNCellBase.__call__:
        return f"needs RNNCellBase's own `__call__`; {name} overrides `__call__`."
    lifts = rnn.variable_broadcast, rnn.variable_carry
    if lifts != ("params", False) or rnn.variable_axes:
        return (
            "needs the default `variable_axes`, `variable_broadcast` and "
            f"`variable_carry`; got {dict(rnn.variable_axes)}, {lifts[0]!r} and "
            f"{lifts[1]!r}."
        )
    if not all(isinstance(stream, str) for stream in rnn.streams):
        return f"needs the names of random streams; got {list(rnn.streams)}."
    if set(cell.variables) - own:
        return (
            "needs a cell whose only collection is 'params'; "
            f"{name} has the collections {sorted(cell.variables)}."
        )
    if has_mesh_types((cell.variables, carry, inputs)):
        return (
            "does not support arrays with mesh types, as in explicit sharding or "
            "`shard_map` with `check_vma`."
        )
    return _why_not_pure(rnn, carry, structs(inputs, drop_axis=True))


def _why_not_pure(rnn: nn.Module, carry: Carry, inputs: chex.ArrayTree) -> str | None:
    """Returns why a step depends on more than params, carry, inputs and keys.

    Or why it cannot be taken at all steps at once.
    """
    name, is_mutable = type(rnn.cell).__name__, bool(rnn.cell.scope.root.mutable)
    streams = streams_of(rnn, 1)
    cell, variables = rnn.cell.unbind()
    mutable = DenyList("params") if is_mutable else False

    def step(variables, fixed, carry, inputs, stepwise):
        rngs = streams.rngs(fixed, stepwise)
        return cell.apply(variables, carry, inputs, mutable=mutable, rngs=rngs)

    same = variables, streams.fixed
    other = carry, inputs, jax.tree.map(lambda leaf: leaf[0], streams.stepwise)
    try:
        traced, (_, written) = jax.make_jaxpr(step, return_shape=True)(*same, *other)
        reason = _why_not_projected(cell, carry, inputs, variables, streams)
    except FlaxError:
        # A missing variable or random stream. The plain loop has it or raises, too.
        return (
            f"needs a cell that uses only its own params; {name} uses others. If it "
            "contains a cell and nn.compact creates both, create them in `setup`."
        )
    if is_mutable and jax.tree.leaves(written):
        return f"needs a cell that writes to no collection; {name} writes to one."
    if any(isinstance(const, jax.core.Tracer) for const in traced.consts):
        return (
            f"needs a cell without traced arrays; {name} holds or closes over some. "
            "Pass them as parameters or inputs."
        )
    count = len(jax.tree.leaves(same))
    varying = [k >= count for k in range(len(traced.jaxpr.invars))]
    reason = reason or why_not_vmapped(traced, varying)
    return reason and f"needs a step that `jax.vmap` can map; {name} {reason}."


def _why_not_projected(
    cell: RNNCellBase,
    carry: Carry,
    inputs: chex.ArrayTree,
    variables: chex.ArrayTree,
    streams: Streams,
) -> str | None:
    """Returns why `project` cannot take several steps at once.

    It gets only the keys that are the same at each step.
    """
    own_project, _ = functions_of(cell, carry)

    def project(inputs):
        params = variables.get("params", {})
        return own_project(params, inputs, streams.rngs(streams.fixed))

    def trace(*leading):
        struct = jax.ShapeDtypeStruct
        leaves = [
            struct((*leading, *x.shape), x.dtype) for x in jax.tree.leaves(inputs)
        ]
        x = jax.tree.unflatten(jax.tree.structure(inputs), leaves)
        return jax.make_jaxpr(project, return_shape=True)(x)

    one, z = trace()
    if not jax.tree.leaves(z):
        return "has a `project` that returns no arrays"
    if any(leaf.shape == () and leaf.weak_type for leaf in jax.tree.leaves(z)):
        return "has a `project` that returns a Python number"
    if streams.fixed and drawn(trace(2)[0]) != drawn(one):
        return "draws random numbers in `project` that are the same at each step"
    return None


def fast_loop(rnn: nn.Module, axis: int) -> Callable:
    """Returns the fast loop, for a cell that defines `project` and `recur`."""
    cell, variables = rnn.cell.unbind()
    params = variables.get("params", {})

    def loop(body, fresh, carry, xs):
        xs = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, axis, 0), xs)
        inputs, *flags = xs
        state, _ = carry
        cell._check_carry(state, structs(inputs, drop_axis=True))
        steps = jax.tree.leaves(inputs)[0].shape[0]
        streams = streams_of(rnn, steps)
        counters = {}
        if streams.like:
            own, x_t = rnn.cell.scope.rng_counters, structs(inputs, drop_axis=True)
            count = partial(count_draws, cell)
            counters = count(own, variables, state, x_t, streams.like)
            # Later draws continue with the counters that flax.linen.scan leaves.
            left = count(counters, variables, state, x_t, streams.like)
            count_from(left, own)
        own_project, recur = functions_of(cell, state, counters)

        def project(given, inputs):
            params, fixed = given
            return own_project(params, inputs, streams.rngs(fixed))

        def step(given, fresh, carry, z, now):
            (params, fixed), (flags, keys) = given, now
            own_step = partial(recur, params, rngs=streams.rngs(fixed, keys))
            one_step = partial(_keep_types, type(cell).__name__, own_step)
            return body(one_step, fresh, carry, (z, *flags))

        given = params, streams.fixed
        z = _projected(type(cell).__name__, project, given, inputs)
        plan = memory.plan(steps, z, rnn.memory, rnn.projection, params)
        recurrence = Recurrence(project, step, plan, rnn.unroll)
        now = flags, streams.stepwise
        carry, ys = engine.run(recurrence, given, fresh, carry, inputs, now)
        return carry, jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, axis), ys)

    return loop


def _projected(
    name: str, project: Callable, params: chex.ArrayTree, inputs: chex.ArrayTree
) -> StructTree:
    """Returns shapes and dtypes of the projected inputs of a sequence.

    Raises:
      ValueError: they differ from the shapes of a single step.
    """
    whole = jax.eval_shape(project, params, inputs)
    step = jax.eval_shape(project, params, structs(inputs, drop_axis=True))
    steps = jax.tree.leaves(inputs)[0].shape[0]
    shapes = jax.tree.map(jnp.shape, whole)
    expected = jax.tree.map(lambda leaf: (steps, *leaf.shape), step)
    if shapes != expected:
        raise ValueError(
            f"`project` of {name} must treat every axis except the feature axes as a "
            f"batch axis: for {steps} steps it must return {expected}, got {shapes}."
        )
    return whole


def functions_of(
    cell: RNNCellBase, carry: Carry, counters: dict | None = None
) -> tuple[Callable, Callable]:
    """Returns `project` and `recur` of an unbound cell, as pure functions.

    Their arguments are `(params, inputs, rngs)` and `(params, carry, projected, rngs)`.

    Args:
      cell: the cell.
      carry: a carry; a cell with `features=None` takes its width.
      counters: counters of random draws before a step. If given, call `project` before
        `recur`.
    """
    shape = jnp.shape(jax.tree.leaves(carry)[-1])
    counted = {"project": counters or {}, "recur": {}}

    def applied(params, rngs, method, *args):
        def call(cell):
            cell._take_shape(shape)
            count_from(counted[method], cell.scope.rng_counters)
            result = getattr(cell, method)(*args)
            if method == "project":
                # `recur` follows in the same step and must not repeat these draws.
                counted["recur"] = copied(cell.scope.rng_counters)
            return result

        return cell.apply({"params": params}, method=call, rngs=rngs)

    def project(params, inputs, rngs=None):
        return applied(params, rngs, "project", inputs)

    def recur(params, carry, projected, rngs=None):
        stepped = applied(params, rngs, "recur", carry, projected)
        return check_stepped(type(cell).__name__, stepped, carry)

    return project, recur


def step_of(
    cell: nn.Module, carry: Carry, inputs: chex.ArrayTree
) -> tuple[Carry, chex.ArrayTree]:
    """Applies one step of any cell and keeps the dtypes of the carry."""
    return _keep_types(type(cell).__name__, cell, carry, inputs)


def _keep_types(
    name: str, step: Callable, carry: Carry, inputs: chex.ArrayTree
) -> tuple[Carry, chex.ArrayTree]:
    """Applies a step of any cell; casts the new carry to the dtypes of the old one."""
    new, output = step(carry, inputs)
    check_kept(name, new, carry)
    return cast_like(new, carry), output
