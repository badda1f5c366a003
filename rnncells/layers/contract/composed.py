"""The base class of layers that compose other layers over sequences."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from chex import ArrayTree, PRNGKey
from jax import Array

from rnncells._checks import check_choice
from rnncells.cells.contract import any_cell
from rnncells.cells.contract.carry import Carry
from rnncells.layers.contract import checks
from rnncells.layers.contract.padding import (
    Padding,
    check_one_step,
    infer_padding,
    step_padding,
)
from rnncells.layers.contract.sequence_layer import RecurrentLayer
from rnncells.recurrence.pytrees import StructTree, structs
from rnncells.recurrence.schedule import PaddedOutputs


class ComposedLayer(RecurrentLayer):
    """Base of layers that apply other layers to whole sequences, or to one step.

    A subclass has the fields `time_major` and `return_carry`, and defines `_recurrent`
    and `_apply_layers`.
    """

    @nn.nowrap
    def _recurrent(self) -> list[nn.Module]:
        """Returns the recurrent layers, bound, in their order."""
        raise NotImplementedError

    @nn.nowrap
    def _apply_layers(
        self, run: Callable, inputs: ArrayTree, apply: Callable
    ) -> tuple[tuple[Carry, ...], ArrayTree]:
        """Applies all layers, and returns the carries and the outputs.

        Args:
          run: `run(number, layer, inputs)` applies a recurrent layer, and returns
            `(carry, outputs)`.
          inputs: inputs of the first layer, with any leading axes.
          apply: `apply(layer, inputs)` applies another layer or function, and returns
            its outputs.
        """
        raise NotImplementedError

    def __call__(
        self,
        inputs: ArrayTree,
        *,
        initial_carry: tuple[Carry, ...] | None = None,
        init_key: PRNGKey | None = None,
        return_carry: bool | None = None,
        time_major: bool | None = None,
        seq_lengths: Array | None = None,
        mask: Array | None = None,
        resets: Array | None = None,
        reset_carry: tuple[Carry, ...] | None = None,
        padded_outputs: PaddedOutputs | None = None,
        deterministic: bool | None = None,
    ) -> Any:
        """Applies all layers; see `RNN` for the arguments that are not listed.

        Args:
          inputs: `(*batch, time, *features)`.
          initial_carry: one carry for each recurrent layer; default: their own.
          init_key: key that is split into one for each recurrent layer.
          reset_carry: one carry for each recurrent layer; default: their own.
          padded_outputs: overrides the field of each recurrent layer. (Functions after
            it may change zeros.)
          deterministic: whether dropout and zoneout are off. It is passed to all layers
            and modules whose call takes this argument. `nn.Dropout` raises an error if
            its own field is set, too.

        Returns:
          `outputs`, or `(carries, outputs)` with `return_carry`.

        Raises:
          ValueError: there is not one carry for each recurrent layer; or a layer needs
            lengths, mask or resets, but one before it has changed the time axis.
        """
        flags = checks.check_call(
            self, deterministic, return_carry=return_carry, time_major=time_major
        )
        checks.check_inputs(inputs)
        if padded_outputs is not None:
            check_choice("RNN", "padded_outputs", padded_outputs, PaddedOutputs)
        name, count = type(self).__name__, len(self._recurrent())
        carries = {"initial_carry": initial_carry, "reset_carry": reset_carry}
        by_layer = checks.arguments_by_layer(name, count, init_key, **carries)
        shared: dict[str, Any] = {"seq_lengths": seq_lengths, "mask": mask}
        shared |= {"resets": resets, "padded_outputs": padded_outputs}
        shared |= {"time_major": flags["time_major"], "deterministic": deterministic}
        padding = infer_padding(inputs, flags["time_major"], seq_lengths, mask, resets)

        def run(number: int, layer: nn.Module, inputs: ArrayTree) -> tuple:
            padding.check(name, layer, inputs)
            return _run_layer(name, layer, inputs, by_layer[number] | shared)

        apply = partial(_apply, name, padding, deterministic)
        carry, outputs = self._apply_layers(run, padding.clear(inputs), apply)
        return (carry, outputs) if flags["return_carry"] else outputs

    def step(
        self,
        carries: tuple[Carry, ...] | None,
        inputs: ArrayTree,
        *,
        mask: Array | None = None,
        resets: Array | None = None,
        deterministic: bool | None = None,
    ) -> tuple[tuple[Carry, ...], ArrayTree]:
        """Applies all layers to one step: `carries, output = stack.step(carries, x_t)`.

        The arguments are those of `RNN.step`; `carries` has the form of the call.

        Raises:
          ValueError: a layer has no `step` or runs in reverse, or carries do not fit.
        """
        checks.check_call(self, deterministic)
        checks.check_inputs(inputs)
        if carries is not None:
            count = len(self._recurrent())
            checks.check_carries(type(self).__name__, "carries", carries, count)
        arguments = {"mask": mask, "resets": resets, "deterministic": deterministic}
        arguments = {name: v for name, v in arguments.items() if v is not None}

        def run(number: int, layer: nn.Module, inputs: ArrayTree) -> tuple:
            if not hasattr(type(layer), "step"):
                raise ValueError(
                    f"`step` of {type(self).__name__} needs layers with a method "
                    f"`step`, got {type(layer).__name__}. Call the layer on the whole "
                    "sequence."
                )
            carry = None if carries is None else carries[number]
            return layer.step(carry, inputs, **arguments)

        padding = step_padding(inputs, mask)

        def apply(layer: Callable, inputs: ArrayTree) -> ArrayTree:
            check_one_step(type(self).__name__, layer, inputs)
            return _apply(type(self).__name__, padding, deterministic, layer, inputs)

        return self._apply_layers(run, padding.clear(inputs), apply)

    @nn.nowrap
    def _initial_carry(
        self, key: PRNGKey | None, sample: StructTree
    ) -> tuple[Carry, ...]:
        """Returns the initial carry of each recurrent layer for one step of input."""
        if self.scope is None:  # `setup` makes the layers
            return self.bind({})._initial_carry(key, sample)
        samples = self._samples(sample)
        keys = [key] * len(samples)
        if key is not None:
            keys = jax.random.split(key, len(samples))
        return tuple(
            layer.initialize_carry(layer_key, layer_sample)
            if hasattr(type(layer), "initialize_carry")
            else None
            for layer, layer_key, layer_sample in zip(
                self._recurrent(), keys, samples, strict=True
            )
        )

    @nn.nowrap
    def _samples(self, sample: StructTree) -> list[StructTree]:
        """Returns one step of input of each recurrent layer, as shapes and dtypes."""
        samples = []

        def record(composed: "ComposedLayer", x: ArrayTree) -> Any:
            def run(number: int, layer: nn.Module, inputs: ArrayTree) -> tuple:
                samples.append(structs(inputs, drop_axis=0))
                arguments = {"time_major": True, "deterministic": True}
                return _run_layer(type(composed).__name__, layer, inputs, arguments)

            def apply(layer: Callable, inputs: ArrayTree) -> ArrayTree:
                return layer(inputs, **any_cell.without_dropout(layer))

            return composed._apply_layers(run, x, apply)

        sequence = jax.tree.map(lambda x: x.update(shape=(1, *x.shape)), sample)
        init = nn.init(record, self.clone(parent=None))
        jax.eval_shape(init, jax.random.key(0), sequence)
        return samples


def _apply(
    owner: str,
    padding: Padding,
    deterministic: bool | None,
    layer: Callable,
    inputs: ArrayTree,
) -> ArrayTree:
    """Applies a layer or function that is not recurrent."""
    options: dict[str, Any] = any_cell.deterministic_option(layer, deterministic)
    if padding.valid is None:
        return layer(inputs, **options)

    with nn.intercept_methods(partial(padding.intercept, owner, layer)):
        return layer(padding.clear(inputs), **options)


def _run_layer(
    owner: str, layer: nn.Module, inputs: ArrayTree, arguments: dict[str, Any]
) -> tuple[Carry, ArrayTree]:
    """Applies a recurrent layer of rnncells, of a user or of Flax to sequences."""
    name = type(layer).__name__
    options = {key: value for key, value in arguments.items() if value is not None}
    if not hasattr(type(layer), "run"):
        # Flax's cells have no dropout.
        options.pop("deterministic", None)
        unknown = {"mask", "resets", "reset_carry", "padded_outputs"}
        for key in sorted(options.keys() & unknown):
            raise ValueError(
                f"`{key}` of {owner} cannot be passed to flax.linen.{name}. Use "
                f"rnncells.{name}."
            )
        return layer(inputs, **options, return_carry=True)
    parameters = inspect.signature(layer.run).parameters
    if "deterministic" not in parameters and not any_cell.takes_any_keyword(layer.run):
        options.pop("deterministic", None)
    result = layer.run(inputs, **options)
    if not isinstance(result, tuple) or len(result) != 2:
        raise TypeError(
            f"`run` of {name} must return (carry, outputs), got "
            f"{type(result).__name__} {jax.tree.map(jnp.shape, result)}."
        )
    return result
