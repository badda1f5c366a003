"""Long short-term memory with a recurrent projection."""

import flax.linen as nn
import jax.numpy as jnp
from chex import ArrayTree
from flax.typing import Initializer
from jax import Array

from rnncells.cells.contract.base import RNNCellBase
from rnncells.cells.contract.carry import Carry, ShapeTree
from rnncells.cells.contract.checks import check_projection
from rnncells.cells.contract.fields import GatedCell


class ProjectionFields(RNNCellBase):
    """Base that puts `features` and `proj_features` before all other fields."""

    features: int
    proj_features: int


# Fields are in the order of the bases, from the last base to the first.
class ProjectedLSTMCell(GatedCell, ProjectionFields):  # type: ignore[misc]
    """LSTM with a recurrent projection (LSTMP).

    One step computes::

        i_t = σ(W_ii x_t + W_hi h_{t-1} + b_hi)
        f_t = σ(W_if x_t + W_hf h_{t-1} + b_hf)
        g_t = tanh(W_ig x_t + W_hg h_{t-1} + b_hg)
        o_t = σ(W_io x_t + W_ho h_{t-1} + b_ho)
        c_t = f_t ⊙ c_{t-1} + i_t ⊙ g_t
        m_t = o_t ⊙ tanh(c_t)
        h_t = W_hr m_t

    The carry is (c_t, h_t), `(*batch, features)` and `(*batch, proj_features)`; the
    output is h_t.

    >>> import jax, jax.numpy as jnp, rnncells
    >>> cell = rnncells.ProjectedLSTMCell(features=4, proj_features=2)
    >>> x = jnp.ones((5, 3))
    >>> carry = cell.initialize_carry(jax.random.key(0), x)
    >>> ((c, h), y), params = cell.init_with_output(jax.random.key(1), carry, x)
    >>> c.shape, h.shape, y.shape
    ((5, 4), (5, 2), (5, 2))

    Attributes, in addition to those of `rnncells.cells.contract.fields.GatedCell`:
      features: number of units, the width of c_t; None is not possible.
      proj_features: width of h_t, less than `features`. W_hi, W_hf, W_hg and W_ho are
        `(proj_features, features)` each.
      use_bias: whether the gates have biases. Default: True.
      projection_init: initializer of W_hr, `(features, proj_features)`.
        Default: LeCun normal.

    Raises:
      ValueError: `proj_features` is not in `[1, features)`.
      TypeError: `features` is None.

    Reference: Sak, Senior and Beaufays, 2014, https://arxiv.org/abs/1402.1128, without
    the paper's peepholes and non-recurrent projection. `torch.nn.LSTM(proj_size=...)`
    computes the same.
    """

    use_bias: bool = True
    projection_init: Initializer = nn.initializers.lecun_normal()

    def __post_init__(self) -> None:
        super().__post_init__()
        check_projection(type(self).__name__, self.proj_features, self.features)

    def carry_shape(self, input_shape: tuple[int, ...]) -> ShapeTree:
        return (self.features,), (self.proj_features,)

    def setup(self) -> None:
        self._input_gates("ii", "if", "ig", "io", use_bias=False)
        self._recurrent_gates("hi", "hf", "hg", "ho", use_bias=self.use_bias)
        self.gates(
            "hr",
            features=self.proj_features,
            kernel_init=self.projection_init,
            use_bias=False,
        )

    def project(self, inputs: ArrayTree) -> ArrayTree:
        return self.affine(inputs, "ii", "if", "ig", "io")

    def recur(self, carry: Carry, projected: ArrayTree) -> tuple[Carry, Array]:
        c, h = carry
        a = self.affine(h, "hi", "hf", "hg", "ho") + projected
        i, f, g, o = jnp.split(a, 4, axis=-1)
        i = self.gate_fn(i)
        f = self.gate_fn(f)
        g = self.activation_fn(g)
        o = self.gate_fn(o)
        c = f * c + i * g
        m = o * self.activation_fn(c)
        h = self.affine(m, "hr")
        return (c, h), h
