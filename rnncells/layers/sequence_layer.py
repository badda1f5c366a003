"""The method that all layers over sequences have in common."""

from functools import wraps
from inspect import signature
from typing import Any, Protocol, runtime_checkable

import flax.linen as nn
from chex import ArrayTree, PRNGKey
from jax import Array

from rnncells.cells.carry import Carry
from rnncells.recurrence.schedule import PaddedOutputs


@runtime_checkable
class SequenceLayer(Protocol):
    """A layer over sequences: one method, `run`, which always returns its carry.

    `RNN`, `Bidirectional`, `Stack`, `LSTM`, `GRU`, `ElmanRNN` and `MultiLayerRNN` have
    it. Calls of these layers follow Flax or PyTorch and differ in the order of their
    results; `run` is the same for all. `Stack` runs every flax.linen module with this
    method over time, and passes it `time_major` and the arguments that are not None:

    >>> import flax.linen as nn, jax, jax.numpy as jnp, rnncells
    >>> class Difference(nn.Module):
    ...     def run(self, inputs, initial_carry=None, *, time_major=False):
    ...         axis = 0 if time_major else inputs.ndim - 2
    ...         return None, jnp.diff(inputs, axis=axis, prepend=0)
    >>> stack = rnncells.Stack([rnncells.GRUCell(4), Difference()])
    >>> y, params = stack.init_with_output(jax.random.key(0), jnp.ones((2, 5, 3)))
    >>> y.shape
    (2, 5, 4)

    Two methods are optional. `step(carry, inputs, **arguments)` returns `(carry,
    output)`, for `Stack.step`. `initialize_carry(key, sample_input)` returns the carry
    before the first step, for `Stack.initialize_carry`; without it that carry is None.
    """

    def run(
        self,
        inputs: ArrayTree,
        initial_carry: Carry | None = None,
        *,
        init_key: PRNGKey | None = None,
        seq_lengths: Array | None = None,
        mask: Array | None = None,
        resets: Array | None = None,
        reset_carry: Carry | None = None,
        time_major: bool | None = None,
        padded_outputs: PaddedOutputs | None = None,
        deterministic: bool | None = None,
    ) -> tuple[Carry, Any]:
        """Returns `(final carry, outputs)`.

        Args:
          inputs: `(*batch, time, *features)`.
          initial_carry: carry before the first step; None: the layer's own.
          init_key: key for the layer's own initial carry.
          seq_lengths: integers `(*batch,)` in `[0, time]`.
          mask: booleans `(*batch, time)`, false at steps to skip.
          resets: booleans `(*batch, time)`, true at the first step of each sequence.
          reset_carry: carry after a reset; None: the layer's own.
          time_major: whether inputs and outputs are `(time, *batch, *features)`; None:
            as the layer's field says.
          padded_outputs: values of the outputs at padded and masked steps, see `RNN`;
            None: as the layer's field says.
          deterministic: whether dropout is off; None: as the layer's field says.
        """


def run_arguments(layer: Any, args: tuple, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Returns the arguments of `run` by name, without those that are None."""
    arguments = signature(SequenceLayer.run).bind(layer, *args, **kwargs).arguments
    del arguments["self"]
    return {name: value for name, value in arguments.items() if value is not None}


class RunsByCall:
    """Base of layers whose call returns `(carry, outputs)` on request, as in Flax."""

    _final_carry = {"return_carry": True, "return_all_carries": False}
    __call__: Any

    @nn.nowrap
    @wraps(SequenceLayer.run, assigned=("__doc__", "__annotations__"))
    def run(self, *args: Any, **kwargs: Any) -> tuple[Carry, ArrayTree]:
        arguments = run_arguments(self, args, kwargs)
        return self(**arguments, **self._final_carry)
