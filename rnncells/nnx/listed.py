"""Results of calls that `nnx.tabulate` can show."""

from typing import Any

import jax

from rnncells.layers.states import LSTMStates


class ListedStates(LSTMStates):
    """States whose arrays JAX finds by number, as in a plain tuple.

    The table of Flax fails for a named tuple inside a tuple, because it looks for the
    arrays of tuples by number.
    """


def _flatten(states: Any) -> tuple[tuple[Any, ...], None]:
    return tuple(states), None


def _unflatten(_: None, arrays: Any) -> ListedStates:
    return ListedStates(*arrays)


jax.tree_util.register_pytree_node(ListedStates, _flatten, _unflatten)


def listed(result: Any) -> Any:
    """Returns the result of a call with `ListedStates` for `LSTMStates`."""

    def is_states(part):
        return isinstance(part, LSTMStates)

    return jax.tree.map(
        lambda part: ListedStates(*part) if is_states(part) else part,
        result,
        is_leaf=is_states,
    )
