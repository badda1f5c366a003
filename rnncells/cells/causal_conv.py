"""Causal convolution over time, as a cell whose carry is the last inputs."""

import flax.linen as nn
import jax.numpy as jnp
from chex import ArrayTree
from flax.typing import Initializer
from jax import Array

from rnncells.cells.contract.carry import Carry, ShapeTree
from rnncells.cells.contract.fields import CellFields
from rnncells.cells.contract.parameters import param
from rnncells.recurrence.pytrees import expand_left


class CausalConvCell(CellFields):
    """Causal depthwise convolution over time: a weighted sum of the last inputs.

    One step computes, for each feature on its own::

        y_t = Σ_j w_j ⊙ x_{t-k+1+j} + b,    j = 0, ..., k - 1

    with k = kernel_size. The carry is the last k - 1 inputs, the oldest first,
    `(*batch, kernel_size - 1, features)`; it starts with zeros. The output is y_t,
    `(*batch, features)`. Masked steps are no inputs, and a reset hides all earlier
    ones. `RNN` computes all steps at once.

    >>> import jax, jax.numpy as jnp, rnncells
    >>> rnn = rnncells.RNN(rnncells.CausalConvCell(features=3, kernel_size=4))
    >>> x = jnp.ones((2, 7, 3))  # (batch, time, features)
    >>> y, params = rnn.init_with_output(jax.random.key(0), x)
    >>> y.shape
    (2, 7, 3)

    Attributes, in addition to those of `rnncells.cells.contract.fields.CellFields`:
      features: width of the inputs and the outputs.
      kernel_size: number of steps in the sum, at least 2. Default: 4.
      kernel_init: initializer of the kernel, `(kernel_size, 1, features)`.
        Default: LeCun normal.
      bias_init: initializer of the bias. Default: zeros.
      use_bias: whether there is a bias. Default: True.

    Raises:
      ValueError: `kernel_size` is less than 2; the inputs have another width.

    Source: the parameters are those of `flax.linen.Conv(features, (kernel_size,),
    padding="CAUSAL", feature_group_count=features)`, which has no carry.
    """

    features: int
    kernel_size: int = 4
    kernel_init: Initializer = nn.initializers.lecun_normal()
    bias_init: Initializer = nn.initializers.zeros_init()
    use_bias: bool = True

    def carry_shape(self, input_shape: tuple[int, ...]) -> ShapeTree:
        return (self.kernel_size - 1, self.features)

    def setup(self) -> None:
        shape = self.kernel_size, 1, self.features
        self.kernel = param(self, "kernel", self.kernel_init, shape)
        if self.use_bias:
            self.bias = param(self, "bias", self.bias_init, (self.features,))

    def project(self, inputs: ArrayTree) -> ArrayTree:
        if inputs.shape[-1] != self.features:
            raise ValueError(
                "The inputs of CausalConvCell must have as many features as the cell, "
                f"{self.features}, got {inputs.shape[-1]}."
            )
        return inputs

    def recur(self, carry: Carry, projected: ArrayTree) -> tuple[Carry, Array]:
        x = jnp.concatenate([carry, projected[..., None, :]], -2)
        bias = self.bias if self.use_bias else None
        w, b, window = nn.dtypes.promote_dtype(
            self.kernel[:, 0], bias, x, dtype=self.dtype
        )
        y = (expand_left(w, window) * window).sum(-2)
        return x[..., 1:, :], y if b is None else y + expand_left(b, y)
