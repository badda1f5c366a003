"""The loop over time of a cell that is a Flax module: any cell's, and the fast one."""

from collections.abc import Callable
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.core import DenyList

from rnncells.base import RNNCellBase
from rnncells.carry import Carry, PyTree, cast_like
from rnncells.layers.checks import check_kept
from rnncells.recurrence import engine, memory
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


def has_fast_loop(rnn: nn.Module, carry: Carry, inputs: PyTree) -> bool:
    """Says whether the cell is a projection and a recurrence with params alone.

    Args:
      rnn: the layer.
      carry: before the first step.
      inputs: `(time, *batch, *features)`.
    """
    cell = rnn.cell
    return (
        isinstance(cell, RNNCellBase)
        and type(cell).__call__ is RNNCellBase.__call__
        and not rnn.is_initializing()
        and not rnn.variable_axes
        and rnn.variable_broadcast == "params"
        and rnn.variable_carry is False
        and not any(name != "params" for name in rnn.split_rngs)
        and set(cell.variables) <= {"params"}
        and jax.tree.leaves(inputs)[0].shape[0] != 0
        and not _writes(cell, carry, structs(inputs, drop_axis=True))
    )


def _writes(cell: nn.Module, carry: Carry, inputs: PyTree) -> bool:
    """Says whether a step writes to a collection, as with `sow`."""
    if not cell.scope.root.mutable:
        return False
    cell, variables = cell.unbind()
    _, written = jax.eval_shape(
        partial(cell.apply, mutable=DenyList("params")), variables, carry, inputs
    )
    return bool(jax.tree.leaves(written))


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
        z = jax.eval_shape(project, params, inputs)
        plan = memory.plan(steps, z, rnn.memory, rnn.projection)
        recurrence = Recurrence(project, step, plan, rnn.unroll)
        carry, ys = engine.run(recurrence, params, fresh, carry, inputs, flags)
        return carry, jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, axis), ys)

    return loop


def functions_of(cell: RNNCellBase, carry: Carry) -> tuple[Callable, Callable]:
    """Returns `project` and `recur` of an unbound cell, as pure functions of params.

    Args:
      cell: the cell.
      carry: a carry, whose width a cell with `features=None` takes.
    """
    width = jnp.shape(jax.tree.leaves(carry)[-1])[-1]

    def function(method):
        def apply(params, *args):
            def call(cell):
                cell._take_width(width)
                return getattr(cell, method)(*args)

            return cell.apply({"params": params}, method=call)

        return apply

    return function("project"), function("recur")


def _keep_types(
    name: str, step: Callable, carry: Carry, inputs: PyTree
) -> tuple[Carry, PyTree]:
    """Applies a step of any cell; the carry keeps its dtypes, or an error says why."""
    new, output = step(carry, inputs)
    check_kept(name, new, carry)
    return cast_like(new, carry), output
