"""The collections of a cell besides its params, in a loop over time.

A collection that the cell only reads is the same at each step. A collection that it
changes needs an option of the layer, which says how the steps share it.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
from chex import ArrayTree
from flax.core.scope import in_filter

from rnncells.flax_internals import initializing_scope, unbound
from rnncells.recurrence import jaxprs
from rnncells.recurrence.pytrees import structs

Variables = Mapping[str, Any]


def is_shared(rnn: nn.Module, collection: str) -> bool:
    """Says whether `variable_broadcast` names a collection besides the params."""
    return collection != "params" and in_filter(rnn.variable_broadcast, collection)


def carried(rnn: nn.Module, variables: Variables) -> dict[str, Any]:
    """Returns the collections that a step continues with from the step before it."""
    return {
        name: tree
        for name, tree in variables.items()
        if not in_filter(rnn.variable_broadcast, name)
        and in_filter(rnn.variable_carry, name)
    }


def not_lifted(rnn: nn.Module, collections: Iterable[str]) -> set[str]:
    """Returns the collections for which no option of the layer says what they are."""
    filters = rnn.variable_broadcast, rnn.variable_carry, *rnn.variable_axes
    return {c for c in collections if not any(in_filter(f, c) for f in filters)}


def change_error(rnn: nn.Module, collections: Iterable[str]) -> ValueError:
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


def check_known(rnn: nn.Module, created: Iterable[str]) -> None:
    """Raises ValueError if `variable_carry` has collections without initial values."""
    for collection in carried(rnn, dict.fromkeys(created)):
        raise ValueError(
            f"variable_carry={rnn.variable_carry!r} of RNN needs initial values that "
            f"depend on no step, but {type(rnn.cell).__name__} makes those of the "
            f"collection {collection!r} from its inputs or its carry. Initialize the "
            "collection with constants, such as zeros."
        )


class InitialVariables(NamedTuple):
    """The variables that a cell creates in its first step."""

    constants: set[str]  # collections that depend on neither the carry nor the inputs
    varying: set[str]  # the other collections
    has_effects: bool  # of the step, such as `jax.debug.print`
    create: Callable[[], dict[str, Any]]  # returns `constants`, without a step


def initial_variables(
    rnn: nn.Module, step: Callable, carry: ArrayTree, inputs: ArrayTree
) -> InitialVariables:
    """Returns the variables that the cell of a layer creates in its first step."""

    def init(_: tuple, operands: tuple) -> Variables:
        scope = initializing_scope(rnn.cell)
        step(unbound(rnn.cell).module.clone(parent=scope, _deep_clone=True), *operands)
        return scope.mutable_variables()

    equations, shapes = jaxprs.trace(init, (), structs((carry, inputs)))
    stages = equations.stages()
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
    return InitialVariables(set(constants), varying, has_effects, create)
