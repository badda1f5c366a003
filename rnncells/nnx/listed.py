"""Results of calls that `nnx.tabulate` can show."""

from typing import Any

import jax

from rnncells.layers.states import LSTMStates


@jax.tree_util.register_pytree_node_class
class ListedStates(LSTMStates):
    """States whose paths in a pytree are numbers, as `nnx.tabulate` needs them."""

    def tree_flatten(self) -> tuple[tuple, None]:
        return tuple(self), None

    @classmethod
    def tree_unflatten(cls, _: None, arrays: Any) -> "ListedStates":
        return cls(*arrays)


def listed(result: Any) -> Any:
    """Returns the result of a call with `ListedStates` for `LSTMStates`."""
    return jax.tree.map(
        lambda x: ListedStates(*x) if isinstance(x, LSTMStates) else x,
        result,
        is_leaf=lambda x: isinstance(x, LSTMStates),
    )
