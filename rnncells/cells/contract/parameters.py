"""Parameters of gates, and products with diagonal matrices."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.core import meta
from flax.errors import ScopeParamNotFoundError
from flax.linen.dtypes import promote_dtype
from flax.typing import Dtype, Initializer
from jax import Array

from rnncells._checks import ChecksArguments
from rnncells.cells.contract.carry import Carry, dtype_of
from rnncells.initializers import PerGateInit


class MissingParamError(ScopeParamNotFoundError):
    """A cell is applied to parameters that lack one of its own."""

    def __init__(self, module: nn.Module, name: str) -> None:
        cell = module.parent if isinstance(module.parent, nn.Module) else module
        names = sorted(cell.variables.get("params", {}))
        path = "/".join(("params", *module.path, name))
        Exception.__init__(
            self,
            f"{type(cell).__name__} needs the parameter {path!r}, but the given "
            f"parameters of the cell are {names}. Are they the parameters of another "
            'layer, or is the level {"params": ...} missing?',
        )


class DenseParams(nn.Module):
    """The kernel and the bias of one gate.

    The kernel is `(features_in, features)`, or with several heads, blocks of a diagonal
    `(num_heads, features_in / num_heads, features / num_heads)`.
    """

    features: int | None
    use_bias: bool = True
    kernel_init: Initializer = nn.initializers.lecun_normal()
    bias_init: Initializer = nn.initializers.zeros_init()
    param_dtype: Dtype = jnp.float32
    num_heads: int = 1

    @nn.compact
    def __call__(self, features_in: int) -> tuple[Array, Array | None]:
        features = self.features
        if features is None:
            raise ValueError(
                f"the width of gate `{self.name}` is unknown, because `features` is "
                "None. Pass `features`, or call the cell instead of `project`: a call "
                "reads the width from the carry."
            )
        heads, init = self.num_heads, self.kernel_init
        if heads == 1:
            kernel = param(self, "kernel", init, (features_in, features))
        else:
            if features_in % heads or features % heads:
                raise ValueError(
                    f"`num_heads` of {type(self.parent).__name__} must divide the "
                    f"widths that gate `{self.name}` connects, {features_in} and "
                    f"{features}, got {heads}."
                )
            shape = heads, features_in // heads, features // heads
            kernel = param(self, "kernel", blockwise_init(init), shape)
        if not self.use_bias:
            return kernel, None
        return kernel, param(self, "bias", self.bias_init, (features,))


def blockwise_init(init: Initializer) -> Initializer:
    """Returns an initializer of `(blocks, rows, columns)` that draws each block."""

    def blocks(key: Array, shape: tuple, dtype: Dtype = jnp.float32) -> Array:
        keys = jax.random.split(key, shape[0])
        drawn = jax.vmap(lambda key: init(key, shape[1:], dtype))(keys)
        # If the initializer names the axes of a block, the axis of blocks has no name.
        return meta.add_axis(drawn, 0, {meta.PARTITION_NAME: None})

    return blocks


class ElementwiseAffine(ChecksArguments, nn.Module):
    """Multiplies by a diagonal matrix: `kernel * inputs + bias`, element by element.

    Use it for peepholes, and for the gains and shifts of norms.

    Attributes:
      num_feature_dims: number of feature axes, the last axes of the inputs. They are
        the shape of the kernel. Default: 1.
      use_bias: whether there is a bias. Default: False.
      kernel_init: initializer of the kernel, `(*features,)`. Default: ones.
      bias_init: initializer of the bias, `(*features,)`. Default: zeros.
      dtype: dtype of the computation; None promotes inputs and parameters.
        Default: None.
      param_dtype: dtype of the kernel and the bias. Default: float32.
    """

    num_feature_dims: int = 1
    use_bias: bool = False
    kernel_init: Initializer = nn.initializers.ones_init()
    bias_init: Initializer = nn.initializers.zeros_init()
    dtype: Dtype | None = None
    param_dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(self, inputs: Array) -> Array:
        shape = inputs.shape[inputs.ndim - self.num_feature_dims :]

        def broadcast(name: str, init: Initializer) -> Array:
            # Broadcast before the cast, so that the gradient is summed in
            # `param_dtype`.
            return jnp.broadcast_to(param(self, name, init, shape), inputs.shape)

        kernel = broadcast("kernel", self.kernel_init)
        bias = broadcast("bias", self.bias_init) if self.use_bias else None
        inputs, kernel, bias = promote_dtype(inputs, kernel, bias, dtype=self.dtype)
        return kernel * inputs if bias is None else kernel * inputs + bias


class LearnedCarry(nn.Module):
    """Parameters of the shapes of a carry without batch axes.

    They are named `carry_0`, `carry_1`, ... in the order of the arrays of the carry.
    """

    @nn.compact
    def __call__(self, initial: Carry) -> Carry:
        """Returns the learned carry; arrays of integers are those of `initial`."""
        leaves, structure = jax.tree.flatten(initial)

        def learned(k: int, leaf: Any) -> Array:
            if not jnp.issubdtype(dtype_of(leaf), jnp.inexact):
                return leaf
            name = f"carry_{k}"
            is_given = self.has_variable("params", name)
            if not (is_given or self.is_mutable_collection("params")):
                raise MissingParamError(self, name)
            value = self.param(name, lambda key: jnp.asarray(leaf))
            # Complex inputs make a real carry complex.
            return jnp.asarray(value, jnp.result_type(value, leaf))

        learned_leaves = [learned(k, leaf) for k, leaf in enumerate(leaves)]
        return jax.tree.unflatten(structure, learned_leaves)


def param(
    module: nn.Module, name: str, init: Initializer, shape: tuple[Any, ...]
) -> Array:
    """Returns a parameter of a module, as `module.param` does.

    `module.param` also traces the initializer at each call to check the shape, which
    takes a third of the time of tracing a step. Here the shape is known.
    """
    if not module.has_variable("params", name):
        if not module.is_mutable_collection("params"):
            raise MissingParamError(module, name)
        try:
            return module.param(name, init, shape, module.param_dtype)
        except (TypeError, ValueError) as error:
            raise type(error)(
                f"The initializer of the {name} of `{module.name}` in "
                f"{type(module.parent).__name__} failed for the shape {shape}: {error}"
            ) from error
    value = meta.unbox(module.get_variable("params", name))
    if jnp.shape(value) != shape:
        raise ValueError(
            f"`{name}` of `{module.name}` must have the shape {shape} for these inputs "
            f"and features, got parameters of shape {jnp.shape(value)}."
        )
    return value


def of_gate(by_gate: PerGateInit, name: str, key: Any) -> Initializer:
    """Returns the initializer of one gate's bias."""
    if name not in by_gate.gates:
        return by_gate
    init = by_gate.gates[name]
    return lambda _, shape, dtype=jnp.float32: init(key, shape, dtype)
