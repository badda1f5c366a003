"""A layer that composes cells, layers over sequences, and functions."""

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp

from rnncells._arguments import ChecksArguments
from rnncells.cells.any_cell import is_cell, sample_of, warn_of_shared
from rnncells.cells.any_step import (
    deterministic_option,
    takes_any_keyword,
    without_dropout,
)
from rnncells.cells.carry import Carry
from rnncells.cells.checks import check_key, check_list, check_not_separate
from rnncells.cells.sample import Sample
from rnncells.layers.checks import (
    check_bools,
    check_call,
    check_inputs,
    check_padded_outputs,
    resolve_flags,
)
from rnncells.layers.gradient_checks import check_depth
from rnncells.layers.rnn import RNN
from rnncells.layers.sequence_layer import RunsByCall
from rnncells.layers.states import LSTMStates
from rnncells.recurrence.pytrees import StructTree, structs
from rnncells.recurrence.schedule import PaddedOutputs


class Stack(ChecksArguments, RunsByCall, nn.Module):
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

    _final_carry = {"return_carry": True}

    @classmethod
    def _check_positional(cls, args, most):
        check_not_separate("Stack", args)

    def __post_init__(self):
        check_bools(
            "Stack",
            skip_connections=self.skip_connections,
            time_major=self.time_major,
            return_carry=self.return_carry,
        )
        check_list("Stack", self.layers)
        for layer in list(filter(_is_recurrent, self.layers))[1:]:
            check_depth("Stack", layer)
        for layer in self.layers:
            is_layer = callable(layer) or _is_recurrent(layer)
            if isinstance(layer, type) or not is_layer:
                raise TypeError(
                    "`layers` of Stack must be cells, layers and functions, got "
                    f"{layer!r}. Pass instances, such as LSTMCell(features)."
                )
            if self.skip_connections and not _is_recurrent(layer):
                raise ValueError(
                    "`skip_connections` of Stack needs all `layers` to be recurrent, "
                    f"got {layer!r}."
                )
            is_reversed = getattr(layer, "reverse", False) is True
            if self.skip_connections and is_reversed and not layer.keep_order:
                raise ValueError(
                    "`skip_connections` of Stack needs keep_order=True in reversed "
                    "layers, so that steps of the same time are joined."
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
        padded_outputs: PaddedOutputs | None = None,
        deterministic: bool | None = None,
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
          padded_outputs: values of the outputs at padded and masked steps of each
            recurrent layer, see `RNN`. (Functions after it may change zeros.) Default:
            as the layers' fields say.
          deterministic: whether dropout and zoneout are off. It is passed to all layers
            and modules whose call takes this argument. `nn.Dropout` raises an error if
            its own field is set, too.

        Returns:
          `outputs`, or `(carries, outputs)` with `return_carry`.

        Raises:
          ValueError: there is not one carry for each recurrent layer.
        """
        check_call(self, deterministic)
        check_inputs(inputs)
        warn_of_shared("Stack", filter(_is_recurrent, self.layers))
        flags = resolve_flags(self, return_carry=return_carry, time_major=time_major)
        if padded_outputs is not None:
            check_padded_outputs(padded_outputs)
        count = sum(map(_is_recurrent, self.layers))
        carries = _one_per_layer("initial_carry", initial_carry, count)
        reset_carries = _one_per_layer("reset_carry", reset_carry, count)
        keys = [None] * count if init_key is None else jax.random.split(init_key, count)
        given = [
            {"initial_carry": carry, "reset_carry": at_reset, "init_key": key}
            for carry, at_reset, key in zip(carries, reset_carries, keys, strict=True)
        ]
        shared: dict[str, Any] = {"seq_lengths": seq_lengths, "mask": mask}
        shared["resets"] = resets
        shared |= {"time_major": flags["time_major"], "deterministic": deterministic}
        shared |= {"padded_outputs": padded_outputs}

        def run(number, index, inputs):
            return _run(self.over_time[index], inputs, given[number] | shared)

        option = partial(deterministic_option, deterministic=deterministic)
        carries, outputs = self._compose(run, inputs, option)
        return (carries, outputs) if flags["return_carry"] else outputs

    def step(
        self,
        carries: tuple[Carry, ...] | None,
        inputs: chex.ArrayTree,
        *,
        mask: jax.Array | None = None,
        resets: jax.Array | None = None,
        deterministic: bool | None = None,
    ) -> tuple[tuple[Carry, ...], chex.ArrayTree]:
        """Applies all layers to one step: `carries, output = stack.step(carries, x_t)`.

        Args:
          carries: carries in the form of the call; None before the first step.
          inputs: `(*batch, *features)`.
          mask: booleans `(*batch,)`, false for rows whose carries must not change.
          resets: booleans `(*batch,)`, true for rows that start a new sequence.
          deterministic: as in the call.

        Raises:
          ValueError: a layer has no `step` or runs in reverse, or carries do not fit.
        """
        check_call(self, deterministic)
        check_inputs(inputs)
        carries = _one_per_layer(
            "carries", carries, sum(map(_is_recurrent, self.layers))
        )
        arguments = {"mask": mask, "resets": resets, "deterministic": deterministic}
        arguments = {name: v for name, v in arguments.items() if v is not None}

        def run(number, index, inputs):
            layer = self.over_time[index]
            if not hasattr(type(layer), "step"):
                raise ValueError(
                    "`step` of Stack needs layers with a method `step`, got "
                    f"{type(layer).__name__}. Call the stack on the whole sequence."
                )
            return layer.step(carries[number], inputs, **arguments)

        option = partial(deterministic_option, deterministic=deterministic)
        return self._compose(run, inputs, option)

    @nn.nowrap
    def initialize_carry(
        self,
        key: chex.PRNGKey | None = None,
        sample_input: Sample | None = None,
        *,
        batch_shape: tuple[int, ...] | None = None,
    ) -> tuple[Carry, ...]:
        """Returns the initial carry of each recurrent layer.

        >>> import jax, jax.numpy as jnp, rnncells
        >>> stack = rnncells.Stack([rnncells.LSTMCell(4), rnncells.GRUCell(5)])
        >>> jax.tree.map(jnp.shape, stack.initialize_carry(batch_shape=(2,)))
        (((2, 4), (2, 4)), (2, 5))

        Args:
          key: random key that is split into one for each recurrent layer.
          sample_input: one time step's input, `(*batch, *features)`.
          batch_shape: the batch axes, in place of `sample_input`, if the layers take
            inputs with one feature axis of any width.

        Raises:
          TypeError: not exactly one of `sample_input` and `batch_shape` is given.
        """
        if self.scope is None:
            options: dict[str, Any] = {"batch_shape": batch_shape}
            options["method"] = "initialize_carry"
            return self.clone(parent=None).apply({}, key, sample_input, **options)
        check_key(key)
        carry_of = partial(self._carries, key)
        return carry_of(sample_of("Stack", carry_of, sample_input, batch_shape))

    @nn.nowrap
    def _carries(
        self, key: chex.PRNGKey | None, sample: StructTree
    ) -> tuple[Carry, ...]:
        """Returns the initial carry of each recurrent layer for one step of input."""
        samples = self._samples(sample)
        keys = [key] * len(samples)
        if key is not None:
            keys = jax.random.split(key, len(samples))
        layers = zip(self.over_time, self.layers, strict=True)
        recurrent = [layer for layer, given in layers if _is_recurrent(given)]
        return tuple(
            layer.initialize_carry(own_key, own_sample)
            if hasattr(type(layer), "initialize_carry")
            else None
            for layer, own_key, own_sample in zip(recurrent, keys, samples, strict=True)
        )

    @nn.nowrap
    def _samples(self, sample: StructTree) -> list[StructTree]:
        """Returns one step of input of each recurrent layer, as shapes and dtypes."""
        samples = []

        def record(stack, x):
            def run(number, index, inputs):
                samples.append(structs(inputs, drop_axis=0))
                arguments = {"time_major": True, "deterministic": True}
                return _run(stack.over_time[index], inputs, arguments)

            return stack._compose(run, x, without_dropout)

        def sequence(leaf):
            return jax.ShapeDtypeStruct((1, *leaf.shape), leaf.dtype)

        init = nn.init(record, self.clone(parent=None))
        jax.eval_shape(init, jax.random.key(0), jax.tree.map(sequence, sample))
        return samples

    def setup(self):
        """Makes a layer over sequences of each cell."""
        self.over_time = [
            RNN(layer) if is_cell(layer) else layer for layer in self.layers
        ]

    @nn.nowrap
    def _compose(
        self, run: Callable, inputs: chex.ArrayTree, option: Callable
    ) -> tuple[tuple[Carry, ...], chex.ArrayTree]:
        """Applies all layers in turn.

        Args:
          run: `run(number, index, inputs)` applies a recurrent layer.
          inputs: inputs of the first layer.
          option: `option(function)` returns the keyword arguments of a function.
        """
        carries: list[Carry] = []
        everything, outputs = [], inputs
        for index, layer in enumerate(self.layers):
            if not _is_recurrent(layer):
                function = self.over_time[index]
                outputs = function(outputs, **option(function))
                continue
            if self.skip_connections and carries:
                outputs = _concatenated(outputs, inputs)
            carry, outputs = run(len(carries), index, outputs)
            carries.append(carry)
            everything.append(outputs)
        if self.skip_connections:
            outputs = _concatenated(*everything)
        return tuple(carries), outputs


def _is_recurrent(layer: Any) -> bool:
    """Says whether a layer runs over time; flax.linen's layers have no `run`."""
    is_of_flax = isinstance(layer, nn.RNN | nn.Bidirectional)
    return is_of_flax or hasattr(type(layer), "run") or is_cell(layer)


def _run(
    layer: nn.Module, inputs: chex.ArrayTree, arguments: dict[str, Any]
) -> tuple[Carry, chex.ArrayTree]:
    """Applies a recurrent layer of rnncells, of a user or of Flax to sequences."""
    name = type(layer).__name__
    given = {key: value for key, value in arguments.items() if value is not None}
    if not hasattr(type(layer), "run"):
        # Flax's cells have no dropout.
        given.pop("deterministic", None)
        unknown = {"mask", "resets", "reset_carry", "padded_outputs"}
        for key in sorted(given.keys() & unknown):
            raise ValueError(
                f"`{key}` of Stack cannot be passed to flax.linen.{name}. Use "
                f"rnncells.{name}."
            )
        return layer(inputs, **given, return_carry=True)
    takes = inspect.signature(layer.run).parameters
    if "deterministic" not in takes and not takes_any_keyword(layer.run):
        given.pop("deterministic", None)
    result = layer.run(inputs, **given)
    if not isinstance(result, tuple) or len(result) != 2:
        raise TypeError(
            f"`run` of {name} must return (carry, outputs), got "
            f"{type(result).__name__} {jax.tree.map(jnp.shape, result)}."
        )
    return result


def _one_per_layer(name: str, carries: Any, count: int) -> Sequence[Any]:
    """Returns one carry, or None, for each recurrent layer."""
    if carries is None:
        return [None] * count
    is_one_each = isinstance(carries, tuple | list) and len(carries) == count
    if not is_one_each or isinstance(carries, LSTMStates):
        raise ValueError(
            f"`{name}` of Stack must be a tuple with one carry for each of the {count} "
            f"recurrent layers, got {type(carries).__name__} "
            f"{jax.tree.map(jnp.shape, carries)}."
        )
    return carries


def _concatenated(*arrays: jax.Array) -> jax.Array:
    return jnp.concatenate(arrays, axis=-1)
