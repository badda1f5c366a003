"""The base class of cells around another cell."""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from chex import ArrayTree

from rnncells._checks import check_instance
from rnncells.cells.contract.any_cell import declared_streams
from rnncells.cells.contract.base import RNNCellBase
from rnncells.cells.contract.carry import ShapeTree
from rnncells.flax_internals import run_setup_for_params


class WrapperCell(RNNCellBase):
    """Base of cells around one other cell, whose carry and projection they share.

    A subclass has the field `rng_collection`, the name of a random stream.

    Attributes:
      cell: the wrapped cell, which has `project` and `recur`.

    Raises:
      TypeError: `cell` is no such cell, or its `features` is None.
      ValueError: the wrapped cell uses the same random stream in another way.
    """

    cell: RNNCellBase

    # Whether `RNN` splits the random stream over time.
    _splits_stream = True

    def __post_init__(self) -> None:
        name, cell = type(self).__name__, self.cell
        check_instance(name, "cell", cell)
        if not isinstance(cell, RNNCellBase):
            raise TypeError(
                f"`cell` of {name} must be a cell with `project` and `recur`, got "
                f"{cell!r}."
            )
        if getattr(cell, "features", 0) is None:
            raise TypeError(
                f"`features` of the cell of {name} must be an int, got None."
            )
        declared = declared_streams(cell).get(self.rng_collection)
        if declared is not None and declared != self._splits_stream:
            names = "the same at every step", "new at every step"
            raise ValueError(
                f"`rng_collection` of {name} must not be {self.rng_collection!r}: "
                f"{type(cell).__name__} uses that stream for masks that are "
                f"{names[declared]}. Pass another `rng_collection` to one of them."
            )
        super().__post_init__()

    @property
    def rng_streams(self) -> dict[str, bool]:
        """Random streams, and whether `RNN` splits them over time."""
        return {**declared_streams(self.cell), self.rng_collection: self._splits_stream}

    @property
    def features(self) -> int:
        """`features` of the wrapped cell."""
        return self.cell.features

    @property
    def num_feature_dims(self) -> int:
        return self.cell.num_feature_dims

    def carry_shape(self, input_shape: tuple[int, ...]) -> ShapeTree:
        run_setup_for_params(self.cell)  # before a loop over time
        return self.cell.carry_shape(input_shape)

    @property
    def param_dtype(self) -> Any:
        """`param_dtype` of the wrapped cell."""
        return getattr(self.cell, "param_dtype", jnp.float32)

    @property
    def carry_init(self) -> Any:
        """`carry_init` of the wrapped cell."""
        return getattr(self.cell, "carry_init", nn.initializers.zeros_init())

    def project(self, inputs: ArrayTree) -> ArrayTree:
        if self.is_initializing():
            self.cell._check_bias_init()
        return self.cell.project(inputs)
