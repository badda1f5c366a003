"""The base class of residual blocks: a convolution over time, and a recurrent cell."""

from dataclasses import KW_ONLY

import flax.linen as nn
import jax.numpy as jnp
from chex import ArrayTree
from flax.typing import Dtype, Initializer

from rnncells.layers.contract.composed import ComposedLayer


class ResidualBlock(ComposedLayer):
    """Base of residual blocks, whose inputs and outputs have one width.

    A subclass makes the layers `conv` and `rnn` in `setup`. Its carry is a pair: the
    last inputs of the convolution, and the carry of the cell.

    Attributes:
      features: width of the inputs and outputs.
      kernel_size: number of steps of the convolution, at least 2. Default: 4.
      kernel_init: initializer of the kernels. Default: LeCun normal.
      dtype: dtype of the computation; None promotes inputs and parameters. Sums with
        the inputs keep the precision of the inputs. Default: None.
      param_dtype: dtype of the parameters and of the carry. Default: float32.
      time_major: inputs and outputs are `(time, *batch, features)`. Default: False.
      return_carry: returns `(carry, outputs)`. Default: False.
    """

    features: int
    _: KW_ONLY
    kernel_size: int = 4
    kernel_init: Initializer = nn.initializers.lecun_normal()
    dtype: Dtype | None = None
    param_dtype: Dtype = jnp.float32
    time_major: bool = False
    return_carry: bool = False

    @nn.nowrap
    def _input_widths(self) -> tuple[int, ...]:
        return (self.features,)

    @nn.nowrap
    def _recurrent(self) -> list[nn.Module]:
        return [self.conv, self.rnn]

    @nn.nowrap
    def _check_width(self, inputs: ArrayTree) -> None:
        if jnp.shape(inputs)[-1:] != (self.features,):
            raise ValueError(
                f"The inputs of {type(self).__name__} must have its width, "
                f"{self.features}, got the shape {jnp.shape(inputs)}. Apply nn.Dense "
                "before it."
            )
