"""Layers that take old forms beside today's."""

from functools import wraps
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from rnncells.carry import Carry, PyTree
from rnncells.layers import bidirectional, rnn
from rnncells.legacy.carry import Size, is_old_method, make_old_carry
from rnncells.legacy.notice import is_called_by_library, notice

# Fields behind `cell_size`: since Flax 0.6.8, and in 0.6.7.
FIELDS = ("time_major", "return_carry", "reverse", "keep_order", "unroll")
FIELDS += ("variable_axes", "variable_broadcast", "variable_carry", "split_rngs")
FIELDS_IN_0_6_7 = FIELDS[:2] + FIELDS[4:]


class OldRNN:
    """What `RNN` has beside the layer that it is made of: `cell_size`."""

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        init = cls.__init__

        @wraps(init)
        def noticed(self, *args, **kwargs):
            args, moved = without_cell_size(args)
            init(self, *args, **moved, **kwargs)
            if self.cell_size is not None and not is_called_by_library():
                notice(f"`RNN(cell, cell_size)` is of Flax <= 0.6.11: {self._advice()}")

        cls.__init__ = noticed


def without_cell_size(args: tuple[Any, ...]) -> tuple[tuple, dict[str, Any]]:
    """Returns positional arguments of today's `RNN`, and those of the old one by name.

    A second one that is no bool is `cell_size`, and others stand behind it.
    """
    if len(args) < 2 or isinstance(args[1], bool):
        return args, {}
    cell, cell_size, *rest = args
    is_0_6_7 = len(rest) > 2 and not isinstance(rest[2], bool)
    names = FIELDS_IN_0_6_7 if is_0_6_7 else FIELDS
    return (cell,), {"cell_size": cell_size, **dict(zip(names, rest, strict=False))}


class RNN(OldRNN, rnn.RNN):
    __doc__ = rnn.RNN.__doc__

    cell_size: Size | None = None

    @nn.nowrap
    def _advice(self) -> str:
        """Returns what to write instead."""
        name = type(self.cell).__name__
        if is_old_method(self.cell):
            return (
                f"write RNN({name}(...)), and have `initialize_carry` of {name} be a "
                "method of the instance, `(self, rng, input_shape)`, decorated by "
                "nn.nowrap, which knows the size from a field of the cell."
            )
        if getattr(self.cell, "features", None) is not None:
            return f"write RNN({name}(...)), without it."
        return f"write RNN({name}(features={self.cell_size}))."

    @nn.nowrap
    def _feature_dims(self) -> int:
        if isinstance(self.cell_size, tuple | list):
            return len(self.cell_size)
        return super()._feature_dims()

    def __call__(
        self, inputs: PyTree, *, segmentation_mask: jax.Array | None = None, **options
    ) -> Any:
        """Applies the cell to every step; see `rnncells.RNN`.

        Args:
          inputs: pytree of `(*batch, time, *features)`.
          segmentation_mask: integers `(*batch, time)`, 1 at the first steps of each
            row, and 0 at its padding.
          **options: those of `rnncells.RNN`.
        """
        return super().__call__(inputs, **_with_lengths(options, segmentation_mask))

    def _own_carry(
        self, init_key: jax.Array | None, inputs: PyTree, axis: int
    ) -> Carry:
        if self.cell_size is None:
            return super()._own_carry(init_key, inputs, axis)
        shape = jax.tree.leaves(inputs)[0].shape
        batch = shape[: len(shape) - self._feature_dims()]
        key = jax.random.key(0) if init_key is None else init_key
        batch_dims = batch[:axis] + batch[axis + 1 :]
        return make_old_carry(self.cell, key, batch_dims, self.cell_size)


class Bidirectional(bidirectional.Bidirectional):
    __doc__ = bidirectional.Bidirectional.__doc__

    def __call__(
        self, inputs: PyTree, *, segmentation_mask: jax.Array | None = None, **options
    ) -> Any:
        """Applies both layers; see `rnncells.Bidirectional`, and `RNN` for the mask."""
        return super().__call__(inputs, **_with_lengths(options, segmentation_mask))


def _with_lengths(
    options: dict[str, Any], segmentation_mask: jax.Array | None
) -> dict[str, Any]:
    if segmentation_mask is None:
        return options
    if options.get("seq_lengths") is not None:
        raise TypeError(
            "give `seq_lengths`, or else `segmentation_mask`, its old form."
        )
    notice(
        "`segmentation_mask` is of Flax <= 0.6.9: write "
        "seq_lengths=segmentation_mask.sum(-1)."
    )
    return {**options, "seq_lengths": jnp.sum(jnp.asarray(segmentation_mask), -1)}
