"""A layer that composes cells, layers over sequences, and functions."""

from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from chex import ArrayTree
from jax import Array

from rnncells._checks import check_list
from rnncells.cells.contract.any_cell import is_cell, warn_shared_layers
from rnncells.cells.contract.carry import Carry
from rnncells.layers.contract.checks import check_depth
from rnncells.layers.contract.composed import ComposedLayer
from rnncells.layers.rnn import RNN


class Stack(ComposedLayer):
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
        `nn.Dense(3)`. An instance that is listed twice shares its parameters. Padded
        and masked steps do not count in normalization, convolutions and attention of
        flax.linen.
      skip_connections: concatenates the inputs of the stack to the inputs of each
        recurrent layer after the first, and returns the concatenated outputs of all
        layers. All layers must be recurrent. Default: False.
      time_major: inputs and outputs are `(time, *batch, *features)`. Default: False.
      return_carry: returns `(carries, outputs)`, where `carries` is a tuple with the
        final carry of each recurrent layer. Default: False.

    Raises:
      ValueError: `layers` is empty; `skip_connections` is set and a layer is not
        recurrent; or the gradient of a layer above another recurrent layer is carried
        forward in time (see `gradient` of `RNN`).

    Source: `haiku.DeepRNN` and `haiku.deep_rnn_with_skip_connections`. They are cells
    and run all layers in one loop; here each layer has its own loop.
    """

    layers: Sequence[nn.Module | Callable]
    skip_connections: bool = False
    time_major: bool = False
    return_carry: bool = False

    def __post_init__(self) -> None:
        check_list("Stack", self.layers)
        super().__post_init__()
        layers: Sequence[Any] = self.layers
        for layer in list(filter(_is_recurrent, layers))[1:]:
            check_depth("Stack", layer)
        for layer in layers:
            if self.skip_connections and not _is_recurrent(layer):
                raise ValueError(
                    "`skip_connections` of Stack needs all `layers` to be recurrent, "
                    f"got {layer!r}."
                )
            # Of its class first: a missing attribute of a cell would run its `setup`.
            is_reversed = hasattr(type(layer), "reverse") and layer.reverse is True
            if self.skip_connections and is_reversed and not layer.keep_order:
                raise ValueError(
                    "`skip_connections` of Stack needs keep_order=True in reversed "
                    "layers, so that steps of the same time are joined."
                )

    def setup(self) -> None:
        """Makes a layer over sequences of each cell."""
        warn_shared_layers("Stack", filter(_is_recurrent, self.layers))
        layers: Sequence[Any] = self.layers
        self.over_time = [RNN(layer) if is_cell(layer) else layer for layer in layers]

    @nn.nowrap
    def _recurrent(self) -> list[nn.Module]:
        layers = zip(self.over_time, self.layers, strict=True)
        return [layer for layer, module in layers if _is_recurrent(module)]

    @nn.nowrap
    def _apply_layers(
        self, run: Callable, inputs: ArrayTree, apply: Callable
    ) -> tuple[tuple[Carry, ...], ArrayTree]:
        carries: list[Carry] = []
        all_outputs, outputs = [], inputs
        for module, layer in zip(self.layers, self.over_time, strict=True):
            if not _is_recurrent(module):
                outputs = apply(layer, outputs)
                continue
            if self.skip_connections and carries:
                outputs = _concatenated(outputs, inputs)
            carry, outputs = run(len(carries), layer, outputs)
            carries.append(carry)
            all_outputs.append(outputs)
        if self.skip_connections:
            outputs = _concatenated(*all_outputs)
        return tuple(carries), outputs


def _is_recurrent(layer: Any) -> bool:
    """Says whether a layer runs over time; flax.linen's layers have no `run`."""
    is_of_flax = isinstance(layer, nn.RNN | nn.Bidirectional)
    return is_of_flax or hasattr(type(layer), "run") or is_cell(layer)


def _concatenated(*arrays: Array) -> Array:
    return jnp.concatenate(arrays, axis=-1)
