"""The base of all layers over sequences: `run` and `initialize_carry`."""

from functools import partial, wraps
from inspect import signature
from typing import Any, Protocol, runtime_checkable

import flax.linen as nn
import jax
from chex import ArrayTree, PRNGKey
from jax import Array

from rnncells._checks import ChecksArguments, check_key
from rnncells.cells.contract.any_cell import resolve_input_spec
from rnncells.cells.contract.carry import Carry, InputSpec
from rnncells.recurrence.pytrees import StructTree
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
          reset_carry: carry after a reset; None: the layer's own. `LSTM`, `GRU` and
            `ElmanRNN` have no other.
          time_major: whether inputs and outputs are `(time, *batch, *features)`; None:
            as the layer's field says.
          padded_outputs: values of the outputs at padded and masked steps, see `RNN`;
            None: as the layer's field says; `'zero'` for `LSTM`, `GRU`, `ElmanRNN`.
          deterministic: whether dropout is off; None: as the layer's field says.
        """


class RecurrentLayer(ChecksArguments, nn.Module):
    """Base of the layers over sequences.

    A subclass defines `_initial_carry`. Its call returns `(carry, outputs)` with the
    arguments in `_final_carry`, as in Flax, or it defines `_run`.
    """

    _final_carry = {"return_carry": True}

    @nn.nowrap
    @wraps(SequenceLayer.run, assigned=("__doc__", "__annotations__"))
    def run(self, *args: Any, **kwargs: Any) -> tuple[Carry, ArrayTree]:
        arguments = signature(SequenceLayer.run).bind(self, *args, **kwargs).arguments
        del arguments["self"]
        # Without None, so that `nn.tabulate` shows only the arguments of the call.
        inputs = arguments.pop("inputs")
        options = {k: v for k, v in arguments.items() if v is not None}
        return self._run({"inputs": inputs, **options})

    @nn.nowrap
    def _run(self, arguments: dict[str, Any]) -> tuple[Carry, ArrayTree]:
        """Returns `(final carry, outputs)` for arguments of `run` that are not None."""
        layer: Any = self
        return layer(**arguments, **self._final_carry)

    @nn.nowrap
    def initialize_carry(
        self,
        key: PRNGKey | None = None,
        sample_input: InputSpec | None = None,
        *,
        batch_shape: tuple[int, ...] | None = None,
    ) -> Any:
        """Returns the carry before the first step, for `step` and `initial_carry`.

        >>> import jax, jax.numpy as jnp, rnncells
        >>> rnn = rnncells.RNN(rnncells.GRUCell(4))
        >>> rnn.initialize_carry(batch_shape=(2,)).shape
        (2, 4)
        >>> stack = rnncells.Stack([rnncells.LSTMCell(4), rnncells.GRUCell(5)])
        >>> jax.tree.map(jnp.shape, stack.initialize_carry(batch_shape=(2,)))
        (((2, 4), (2, 4)), (2, 5))

        It is a cell's carry for `RNN`, a pair (forward, backward) for `Bidirectional`,
        a tuple with the carry of each recurrent layer for `Stack` and blocks, and the
        states for `LSTM`, `GRU` and `ElmanRNN`. A layer that learns its initial carry
        needs parameters: `layer.apply(params, None, x_t, method="initialize_carry")`.

        Args:
          key: random key, which is split into one for each layer or direction;
            default: `jax.random.key(0)`.
          sample_input: one time step's input, `(*batch, *features)`; see
            `RNNCellBase.initialize_carry`.
          batch_shape: the batch axes, in place of `sample_input`, for cells with one
            feature axis whose carry does not depend on the width of the input.

        Raises:
          ValueError: `batch_shape` is not enough for the cell; or a layer that learns
            its initial carry is called without parameters.
          TypeError: not exactly one of `sample_input` and `batch_shape` is given.
        """
        check_key(key)
        name = type(self).__name__
        for field in ("learn_initial_carry", "learn_states"):
            if self.scope is None and getattr(self, field, False):
                raise ValueError(
                    f"`initialize_carry` of {name} with `{field}` needs parameters. "
                    "Call layer.apply(params, None, x_t, method='initialize_carry')."
                )

        def carry_of(sample: StructTree) -> Any:
            # In a copy of the layer, so that no traced parameter is kept.
            method = partial(type(self)._initial_carry, key=key, sample=sample)
            init = nn.init_with_output(method, self.clone(parent=None))
            return init(jax.random.key(0))[0]

        widths = self._input_widths()
        sample = resolve_input_spec(name, carry_of, sample_input, batch_shape, widths)
        return self._initial_carry(key, sample)

    @nn.nowrap
    def _input_widths(self) -> tuple[int, ...]:
        """Returns the widths that inputs of a given `batch_shape` may have."""
        return 1, 2  # any

    @nn.nowrap
    def _initial_carry(self, key: PRNGKey | None, sample: StructTree) -> Any:
        """Returns the initial carry for one step of input."""
        raise NotImplementedError
