"""The blocks of the extended LSTM (xLSTM)."""

from collections.abc import Callable
from dataclasses import KW_ONLY
from typing import Any, Literal

import chex
import flax.linen as nn
import jax.numpy as jnp
from chex import ArrayTree
from jax import Array

from rnncells.cells.causal_conv import CausalConvCell
from rnncells.cells.contract.parameters import ElementwiseAffine
from rnncells.cells.mlstm import MLSTMCell
from rnncells.cells.slstm import SLSTMCell
from rnncells.layers.contract.residual_block import ResidualBlock
from rnncells.layers.rnn import RNN

Kind = Literal["mlstm", "slstm"]


class XLSTMBlock(ResidualBlock):
    """Residual block of the extended LSTM, around an mLSTM or an sLSTM.

    With `kind='mlstm'`, and blocks of the diagonal of q, k and v::

        [x', z] = W_up norm(x)
        c = silu(conv(x'))
        h = groupnorm(mLSTM(q, k of c; v of x'; i, f of [q, k, v])) + s ⊙ c
        y = x + W_down (h ⊙ silu(z))

    With `kind='slstm'`, and kernels that are block-diagonal by heads::

        x' = norm(x)
        c = silu(conv(x'))
        r = x + groupnorm(sLSTM(i, f of c; z, o of x'))
        [g, u] = W_up norm(r)
        y = r + W_down (gelu(g) ⊙ u)

    conv is a `CausalConvCell`. The carry is a pair: the last inputs of the convolution,
    and the carry of `MLSTMCell` or `SLSTMCell`. The call and `step` are those of
    `Stack`; put blocks into a `Stack` for a deep network.

    >>> import jax, jax.numpy as jnp, rnncells
    >>> kinds = ["mlstm", "slstm"]
    >>> stack = rnncells.Stack([rnncells.XLSTMBlock(8, kind) for kind in kinds])
    >>> x = jnp.ones((2, 7, 8))  # (batch, time, features)
    >>> y, params = stack.init_with_output(jax.random.key(0), x)
    >>> y.shape
    (2, 7, 8)

    Attributes, in addition to those of
    `rnncells.layers.contract.residual_block.ResidualBlock`:
      kind: `'mlstm'`, which runs many steps at once, or `'slstm'`, a loop over time.
        Default: `'mlstm'`.
      num_heads: number of heads, which divides the width of the cell. Default: 4.
      inner_features: width inside of the projections: of the mLSTM, or of the
        feedforward network after the sLSTM. None: 2 and 4/3 times `features`, the
        latter rounded up. Default: None.
      block_size: width of the diagonal blocks of the kernels of q, k and v, which
        divides `inner_features`. Default: 4.
      kernel_init: initializer of all kernels but those of i and f of the mLSTM and
        the recurrent ones. Default: LeCun normal.

    Raises:
      ValueError: `kind` is another value; a number is less than 1; `num_heads` or
        `block_size` does not divide a width; the inputs have another width.

    Reference: Beck et al., 2024, https://arxiv.org/abs/2405.04517, appendix A.4 and its
    figures 10 and 11. The equations are those of the authors' code, except for its
    initial values, and for dropout, which it has before each sum with x.
    """

    kind: Kind = "mlstm"
    num_heads: int = 4
    inner_features: int | None = None
    _: KW_ONLY
    block_size: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_divides("num_heads", self._cell_features)
        if self.kind == "mlstm":
            self._check_divides("block_size", self._cell_features)

    @nn.nowrap
    def _check_divides(self, field: str, width: int) -> None:
        if width % getattr(self, field):
            raise ValueError(
                f"`{field}` of XLSTMBlock must divide the width of the cell, {width}, "
                f"got {getattr(self, field)}."
            )

    @property
    def _hidden(self) -> int:
        if self.inner_features is not None:
            return self.inner_features
        return 2 * self.features if self.kind == "mlstm" else -(-4 * self.features // 3)

    @property
    def _cell_features(self) -> int:
        return self._hidden if self.kind == "mlstm" else self.features

    def setup(self) -> None:
        types: dict[str, Any] = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        shared: dict[str, Any] = {**types, "kernel_init": self.kernel_init}
        width, heads = self._cell_features, self.num_heads
        self.conv = RNN(CausalConvCell(width, self.kernel_size, **shared))
        self.norm = nn.LayerNorm(1e-5, use_bias=False, **types)
        # Of each step alone, the features of each head.
        self.group_norm = nn.GroupNorm(
            heads, None, 1e-5, use_bias=False, reduction_axes=(-1,), **types
        )
        self.up = nn.Dense(2 * self._hidden, use_bias=False, **shared)
        self.down = nn.Dense(self.features, use_bias=False, **shared)
        if self.kind == "mlstm":
            self.rnn = RNN(
                BlockMLSTMCell(width, heads, block_size=self.block_size, **shared)
            )
            self.skip = ElementwiseAffine(kernel_init=nn.initializers.ones, **types)
        else:
            self.rnn = RNN(BlockSLSTMCell(width, num_heads=heads, **shared))
            self.feedforward_norm = nn.LayerNorm(1e-5, use_bias=False, **types)

    @nn.nowrap
    def _apply_layers(self, run: Callable, inputs: ArrayTree, apply: Callable) -> tuple:
        self._check_width(inputs)
        compose = self._mlstm if self.kind == "mlstm" else self._slstm
        return compose(run, inputs)

    @nn.nowrap
    def _mlstm(self, run: Callable, x: chex.Array) -> tuple[tuple, Array]:
        inner, z = jnp.split(self.up(self.norm(x)), 2, axis=-1)
        window, c = run(0, self.conv, inner)
        c = nn.silu(c)
        carry, h = run(1, self.rnn, (c, inner))
        h = self.group_norm(h) + self.skip(c)
        return (window, carry), x + self.down(h * nn.silu(z))

    @nn.nowrap
    def _slstm(self, run: Callable, x: chex.Array) -> tuple[tuple, Array]:
        inner = self.norm(x)
        window, c = run(0, self.conv, inner)
        carry, h = run(1, self.rnn, (nn.silu(c), inner))
        r = x + self.group_norm(h)
        g, u = jnp.split(self.up(self.feedforward_norm(r)), 2, axis=-1)
        return (window, carry), r + self.down(nn.gelu(g, approximate=False) * u)


class BlockMLSTMCell(MLSTMCell):
    """The mLSTM of `XLSTMBlock`: its inputs are a pair, and it has no output gate.

    q and k are made of the first array, v of the second, both `(*batch, features)`, by
    block-diagonal kernels, with blocks of `block_size`; i and f are made of q, k and v.
    """

    block_size: int = 4

    def setup(self) -> None:
        blocks = self.features // self.block_size
        self.gates(
            *("q", "k", "v"),
            kernel_init=self.kernel_init,
            use_bias=False,
            num_heads=blocks,
        )
        self._declare_exponential_gates()

    def project(self, inputs: ArrayTree) -> ArrayTree:
        c, x = inputs
        q, k = jnp.split(self.affine(c, "q", "k"), 2, axis=-1)
        v = self.affine(x, "v")
        qkv = jnp.concatenate([q, k, v], axis=-1)
        i, f = jnp.split(self.affine(qkv, "i", "f"), 2, axis=-1)
        return q, k, v, i, f, None


class BlockSLSTMCell(SLSTMCell):
    """The sLSTM of `XLSTMBlock`: its inputs are a pair, `(*batch, features)` each.

    i and f are made of the first array, z and o of the second, by kernels that are
    block-diagonal by heads.
    """

    @property
    def _input_heads(self) -> int:  # type: ignore[override]
        return self.num_heads

    def project(self, inputs: ArrayTree) -> ArrayTree:
        c, x = inputs
        z, o = jnp.split(self.affine(x, "iz", "io"), 2, axis=-1)
        i, f = jnp.split(self.affine(c, "ii", "if"), 2, axis=-1)
        return jnp.concatenate([z, i, f, o], axis=-1)
