"""Minimal versions of GRU and LSTM whose gates do not depend on the carry."""

from collections.abc import Callable

import flax.linen as nn
import jax.numpy as jnp
from chex import ArrayTree
from jax import Array

from rnncells.cells.contract.linear import LinearGatedCell


def positive(x: Array) -> Array:
    """Returns x + 0.5 for x >= 0, else σ(x): g of Feng et al. (2024), appendix B."""
    return jnp.where(x >= 0, x + 0.5, nn.sigmoid(x))


class MinGRUCell(LinearGatedCell):
    """Minimal gated recurrent unit, linear in its carry.

    One step computes::

        z_t = σ(W_z x_t + b_z)
        n_t = g(W_n x_t + b_n)
        h_t = (1 - z_t) ⊙ h_{t-1} + z_t ⊙ n_t

    with g(x) = x + 0.5 for x >= 0, and σ(x) for x < 0. The carry and the output are
    both h_t, `(*batch, features)`.

    >>> import jax, jax.numpy as jnp, rnncells
    >>> cell, x = rnncells.MinGRUCell(features=4), jnp.ones((2, 3))
    >>> carry = cell.initialize_carry(jax.random.key(0), x)
    >>> (carry, y), params = cell.init_with_output(jax.random.key(1), carry, x)
    >>> y.shape
    (2, 4)

    Attributes, in addition to those of
    `rnncells.cells.contract.linear.LinearGatedCell`:
      activation_fn: activation function of the candidate, g in the equations. The
        main text of the paper has none: `activation_fn=lambda x: x`.
        Default: g, as in appendix B and in the paper's experiments.

    Reference: Feng et al., 2024, https://arxiv.org/abs/2410.01201, sections 3.1 and
    B.2. The paper needs g for a scan in log-space; the scan here divides by nothing,
    so it needs no logarithms, and any `activation_fn` is right.
    """

    activation_fn: Callable[[Array], Array] = positive

    def setup(self) -> None:
        self._input_gates("z", "n")

    def project(self, inputs: ArrayTree) -> ArrayTree:
        return self.affine(inputs, "z", "n")

    def coefficients(self, projected: ArrayTree) -> tuple[Array, Array]:
        z, n = jnp.split(projected, 2, axis=-1)
        z = nn.sigmoid(z)
        n = self.activation_fn(n)
        return 1 - z, z * n


class MinLSTMCell(LinearGatedCell):
    """Minimal long short-term memory, linear in its carry.

    One step computes::

        f_t = σ(W_f x_t + b_f)
        i_t = σ(W_i x_t + b_i)
        n_t = g(W_n x_t + b_n)
        f'_t = f_t / (f_t + i_t)
        i'_t = i_t / (f_t + i_t)
        h_t = f'_t ⊙ h_{t-1} + i'_t ⊙ n_t

    with g(x) = x + 0.5 for x >= 0, and σ(x) for x < 0. The carry and the output are
    both h_t, `(*batch, features)`.

    >>> import jax, jax.numpy as jnp, rnncells
    >>> cell, x = rnncells.MinLSTMCell(features=4), jnp.ones((2, 3))
    >>> carry = cell.initialize_carry(jax.random.key(0), x)
    >>> (carry, y), params = cell.init_with_output(jax.random.key(1), carry, x)
    >>> y.shape
    (2, 4)

    Attributes, in addition to those of
    `rnncells.cells.contract.linear.LinearGatedCell`:
      activation_fn: activation function of the candidate, g in the equations. The
        main text of the paper has none: `activation_fn=lambda x: x`.
        Default: g, as in appendix B and in the paper's experiments.

    Reference: Feng et al., 2024, https://arxiv.org/abs/2410.01201, sections 3.2 and
    B.3. The quotients are computed from the logarithms of the gates, so they are right
    where both gates underflow.
    """

    activation_fn: Callable[[Array], Array] = positive

    def setup(self) -> None:
        self._input_gates("f", "i", "n")

    def project(self, inputs: ArrayTree) -> ArrayTree:
        return self.affine(inputs, "f", "i", "n")

    def coefficients(self, projected: ArrayTree) -> tuple[Array, Array]:
        f, i, n = jnp.split(projected, 3, axis=-1)
        # f / (f + i) = σ(log f - log i)
        log_ratio = nn.log_sigmoid(f) - nn.log_sigmoid(i)
        f = nn.sigmoid(log_ratio)
        i = nn.sigmoid(-log_ratio)
        n = self.activation_fn(n)
        return f, i * n
