"""A recurrence as a system of equations for all its carries, solved by Newton's method.

    s_t = f(s_{t-1}, x_t)    for all t at once

Each iteration takes all steps at the last guess s, with their Jacobians A_t, and solves
a linear recurrence for the correction d of the guess (DEER: Lim et al., 2024)

    r_t = f(s_{t-1}, x_t) - s_t
    d_t = A_t d_{t-1} + r_t

`damping` k replaces A by (1 - k) A (scale-ELK: Gonzalez et al., 2025); k = 1 is
Jacobi's method. The Jacobian can be reduced to its diagonal blocks (quasi-DEER:
Gonzalez et al., 2024). The solution is the same for any A. After i iterations the first
i steps are exact, but for rounding, which large products of A amplify.

With the whole Jacobian, d is the error of the guess to first order. A small residual r
bounds no error: where small differences grow, so does what r leaves out, and so does
the rounding of the steps. Tangents and cotangents follow a linear recurrence with the
whole Jacobians.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
from chex import ArrayTree
from jax import Array

from rnncells.recurrence.forward.run import DiffOperands, NondiffOperands
from rnncells.recurrence.linear.elementwise import solve_steps
from rnncells.recurrence.pytrees import combine, zero_tangents
from rnncells.recurrence.rows import RowOperands, RowStep
from rnncells.recurrence.sparsity import color_rows

JacobianKind = Literal["full", "diagonal"]


@dataclass(frozen=True)
class Newton:
    """Solves for all steps of a sequence at once: `RNN(cell, implementation=Newton())`.

    Attributes:
      jacobian: `'full'`, or `'diagonal'`: each unit's own part only, for cells whose
        units depend little on each other. An LSTM's unit has the parts c and h.
        Default: `'full'`.
      damping: k in [0, 1]; the Jacobian is multiplied by 1 - k. Default: 0.
      tolerance: largest `error` and `residual` of a solution, see `Certificate`. None:
        eps^(2/3), which is 2e-5 in float32 and 4e-11 in float64. Default: None.
      iterations: the most iterations; if they are not enough, the loop over time runs
        instead. Default: 32.

    Raises:
      ValueError: an attribute is out of range.
      TypeError: `iterations` is not an int.
    """

    jacobian: JacobianKind = "full"
    damping: float = 0.0
    tolerance: float | None = None
    iterations: int = 32

    def __post_init__(self) -> None:
        kinds = list(get_args(JacobianKind))
        if not isinstance(self.iterations, int) or isinstance(self.iterations, bool):
            raise TypeError(
                f"`iterations` of Newton must be an int, got {self.iterations!r}."
            )
        if self.iterations < 1:
            raise _range_error("iterations", "at least 1", self.iterations)
        if self.jacobian not in kinds:
            raise _range_error("jacobian", f"one of {kinds}", self.jacobian)
        if not 0 <= self.damping <= 1:
            raise _range_error("damping", "in [0, 1]", self.damping)
        if self.tolerance is not None and not self.tolerance > 0:
            raise _range_error("tolerance", "positive", self.tolerance)


def _range_error(name: str, rule: str, value: Any) -> ValueError:
    return ValueError(f"`{name}` of Newton must be {rule}, got {value!r}.")


class Certificate(NamedTuple):
    """How well Newton's method solved a recurrence.

    Attributes:
      error: estimated error of the carries in each row, `(*batch,)`, relative to the
        largest value of the same array of the carry: the larger one of the next Newton
        correction and of what the rounding errors of the steps grow to.
      residual: the largest difference of s_t and f(s_{t-1}, x_t) in each row, relative
        to the sizes of what f adds up: its value, and A_t s_{t-1}, `(*batch,)`.
      iterations: number of iterations.
      converged: whether error and residual are within the tolerance, `(*batch,)`. If
        they are not for some row, the results are those of the loop over time, for all
        rows.
    """

    error: Array
    residual: Array
    iterations: Array
    converged: Array


class JacobianBlocks(NamedTuple):
    """The elements of the Jacobians of steps that an iteration reads."""

    members: np.ndarray  # `(blocks, size)`, the elements of each block
    exists: np.ndarray  # `(blocks, size, size)`, false where it is always 0
    colors: np.ndarray  # `(n,)`; columns of one color share no row

    def split(self, carry: Array) -> Array:
        """Returns `(..., blocks, size)` of `(..., n)`."""
        return carry[..., self.members]

    def join(self, parts: Array) -> Array:
        flat = parts.reshape(*parts.shape[:-2], -1)
        return flat[..., np.argsort(self.members.ravel())]

    def solve(self, A: Array, b: Array) -> Array:
        """Returns c with c_0 = b_0 and c_t = A_t c_{t-1} + b_t, `(time, rows, n)`.

        `A` is `(time, rows, blocks, size, size)`; its first step is not read.
        """
        parts = self.split(b)
        return self.join(solve_steps(A, parts, None, "associative", is_matrix=True))


@dataclass(frozen=True, eq=False)
class Problem:
    """The system of equations of a recurrence, and options of its solver."""

    step: RowStep
    newton: Newton
    sizes: list[int]  # of the arrays of the carry
    full_blocks: JacobianBlocks  # of the whole Jacobian
    blocks: JacobianBlocks  # that iterations read

    @property
    def is_certified(self) -> bool:
        """Whether iterations read the whole Jacobian, which estimates the error."""
        return self.blocks is self.full_blocks and not self.newton.damping

    @property
    def tolerance(self) -> float:
        eps = float(jnp.finfo(self.step.dtype).eps)
        tolerance = self.newton.tolerance
        return eps ** (2 / 3) if tolerance is None else tolerance


def problem(step: RowStep, newton: Newton, sizes: list[int]) -> Problem:
    """Returns the problem of a step; `sizes` are those of the arrays of the carry."""
    _, depends = step.dependencies()
    full_blocks = _blocks(_components(depends), depends)
    if newton.jacobian == "full":
        return Problem(step, newton, sizes, full_blocks, full_blocks)
    # The parts of one unit have the same place in each part of the carry.
    is_by_unit = len(set(sizes)) == 1
    places = np.arange(step.size)
    units = places.reshape(len(sizes), -1).T if is_by_unit else places[:, None]
    return Problem(step, newton, sizes, full_blocks, _blocks(units, depends))


def _components(depends: np.ndarray) -> np.ndarray:
    """Returns the parts of the carry that are independent, all of one size."""
    label = np.arange(len(depends))
    linked = depends | depends.T | np.eye(len(depends), dtype=bool)
    for _ in range(len(depends)):
        least = np.where(linked, label[None, :], len(depends)).min(1)
        if (least == label).all():
            break
        label = least
    groups = [np.flatnonzero(label == first) for first in np.unique(label)]
    if len({len(group) for group in groups}) > 1:
        groups = [np.arange(len(depends))]
    return np.stack(groups)


def _blocks(members: np.ndarray, depends: np.ndarray) -> JacobianBlocks:
    exists = depends[members[:, :, None], members[:, None, :]]
    return JacobianBlocks(members, exists, color_rows(depends.T))


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def solve_newton(
    problem: Problem, operands: DiffOperands, nondiff: NondiffOperands
) -> tuple[Array, Certificate]:
    """Returns the carries after all steps, `(time, rows, n)`, and a certificate.

    Where the iterations do not converge, the carries are those of a loop over time.
    """
    steps = AllSteps(problem, operands, nondiff)
    time = jax.tree.leaves((operands.x, nondiff.x))[0].shape[0]
    zeros = jnp.zeros((time, *operands.s.shape), operands.s.dtype)
    guess = steps.after(steps.before(zeros))
    solved, iterations, error, residual = steps.iterate(guess)
    if not problem.is_certified:
        _, error, residual = steps.corrected(problem.full_blocks, 1, solved)
    converged = _is_within(problem, error, residual)
    solved = jax.lax.cond(converged.all(), lambda: solved, steps.loop)
    return solved, Certificate(error, residual, iterations, converged)


@solve_newton.defjvp
def _solve_newton_jvp(
    problem: Problem, primals: tuple[DiffOperands, NondiffOperands], tangents: tuple
) -> tuple[tuple, tuple]:
    operands, nondiff = primals
    solved, certificate = solve_newton(problem, operands, nondiff)

    def after(operands: DiffOperands) -> Array:
        steps = AllSteps(problem, operands, nondiff)
        return steps.after(steps.before(solved))

    _, tangents_out = jax.jvp(after, (operands,), (tangents[0],))
    steps = AllSteps(problem, operands, nondiff)
    A = steps.jacobians(problem.full_blocks, steps.before(solved))
    tangents_out = problem.full_blocks.solve(A, tangents_out)
    return (solved, certificate), (tangents_out, zero_tangents(certificate))


class AllSteps(NamedTuple):
    """All steps of a recurrence at once, as a function of the carries before them."""

    problem: Problem
    operands: DiffOperands
    nondiff: NondiffOperands

    def __call__(self, before: Array) -> tuple[Array, ArrayTree]:
        """Returns the carries after all steps, and the outputs."""
        (shared, per_row, _, x), nondiff = self.operands, self.nondiff

        def of_row(consts: tuple, nondiff_carry: Any, s: Array, x: tuple) -> tuple:
            theta = [*shared, *consts[0]]
            nondiff_consts = nondiff.shared, consts[1]
            row = RowOperands(theta, s, combine(*x), nondiff_consts, nondiff_carry)
            after, _, output = self.problem.step(row)
            return after, output

        over_time = jax.vmap(jax.vmap(of_row), (None, None, 0, 0))
        consts = per_row, nondiff.per_row
        return over_time(consts, nondiff.carry, before, (x, nondiff.x))

    def before(self, after: Array) -> Array:
        return jnp.concatenate([self.operands.s[None], after[:-1]])

    def after(self, before: Array) -> Array:
        return self(before)[0]

    def outputs(self, carries: Array) -> ArrayTree:
        return self(self.before(carries))[1]

    def loop(self) -> Array:
        """Returns the carries after all steps, one step after the other."""

        def step(s: Array, xs: tuple) -> tuple[Array, Array]:
            x, nondiff_x = jax.tree.map(lambda leaf: leaf[None], xs)
            operands = self.operands._replace(x=x)
            nondiff = self.nondiff._replace(x=nondiff_x)
            (new,) = AllSteps(self.problem, operands, nondiff).after(s[None])
            return new, new

        return jax.lax.scan(step, self.operands.s, (self.operands.x, self.nondiff.x))[1]

    def jacobians(self, blocks: JacobianBlocks, before: Array) -> Array:
        """Returns blocks of all Jacobians, `(time, rows, blocks, k, k)`."""
        members, exists, colors = blocks

        def of_color(color: Array) -> Array:
            seed = (colors == color).astype(before.dtype)
            seed = jnp.broadcast_to(seed, before.shape)
            return jax.jvp(self.after, (before,), (seed,))[1]

        columns = jax.lax.map(of_color, jnp.arange(colors.max() + 1))
        # Row i and column j of a block: row i of the derivative by the color of j.
        entries = columns[colors[members][:, None, :], ..., members[:, :, None]]
        return jnp.where(exists, jnp.moveaxis(entries, (0, 1, 2), (-3, -2, -1)), 0)

    def iterate(self, guess: Array) -> tuple[Array, Array, Array, Array]:
        """Returns the last guess, iterations, and error and residual before it."""
        problem, scale = self.problem, 1 - self.problem.newton.damping

        def correct(state: tuple) -> tuple:
            guess, i, *_ = state
            guess, error, residual = self.corrected(problem.blocks, scale, guess)
            # What overflowed starts again; the steps that are exact stay.
            return jnp.where(jnp.isfinite(guess), guess, 0), i + 1, error, residual

        def goes_on(state: tuple) -> Array:
            _, i, error, residual = state
            # Without the whole Jacobian, the sizes of the residual are unknown.
            residual = residual if problem.is_certified else 0
            is_open = ~_is_within(problem, error, residual)
            return (i < problem.newton.iterations) & is_open.any()

        # Not infinite, which `jax_debug_infs` refuses.
        unknown = jnp.full(guess.shape[1], jnp.finfo(guess.dtype).max, guess.dtype)
        start = guess, jnp.array(0), unknown, unknown
        return jax.lax.while_loop(goes_on, correct, start)

    def corrected(
        self, blocks: JacobianBlocks, scale: float, guess: Array
    ) -> tuple[Array, Array, Array]:
        """Returns a corrected guess, and each row's error and residual of the guess."""
        before = self.before(guess)
        A = scale * self.jacobians(blocks, before)
        values = self.after(before)
        r = values - guess
        parts = blocks.split(jnp.abs(before))
        products = jnp.einsum("...ij,...j->...i", jnp.abs(A), parts)
        terms = jnp.abs(values) + blocks.join(products)
        # Rounding of the steps grows as the residual does. The signs are arbitrary.
        signs = jax.random.rademacher(jax.random.key(0), terms.shape, terms.dtype)
        rounding = signs * terms * (jnp.finfo(terms.dtype).eps / 2)
        solve = jax.vmap(partial(blocks.solve, A))
        # Without the whole Jacobian there is no certificate, which reads the rounding.
        is_whole = blocks is self.problem.full_blocks
        d, *grown = solve(jnp.stack([r, rounding] if is_whole else [r]))
        ends = np.cumsum(self.problem.sizes)[:-1]

        def largest(carries: Array) -> Array:
            """Returns the largest size of each array of the carry, `(arrays, rows)`."""
            parts = jnp.split(jnp.abs(carries), ends, -1)
            return jnp.stack([part.max((0, 2), initial=0) for part in parts])

        error = jnp.stack([largest(x) for x in (d, *grown)]).max(0)
        error = _relative(error, largest(guess)).max(0)
        residual = _relative(jnp.abs(r), terms).max((0, 2))
        return guess + d, error, residual


def _relative(change: Array, size: Array) -> Array:
    """Returns a quotient of sizes: 0 / 0 is 0, and NaN is infinite."""
    ratio = change / jnp.where(change == 0, 1, size)
    return jnp.where(jnp.isnan(ratio), jnp.inf, ratio)


def _is_within(problem: Problem, error: Array, residual: Array | int) -> Array:
    return (error <= problem.tolerance) & (residual <= problem.tolerance)
