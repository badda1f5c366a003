"""A layer that composes cells, layers over sequences, and functions."""

from collections.abc import Callable, Sequence
from typing import Any

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp

from rnncells.cells.carry import Carry
from rnncells.layers.bidirectional import Bidirectional
from rnncells.layers.checks import check_bools, resolve_flags
from rnncells.layers.deep import MultiLayerRNN
from rnncells.layers.rnn import RNN


class Stack(nn.Module):
    """Applies cells, layers and functions to sequences, one after the other.

    >>> import flax.linen as nn, jax, jax.numpy as jnp, rnncells
    >>> stack = rnncells.Stack(
    ...     [rnncells.LSTMCell(4), nn.Dense(6), nn.relu, rnncells.GRUCell(5)],
    ...     return_carry=True,
    ... )
    >>> x = jnp.ones((2, 7, 3))  # (batch, time, features)
    >>> (carry, y), params = stack.init_with_output(jax.random.key(0), x)
    >>> y.shape, jax.tree.map(jnp.shape, carry)
    ((2, 7, 5), (((2, 4), (2, 4)), (2, 5)))

    Each layer runs over the whole sequence before the next one starts. `step` applies
    all layers to one time step:

    >>> carry, y_t = stack.apply(params, None, x[:, 0], method="step")
    >>> bool(jnp.allclose(y_t, y[:, 0], atol=1e-6))
    True

    Attributes:
      layers: cells; layers over sequences (`RNN`, `Bidirectional`, `Stack`, `LSTM`,
        ...); or functions of an array with any leading axes, such as `nn.relu` or
        `nn.Dense(3)`. An instance that is listed twice shares its parameters.
      skip_connections: concatenates the inputs of the stack to the inputs of each
        recurrent layer after the first, and returns the concatenated outputs of all
        layers. All layers must be recurrent. Default: False.
      time_major: inputs and outputs are `(time, *batch, *features)`. Default: False.
      return_carry: returns `(carries, outputs)`, where `carries` is a tuple with the
        final carry of each recurrent layer. Default: False.

    Raises:
      ValueError: `layers` is empty, or `skip_connections` is set and a layer is not
        recurrent.

    Source: `haiku.DeepRNN` and `haiku.deep_rnn_with_skip_connections`. They are cells
    and run all layers in one loop; here each layer has its own loop.
    """

    layers: Sequence[nn.Module | Callable]
    skip_connections: bool = False
    time_major: bool = False
    return_carry: bool = False

    def __post_init__(self):
        check_bools(
            "Stack",
            skip_connections=self.skip_connections,
            time_major=self.time_major,
            return_carry=self.return_carry,
        )
        if not isinstance(self.layers, Sequence) or not self.layers:
            raise ValueError(
                "`layers` of Stack must be a list with at least one layer, got "
                f"{self.layers!r}."
            )
        for layer in self.layers:
            if isinstance(layer, type) or not callable(layer):
                raise TypeError(
                    "`layers` of Stack must be cells, layers and functions, got "
                    f"{layer!r}."
                )
            if self.skip_connections and not _is_recurrent(layer):
                raise ValueError(
                    "`skip_connections` of Stack needs all `layers` to be recurrent, "
                    f"got {layer!r}."
                )
        super().__post_init__()

    def __call__(
        self,
        inputs: chex.ArrayTree,
        *,
        initial_carry: tuple[Carry, ...] | None = None,
        init_key: chex.PRNGKey | None = None,
        return_carry: bool | None = None,
        time_major: bool | None = None,
        seq_lengths: jax.Array | None = None,
        mask: jax.Array | None = None,
        resets: jax.Array | None = None,
        reset_carry: tuple[Carry, ...] | None = None,
    ) -> Any:
        """Applies all layers.

        Args:
          inputs: `(*batch, time, *features)`.
          initial_carry: one carry for each recurrent layer; default: their own.
          init_key: key that is split into one for each recurrent layer.
          return_carry: overrides the field.
          time_major: overrides the field.
          seq_lengths: integers `(*batch,)` in `[0, time]`, for all recurrent layers.
          mask: booleans `(*batch, time)`, false at steps to skip.
          resets: booleans `(*batch, time)`, true at the first step of each sequence.
          reset_carry: one carry for each recurrent layer; default: their own.

        Returns:
          `outputs`, or `(carries, outputs)` with `return_carry`.

        Raises:
          ValueError: there is not one carry for each recurrent layer.
        """
        flags = resolve_flags(self, return_carry=return_carry, time_major=time_major)
        count = sum(map(_is_recurrent, self.layers))
        carries = _each("initial_carry", initial_carry, count)
        reset_carries = _each("reset_carry", reset_carry, count)
        keys = [None] * count if init_key is None else jax.random.split(init_key, count)
        given = [
            {"initial_carry": carry, "reset_carry": at_reset, "init_key": key}
            for carry, at_reset, key in zip(carries, reset_carries, keys, strict=True)
        ]
        shared = {"seq_lengths": seq_lengths, "mask": mask, "resets": resets}
        shared["time_major"] = flags["time_major"]

        def run(number, index, inputs):
            return _run(self.over_time[index], inputs, **given[number], **shared)

        carries, outputs = self._compose(run, inputs)
        return (carries, outputs) if flags["return_carry"] else outputs

    def step(
        self, carries: tuple[Carry, ...] | None, inputs: chex.ArrayTree
    ) -> tuple[tuple[Carry, ...], chex.ArrayTree]:
        """Applies all layers to one step: `carries, output = stack.step(carries, x_t)`.

        Args:
          carries: carries in the form of the call; None before the first step.
          inputs: `(*batch, *features)`.

        Raises:
          ValueError: a layer has no `step` or runs in reverse, or carries do not fit.
        """
        carries = _each("carries", carries, sum(map(_is_recurrent, self.layers)))

        def run(number, index, inputs):
            return _step(self.over_time[index], carries[number], inputs)

        return self._compose(run, inputs)

    def setup(self):
        self.over_time = [
            RNN(layer) if isinstance(layer, nn.RNNCellBase) else layer
            for layer in self.layers
        ]

    def _compose(
        self, run: Callable, inputs: chex.ArrayTree
    ) -> tuple[tuple[Carry, ...], chex.ArrayTree]:
        """Applies all layers; recurrent ones by `run(number, index, inputs)`."""
        carries, everything, outputs = [], [], inputs
        for index, layer in enumerate(self.layers):
            if not _is_recurrent(layer):
                outputs = self.over_time[index](outputs)
                continue
            if self.skip_connections and carries:
                outputs = _beside(outputs, inputs)
            carry, outputs = run(len(carries), index, outputs)
            carries.append(carry)
            everything.append(outputs)
        if self.skip_connections:
            outputs = _beside(*everything)
        return tuple(carries), outputs


def _is_recurrent(layer: Any) -> bool:
    kinds = (nn.RNNCellBase, RNN, Bidirectional, nn.RNN, nn.Bidirectional)
    return isinstance(layer, (*kinds, Stack, MultiLayerRNN))


def _run(
    layer: nn.Module, inputs: chex.ArrayTree, **arguments: Any
) -> tuple[Carry, chex.ArrayTree]:
    """Applies a recurrent layer of any kind to sequences."""
    given = {name: value for name, value in arguments.items() if value is not None}
    if isinstance(layer, RNN | Bidirectional):
        given["return_all_carries"] = False
    if not isinstance(layer, MultiLayerRNN):
        return layer(inputs, **given, return_carry=True)
    given.pop("init_key", None)
    states = given.pop("initial_carry", None)
    if "reset_carry" in given:
        raise ValueError(
            f"`reset_carry` must be None for {type(layer).__name__}, which restarts "
            "from zeros or from its learned states."
        )
    outputs, states = layer(inputs, states, **given)
    return states, outputs


def _step(
    layer: nn.Module, carry: Carry, inputs: chex.ArrayTree
) -> tuple[Carry, chex.ArrayTree]:
    """Applies a recurrent layer of any kind to one step."""
    if isinstance(layer, Stack | MultiLayerRNN | RNN):
        return layer.step(carry, inputs)
    raise ValueError(
        f"`step` of Stack needs layers with a method `step`, got "
        f"{type(layer).__name__}. Call the stack on the whole sequence."
    )


def _each(name: str, carries: Any, count: int) -> Sequence[Any]:
    """Returns one carry, or None, for each recurrent layer."""
    if carries is None:
        return [None] * count
    if not isinstance(carries, tuple | list) or len(carries) != count:
        raise ValueError(
            f"`{name}` of Stack must be a tuple with one carry for each of the {count} "
            f"recurrent layers, got {type(carries).__name__} "
            f"{jax.tree.map(jnp.shape, carries)}."
        )
    return carries


def _beside(*arrays: jax.Array) -> jax.Array:
    return jnp.concatenate(arrays, axis=-1)
