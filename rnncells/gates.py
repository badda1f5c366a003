"""The parameters of gates, and the product with a weight for each number."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.core import meta
from flax.linen.dtypes import promote_dtype
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
        kernel = param(self, "kernel", self.kernel_init, (features_in, features))
        if not self.use_bias:
            return kernel, None
        return kernel, param(self, "bias", self.bias_init, (features,))


class Diagonal(nn.Module):
    """The product with a diagonal matrix: `kernel * inputs + bias`, number by number.

    For peepholes, and for gains and shifts of norms. In `recur` it is applied through
    `self.product`, as every weight.

    Attributes:
      num_feature_dims: number of trailing axes of the inputs whose shape is that of the
        kernel; the others are batch axes.
      use_bias: whether there is a bias.
      kernel_init: initialiser of the kernel, `(*features,)`.
      bias_init: initialiser of the bias, of the same shape.
      dtype: dtype of the computation; None promotes inputs and parameters.
      param_dtype: dtype of both.
    """

    num_feature_dims: int = 1
    use_bias: bool = False
    kernel_init: Initializer = nn.initializers.ones_init()
    bias_init: Initializer = nn.initializers.zeros_init()
    dtype: Dtype | None = None
    param_dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        shape = inputs.shape[inputs.ndim - self.num_feature_dims :]

        def broadcast(name, init):
            # Before it is cast: its gradient is then summed in `param_dtype`.
            return jnp.broadcast_to(param(self, name, init, shape), inputs.shape)

        kernel = broadcast("kernel", self.kernel_init)
        bias = broadcast("bias", self.bias_init) if self.use_bias else None
        inputs, kernel, bias = promote_dtype(inputs, kernel, bias, dtype=self.dtype)
        return kernel * inputs if bias is None else kernel * inputs + bias


def param(
    module: nn.Module, name: str, init: Initializer, shape: tuple[int, ...]
) -> jax.Array:
    """Returns a parameter of a module, as its own method `param` does.

    That traces the initialiser at each call, to learn a shape that is known here: a
    third of the time that tracing a step takes.

    Args:
      module: has `param_dtype`.
      name: of the parameter.
      init: its initialiser.
      shape: its shape.

    Raises:
      ValueError: a parameter of another shape.
    """
    if not module.has_variable("params", name):
        return module.param(name, init, shape, module.param_dtype)
    value = meta.unbox(module.get_variable("params", name))
    if jnp.shape(value) != shape:
        raise ValueError(
            f"`{name}` of `{module.name}` must have the shape {shape} for these inputs "
            f"and features, got parameters of shape {jnp.shape(value)}."
        )
    return value


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
