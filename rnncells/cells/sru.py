"""The simple recurrent unit."""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from chex import ArrayTree
from flax.typing import Initializer
from jax import Array

from rnncells import initializers
from rnncells.cells.contract.carry import Carry
from rnncells.cells.contract.fields import CellFields
from rnncells.cells.contract.parameters import ElementwiseAffine


class SRUCell(CellFields):
    """Simple recurrent unit: gates that see their own unit only, and a highway.

    One step computes::

        f_t = σ(W_f x_t + v_f ⊙ c_{t-1} + b_f)
        r_t = σ(W_r x_t + v_r ⊙ c_{t-1} + b_r)
        c_t = f_t ⊙ c_{t-1} + (1 - f_t) ⊙ (W x_t)
        h_t = r_t ⊙ c_t + (1 - r_t) ⊙ x_t

    If x_t has another width than the cell, W_p x_t takes its place in the last line.
    The carry is c_t, the output is h_t, both `(*batch, features)`.

    >>> import jax, jax.numpy as jnp, rnncells
    >>> cell, x = rnncells.SRUCell(features=4), jnp.ones((2, 3))
    >>> carry = cell.initialize_carry(jax.random.key(0), x)
    >>> (carry, y), params = cell.init_with_output(jax.random.key(1), carry, x)
    >>> y.shape
    (2, 4)

    Attributes, in addition to those of `rnncells.cells.contract.fields.CellFields`:
      kernel_init: initializer of W, W_f, W_r and W_p, each `(features_in, features)`.
        Default: LeCun normal.
      recurrent_init: initializer of v_f and v_r, each `(features,)`. Default: uniform
        in [-1, 1).
      bias_init: initializer of b_f and b_r. Default: zeros.
      highway_scale: factor of x_t in the last line: 1 in equations 1 to 4 of the
        paper, and α = √(1 + 2 exp(b_r)) in its section 3.2. Default: 1.

    Reference: Lei et al., 2018, https://arxiv.org/abs/1709.02755, equations 1 to 4. The
    parameters v_f and v_r are `vf/kernel` and `vr/kernel`.
    """

    kernel_init: Initializer = nn.initializers.lecun_normal()
    recurrent_init: Initializer = initializers.uniform(1.0)
    bias_init: Initializer = nn.initializers.zeros_init()
    highway_scale: float = 1.0

    def setup(self) -> None:
        self.gates("f", "r", kernel_init=self.kernel_init, bias_init=self.bias_init)
        self.gates("c", "p", kernel_init=self.kernel_init, use_bias=False)
        options: dict[str, Any] = {
            "kernel_init": self.recurrent_init,
            "dtype": self.dtype,
            "param_dtype": self.param_dtype,
        }
        self.vf = ElementwiseAffine(**options)
        self.vr = ElementwiseAffine(**options)

    def project(self, inputs: ArrayTree) -> ArrayTree:
        f, r, Wx = jnp.split(self.affine(inputs, "f", "r", "c"), 3, axis=-1)
        is_as_wide = inputs.shape[-1] == self.features
        x = inputs if is_as_wide else self.affine(inputs, "p")
        return f, r, Wx, self.highway_scale * x

    def recur(self, carry: Carry, projected: ArrayTree) -> tuple[Carry, Array]:
        c = carry
        f, r, Wx, x = projected
        f = nn.sigmoid(f + self.vf(c))
        r = nn.sigmoid(r + self.vr(c))
        c = f * c + (1 - f) * Wx
        h = r * c + (1 - r) * x
        return c, h
