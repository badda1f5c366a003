"""Unbiased online recurrent optimization: a random influence of rank one.

J is replaced by the product of two random vectors whose mean is J (Tallec and Ollivier,
2017, https://arxiv.org/abs/1702.05043, algorithm 1). With random signs ν::

    s̃_t = ρ0 D_t s̃_{t-1} + ρ1 ν
    θ̃_t = θ̃_{t-1} / ρ0 + ν^T L_t / ρ1
    ρ0 = sqrt(|θ̃_{t-1}| / |D_t s̃_{t-1}|),    ρ1 = sqrt(|ν^T L_t| / |ν|)
    dE_t / dθ ≈ (∂E_t / ∂s_t · s̃_t) θ̃_t

Different here: where D_t s̃_{t-1} is zero, as after a reset, θ̃_{t-1} is dropped, because
it would only add noise. The influence of the initial carry is a second pair of vectors,
s̃ with s̃_t = D_t s̃_{t-1} and s̃_0 = ν, and ν.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from chex import ArrayTree
from jax import Array

from rnncells.recurrence.pytrees import euclidean, upcast
from rnncells.recurrence.rows import RowOperands, RowStep

_EPSILON = 1e-7  # as in the paper, for norms that are zero


class RankOne(NamedTuple):
    """The two vectors whose product stands for J."""

    s: Array  # s̃, `(n,)`
    theta: list[Array]  # θ̃, as θ
    initial: Array  # s̃ of the initial carry, `(n,)`
    signs: Array  # ν of the initial carry, `(n,)`
    key: Array  # raw random key of the row
    steps: Array  # number of steps so far


class RankOneInfluence:
    """The updates of one row's vectors, as the methods of `Influence`."""

    reads_after = True

    def __init__(self, step: RowStep) -> None:
        self.step = step
        self.output = step.output_with_tap

    def initial(self, s: Array, key: Array | None = None) -> RankOne:
        if key is None:
            raise ValueError(
                "The gradient of RNN with gradient=Uoro() needs a random key. Pass "
                'rngs={"uoro": key} to `apply`.'
            )
        dtype = self.step.influence_dtype
        theta = [jnp.zeros(leaf.shape, dtype) for leaf in self.step.theta]
        signs = self._signs(key, 0)
        return RankOne(jnp.zeros_like(s), theta, signs, signs, key, jnp.int32(1))

    def after(self, influence: RankOne, row: RowOperands) -> RankOne:
        nu = self._signs(influence.key, influence.steps)

        def next_s(theta: list[Array], s: Array) -> Array:
            return self.step(row._replace(theta=theta, s=s))[0]

        theta, s = row.theta, row.s
        tangents = influence.s, influence.initial
        _, forward = jax.linearize(lambda s: next_s(theta, s), s)
        d_s, initial = map(forward, tangents)
        _, vjp = jax.vjp(lambda theta: next_s(theta, s), theta)
        (immediate,) = vjp(nu)
        size = _norm(influence.theta)
        rho0 = jnp.sqrt(size / (_norm(d_s) + _EPSILON)) + _EPSILON
        rho1 = jnp.sqrt(_norm(immediate) / (_norm(nu) + _EPSILON)) + _EPSILON
        old = jnp.where(_norm(d_s) > 0, 1 / rho0, 0)
        return influence._replace(
            s=(rho0 * d_s + rho1 * nu).astype(s.dtype),
            theta=jax.tree.map(
                lambda a, b: (old * a + b / rho1).astype(a.dtype),
                influence.theta,
                immediate,
            ),
            initial=initial,
            steps=influence.steps + 1,
        )

    def cotangents(self, influence: RankOne, d_s: Array) -> list[Array]:
        """See `Influence.cotangents`."""
        of_theta = [(d_s @ influence.s) * leaf.ravel() for leaf in influence.theta]
        return [*of_theta, (d_s @ influence.initial) * influence.signs]

    def _signs(self, key: Array, step: Array | int) -> Array:
        key = jax.random.fold_in(jax.random.wrap_key_data(key), step)
        return jax.random.rademacher(key, (self.step.size,), self.step.dtype)


def _norm(tree: ArrayTree) -> Array:
    norms = [euclidean(leaf.ravel()) for leaf in jax.tree.leaves(upcast(tree))]
    return euclidean(jnp.array(norms))
