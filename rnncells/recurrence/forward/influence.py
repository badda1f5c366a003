"""The influence of parameters on the carry, carried forward in time.

For one row, with the carry s_t of n real numbers and parameters θ (Williams and Zipser,
1989)::

    D_t = ∂s_t / ∂s_{t-1}         n x n
    L_t = ∂s_t / ∂θ  (immediate)  n x P
    J_t = D_t J_{t-1} + L_t       n x P, the influence
    dE_t / dθ = (∂E_t / ∂s_t) J_t

The initial carry is one more parameter, with J_0 = 1 and no immediate influence.

The jaxpr of the step says which entries of D and L are zero, and so which entries of J
can be other than zero. A column of J, the influence of one parameter, keeps only these,
or fewer: those reached in some `steps` (SnAp-n, Menick et al., 2021).

For a block of time from s to s', with J the influence before it (Schmidhuber, 1992, "A
fixed size storage O(n³) time complexity learning algorithm")::

    dE/dθ = ∂E/∂θ + (∂E/∂s) J          by one backward pass through the block
    J' = ∂s'/∂θ + (∂s'/∂s) J           by n backward passes

Rows of D (or L) that have no column in common have one color, and are taken in one VJP.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from chex import ArrayTree
from jax import Array

from rnncells.recurrence.engine import products
from rnncells.recurrence.engine.split_step import SplitStep
from rnncells.recurrence.pytrees import combine, inexact, partition
from rnncells.recurrence.rows import RowOperands, RowStep, add_flat, join
from rnncells.recurrence.sparsity import color_rows


class Influence:
    """The matrices J of one row: one for each leaf of θ, and for the initial carry."""

    def __init__(
        self, step: RowStep, local: Callable | None = None, steps: int | None = None
    ) -> None:
        """Keeps the entries that a parameter reaches in `steps` steps.

        `local` is a step `row -> (s, output)` of equal values whose Jacobian by s is D.
        """
        self.step = step
        self._local = local
        # An approximate J_t is read where outputs depend on the carry after the step.
        self.reads_after = steps is not None
        by_theta, by_s = step.dependencies()
        if local is not None:
            _, by_s = step.dependencies(local)
        self.d = ColoredJacobian(by_s)
        self.l = list(map(ColoredJacobian, by_theta))
        more = None if steps is None else steps + 1
        reached = [_reached(pattern, by_s, steps) for pattern in by_theta]
        reached.append(_reached(np.eye(step.size, dtype=bool), by_s, more))
        shapes = [*(leaf.shape for leaf in step.theta), (step.size,)]
        self.layouts = list(map(layout_of, reached, shapes))

    def initial(self, s: Array) -> list[Array]:
        """Returns J_0: of zeros, and for the initial carry of ones."""
        dtype = self.step.influence_dtype
        *of_theta, initial = self.layouts
        identity = jnp.asarray(initial.gathered(np.eye(self.step.size)), dtype)
        return [*(jnp.zeros(layout.shape, dtype) for layout in of_theta), identity]

    def after(self, influence: list[Array], row: RowOperands) -> list[Array]:
        """Returns J_t = D_t J_{t-1} + L_t."""
        linear = self._local or self.step
        d = self.d.rows(lambda s: linear(row._replace(s=s))[0], row.s)
        by_theta = _rows_by_theta(
            self.l, lambda theta: self.step(row._replace(theta=theta))[0], row.theta
        )
        products = [
            layout.product(self.d, d, j).astype(j.dtype)
            for layout, j in zip(self.layouts, influence, strict=True)
        ]
        *of_theta, initial = products
        terms = zip(self.layouts[:-1], self.l, by_theta, strict=True)
        immediate = [
            layout.entries(jacobian, rows).astype(initial.dtype)
            for layout, jacobian, rows in terms
        ]
        return [*map(jnp.add, of_theta, immediate), initial]

    def output(self, row: RowOperands, tap: Array) -> ArrayTree:
        """Returns the output; see `RowStep.output_with_tap`."""
        if self.reads_after:
            return self.step.output_with_tap(row, tap)
        if self._local is None:
            return self.step(row)[-1]
        theta, s, x = jax.lax.stop_gradient((row.theta, row.s, row.x))
        by_theta = self.step(row._replace(s=s))[-1]
        by_s = self._local(row._replace(theta=theta, x=x))[-1]
        # The values are equal; the derivatives are those by theta, and those by s.
        return jax.tree.map(
            lambda a, b: a + (b - jax.lax.stop_gradient(b)), by_theta, by_s
        )

    def cotangents(self, influence: list[Array], d_s: Array) -> list[Array]:
        """Returns (∂E/∂s) J: the cotangents of θ and of the initial carry, flat."""
        pairs = zip(self.layouts, influence, strict=True)
        return [layout.vector_product(d_s, j) for layout, j in pairs]


class BlockInfluence:
    """The influence of one row at the border of a block: matrices of n rows."""

    def __init__(self, step: RowStep) -> None:
        self.step = step

    def initial(self, s: Array) -> list[Array]:
        sizes = [leaf.size for leaf in self.step.theta]
        dtype = self.step.influence_dtype
        zeros = [jnp.zeros((self.step.size, size), dtype) for size in sizes]
        return [*zeros, jnp.eye(self.step.size, dtype=dtype)]

    def advance(
        self, influence: list[Array], row: RowOperands, d_outputs: ArrayTree
    ) -> tuple[tuple, tuple]:
        """Takes a block; see `run.advance_rows`, with a leading time axis of `x`."""
        diff_x, nondiff_x = partition(row.x)

        def block(theta: list[Array], s: Array, diff_x: ArrayTree) -> tuple:
            def step(carry: tuple, x: ArrayTree) -> tuple[tuple, ArrayTree]:
                s, nondiff_carry = carry
                operands = RowOperands(theta, s, x, row.nondiff_consts, nondiff_carry)
                *carry_after, output = self.step(operands)
                return tuple(carry_after), inexact(output)

            carry, xs = (s, row.nondiff_carry), combine(diff_x, nondiff_x)
            (s, nondiff_carry), outputs = jax.lax.scan(step, carry, xs)
            return (s, outputs), nondiff_carry

        s = row.s
        after: Array
        nondiff_carry: ArrayTree
        (after, _), vjp, nondiff_carry = jax.vjp(
            block, row.theta, s, diff_x, has_aux=True
        )
        d_theta, d_s, d_x = vjp((jnp.zeros_like(after), d_outputs))
        *through, d_initial = self.cotangents(influence, d_s)
        d_theta = add_flat(d_theta, through)
        d_initial = d_initial.astype(s.dtype)
        none = jax.tree.map(jnp.zeros_like, d_outputs)
        by_theta, by_s, _ = jax.vmap(lambda seed: vjp((seed, none)))(
            jnp.eye(len(s), dtype=after.dtype)
        )
        immediate = [leaf.reshape(len(s), -1) for leaf in by_theta]
        influence = [by_s @ j for j in influence]
        influence[:-1] = map(jnp.add, influence, immediate)
        influence = [j.astype(self.step.influence_dtype) for j in influence]
        return (after, nondiff_carry, influence), (d_theta, d_initial, d_x)

    def cotangents(self, influence: list[Array], d_s: Array) -> list[Array]:
        """See `Influence.cotangents`."""
        return [d_s @ j for j in influence]


def local(step: RowStep) -> Callable:
    """Returns the step of `Rflo`, `row -> (s, output)`.

    Products of the carry have no gradients in it, unless only the output reads them.
    """
    parts = SplitStep(
        lambda consts, carry, x: step.function(*consts, carry, x),
        *(step.consts, step.carry_structs, step.x),
    )

    def local_step(row: RowOperands) -> tuple[Array, ArrayTree]:
        weights = parts.weights(join(row.theta, step.consts, row.nondiff_consts))
        x = jax.tree.map(lambda leaf: leaf[None], row.x)
        evaluator = products.direct_evaluator(weights.projections)
        z, _ = parts.project(weights.invariants, x, evaluator)
        z = [leaf[0] for leaf in z]
        evaluator = products.direct_evaluator(weights.products)
        feeds_carry = parts.feeds_carry()

        def stopped(k: int, lhs: Array, addend: Array | None) -> Array:
            lhs = jax.lax.stop_gradient(lhs) if feeds_carry[k] else lhs
            return evaluator(k, lhs, addend)

        carry = step.carry(row.s, row.nondiff_carry)
        (new, output), _ = parts.recur(weights.invariants, carry, z, stopped)
        return step.vector(new), output

    return local_step


@dataclass(frozen=True, eq=False)
class ColoredJacobian:
    """A Jacobian, `(n, columns)`, whose entries outside of a pattern are zero."""

    pattern: np.ndarray

    @cached_property
    def colors(self) -> np.ndarray:
        return color_rows(self.pattern)

    @property
    def seeds(self) -> np.ndarray:
        """One cotangent for each color, `(colors, n)`."""
        return np.equal.outer(np.arange(self.colors.max(initial=0) + 1), self.colors)

    def rows(self, function: Callable, x: Any) -> Array:
        """Returns the sums of the rows of each color, `(colors, columns)`."""
        value, vjp = jax.vjp(function, x)
        (rows,) = jax.vmap(vjp)(jnp.asarray(self.seeds, value.dtype))
        return rows.reshape(len(rows), -1)

    def full(self, rows: Array) -> Array:
        every = rows[self.colors]
        return every if self.pattern.all() else jnp.where(self.pattern, every, 0)


@dataclass(frozen=True, eq=False)
class DenseInfluence:
    """An influence matrix, `(n, columns)`, of which every row is kept."""

    pattern: np.ndarray

    @property
    def shape(self) -> tuple[int, int]:
        return self.pattern.shape

    def gathered(self, matrix: np.ndarray) -> np.ndarray:
        """Returns the entries of a matrix `(n, columns)` that are kept."""
        return np.where(self.pattern, matrix, 0)

    def entries(self, jacobian: ColoredJacobian, rows: Array) -> Array:
        """Returns the kept entries of a Jacobian, from its `rows`."""
        return jacobian.full(rows)

    def product(self, jacobian: ColoredJacobian, rows: Array, j: Array) -> Array:
        """Returns the entries of D J that are kept, from the `rows` of D."""
        product = jacobian.full(rows) @ j
        return product if self.pattern.all() else jnp.where(self.pattern, product, 0)

    def vector_product(self, d_s: Array, j: Array) -> Array:
        return d_s @ j


@dataclass(frozen=True, eq=False)
class SparseInfluence:
    """An influence matrix of which a column keeps few rows.

    The columns repeat with a period, as those of a kernel do for each input. `units`
    are the rows of each column that are kept, `(most rows of a column, period)`; a
    column with fewer repeats row 0, where `mask` is false.
    """

    columns: int
    units: np.ndarray
    mask: np.ndarray

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.units), self.columns

    def gathered(self, matrix: np.ndarray) -> np.ndarray:
        units, mask = self._tiled(self.units), self._tiled(self.mask)
        return np.where(mask, np.take_along_axis(matrix, units, 0), 0)

    def entries(self, jacobian: ColoredJacobian, rows: Array) -> Array:
        units, column = self._tiled(self.units), np.arange(self.columns)
        mask = self._tiled(self.mask) & jacobian.pattern[units, column]
        entries = []
        for row_colors, row_mask in zip(jacobian.colors[units], mask, strict=True):
            # One color is a slice, which is faster than indexing.
            colors = np.unique(row_colors[row_mask])
            index = colors[0] if len(colors) == 1 else (row_colors, column)
            entries.append(rows[index])
        return jnp.where(mask, jnp.stack(entries), 0) if entries else rows[:0]

    def product(self, jacobian: ColoredJacobian, rows: Array, j: Array) -> Array:
        to, source = self.units[:, None], self.units[None]
        has_entry = self.mask[:, None] & self.mask[None] & jacobian.pattern[to, source]
        d = jnp.where(has_entry, rows[jacobian.colors[to], source], 0)
        return jnp.sum(d[:, :, None] * self._by_period(j)[None], 1).reshape(j.shape)

    def vector_product(self, d_s: Array, j: Array) -> Array:
        d = jnp.where(self.mask, d_s[self.units], 0)
        return jnp.sum(d[:, None] * self._by_period(j), 0).ravel()

    def _tiled(self, of_period: np.ndarray) -> np.ndarray:
        return np.tile(of_period, self.columns // max(1, of_period.shape[1]))

    def _by_period(self, j: Array) -> Array:
        repeats = self.columns // self.units.shape[1]
        return j.reshape(len(self.units), repeats, self.units.shape[1])


def layout_of(
    pattern: np.ndarray, shape: tuple[int, ...]
) -> DenseInfluence | SparseInfluence:
    """Returns the layout of an influence matrix, `(n, size of a parameter)`."""
    most = int(pattern.sum(0).max(initial=0))
    if 2 * most > len(pattern) or not pattern.size:
        return DenseInfluence(pattern)
    period = pattern.shape[1]
    for size in np.cumprod(shape[::-1]):
        if (pattern.reshape(len(pattern), -1, size) == pattern[:, None, :size]).all():
            period = size
            break
    of_period = pattern[:, :period]
    units = np.argsort(~of_period, axis=0, kind="stable")[:most]
    mask = np.take_along_axis(of_period, units, 0)
    return SparseInfluence(pattern.shape[1], np.where(mask, units, 0), mask)


def _reached(pattern: np.ndarray, by_s: np.ndarray, steps: int | None) -> np.ndarray:
    """Returns the entries that are reached in `steps` steps; None: in any number."""
    # Few columns differ: all weights of a unit reach the same units.
    packed = np.packbits(pattern, axis=0)
    _, first, columns = np.unique(
        packed, axis=1, return_index=True, return_inverse=True
    )
    reached = pattern[:, first]
    transfer = by_s.astype(np.float32)
    while steps is None or steps > 1:
        new = reached | (transfer @ reached.astype(np.float32) > 0)
        if (new == reached).all():
            break
        reached = new
        steps = None if steps is None else steps - 1
    return reached[:, columns.ravel()]


def _rows_by_theta(
    jacobians: list[ColoredJacobian], function: Callable, theta: list[Array]
) -> list[Array]:
    """Returns the `rows` of all L; leaves of equal colors share their VJPs."""
    value, vjp = jax.vjp(function, theta)
    rows_of: list[Any] = [None] * len(theta)
    groups: dict[bytes, list[int]] = {}
    for k, jacobian in enumerate(jacobians):
        groups.setdefault(jacobian.colors.tobytes(), []).append(k)
    for members in groups.values():
        seeds = jnp.asarray(jacobians[members[0]].seeds, value.dtype)
        (rows,) = jax.vmap(vjp)(seeds)
        for k in members:
            rows_of[k] = rows[k].reshape(len(seeds), -1)
    return rows_of
