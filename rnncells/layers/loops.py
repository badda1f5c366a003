"""The loop over time of a cell that is a Flax module: any cell's, and the fast one."""

from collections.abc import Callable
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.core import DenyList
from flax.errors import FlaxError

from rnncells.base import RNNCellBase
from rnncells.carry import Carry, PyTree, cast_like
from rnncells.checks import check_stepped
from rnncells.layers.checks import check_kept
from rnncells.recurrence import engine, memory
from rnncells.recurrence.mesh import has_mesh_types
from rnncells.recurrence.parts import Recurrence
from rnncells.recurrence.trees import structs


def general_loop(rnn: nn.Module, axis: int) -> Callable:
    """Returns the loop that calls the cell at each step, differentiated by JAX."""

    def loop(body, fresh, carry, xs):
        def one_step(cell, carry, x):
            def step(carry, x):
                return _keep_types(type(cell).__name__, cell, carry, x)

            return body(step, fresh, carry, x)

        scan = nn.scan(
            one_step,
            in_axes=axis,
            out_axes=axis,
            unroll=rnn.unroll,
            variable_axes=rnn.variable_axes,
            variable_broadcast=rnn.variable_broadcast,
            variable_carry=rnn.variable_carry,
            split_rngs=rnn.split_rngs,
        )
        return scan(rnn.cell, carry, xs)

    return loop


def choose_loop(rnn: nn.Module, carry: Carry, inputs: PyTree) -> Callable:
    """Returns `fast_loop` where that can run the layer, else `general_loop`.

    Args:
      rnn: the layer.
      carry: before the first step.
      inputs: `(time, *batch, *features)`.

    Raises:
      ValueError: a choice of `memory` or `projection`, which the general loop lacks.
    """
    is_empty = jax.tree.leaves(inputs)[0].shape[0] == 0
    if rnn.implementation == "scan" or rnn.is_initializing() or is_empty:
        return general_loop
    reason = _why_not_fast(rnn, carry, inputs)
    if reason is None:
        return fast_loop
    check_no_choice(rnn, f"which this layer has not: {reason}")
    return general_loop


def check_no_choice(rnn: nn.Module, why: str) -> None:
    """Raises if a layer without the fast loop is asked for what only that has."""
    for name, default in (("memory", "full"), ("projection", "auto")):
        value = getattr(rnn, name)
        if value != default:
            raise ValueError(
                f"`{name}` of RNN is for the fast loop, {why}; got {value!r}."
            )


def _why_not_fast(rnn: nn.Module, carry: Carry, inputs: PyTree) -> str | None:
    """Returns why the cell is not a projection and a recurrence with params alone."""
    cell = rnn.cell
    name, own = type(cell).__name__, {"params"}
    if not isinstance(cell, RNNCellBase):
        return f"{name} is no RNNCellBase."
    if type(cell).__call__ is not RNNCellBase.__call__:
        return f"{name} overrides `__call__`."
    lifts = rnn.variable_broadcast, rnn.variable_carry
    if lifts != ("params", False) or rnn.variable_axes or set(rnn.split_rngs) - own:
        return "it lifts collections or random streams."
    if set(cell.variables) - own:
        return f"{name} has the collections {sorted(cell.variables)}."
    if has_mesh_types((cell.variables, carry, inputs)):
        return "its arrays have types of a mesh."
    return _why_not_pure(cell, carry, structs(inputs, drop_axis=True))


def _why_not_pure(cell: RNNCellBase, carry: Carry, inputs: PyTree) -> str | None:
    """Returns why a step is not a function of params, carry and inputs alone."""
    name, is_mutable = type(cell).__name__, bool(cell.scope.root.mutable)
    cell, variables = cell.unbind()
    mutable = DenyList("params") if is_mutable else False

    def step(variables, carry, inputs):
        return cell.apply(variables, carry, inputs, mutable=mutable)

    try:
        traced, (_, written) = jax.make_jaxpr(step, return_shape=True)(
            variables, carry, inputs
        )
    except FlaxError:
        # Of variables or random streams, which the general loop has, or misses too.
        return f"{name} needs more than its own params."
    if is_mutable and jax.tree.leaves(written):
        return f"{name} writes to a collection."
    if any(isinstance(const, jax.core.Tracer) for const in traced.consts):
        return f"{name} holds, or closes over, arrays that are being traced."
    return None


def fast_loop(rnn: nn.Module, axis: int) -> Callable:
    """Returns the loop of the engine, for a cell of `project` and `recur`."""
    cell, variables = rnn.cell.unbind()
    params = variables.get("params", {})

    def loop(body, fresh, carry, xs):
        xs = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, axis, 0), xs)
        inputs, *flags = xs
        state, _ = carry
        cell._check_carry(state, structs(inputs, drop_axis=True))
        project, recur = functions_of(cell, state)

        def step(params, fresh, carry, z, flags):
            one_step = partial(_keep_types, type(cell).__name__, partial(recur, params))
            return body(one_step, fresh, carry, (z, *flags))

        steps = jax.tree.leaves(inputs)[0].shape[0]
        z = _projected(type(cell).__name__, project, params, inputs)
        plan = memory.plan(steps, z, rnn.memory, rnn.projection, params)
        recurrence = Recurrence(project, step, plan, rnn.unroll)
        carry, ys = engine.run(recurrence, params, fresh, carry, inputs, flags)
        return carry, jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, axis), ys)

    return loop


def _projected(name: str, project: Callable, params: PyTree, inputs: PyTree) -> PyTree:
    """Returns shapes and dtypes of the projected inputs of a sequence.

    Raises:
      ValueError: they are not, step for step, those of one step.
    """
    whole = jax.eval_shape(project, params, inputs)
    step = jax.eval_shape(project, params, structs(inputs, drop_axis=True))
    steps = jax.tree.leaves(inputs)[0].shape[0]
    shapes = jax.tree.map(jnp.shape, whole)
    expected = jax.tree.map(lambda leaf: (steps, *leaf.shape), step)
    if shapes != expected:
        raise ValueError(
            f"`project` of {name} must treat every axis but those of features as a "
            f"batch axis: of {steps} steps it must return {expected}, got {shapes}."
        )
    return whole


def functions_of(cell: RNNCellBase, carry: Carry) -> tuple[Callable, Callable]:
    """Returns `project` and `recur` of an unbound cell, as pure functions of params.

    Args:
      cell: the cell.
      carry: a carry, whose width a cell with `features=None` takes.
    """
    takes_width = getattr(cell, "features", 0) is None
    width = jnp.shape(jax.tree.leaves(carry)[-1])[-1] if takes_width else None

    def applied(params, method, *args):
        def call(cell):
            cell._take_width(width)
            return getattr(cell, method)(*args)

        return cell.apply({"params": params}, method=call)

    def project(params, inputs):
        return applied(params, "project", inputs)

    def recur(params, carry, projected):
        stepped = applied(params, "recur", carry, projected)
        return check_stepped(type(cell).__name__, stepped, carry)

    return project, recur


def _keep_types(
    name: str, step: Callable, carry: Carry, inputs: PyTree
) -> tuple[Carry, PyTree]:
    """Applies a step of any cell; the carry keeps its dtypes, or an error says why."""
    new, output = step(carry, inputs)
    check_kept(name, new, carry)
    return cast_like(new, carry), output
