"""A stack of cells, modules and functions as one cell."""

from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from chex import ArrayTree, PRNGKey

from rnncells._checks import check_list
from rnncells.cells.contract import any_cell
from rnncells.cells.contract.base import RNNCellBase
from rnncells.cells.contract.carry import Carry, ShapeTree
from rnncells.cells.contract.checks import check_not_states
from rnncells.flax_internals import run_setup
from rnncells.recurrence.pytrees import StructTree, structs


class StackedCell(RNNCellBase):
    """A stack of cells, modules and functions as one cell.

    The output of each layer is the input of the next one, all in the same step. The
    carry is a tuple with the carry of each cell, in order.

    >>> import flax.linen as nn, jax, jax.numpy as jnp, rnncells
    >>> cell = rnncells.StackedCell(
    ...     [rnncells.LSTMCell(4), nn.Dropout(0.1), rnncells.GRUCell(5), nn.Dense(2)]
    ... )
    >>> rnn = rnncells.RNN(cell, return_carry=True)
    >>> x = jnp.ones((2, 5, 3))  # (batch, time, features)
    >>> params = rnn.init(jax.random.key(0), x, deterministic=True)
    >>> rngs = {"dropout": jax.random.key(1)}
    >>> carry, y = rnn.apply(params, x, deterministic=False, rngs=rngs)
    >>> y.shape, jax.tree.map(jnp.shape, carry)
    ((2, 5, 2), (((2, 4), (2, 4)), (2, 5)))

    `rnncells.Stack` has the same layers, values, gradients and parameters: the
    parameters of layer `k` are `layers_k` in a `Stack` and in a `StackedCell`, and
    `{"params": params_of_stack}` becomes `{"params": {"cell": params_of_stack}}` for
    `RNN(StackedCell(...))`. Initial carries are equal for one `init_key`.

    Use a `Stack` for whole sequences: each of its layers projects the inputs of all
    steps at once. Use a `StackedCell` where one step needs the outputs of all layers,
    as in `RNN.decode`, or where another module takes one cell. In its one loop, only
    what comes before the recurrence of the first cell is computed for all steps at
    once.

    `nn.Dropout` draws a new mask at each step. For one mask for all steps, pass
    `split_rngs={"params": False, "dropout": False}` to `RNN`. Random streams of other
    modules that are not cells of rnncells must be named in `split_rngs`, too.

    In an `nn.compact` method, the parameters of the layers belong to the model, as for
    `nn.Sequential`. If layers draw random numbers there, `RNN` takes the slower plain
    loop. Create such a cell in `setup`, or outside of the model.

    Attributes:
      layers: cells (of rnncells, of Flax or your own), modules and functions of one
        step, such as `nn.Dense(2)`, `nn.LayerNorm()`, `nn.Dropout(0.1)` and `nn.relu`.
        At least one of them is a cell. Every layer must keep the batch axes. An
        instance that is listed twice shares its parameters.
      deterministic: whether dropout and zoneout are off in all layers. None: as the
        call or the fields of the layers say. Default: None.
      input_dims: number of feature axes of the inputs, 0 for tokens. None: as the first
        cell has, or one less if the first layer is `nn.Embed`. Default: None.

    Raises:
      ValueError: `layers` is empty or has no cell; two layers use one random stream,
        one for a new mask at each step and one for the same mask at all steps.
      TypeError: a layer is a class, a layer over sequences such as `RNN`, or neither a
        cell, nor a module, nor a function.

    Source: `haiku.DeepRNN` (its cells and functions run in one step); `torch.nn` and
    Keras (`StackedRNNCells`) have cells alone.
    """

    layers: Sequence[nn.Module | Callable]
    deterministic: bool | None = None
    input_dims: int | None = None

    def __post_init__(self) -> None:
        _check_layers(self.layers)
        _check_streams(self.layers)
        super().__post_init__()

    @property
    def features(self) -> int | None:
        """`features` of the last layer that has this attribute, None without one."""
        layers = reversed(self.layers)
        with_features = (
            layer for layer in layers if any_cell.has_attribute(layer, "features")
        )
        return getattr(next(with_features, None), "features", None)

    @property
    def num_feature_dims(self) -> int:
        if self.input_dims is not None:
            return self.input_dims
        cells: Any = filter(any_cell.is_cell, self.layers)
        first_dims = any_cell.feature_dims(next(cells))
        return first_dims - isinstance(self.layers[0], nn.Embed)

    @property
    def rng_streams(self) -> dict[str, bool]:
        """Random streams, and whether `RNN` splits them over time."""
        streams: dict[str, bool] = {}
        for layer in self.layers:
            streams |= _layer_streams(layer)
        return streams

    def project(self, inputs: ArrayTree) -> ArrayTree:
        """Applies the layers before the first cell."""
        for layer in self.layers[: self._first_cell()]:
            inputs = self._applied(layer, inputs)
        return inputs

    def recur(self, carry: Carry, projected: ArrayTree) -> tuple[Carry, ArrayTree]:
        """Applies the first cell and the layers after it."""
        old, new, outputs = iter(carry), [], projected
        for layer in self.layers[self._first_cell() :]:
            if any_cell.is_cell(layer):
                state, outputs = any_cell.apply_step(
                    layer, next(old), outputs, self.deterministic
                )
                new.append(state)
            else:
                outputs = self._applied(layer, outputs)
        return tuple(new), outputs

    def carry_shape(self, input_shape: tuple[int, ...]) -> ShapeTree:
        sample = jax.ShapeDtypeStruct(tuple(input_shape), jnp.result_type(float))
        return jax.eval_shape(lambda: self._initial_carry(None, sample))

    @nn.nowrap
    def _step(self, carry: Carry, inputs: ArrayTree) -> tuple[Carry, ArrayTree]:
        # The cells check and cast their own carries.
        self._check_carry(carry, inputs)
        any_cell.warn_shared_layers(
            "StackedCell", filter(any_cell.is_cell, self.layers)
        )
        return self.recur(carry, self.project(inputs))

    @nn.nowrap
    def _check_carry(self, carry: Carry, inputs: ArrayTree) -> None:
        check_not_states("StackedCell", carry)
        count = sum(map(any_cell.is_cell, self.layers))
        if not isinstance(carry, tuple) or len(carry) != count:
            raise ValueError(
                "`carry` of StackedCell must be a tuple with one carry for each of the "
                f"{count} cells, got {type(carry).__name__} "
                f"{jax.tree.map(jnp.shape, carry)}."
            )

    @nn.nowrap
    def _initial_carry(self, key: PRNGKey | None, sample: StructTree) -> Carry:
        run_setup(self)
        cells = list(filter(any_cell.is_cell, self.layers))
        keys = [None] * len(cells)
        if key is not None:
            keys = jax.random.split(key, len(cells))
        return tuple(map(any_cell.initialize_carry, cells, keys, self._samples(sample)))

    @nn.nowrap
    def _samples(self, sample: StructTree) -> list[StructTree]:
        """Returns one step of input of each cell, as shapes and dtypes."""
        samples = []
        batch, _ = any_cell.split_shape(self, jax.tree.leaves(sample)[0].shape)

        def record(stacked: nn.Module, outputs: ArrayTree) -> ArrayTree:
            for layer in stacked.layers:
                if any_cell.is_cell(layer):
                    samples.append(structs(outputs))
                    _check_batch(layer, outputs, batch)
                    carry = any_cell.initialize_carry(layer, None, samples[-1])
                    _, outputs = any_cell.apply_step(
                        layer, carry, outputs, deterministic=True
                    )
                else:
                    outputs = layer(outputs, **any_cell.without_dropout(layer))
            return outputs

        init = nn.init(record, self.clone(parent=None))
        keys = dict.fromkeys(["params", *self.rng_streams], jax.random.key(0))
        jax.eval_shape(init, keys, sample)
        return samples

    @nn.nowrap
    def _first_cell(self) -> int:
        return next(k for k, layer in enumerate(self.layers) if any_cell.is_cell(layer))

    @nn.nowrap
    def _applied(self, layer: Callable, inputs: ArrayTree) -> ArrayTree:
        return layer(inputs, **any_cell.deterministic_option(layer, self.deterministic))


def _check_layers(layers: Any) -> None:
    """Raises an error unless `layers` are layers of one step, one of them a cell."""
    check_list("StackedCell", layers)
    for layer in layers:
        name = type(layer).__name__
        if isinstance(layer, nn.RNN | nn.Bidirectional) or hasattr(type(layer), "run"):
            raise TypeError(
                f"`layers` of StackedCell run one step at a time, got {name}, a layer "
                "over sequences. Pass its cell, or use Stack."
            )
        if any_cell.has_feature_dims(layer) and not any_cell.is_cell(layer):
            raise TypeError(
                f"`layers` of StackedCell: {name} has `num_feature_dims`, but it has "
                "no `initialize_carry`. A cell in a stack needs both."
            )
    if not any(map(any_cell.is_cell, layers)):
        names = ", ".join(type(layer).__name__ for layer in layers)
        raise ValueError(
            f"`layers` of StackedCell must have at least one cell, got only {names}. "
            "For modules without a carry, use nn.Sequential."
        )


def _layer_streams(layer: Any) -> dict[str, bool]:
    """Returns the random streams of a layer, and whether time splits them."""
    if isinstance(layer, nn.Dropout):
        return {layer.rng_collection: True}
    return any_cell.declared_streams(layer)


def _check_streams(layers: Sequence[Any]) -> None:
    """Raises ValueError if layers disagree on whether time splits a stream."""
    streams: dict[str, tuple[Any, bool]] = {}
    for layer in layers:
        for stream, is_split in _layer_streams(layer).items():
            other, was_split = streams.setdefault(stream, (layer, is_split))
            if was_split != is_split:
                names = type(other).__name__, type(layer).__name__
                fixed, split = names if is_split else names[::-1]
                raise ValueError(
                    f"`layers` of StackedCell: {fixed} uses the random stream "
                    f"{stream!r} for masks that are the same at every step, and "
                    f"{split} for new masks at every step. Pass another "
                    "`rng_collection` to one of them."
                )


def _check_batch(cell: nn.Module, inputs: ArrayTree, batch: tuple) -> None:
    """Raises ValueError unless the inputs of a cell have the given batch axes."""
    shape = jax.tree.leaves(inputs)[0].shape
    batch_axes, _ = any_cell.split_shape(cell, shape)
    if batch_axes != batch:
        raise ValueError(
            f"`layers` of StackedCell must keep the batch axes {batch}, but "
            f"{type(cell).__name__} gets inputs of shape {shape}, with the batch axes "
            f"{batch_axes}. If the inputs of the stack have another number of feature "
            "axes than its first cell, pass `input_dims`."
        )
