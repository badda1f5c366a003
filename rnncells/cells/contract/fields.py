"""The fields that cells share."""

from collections.abc import Callable
from dataclasses import KW_ONLY

import flax.linen as nn
import jax.numpy as jnp
from flax.typing import Dtype, Initializer
from jax import Array

from rnncells import initializers
from rnncells.cells.contract.base import RNNCellBase
from rnncells.cells.contract.carry import ShapeTree


class VectorCell(RNNCellBase):
    """Base of the cells whose carry is one array, `(*batch, features)`, by default."""

    features: int | None

    num_feature_dims = 1

    def carry_shape(self, input_shape: tuple[int, ...]) -> ShapeTree:
        return (self.features,)


class CellFields(VectorCell):
    """Base of cells whose dtypes and initial carry are given by name.

    Attributes:
      features: number of units; None takes the width of the carry.
      dtype: dtype of the computation; None promotes inputs and parameters.
        Default: None.
      param_dtype: dtype of the parameters and of the carry. Default: float32.
      carry_init: initializer of the carry. Default: zeros.
    """

    _: KW_ONLY
    dtype: Dtype | None = None
    param_dtype: Dtype = jnp.float32
    carry_init: Initializer = nn.initializers.zeros_init()


class DenseCell(VectorCell):
    """Base of the cells whose inputs and states are multiplied by matrices.

    The fields, and so the positional arguments, are in the order of flax.linen. The
    fields that a subclass declares follow them.

    Attributes:
      features: number of units; None takes the width of the carry.
      activation_fn: activation function, tanh in the equations. Default: tanh.
      kernel_init: initializer of the input kernels, each `(features_in, features)`.
        Default: LeCun normal.
      recurrent_kernel_init: initializer of the recurrent kernels, each
        `(features, features)`. Default: orthogonal.
      bias_init: initializer of the biases. Default: zeros.
      dtype: dtype of the computation; None promotes inputs and parameters.
        Default: None.
      param_dtype: dtype of the parameters and of the carry. Default: float32.
      carry_init: initializer of the carry. Default: zeros.
    """

    activation_fn: Callable[[Array], Array] = nn.tanh
    kernel_init: Initializer = nn.initializers.lecun_normal()
    recurrent_kernel_init: Initializer = initializers.orthogonal()
    bias_init: Initializer = nn.initializers.zeros_init()
    dtype: Dtype | None = None
    param_dtype: Dtype = jnp.float32
    carry_init: Initializer = nn.initializers.zeros_init()


class GateFields(RNNCellBase):
    """Base that puts `features` and `gate_fn` before the fields of `DenseCell`."""

    features: int | None
    gate_fn: Callable[[Array], Array] = nn.sigmoid


# Dataclasses collect the fields of bases from the last base to the first, so that
# `gate_fn` is the second field, as in flax.linen.
class GatedCell(DenseCell, GateFields):
    """Base of the dense cells with gates.

    Attributes, in addition to those of `rnncells.cells.contract.fields.DenseCell`:
      gate_fn: activation function of the gates, σ in the equations. Default: sigmoid.
    """
