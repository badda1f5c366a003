"""Linear recurrent units: with complex eigenvalues, and with real gates."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from chex import ArrayTree
from flax.typing import Dtype, Initializer
from jax import Array

from rnncells import initializers
from rnncells.cells.contract.carry import Carry, ShapeTree
from rnncells.cells.contract.fields import CellFields
from rnncells.cells.contract.linear import LinearRNNCellBase
from rnncells.cells.contract.parameters import param
from rnncells.recurrence.pytrees import expand_left, full_precision


def _radius(key: Array, shape: tuple, dtype: Dtype, low: float, high: float) -> Array:
    """Draws radii of points that are uniform on a ring between two radii."""
    return jnp.sqrt(jax.random.uniform(key, shape, dtype, low**2, high**2))


def _initial_nu(low: float, high: float) -> Initializer:
    @initializers.in_float32
    def init(key: Array, shape: tuple, dtype: Dtype = jnp.float32) -> Array:
        return jnp.log(-jnp.log(_radius(key, shape, dtype, low, high)))

    return init


def _initial_log_decay(low: float, high: float, c: float) -> Initializer:
    """Λ with exp(-c softplus(Λ)) on the ring."""

    @initializers.in_float32
    def init(key: Array, shape: tuple, dtype: Dtype = jnp.float32) -> Array:
        decay = -jnp.log(_radius(key, shape, dtype, low, high)) / c
        return jnp.log(jnp.expm1(decay))

    return init


class LRUCell(LinearRNNCellBase, CellFields):
    """Linear recurrent unit: a diagonal matrix of complex eigenvalues.

    One step computes::

        λ = exp(-exp(ν) + i exp(θ))
        s_t = λ ⊙ s_{t-1} + exp(γ) ⊙ (B x_t)
        y_t = Re(C s_t) + D x_t

    The carry is s_t, complex, `(*batch, state_features)`. The output is y_t,
    `(*batch, features)`.

    >>> import jax, jax.numpy as jnp, rnncells
    >>> cell, x = rnncells.LRUCell(features=4, state_features=5), jnp.ones((2, 3))
    >>> carry = cell.initialize_carry(jax.random.key(0), x)
    >>> (carry, y), params = cell.init_with_output(jax.random.key(1), carry, x)
    >>> carry.dtype, y.shape
    (dtype('complex64'), (2, 4))

    Attributes, in addition to those of `rnncells.cells.contract.fields.CellFields`:
      features: width of the output, an int.
      state_features: number of complex numbers in the state; None: `features`.
        Default: None.
      min_radius: smallest modulus of λ at the start, at least 0. Default: 0.
      max_radius: largest modulus of λ at the start, at most 1. Default: 1.
      max_phase: largest phase of λ at the start, in radians. Default: 6.28.
      dtype: dtype of the computation; None promotes inputs and parameters. The state is
        computed in float32 or float64. Default: None.
      param_dtype: dtype of the parameters. The carry is complex64, or complex128 for
        float64. Default: float32.
      skip: whether there is D. Default: True.

    Raises:
      ValueError: `state_features` is less than 1, or the radii are not
        0 <= min_radius < max_radius <= 1.
      TypeError: the inputs or the dtypes are complex; y is real, as in the paper.

    Reference: Orvieto et al., 2023, https://arxiv.org/abs/2303.06349, equations 1 and 7
    and lemma 3.2. γ starts at ``log √(1 - |λ|²)``. B and C start as in the paper:
    complex normal, with variances 1/features_in and 2/state_features. In the paper, and
    here, D is a matrix; common implementations have a vector.
    """

    features: int
    state_features: int | None = None
    min_radius: float = 0.0
    max_radius: float = 1.0
    max_phase: float = 6.28
    skip: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.min_radius < self.max_radius <= 1:
            raise ValueError(
                "`min_radius` and `max_radius` of LRUCell must be 0 <= min_radius < "
                f"max_radius <= 1, got {self.min_radius} and {self.max_radius}."
            )
        super().__post_init__()

    @property
    def _states(self) -> int:
        return self.state_features or self.features

    def carry_shape(self, input_shape: tuple[int, ...]) -> ShapeTree:
        with jax.numpy_dtype_promotion("standard"):
            dtype = jnp.result_type(jnp.dtype(self.param_dtype), jnp.complex64)
        return jax.ShapeDtypeStruct((self._states,), dtype)

    def setup(self) -> None:
        N, radii = self._states, (self.min_radius, self.max_radius)
        self.nu = param(self, "nu", _initial_nu(*radii), (N,))
        phase = initializers.log_of_uniform(0.0, self.max_phase)
        self.theta = param(self, "theta", phase, (N,))
        self.gamma = param(self, "gamma", lambda *_: self._initial_gamma(), (N,))
        scale = nn.initializers.variance_scaling
        half_scale = scale(0.5, "fan_in", "normal")
        self.gates("B_re", "B_im", features=N, kernel_init=half_scale, use_bias=False)
        full_scale = scale(1.0, "fan_in", "normal")
        self.gates("C_re", "C_im", kernel_init=full_scale, use_bias=False)
        if self.skip:
            self.gates("D", use_bias=False)

    def _initial_gamma(self) -> Array:
        """Returns log √(1 - |λ|²)."""
        nu = self._real(self.nu)
        return 0.5 * jnp.log(-jnp.expm1(-2 * jnp.exp(nu))).astype(self.nu.dtype)

    def project(self, inputs: ArrayTree) -> ArrayTree:
        Bx = jax.lax.complex(*self._halves(self.affine(inputs, "B_re", "B_im")))
        return Bx, self.affine(inputs, "D") if self.skip else None

    def coefficients(self, projected: ArrayTree) -> tuple[Array, Array]:
        Bx, _ = projected
        nu, theta, gamma = (self._real(x) for x in (self.nu, self.theta, self.gamma))
        decay = jnp.exp(jax.lax.complex(-jnp.exp(nu), jnp.exp(theta)))
        return decay, expand_left(jnp.exp(gamma).astype(Bx.dtype), Bx) * Bx

    def output(self, carry: Carry, projected: ArrayTree) -> Array:
        s, (_, Dx) = carry, projected
        y = self.affine(s.real, "C_re") - self.affine(s.imag, "C_im")
        return y if Dx is None else y + Dx

    def _halves(self, x: Array) -> list[Array]:
        if jnp.iscomplexobj(x):
            raise TypeError(
                "The inputs, `dtype` and `param_dtype` of LRUCell must be real, got a "
                f"projection in {x.dtype}. Pass real and imaginary parts as features."
            )
        return jnp.split(self._real(x), 2, axis=-1)

    def _real(self, x: Array) -> Array:
        """Returns an array in a precision that has complex numbers."""
        return x.astype(full_precision(x.dtype))


class RGLRUCell(LinearRNNCellBase, CellFields):
    """Real-gated linear recurrent unit (RG-LRU), of Griffin.

    One step computes::

        r_t = σ(W_a x_t + b_a)
        i_t = σ(W_x x_t + b_x)
        a_t = exp(-c softplus(Λ) ⊙ r_t)
        h_t = a_t ⊙ h_{t-1} + √(1 - a_t²) ⊙ (i_t ⊙ x_t)

    with c = 8. The inputs have as many features as the state. The carry and the output
    are both h_t, `(*batch, features)`.

    >>> import jax, jax.numpy as jnp, rnncells
    >>> cell, x = rnncells.RGLRUCell(features=4), jnp.ones((2, 4))
    >>> carry = cell.initialize_carry(jax.random.key(0), x)
    >>> (carry, y), params = cell.init_with_output(jax.random.key(1), carry, x)
    >>> y.shape
    (2, 4)

    Attributes, in addition to those of `rnncells.cells.contract.fields.CellFields`:
      features: number of units, and width of the inputs; None: width of the carry.
      kernel_init: initializer of W_a and W_x. Default: LeCun normal.
      bias_init: initializer of b_a and b_x. Default: zeros.
      min_radius: smallest a_t at the start, where r_t = 1. Default: 0.9.
      max_radius: largest a_t at the start, where r_t = 1. Default: 0.999.
      num_heads: number of diagonal blocks of W_a and W_x, which divides `features`.
        Default: 1.

    Raises:
      ValueError: `num_heads` does not divide `features`; the inputs have another width.

    Reference: De et al., 2024, https://arxiv.org/abs/2402.19427, equations 1 to 4;
    log a_t as in their appendix A. Different in the authors' code: the first step after
    a reset has 1 in place of √(1 - a_t²), the radii are those of a_t where r_t = 1/c,
    and W_a and W_x always have blocks.
    """

    kernel_init: Initializer = nn.initializers.lecun_normal()
    bias_init: Initializer = nn.initializers.zeros_init()
    min_radius: float = 0.9
    max_radius: float = 0.999
    num_heads: int = 1

    _c = 8.0

    def __post_init__(self) -> None:
        if not 0 < self.min_radius < self.max_radius < 1:
            raise ValueError(
                "`min_radius` and `max_radius` of RGLRUCell must be 0 < min_radius < "
                f"max_radius < 1, got {self.min_radius} and {self.max_radius}."
            )
        super().__post_init__()

    def setup(self) -> None:
        self.gates(
            *("a", "x"),
            kernel_init=self.kernel_init,
            bias_init=self.bias_init,
            num_heads=self.num_heads,
        )
        init = _initial_log_decay(self.min_radius, self.max_radius, self._c)
        self.Lambda = param(self, "Lambda", init, (self.features,))

    def project(self, inputs: ArrayTree) -> ArrayTree:
        if inputs.shape[-1] != self.features:
            raise ValueError(
                "The inputs of RGLRUCell must have as many features as the cell, "
                f"{self.features}, got {inputs.shape[-1]}. Apply nn.Dense before it."
            )
        return self.affine(inputs, "a", "x"), inputs

    def coefficients(self, projected: ArrayTree) -> tuple[Array, Array]:
        ax, x = projected
        # In half precision, most a_t would round to 1.
        ax, x = (y.astype(full_precision(y.dtype)) for y in (ax, x))
        r, i = jnp.split(nn.sigmoid(ax), 2, axis=-1)
        log_a = -self._c * expand_left(nn.softplus(self.Lambda.astype(r.dtype)), r) * r
        # 1 - a²; where r underflows to 0, the root has derivatives of 0.
        rest = -jnp.expm1(2 * log_a)
        root = jnp.where(rest > 0, jnp.sqrt(jnp.where(rest > 0, rest, 1)), 0)
        return jnp.exp(log_a), root * (i * x)
