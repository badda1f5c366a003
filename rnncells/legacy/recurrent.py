"""Cells and layers with old and new arguments; replaces `flax.linen.recurrent`."""

import dataclasses
from functools import wraps
from typing import Any, cast

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from chex import ArrayTree, PRNGKey
from jax import Array

from rnncells.cells import conv, gru, lstm, simple
from rnncells.cells.contract import base
from rnncells.cells.contract.any_cell import split_shape
from rnncells.cells.contract.carry import Carry, is_shape
from rnncells.flax_internals import with_width_of
from rnncells.layers import bidirectional, rnn
from rnncells.legacy._old_forms import (
    Advice,
    InitializeCarry,
    Size,
    advice_on_cell,
    carry_method,
    how_made,
    make_old_carry,
    notice,
)
from rnncells.recurrence.pytrees import StructTree

# Fields after `cell_size`: since Flax 0.6.8, and in 0.6.7.
FIELDS = ("time_major", "return_carry", "reverse", "keep_order", "unroll")
FIELDS += ("variable_axes", "variable_broadcast", "variable_carry", "split_rngs")
FIELDS_IN_0_6_7 = FIELDS[:2] + FIELDS[4:]


class OldForms:
    """Mixin that warns when a user constructs a module in an old form.

    It does not warn when all fields are given by name: Flax and `dataclasses.replace`
    copy modules that way.
    """

    features: Any

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        init, module = cls.__init__, cast(type[nn.Module], cls)
        fields = {f.name for f in dataclasses.fields(module) if f.init}
        fields -= {"parent", "name"}

        @wraps(init)
        def noticed(self: Any, *args: Any, **kwargs: Any) -> None:
            args, kwargs = self._named(args, kwargs)
            init(self, *args, **kwargs)
            advice = self._advice()
            if advice is not None and not fields <= set(kwargs):
                notice(*advice)

        cls.__init__ = noticed  # type: ignore[method-assign]

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = cls._named(args, kwargs)
        make: Any = super().__new__  # which checks the arguments
        return make(cls, *args, **kwargs)

    @staticmethod
    def _named(args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        """Returns the arguments in the form of today's constructor."""
        return args, kwargs

    def _advice(self) -> Advice | None:
        """Returns the replacement of a cell without `features`."""
        if self.features is not None:
            return None
        name, of = how_made(type(self))
        return (
            f"`{name}()`{of} without `features`",
            "0.6.11",
            f"`{name}(features=size)`, where `size` is the width of its carry",
        )


class OldStep:
    """Mixin for cells that accept a list or an array that broadcasts as their carry.

    As in Flax, the equations determine the shapes and dtypes of the new carry. LSTM and
    GRU cells with `features` accept the carries of rnncells only.
    """

    @nn.nowrap
    def _step(self: Any, carry: Carry, inputs: Array) -> tuple[Carry, Array]:
        # `self` is a cell, whose class this mixin precedes.
        if self.features is not None and not hasattr(self, "state_shape"):
            return super()._step(carry, inputs)  # type: ignore[misc]
        inputs = jnp.asarray(inputs)
        parts = unpack(self, carry, inputs.shape)
        if parts is None:
            # Raises the error for a wrong carry.
            return super()._step(carry, inputs)  # type: ignore[misc]
        carry = parts if len(parts) > 1 else parts[0]
        cell = with_width_of(self, carry)
        return cell.recur(carry, cell.project(inputs))


def unpack(
    cell: nn.Module, carry: Carry, input_shape: tuple[int, ...]
) -> tuple[Array, ...] | None:
    """Returns the parts of a carry as arrays, or None if they do not fit the cell."""
    try:
        batch, features = split_shape(cell, input_shape)
        shapes = jax.tree.leaves(cell.carry_shape(features), is_leaf=is_shape)
        parts = (carry,) if len(shapes) == 1 else tuple(carry)
        h_shape = parts[-1].shape
        expected = [h_shape[-1] if n is None else n for n in shapes[-1]]
        jnp.broadcast_shapes((*batch, *expected), *map(jnp.shape, parts))
    except (AttributeError, IndexError, TypeError, ValueError):
        return None
    if len(parts) != len(shapes) or len(h_shape) < len(features):
        return None
    return tuple(map(jnp.asarray, parts))


class RNNCellBase(nn.RNNCellBase):
    """Base class of users' cells, with an old or a new `initialize_carry`.

    A cell without `num_feature_axes` has one feature axis.
    """

    @property
    def num_feature_axes(self) -> int:
        return 1


class LSTMCell(OldForms, OldStep, lstm.LSTMCell, RNNCellBase):
    __doc__ = lstm.LSTMCell.__doc__

    features: int | None = None

    initialize_carry = InitializeCarry(parts=2)


class OptimizedLSTMCell(OldForms, OldStep, lstm.OptimizedLSTMCell, RNNCellBase):
    __doc__ = lstm.OptimizedLSTMCell.__doc__

    features: int | None = None

    initialize_carry = InitializeCarry(parts=2)


class GRUCell(OldForms, OldStep, gru.GRUCell, RNNCellBase):
    __doc__ = gru.GRUCell.__doc__

    features: int | None = None

    initialize_carry = InitializeCarry(parts=1)


class MGUCell(gru.MGUCell, RNNCellBase):
    __doc__ = gru.MGUCell.__doc__


class SimpleCell(simple.SimpleCell, RNNCellBase):
    __doc__ = simple.SimpleCell.__doc__


class ConvLSTMCell(OldStep, conv.ConvLSTMCell, RNNCellBase):
    __doc__ = conv.ConvLSTMCell.__doc__

    initialize_carry = InitializeCarry(parts=2)


class ConvLSTM(OldForms, ConvLSTMCell):
    """`ConvLSTMCell` under its name in Flax <= 0.6.3, which old checkpoints have."""

    @nn.nowrap
    def _advice(self) -> Advice:
        return (
            "`ConvLSTM(features, kernel_size)`",
            "0.6.3",
            "`ConvLSTMCell(features, kernel_size)`; in a compact method, also pass its "
            "name in checkpoints, such as name='ConvLSTM_0'",
        )


def takes_shape(cell: nn.Module) -> bool:
    """Returns whether a cell derives from the shim and makes its own carry."""
    method = carry_method(cell)
    of_today = base.RNNCellBase.initialize_carry
    is_users = not isinstance(method, InitializeCarry) and method is not of_today
    is_derived = isinstance(cell, RNNCellBase) and isinstance(cell, base.RNNCellBase)
    return is_users and is_derived


class RNN(OldForms, rnn.RNN):
    __doc__ = rnn.RNN.__doc__

    cell_size: Size | None = None

    @staticmethod
    def _named(args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        # If the second argument is not a bool, it is `cell_size`, and `FIELDS` follow.
        if len(args) < 2 or isinstance(args[1], bool):
            return args, kwargs
        cell, *rest = args
        is_0_6_7 = len(rest) > 3 and not isinstance(rest[3], bool)
        names = ("cell_size", *(FIELDS_IN_0_6_7 if is_0_6_7 else FIELDS))
        if len(rest) > len(names):
            raise TypeError(
                f"RNN takes at most {len(names)} positional arguments after the cell, "
                f"the first of them `cell_size`, got {len(rest)}."
            )
        named = dict(zip(names, rest, strict=False))
        for name in named.keys() & kwargs.keys():
            raise TypeError(f"RNN got `{name}` twice, by position and by name.")
        return (cell,), {**named, **kwargs}

    @nn.nowrap
    def _advice(self) -> Advice | None:
        if self.cell_size is None:
            return None
        name, of = how_made(type(self))
        new = f"`{name}(cell)`, {advice_on_cell(self.cell)}"
        return f"`{name}(cell, cell_size)`{of}", "0.6.11", new

    @nn.nowrap
    def _feature_dims(self) -> int:
        if isinstance(self.cell_size, tuple | list):
            return len(self.cell_size)
        return super()._feature_dims()

    def __call__(
        self,
        inputs: ArrayTree,
        *,
        segmentation_mask: Array | None = None,
        **options: Any,
    ) -> Any:
        """Applies the cell to every step; see `rnncells.RNN`.

        `segmentation_mask` has integers `(*batch, time)`: 1 at the first steps of each
        row, and 0 at the padding after them. With `cell_size`, a row of length 0 runs
        through all its steps, as in Flax <= 0.6.11. Without `cell_size`, its final
        carry is the initial carry.
        """
        options = with_lengths(self, inputs, segmentation_mask, options)
        lengths = options.get("seq_lengths")
        if self.cell_size is not None and lengths is not None:
            sizes = sizes_of(self, inputs, -self._feature_dims(), options)
            steps = sizes[-1] if sizes else 0
            lengths = lengths if isinstance(lengths, Array) else np.asarray(lengths)
            # Flax flips a row of length 0 as a whole, and takes its carry at 0 - 1.
            lengths = lengths + steps * (lengths == 0).astype(jnp.int32)
            options["seq_lengths"] = lengths
        return super().__call__(inputs, **options)

    @nn.nowrap
    def _initial_carry(self, key: PRNGKey | None, sample: StructTree) -> Carry:
        size = self.cell_size
        if size is None and not takes_shape(self.cell):
            return super()._initial_carry(key, sample)
        key = jax.random.key(0) if key is None else key
        shape = jax.tree.leaves(sample)[0].shape
        if size is None:
            return self.cell.initialize_carry(key, shape)
        batch_dims = shape[: len(shape) - self._feature_dims()]
        return make_old_carry(self.cell, key, batch_dims, size)


class Bidirectional(bidirectional.Bidirectional):
    __doc__ = bidirectional.Bidirectional.__doc__

    def __call__(
        self,
        inputs: ArrayTree,
        *,
        segmentation_mask: Array | None = None,
        **options: Any,
    ) -> Any:
        """Applies both layers; see `rnncells.Bidirectional`, and `RNN` for the mask."""
        options = with_lengths(self, inputs, segmentation_mask, options)
        return super().__call__(inputs, **options)


def with_lengths(
    layer: nn.Module,
    inputs: ArrayTree,
    segmentation_mask: Array | None,
    options: dict[str, Any],
) -> dict[str, Any]:
    """Returns the options of a call with lengths instead of a mask."""
    if segmentation_mask is None:
        return options
    if options.get("seq_lengths") is not None:
        raise TypeError(
            "Pass `seq_lengths` or `segmentation_mask`, its old form, not both."
        )
    notice("`segmentation_mask`", "0.6.9", "`seq_lengths=segmentation_mask.sum(-1)`")
    mask = jnp.asarray(segmentation_mask)
    sizes = sizes_of(layer, inputs, mask.ndim, options)
    if mask.shape != sizes:
        raise ValueError(
            f"`segmentation_mask` must have the shape {sizes} (the batch and time axes "
            f"of the inputs), got {mask.shape}."
        )
    return {**options, "seq_lengths": jnp.sum(mask, -1, dtype=jnp.int32)}


def sizes_of(
    layer: nn.Module, inputs: ArrayTree, stop: int, options: dict[str, Any]
) -> tuple[int, ...]:
    """Returns the sizes of the inputs' axes up to `stop`: batch axes, then time."""
    sizes = jnp.shape(jax.tree.leaves(inputs)[0])[:stop]
    time_major = options.get("time_major")
    time_major = layer.time_major if time_major is None else time_major
    return sizes[1:] + sizes[:1] if time_major else sizes


def __getattr__(name: str) -> Any:
    if not hasattr(nn.recurrent, name):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(nn.recurrent, name)
