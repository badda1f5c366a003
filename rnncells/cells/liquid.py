"""Liquid cells, whose time constants depend on the inputs: LTC, and CfC."""

from collections.abc import Callable
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from chex import ArrayTree
from flax.typing import Dtype, Initializer
from jax import Array

from rnncells import initializers
from rnncells.cells.contract.carry import Carry
from rnncells.cells.contract.fields import CellFields
from rnncells.cells.contract.parameters import param
from rnncells.recurrence.pytrees import expand_left, full_precision

Mode = Literal["default", "pure", "no_gate"]


def lecun_tanh(x: Array) -> Array:
    """Returns 1.7159 tanh(0.666 x), the activation function of LeCun et al. (1998)."""
    return 1.7159 * jnp.tanh(0.666 * x)


def split_elapsed(inputs: Any) -> tuple[Array, Any]:
    """Returns the inputs, and the time since the step before, `(*batch, 1)` or 1."""
    if not isinstance(inputs, tuple):
        return inputs, 1.0
    x, elapsed = inputs
    return x, elapsed if elapsed.ndim == x.ndim else elapsed[..., None]


class CfCCell(CellFields):
    """Closed-form continuous-time cell.

    One step computes, with Δ_t, the time since the step before::

        s_t = a(W_i x_t + W_h h_{t-1} + b)
        f_t = σ((W_a s_t + b_a) Δ_t + W_b s_t + b_b)
        g_t = tanh(W_g s_t + b_g)
        u_t = tanh(W_u s_t + b_u)
        h_t = (1 - f_t) ⊙ g_t + f_t ⊙ u_t

    where s_t, the backbone, can have more layers. With `mode='no_gate'`, h_t = g_t +
    f_t ⊙ u_t. With `mode='pure'`, the closed form of the differential equation::

        g_t = W_g s_t + b_g
        h_t = A - A ⊙ exp(-Δ_t (|w_τ| + |g_t|)) ⊙ g_t

    The inputs are x_t, or a pair (x_t, Δ_t) with Δ_t of the shape `(*batch,)`; without
    it, Δ_t is 1. The carry and the output are both h_t, `(*batch, features)`.

    >>> import jax, jax.numpy as jnp, rnncells
    >>> cell, x = rnncells.CfCCell(features=4), (jnp.ones((2, 3)), jnp.array([1., 0.5]))
    >>> carry = cell.initialize_carry(jax.random.key(0), x)
    >>> (carry, y), params = cell.init_with_output(jax.random.key(1), carry, x)
    >>> y.shape
    (2, 4)

    Attributes, in addition to those of `rnncells.cells.contract.fields.CellFields`:
      mode: `'default'`, `'no_gate'` or `'pure'`. Default: `'default'`.
      backbone_features: width of each layer of the backbone. Default: 128.
      backbone_layers: number of layers of the backbone, at least 1. Default: 1.
      activation_fn: activation function a of the backbone. Default: 1.7159 tanh(0.666
        x), as in the authors' code.
      kernel_init: initializer of the kernels. Default: Glorot uniform.
      bias_init: initializer of the biases. Default: zeros.

    Raises:
      ValueError: `mode` is another value, or a count is less than 1.

    Reference: Hasani et al., 2022, https://doi.org/10.1038/s42256-022-00556-7, equation
    3 and figure 1; the modes and the order of f_t are those of the authors' package,
    `ncps`. W_i and W_h are one kernel there.
    """

    mode: Mode = "default"
    backbone_features: int = 128
    backbone_layers: int = 1
    activation_fn: Callable[[Array], Array] = lecun_tanh
    kernel_init: Initializer = nn.initializers.glorot_uniform()
    bias_init: Initializer = nn.initializers.zeros_init()

    @property
    def _later(self) -> list[str]:
        """Names of the layers of the backbone after the first."""
        return [f"s{k}" for k in range(1, self.backbone_layers)]

    def setup(self) -> None:
        options: dict[str, Any] = {
            "kernel_init": self.kernel_init,
            "bias_init": self.bias_init,
        }
        backbone_options: dict[str, Any] = {
            "features": self.backbone_features,
            **options,
        }
        self.gates("i", **backbone_options)
        self.gates("h", **backbone_options | {"use_bias": False})
        if self._later:
            self.gates(*self._later, **backbone_options)
        self.gates(*("g",) if self.mode == "pure" else ("g", "u", "a", "b"), **options)
        if self.mode == "pure":
            shape = (self.features,)
            self.w_tau = param(self, "w_tau", nn.initializers.zeros_init(), shape)
            self.A = param(self, "A", nn.initializers.ones_init(), shape)

    def project(self, inputs: ArrayTree) -> ArrayTree:
        x, elapsed = split_elapsed(inputs)
        return self.affine(x, "i"), jnp.broadcast_to(elapsed, (*x.shape[:-1], 1))

    def recur(self, carry: Carry, projected: ArrayTree) -> tuple[Carry, Array]:
        h, (xs, elapsed) = carry, projected
        s = self.activation_fn(self.affine(h, "h") + xs)
        for name in self._later:
            s = self.activation_fn(self.affine(s, name))
        h = self._pure(s, elapsed) if self.mode == "pure" else self._gated(s, elapsed)
        return h, h

    def _pure(self, s: Array, elapsed: Array) -> Array:
        g = self.affine(s, "g")
        # In float16, the cotangent of exp can overflow where exp is 0.
        dtype, wide = g.dtype, full_precision(g.dtype)
        g, elapsed = g.astype(wide), elapsed.astype(wide)
        w_tau, A = (expand_left(w.astype(wide), g) for w in (self.w_tau, self.A))
        h = A - A * jnp.exp(-elapsed * (jnp.abs(w_tau) + jnp.abs(g))) * g
        return h.astype(dtype)

    def _gated(self, s: Array, elapsed: Array) -> Array:
        g, u, a, b = jnp.split(self.affine(s, "g", "u", "a", "b"), 4, axis=-1)
        f = nn.sigmoid(a * elapsed + b)
        g = jnp.tanh(g)
        u = jnp.tanh(u)
        return g + f * u if self.mode == "no_gate" else (1 - f) * g + f * u


class LTCCell(CellFields):
    """Liquid time-constant cell: neurons with leaks and conductance-based synapses.

    The potential v of neuron i follows, with synapses from all neurons and inputs j::

        s_ji = w_ji σ(γ_ji (v_j - μ_ji))
        cm_i dv_i/dt = gleak_i (vleak_i - v_i) + Σ_j s_ji (E_ji - v_i)

    One step solves the equation over the time Δ_t since the step before, by `unfolds`
    semi-implicit steps of δ = Δ_t / unfolds::

        v_i = (cm_i / δ v_i + gleak_i vleak_i + Σ_j s_ji E_ji)
              / (cm_i / δ + gleak_i + Σ_j s_ji)

    cm, gleak and w are the softplus of their parameters. The inputs are x_t, or a pair
    (x_t, Δ_t) with Δ_t of the shape `(*batch,)`; without it, Δ_t is 1. The carry and
    the output are both v, `(*batch, features)`.

    >>> import jax, jax.numpy as jnp, rnncells
    >>> cell, x = rnncells.LTCCell(features=4), jnp.ones((2, 3))
    >>> carry = cell.initialize_carry(jax.random.key(0), x)
    >>> (carry, y), params = cell.init_with_output(jax.random.key(1), carry, x)
    >>> y.shape
    (2, 4)

    Attributes, in addition to those of `rnncells.cells.contract.fields.CellFields`:
      features: number of neurons, an int.
      unfolds: number of steps of the solver. Default: 6.
      positive_fn: function that makes parameters positive. Default: softplus.
      epsilon: constant added to the denominator. Default: 1e-8.

    Raises:
      ValueError: `unfolds` is less than 1.

    Reference: Hasani et al., 2021, https://arxiv.org/abs/2006.04439, equation 3 (the
    solver) with the synapses of equation 2 of Lechner et al., 2020,
    https://doi.org/10.1038/s42256-020-00237-3. Initial values are those of the authors'
    package, `ncps`, with all neurons connected; there, inputs and outputs also have
    element-wise affine maps, and positivity by clipping is the default.
    """

    features: int
    unfolds: int = 6
    positive_fn: Callable[[Array], Array] = nn.softplus
    epsilon: float = 1e-8

    def setup(self) -> None:
        shape, between = (self.features,), initializers.between
        self.cm = param(self, "cm", between(0.4, 0.6), shape)
        self.gleak = param(self, "gleak", between(0.001, 1.0), shape)
        self.vleak = param(self, "vleak", between(-0.2, 0.2), shape)
        options: dict[str, Any] = {
            "features": self.features,
            "param_dtype": self.param_dtype,
        }
        self.h = Synapses(**options)
        self.i = Synapses(**options)

    def project(self, inputs: ArrayTree) -> ArrayTree:
        x, elapsed = split_elapsed(inputs)
        driven, conductance = self._synapses(self.i, x)
        elapsed = jnp.broadcast_to(elapsed, (*x.shape[:-1], 1)).astype(driven.dtype)
        return driven, conductance, elapsed / self.unfolds

    def recur(self, carry: Carry, projected: ArrayTree) -> tuple[Carry, Array]:
        v, (driven_x, conductance_x, delta) = carry, projected
        cm, gleak = self.positive_fn(self.cm), self.positive_fn(self.gleak)
        # In float16, the square of a denominator would overflow in derivatives.
        dtype = jnp.result_type(driven_x, v)
        wide = full_precision(dtype)
        cm, gleak, vleak, driven_x, conductance_x, delta = (
            w.astype(wide)
            for w in (cm, gleak, self.vleak, driven_x, conductance_x, delta)
        )
        cm, gleak, leak = (expand_left(w, v) for w in (cm, gleak, gleak * vleak))
        for _ in range(self.unfolds):
            sums = self._synapses(self.h, v)
            driven, conductance = (s.astype(wide) for s in sums)
            # Both are multiplied by δ, which can be 0.
            above = cm * v.astype(wide) + delta * (leak + driven + driven_x)
            below = gleak + conductance + conductance_x + self.epsilon
            v = (above / (cm + delta * below)).astype(dtype)
        return v, v

    def _synapses(self, synapses: "Synapses", v: Array) -> tuple[Any, Any]:
        """Returns Σ_j s_ji E_ji and Σ_j s_ji."""
        w, gamma, mu, E = synapses(v.shape[-1])
        w = self.positive_fn(w)
        v, w, gamma, mu, E = nn.dtypes.promote_dtype(
            v, w, gamma, mu, E, dtype=self.dtype
        )
        v = v[..., None]
        w, gamma, mu, E = (expand_left(x, v) for x in (w, gamma, mu, E))
        s = w * nn.sigmoid(gamma * (v - mu))
        return (s * E).sum(-2), s.sum(-2)


class Synapses(nn.Module):
    """The parameters of synapses from all inputs to all neurons, `features`."""

    features: int
    param_dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(self, features_in: int) -> tuple[Array, ...]:
        shape, between = (features_in, self.features), initializers.between
        return (
            param(self, "w", between(0.001, 1.0), shape),
            param(self, "gamma", between(3.0, 8.0), shape),
            param(self, "mu", between(0.3, 0.8), shape),
            param(self, "E", _random_sign, shape),
        )


def _random_sign(key: Array, shape: tuple, dtype: Dtype = jnp.float32) -> Array:
    return jax.random.rademacher(key, shape, dtype)
