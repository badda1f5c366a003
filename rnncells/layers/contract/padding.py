"""Masks of padded steps for layers that are not recurrent and have no lengths."""

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from chex import ArrayTree
from jax import Array

from rnncells.recurrence.masks import expand_right
from rnncells.recurrence.schedule import before_end, both, clear_padding

# Layers of Flax whose outputs at a step can depend on other steps.
_NORMS = nn.BatchNorm, nn.GroupNorm, nn.InstanceNorm, nn.LayerNorm, nn.RMSNorm
_CONVOLUTIONS = nn.Conv, nn.ConvLocal, nn.ConvTranspose
_ATTENTION = (nn.MultiHeadDotProductAttention,)
_MIXING = *_NORMS, *_CONVOLUTIONS, *_ATTENTION
# Of their first arguments.
_INPUTS = "inputs", "x", "inputs_q"


class Padding(NamedTuple):
    """The mask of valid steps of a batch of sequences."""

    # Of the batch and time axes of the inputs; None if nothing depends on steps.
    sizes: tuple[int, ...] | None
    axis: int | None  # position of the time axis; None for one step
    valid: Array | None  # true at valid steps, of these sizes; None if all are

    def clear(self, inputs: ArrayTree, everything: bool = False) -> ArrayTree:
        """Returns inputs whose NaN and infinity (or everything) at invalid steps are 0.

        Layers that are not recurrent, such as `nn.Dense`, have no masks: NaN would
        reach the gradients of their weights.
        """
        if self.valid is None or not self.fits(inputs):
            return inputs
        return clear_padding(inputs, self.valid, everything)

    def fits(self, inputs: ArrayTree) -> bool:
        """Says whether inputs have the batch and time axes that lengths describe."""
        sizes, leaves = self.sizes, jax.tree.leaves(inputs)
        return sizes is None or all(jnp.shape(x)[: len(sizes)] == sizes for x in leaves)

    def check(self, owner: str, layer: Any, inputs: ArrayTree) -> None:
        """Raises ValueError if a layer before has changed the batch or time axes."""
        if not self.fits(inputs):
            cell = getattr(layer, "cell", None)
            kind = type(cell if isinstance(cell, nn.Module) else layer).__name__
            raise ValueError(
                f"{owner} got lengths, a mask or resets for inputs with the batch and "
                f"time axes {self.sizes}, but the inputs of its layer {kind} have the "
                f"shape {jax.tree.leaves(inputs)[0].shape}. A layer before {kind} "
                f"changes the batch or time axes. Split {owner} into two after that "
                "layer, and pass the new lengths to the second one."
            )

    def prepare(
        self, owner: str, layer: Any, inputs: ArrayTree
    ) -> tuple[ArrayTree, dict[str, Any]]:
        """Returns inputs and options of a layer for which padded steps do not count."""
        if self.valid is None or not self._depends_on_steps(layer, inputs):
            return self.clear(inputs), {}
        self.check(owner, layer, inputs)
        if isinstance(layer, _CONVOLUTIONS):
            return self.clear(inputs, everything=True), {}
        inputs = self.clear(inputs)
        if isinstance(layer, _ATTENTION):
            return inputs, {"mask": jnp.expand_dims(self.valid, (-3, -2))}
        over = [axis for axis in _reduced(layer, inputs.ndim) if axis < self.valid.ndim]
        # The mean over no step at all would be NaN.
        counts = self.valid | ~self.valid.any(over, keepdims=True)
        counts = expand_right(counts, inputs.ndim)
        return inputs, {"mask": jnp.broadcast_to(counts, inputs.shape)}

    def intercept(
        self,
        owner: str,
        layer: Any,
        call: Callable,
        args: tuple,
        kwargs: dict,
        context: Any,
    ) -> Any:
        """Intercepts a call of a module so that padded steps do not count."""
        module, first = context.module, [name for name in _INPUTS if name in kwargs]
        is_call = context.method_name == "__call__" and (args or first)
        if not is_call or not isinstance(module, _MIXING):
            return call(*args, **kwargs)
        arguments = {**dict(zip(("", "inputs_k", "inputs_v"), args)), **kwargs}
        inputs = arguments[first[0] if first else ""]
        keys = arguments.get("inputs_k")
        fits = self.fits(inputs) and (keys is None or self.fits(keys))
        if module is not layer and not fits:
            return call(*args, **kwargs)
        inputs, options = self.prepare(owner, module, inputs)
        if options and kwargs.get("mask") is not None:
            options["mask"] = jnp.logical_and(options["mask"], kwargs["mask"])
        if first:
            return call(*args, **kwargs | {first[0]: inputs} | options)
        return call(inputs, *args[1:], **kwargs | options)

    def _depends_on_steps(self, layer: Any, inputs: Any) -> bool:
        """Says whether outputs of a layer of Flax at a step depend on other steps."""
        if not isinstance(layer, _MIXING):
            return False
        ndim, lead = inputs.ndim, len(self.sizes or ())
        if isinstance(layer, _NORMS):
            return any(axis < lead for axis in _reduced(layer, ndim))
        if isinstance(layer, _CONVOLUTIONS):
            return ndim - 1 - np.size(layer.kernel_size) < lead
        return isinstance(layer, _ATTENTION) and self.axis == ndim - 2


def infer_padding(
    inputs: ArrayTree, time_major: bool, seq_lengths: Any, mask: Any, resets: Any
) -> Padding:
    """Returns the padding; misfits are ignored, because recurrent layers check them."""
    seq_lengths, mask, resets = map(_as_array, (seq_lengths, mask, resets))
    per_step = mask if seq_lengths is None else seq_lengths
    per_step = resets if per_step is None else per_step
    if per_step is None:
        return Padding(None, None, None)
    axes = np.ndim(per_step) + (seq_lengths is not None)
    sizes = jax.tree.leaves(inputs)[0].shape[:axes]
    axis = 0 if time_major else axes - 1
    unpadded, batch = None, sizes[:axis] + sizes[axis + 1 :]
    has_time = len(sizes) == axes
    if has_time and seq_lengths is not None and np.shape(seq_lengths) == batch:
        unpadded = before_end(jnp.asarray(seq_lengths), sizes, axis)
    return Padding(sizes, axis, both(_fitting(mask, sizes), unpadded))


def step_padding(inputs: ArrayTree, mask: Any) -> Padding:
    """Returns the padding of one time step, whose masked rows are invalid."""
    mask = _as_array(mask)
    if mask is None:
        return Padding(None, None, None)
    sizes = jax.tree.leaves(inputs)[0].shape[: np.ndim(mask)]
    return Padding(sizes, None, _fitting(mask, sizes))


def check_one_step(owner: str, layer: Any, inputs: Any) -> None:
    """Raises ValueError if a layer would take rows, `(batch, features)`, for steps."""
    if isinstance(layer, nn.BatchNorm) or getattr(inputs, "ndim", None) != 2:
        return
    (rows, features), dtype = inputs.shape, inputs.dtype
    sequence = jax.ShapeDtypeStruct((rows, 1, features), dtype)
    if Padding((rows, 1), 1, None)._depends_on_steps(layer, sequence):
        raise ValueError(
            f"`step` of {owner} needs layers that take one step, got "
            f"{type(layer).__name__}, whose outputs depend on several steps. Call "
            f"{owner} on the whole sequence. (A CausalConvCell is a convolution that "
            "takes steps.)"
        )


def _as_array(value: Any) -> Any:
    """Returns an array; lists can contain traced numbers."""
    return value if value is None or hasattr(value, "shape") else jnp.asarray(value)


def _fitting(mask: Any, sizes: tuple[int, ...]) -> Array | None:
    if mask is None:
        return None
    mask = jnp.asarray(mask)
    return mask if (mask.shape, mask.dtype) == (sizes, jnp.bool_) else None


def _reduced(norm: Any, ndim: int) -> list[int]:
    """Returns the axes over which a normalization of Flax takes its statistics."""
    if isinstance(norm, nn.BatchNorm):
        candidates, excluded = range(ndim), norm.axis
    elif isinstance(norm, nn.InstanceNorm):
        candidates, excluded = range(1, ndim), norm.feature_axes
    elif norm.reduction_axes is None:  # of GroupNorm
        candidates, excluded = range(1, ndim), ()
    else:
        candidates, excluded = norm.reduction_axes, ()
    axes = np.setdiff1d(np.mod(candidates, ndim), np.mod(excluded, ndim))
    return axes.tolist()
