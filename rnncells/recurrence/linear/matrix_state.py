"""States that are matrices, changed by an outer product at each step.

    S_t = α_t S_{t-1} (I - β_t k_t k_tᵀ) + v_t k_tᵀ

With exponential gates (Beck et al., 2024), the state is stored as S_t exp(-m_t):

    m_t = max(log α_t + m_{t-1}, log i_t)
    S_t = exp(log α_t + m_{t-1} - m_t) S_{t-1} + exp(log i_t - m_t) v_t k_tᵀ

`step` takes one step. `MatrixChunk` takes some steps at once: where w_t is the decay
from the state S before them to step t, and W_tj that from step j to step t,

    S_t = w_t S + Σ_{j<=t} W_tj u_j k_jᵀ
    u_t = v_t - β_t (w_t S k_t + Σ_{j<t} W_tj (k_j·k_t) u_j)

The second line is a triangular system for all u_t (Yang et al., 2024).
"""

from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.scipy.linalg import solve_triangular

from rnncells.recurrence import masks
from rnncells.recurrence.pytrees import expand_left


class OuterUpdate(NamedTuple):
    """Update and query of a state in one step, `(*leading, heads, ...)`.

    The step reads S_t q_t; `beta` says how much of the old value at the key is removed,
    None: nothing. Without `log_i`, the logarithm of an input gate, there is no m.
    """

    q: Array  # query, `(*leading, heads, keys)`
    k: Array  # key, the same
    v: Array  # value, `(*leading, heads, values)`
    log_alpha: Array  # logarithm of the decay, `(*leading, heads)`
    beta: Array | None = None  # `(*leading, heads)`
    log_i: Array | None = None  # not together with `beta`


class MatrixState(NamedTuple):
    S: Array  # `(*batch, heads, values, keys)`
    m: Any = None  # log of the factor that S lacks, `(*batch, heads)`, or None


def lowest(dtype: Any) -> float:
    """Returns a number below all logarithms of gates; a sum of two is finite."""
    # Unlike -inf, it passes JAX's debug flags.
    return float(jnp.finfo(dtype).min) / 4


def step(state: MatrixState, update: OuterUpdate) -> MatrixState:
    S, m = state
    q, k, v, log_alpha, beta, log_i = update
    if log_i is not None:
        m, log_alpha, v = _stabilized(m, log_alpha, v, log_i)
    S = jnp.exp(log_alpha)[..., None, None] * S
    if beta is not None:
        v = v - beta[..., None] * read(S, k)
    return MatrixState(S + v[..., :, None] * k[..., None, :], m)


def _stabilized(
    m: Array, log_alpha: Array, v: Array, log_i: Array
) -> tuple[Array, Array, Array]:
    """Returns m after a step, and log α and v relative to exp(m) before and after."""
    m_next = jnp.maximum(log_alpha + m, log_i)
    log_alpha = log_alpha + m - m_next
    v = jnp.exp(log_i - m_next)[..., None] * v
    return m_next, log_alpha, v


def read(S: Array, q: Array) -> Array:
    """Returns S q, `(*leading, heads, values)`."""
    return jnp.einsum("...vk,...k->...v", S, q)


class MatrixChunk:
    """Some steps of a matrix state at once.

    Inside, gates are `(*batch, heads, steps)`, vectors `(*batch, heads, steps, ...)`.
    """

    def __init__(
        self,
        state: MatrixState,
        updates: OuterUpdate,
        *,
        reset: Array | None = None,
        update: Array | None = None,
        reset_state: MatrixState | None = None,
    ) -> None:
        """Describes the steps; `updates` are `(steps, *batch, heads, ...)`.

        `reset` is true at the steps before which the state is `reset_state`, and
        `update` false at the steps that hold the state, `(steps, *batch)`.
        """
        self._reset_state: Any = reset_state
        q, k, v = (jnp.moveaxis(x, 0, -2) for x in updates[:3])
        gates: Any = jax.tree.map(lambda gate: jnp.moveaxis(gate, 0, -1), updates[3:])
        # A value that is not finite would reach other steps, and their gradients,
        # multiplied by 0. -inf is the logarithm of 0, and is valid.
        self._is_finite = jnp.ones(gates[0].shape, bool)
        gates = self._mask_nonfinite(*gates, is_finite=_is_below_infinity)
        k, v = self._mask_nonfinite(k, v)
        # A query is read at its own step alone, so it does not count in `_is_finite`.
        is_finite = jnp.isfinite(q).all(-1)
        self._q = jnp.where(is_finite[..., None], q, 0)
        self._can_read = self._is_finite & is_finite
        operands = OuterUpdate(self._q, k, v, *gates)
        self._update = None
        if update is not None:
            self._update = jnp.moveaxis(update[..., None], 0, -1)
            operands = self._hold(operands, self._update)
        _, self.k, v, self._log_alpha, beta, self._log_i = operands
        steps = self._log_alpha.shape[-1]
        # The number of resets up to each step says to which sequence it belongs.
        self._sequence = None
        if reset is not None:
            self._sequence = jnp.moveaxis(jnp.cumsum(reset, 0)[..., None], 0, -1)
        is_before = jnp.tril(jnp.ones((steps, steps), bool))
        self._mask = expand_left(is_before, self._log_alpha[..., None])
        if self._sequence is not None:
            same = self._sequence[..., :, None] == self._sequence[..., None, :]
            self._mask = self._mask & same
        self._was_finite = jnp.isfinite(state.S).all((-1, -2))[..., None]
        S = jnp.where(self._was_finite[..., None], state.S, 0)
        self._state = state._replace(S=S)
        self.u = v if beta is None else self._changes(v, beta)

    def _hold(self, operands: OuterUpdate, is_updated: Array) -> OuterUpdate:
        """Returns operands by which steps that hold the state do not change it."""
        _, k, v, log_alpha, _, log_i = operands
        # With a key of 0 at other steps, whose products could overflow.
        held_k = jnp.where(is_updated[..., None], 0, k)
        self._held = operands._replace(k=held_k)
        self._is_finite |= ~is_updated
        k, v = (jnp.where(is_updated[..., None], x, 0) for x in (k, v))
        log_alpha = jnp.where(is_updated, log_alpha, 0)
        if log_i is not None:
            log_i = jnp.where(is_updated, log_i, lowest(log_i.dtype))
        return operands._replace(k=k, v=v, log_alpha=log_alpha, log_i=log_i)

    def _mask_nonfinite(
        self, *arrays: Array | None, is_finite: Callable = jnp.isfinite
    ) -> list[Any]:
        """Returns arrays with 0 at steps that are not finite, and notes these steps.

        They would reach the steps before them, multiplied by 0.
        """
        for x in arrays:
            if x is not None:
                features = range(self._is_finite.ndim, x.ndim)
                self._is_finite &= is_finite(x).all(tuple(features))

        def replaced(x: Array) -> Array:
            return jnp.where(masks.expand_right(self._is_finite, x.ndim), x, 0)

        return [None if x is None else replaced(x) for x in arrays]

    @cached_property
    def _after_nonfinite(self) -> Array:
        """True from the first step of a sequence on that is not finite."""
        since = (self._mask & ~self._is_finite[..., None, :]).any(-1)
        first = True if self._sequence is None else self._sequence == 0
        return since | (~self._was_finite & first)

    @cached_property
    def _log_decay(self) -> tuple[Array, Array]:
        """Logarithms of the decay from the state before, and from each step."""
        log_alpha, steps = self._log_alpha, self._log_alpha.shape[-1]
        # Sums of each interval: a difference of sums would lose digits, and be NaN
        # where α is 0.
        before = jnp.tril(jnp.ones((steps, steps), bool), -1)
        terms = jnp.where(before, log_alpha[..., :, None], 0)
        between = jnp.where(self._mask, jnp.cumsum(terms, -2), lowest(log_alpha.dtype))
        from_start = jnp.where(self._mask, log_alpha[..., None, :], 0).sum(-1)
        return from_start, between

    @cached_property
    def m(self) -> Any:
        """m after each step, None without."""
        if self._log_i is None:
            return None
        from_start, between = self._log_decay
        from_steps = between + self._log_i[..., None, :]
        return jnp.maximum(from_start + self._m_before, from_steps.max(-1))

    @cached_property
    def _m_before(self) -> Array:
        """m before the sequence of each step."""
        return self._before_sequence(lambda state: state.m[..., None])

    @cached_property
    def _decay(self) -> tuple[Array, Array]:
        """w_t and W_tj, with the input gates, relative to exp(m_t)."""
        from_start, between = self._log_decay
        if self._log_i is not None:
            from_start = from_start + self._m_before - self.m
            between = between + self._log_i[..., None, :] - self.m[..., None]
        return jnp.exp(from_start), jnp.exp(between)

    def _before_sequence(self, value_of: Callable[[MatrixState], Array]) -> Array:
        """Returns at each step a value of the state before its sequence."""
        value = value_of(self._state)
        if self._sequence is None:
            return value
        is_first = masks.expand_right(self._sequence == 0, value.ndim)
        return jnp.where(is_first, value, value_of(self._reset_state))

    def _read_before(self, q: Array) -> Array:
        """Returns S q of the state before the sequence of each step."""
        return self._before_sequence(
            lambda state: jnp.einsum("...vk,...tk->...tv", state.S, q)
        )

    def _changes(self, v: Array, beta: Array) -> Array:
        """Returns u_t, by a triangular system."""
        (w, W), k = self._decay, self.k
        # Below a diagonal of 1, which is not written.
        products, reads = self._mask_nonfinite(self._products(k), self._read_before(k))
        L = beta[..., None] * jnp.tril(W * products, -1)
        right = v - (beta * w)[..., None] * reads
        L, right = (x.astype(jnp.result_type(L, right)) for x in (L, right))
        L, right = self._mask_nonfinite(L, right)
        u = solve_triangular(L, right, lower=True, unit_diagonal=True)
        return self._mask_nonfinite(u)[0]

    def _products(self, q: Array) -> Array:
        """Returns q_t·k_j for j <= t in one sequence, and 0 elsewhere."""
        products = jnp.einsum("...tk,...jk->...tj", q, self.k)
        return jnp.where(self._mask, products, 0)

    def reads(self) -> tuple[Array, Array | None]:
        """Returns S_t q_t of all steps, `(steps, *batch, heads, values)`, and m."""
        reads, m = self._read(self._q), self.m
        if self._update is not None:
            # A step that holds the state reads the state that it would have had.
            changed = self._hypothetical_read(reads, m)
            is_updated = self._update
            reads = jnp.where(is_updated[..., None], reads, changed[0])
            m = None if m is None else jnp.where(is_updated, m, changed[1])
        is_nan = self._after_nonfinite | ~self._can_read
        reads = jnp.where(is_nan[..., None], jnp.nan, reads)
        m = None if m is None else jnp.moveaxis(m, -1, 0)
        return jnp.moveaxis(reads, -2, 0), m

    def _read(self, q: Array) -> Array:
        """Returns S_t q_t of the states after all steps."""
        w, W = self._decay
        reads = w[..., None] * self._read_before(q)
        weights = W * self._products(q)
        return reads + jnp.einsum("...tj,...jv->...tv", weights, self.u)

    def _hypothetical_read(self, reads: Array, m: Any) -> tuple[Array, Any]:
        """Returns the reads of held steps as if these steps changed the state."""
        _, k, v, log_alpha, beta, log_i = self._held
        if log_i is not None:
            m, log_alpha, v = _stabilized(m, log_alpha, v, log_i)
        alpha = jnp.exp(log_alpha)[..., None]
        if beta is not None:
            v = v - beta[..., None] * alpha * self._read(k)
        return alpha * reads + v * (k * self._q).sum(-1, keepdims=True), m

    def states(self) -> MatrixState:
        """Returns the states after all steps, `(steps, *batch, heads, ...)`."""
        w, W = self._decay
        before = self._before_sequence(lambda state: state.S[..., None, :, :])
        S = w[..., None, None] * before
        # Not u k first, which can overflow.
        weighted = W[..., None] * self.u[..., None, :, :]
        S = S + jnp.einsum("...tjv,...jk->...tvk", weighted, self.k)
        S = jnp.where(self._after_nonfinite[..., None, None], jnp.nan, S)
        m = None if self.m is None else jnp.moveaxis(self.m, -1, 0)
        return MatrixState(jnp.moveaxis(S, -3, 0), m)

    def state_after(self, index: Array | None = None) -> MatrixState:
        """Returns each row's state after a step, `(*batch,)`; default: the last one."""

        def select(leaf: Array, axis: int) -> Array:
            if index is None:
                return jax.lax.index_in_dim(leaf, -1, axis)
            place = masks.expand_right(index, leaf.ndim)
            return jnp.take_along_axis(leaf, place, axis)

        w, W = self._decay
        before = self._state.S
        if self._sequence is not None:
            is_first = select(self._sequence, axis=-1)[..., None] == 0
            before = jnp.where(is_first, before, self._reset_state.S)
        weights = jnp.swapaxes(select(W, axis=-2), -1, -2)
        S = select(w, axis=-1)[..., None] * before
        S = S + jnp.einsum("...jv,...jk->...vk", weights * self.u, self.k)
        is_nan = select(self._after_nonfinite, axis=-1)[..., None]
        m = None if self.m is None else select(self.m, axis=-1)[..., 0]
        return MatrixState(jnp.where(is_nan, jnp.nan, S), m)


def _is_below_infinity(gate: Array) -> Array:
    return gate <= jnp.finfo(gate.dtype).max
