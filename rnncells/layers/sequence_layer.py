"""The method that all layers over sequences have in common."""

from typing import Any, Protocol, runtime_checkable

import chex
import jax

from rnncells.cells.carry import Carry


@runtime_checkable
class SequenceLayer(Protocol):
    """A layer over sequences: one method, `run`, which always returns its carry.

    `RNN`, `Bidirectional`, `Stack`, `LSTM`, `GRU`, `ElmanRNN` and `MultiLayerRNN` have
    it. Calls of these layers follow Flax or PyTorch and differ in the order of their
    results; `run` is the same for all. `Stack` runs every flax.linen module with this
    method over time:

    >>> import flax.linen as nn, jax, jax.numpy as jnp, rnncells
    >>> class Shift(nn.Module):
    ...     def run(self, inputs, initial_carry=None, **arguments):
    ...         first = jnp.zeros_like(inputs[:, :1])
    ...         return None, jnp.concatenate([first, inputs[:, :-1]], axis=1)
    >>> stack = rnncells.Stack([rnncells.GRUCell(4), Shift()])
    >>> y, params = stack.init_with_output(jax.random.key(0), jnp.ones((2, 5, 3)))
    >>> y.shape
    (2, 5, 4)

    To run the layer in `Stack.step` too, define `step(carry, inputs, **arguments)`,
    which returns `(carry, output)`.
    """

    def run(
        self,
        inputs: chex.ArrayTree,
        initial_carry: Carry | None = None,
        *,
        init_key: chex.PRNGKey | None = None,
        seq_lengths: jax.Array | None = None,
        mask: jax.Array | None = None,
        resets: jax.Array | None = None,
        reset_carry: Carry | None = None,
        time_major: bool | None = None,
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
          deterministic: whether dropout is off; None: as the layer's field says.
        """
