"""The recurrent block of Griffin."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
from chex import ArrayTree

from rnncells.cells.causal_conv import CausalConvCell
from rnncells.cells.lru import RGLRUCell
from rnncells.layers.contract.residual_block import ResidualBlock
from rnncells.layers.rnn import RNN


class GriffinBlock(ResidualBlock):
    """Residual block of Griffin: a recurrent block, then a gated network.

    With W for `nn.Dense`, which has biases::

        n = rmsnorm(x)
        r = x + W_out (RG-LRU(conv(W_in n)) ⊙ gelu(W_gate n))
        m = rmsnorm(r)
        y = r + W_down (gelu(W_g m) ⊙ (W_u m))

    conv is a `CausalConvCell`. The carry is a pair: the last inputs of the convolution,
    and the carry of `RGLRUCell`. All steps run at once. The call and `step` are those
    of `Stack`; put blocks into a `Stack` for a deep network.

    >>> import jax, jax.numpy as jnp, rnncells
    >>> stack = rnncells.Stack([rnncells.GriffinBlock(8) for _ in range(2)])
    >>> x = jnp.ones((2, 7, 8))  # (batch, time, features)
    >>> y, params = stack.init_with_output(jax.random.key(0), x)
    >>> y.shape
    (2, 7, 8)

    Attributes, in addition to those of
    `rnncells.layers.contract.residual_block.ResidualBlock`:
      recurrent_features: width of the RG-LRU; None: `features`. Default: None.
      inner_features: width inside of the gated network; None: 3 times `features`.
        Default: None.
      num_heads: number of diagonal blocks of the kernels of the RG-LRU, which divides
        its width. Default: 1.

    Raises:
      ValueError: a number is less than 1; `num_heads` does not divide the width of the
        RG-LRU; the inputs have another width.

    Reference: De et al., 2024, https://arxiv.org/abs/2402.19427, section 2, figure 2.
    Their local attention, which alternates with this block, is not here.
    """

    recurrent_features: int | None = None
    inner_features: int | None = None
    num_heads: int = 1

    def setup(self) -> None:
        types: dict[str, Any] = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        shared: dict[str, Any] = {**types, "kernel_init": self.kernel_init}
        width = self.recurrent_features or self.features
        hidden = self.inner_features or 3 * self.features
        self.norm = nn.RMSNorm(**types)
        self.input = nn.Dense(width, **shared)
        self.gate = nn.Dense(width, **shared)
        self.conv = RNN(CausalConvCell(width, self.kernel_size, **shared))
        self.rnn = RNN(RGLRUCell(width, num_heads=self.num_heads, **shared))
        self.output = nn.Dense(self.features, **shared)
        self.network_norm = nn.RMSNorm(**types)
        self.network_gate = nn.Dense(hidden, **shared)
        self.up = nn.Dense(hidden, **shared)
        self.down = nn.Dense(self.features, **shared)

    @nn.nowrap
    def _apply_layers(self, run: Callable, inputs: ArrayTree, apply: Callable) -> tuple:
        self._check_width(inputs)
        x, n = inputs, self.norm(inputs)
        window, h = run(0, self.conv, self.input(n))
        carry, h = run(1, self.rnn, h)
        r = x + self.output(h * nn.gelu(self.gate(n)))
        m = self.network_norm(r)
        y = r + self.down(nn.gelu(self.network_gate(m)) * self.up(m))
        return (window, carry), y
