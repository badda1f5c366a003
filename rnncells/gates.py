"""The parameters of gates."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.typing import Dtype, Initializer


class GateParams(nn.Module):
    """The kernel and the bias of one gate, kept apart from those of other gates.

    Attributes:
      features: width of the gate; None takes the width that the call gives.
      use_bias: whether there is a bias.
      kernel_init: initialiser of the kernel, `(features_in, features)`.
      bias_init: initialiser of the bias, `(features,)`.
      param_dtype: dtype of both.
    """

    features: int | None
    use_bias: bool = True
    kernel_init: Initializer = nn.initializers.lecun_normal()
    bias_init: Initializer = nn.initializers.zeros_init()
    param_dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(
        self, features_in: int, width: int | None
    ) -> tuple[jax.Array, jax.Array | None]:
        features = width if self.features is None else self.features
        if features is None:
            raise ValueError(
                f"the width of gate `{self.name}` is not known: with features=None, "
                "call the cell, which takes it from the carry, and not `project`."
            )
        shape = (features_in, features)
        kernel = self.param("kernel", self.kernel_init, shape, self.param_dtype)
        if not self.use_bias:
            return kernel, None
        bias = self.param("bias", self.bias_init, (features,), self.param_dtype)
        return kernel, bias


def side_by_side(
    gates: list[tuple[jax.Array, jax.Array | None]],
) -> tuple[jax.Array, jax.Array | None]:
    """Returns kernels and biases as one, `(features_in, sum of features)`.

    The bias is 0 for gates without one, and None if none has one.
    """
    kernels, biases = zip(*gates, strict=True)
    if all(bias is None for bias in biases):
        return jnp.concatenate(kernels, axis=-1), None
    bias = [
        jnp.zeros(kernel.shape[-1], kernel.dtype) if bias is None else bias
        for kernel, bias in gates
    ]
    return jnp.concatenate(kernels, axis=-1), jnp.concatenate(bias)
