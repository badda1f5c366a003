"""The step of one row of a batch, as a function of real vectors.

The influence of parameters on the carry differs from row to row, so methods that carry
it forward see one row at a time. The row keeps batch axes of size 1.
"""

import math
from collections.abc import Callable
from functools import cached_property
from itertools import accumulate
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from chex import ArrayTree
from jax import Array
from jax.ad_checkpoint import checkpoint_name

from rnncells.recurrence import pytrees
from rnncells.recurrence.jaxprs import Equations, bind, trace
from rnncells.recurrence.pytrees import StructTree, Tree
from rnncells.recurrence.sparsity import dependencies

_MARK = "rnncells carry "


def mark_carry(carry: ArrayTree) -> ArrayTree:
    """Marks the carry after a step of a cell for `RowStep.output_with_tap`."""
    diff, nondiff = pytrees.partition(carry)
    leaves, tree = jax.tree.flatten(diff)
    marked = [checkpoint_name(leaf, f"{_MARK}{k}") for k, leaf in enumerate(leaves)]
    return pytrees.combine(jax.tree.unflatten(tree, marked), nondiff)


class RowOperands(NamedTuple):
    """Operands of a step of one row, as real vectors and other leaves."""

    theta: list[Array]  # real leaves of what is differentiated beside the carry
    s: Array  # carry before the step, `(n,)`
    x: ArrayTree  # what differs from step to step
    # Leaves that are neither floating nor complex, None elsewhere:
    nondiff_consts: ArrayTree  # of what is the same at each step
    nondiff_carry: ArrayTree


class RowStep:
    """A step of one row, whose carry has `size` real numbers, of `RowOperands`."""

    def __init__(
        self,
        function: Callable,
        consts: tuple[StructTree, StructTree],
        carry: StructTree,
        x: StructTree,
        is_held: Callable | None = None,
    ) -> None:
        """Describes a step, `(shared, per_row, carry, x) -> (carry, output)`.

        The other arguments are shapes and dtypes of one row. `consts` are those of what
        all rows and steps share, as parameters, and of what the steps of a row share,
        as the carry after a reset. `is_held(x)`, of one element, says whether the step
        holds the carry; None: never.
        """
        self.function = function
        self.consts = consts
        self.carry_structs = carry
        self.x = x
        self._is_held = is_held
        self.theta = jax.eval_shape(real_leaves, self.consts)
        leaves = self._leaves = jax.eval_shape(real_leaves, carry)
        self.size = sum(math.prod(leaf.shape) for leaf in leaves)
        self.dtype = jnp.result_type(*leaves) if leaves else jnp.dtype(jnp.float32)
        widest = jnp.result_type(self.dtype, *(leaf.dtype for leaf in self.theta))
        self.influence_dtype = pytrees.full_precision(widest)

    def __call__(self, row: RowOperands) -> tuple[Array, ArrayTree, ArrayTree]:
        new, output = self.function(*self._consts_and_carry(row), row.x)
        return self.vector(new), pytrees.partition(new)[1], output

    def _consts_and_carry(self, row: RowOperands) -> tuple[Any, Any, Any]:
        consts = join(row.theta, self.consts, row.nondiff_consts)
        return *consts, self.carry(row.s, row.nondiff_carry)

    def output_with_tap(self, row: RowOperands, tap: Array) -> ArrayTree:
        """Returns the output, where the carry after the step is a constant plus `tap`.

        So the derivatives by `theta` and `s` are those of other paths. `tap` is zeros,
        `(n,)`; steps that hold the carry do not read it.
        """
        equations, result = self._equations
        taps = jax.tree.leaves(pytrees.inexact(self.carry(tap, row.nondiff_carry)))

        def add_taps(equation: Any, operands: list[Array]) -> list[Array]:
            results = list(bind(equation, operands))
            for k, v in enumerate(equation.outvars):
                if v in self._marked:
                    new = jax.lax.stop_gradient(results[k]) + taps[self._marked[v]]
                    if self._is_held is not None:
                        new = jnp.where(
                            self._is_held(row.x).reshape(()), results[k], new
                        )
                    results[k] = new
            return results

        leaves = equations(*self._consts_and_carry(row), row.x, rule=add_taps)
        return jax.tree.unflatten(jax.tree.structure(result), leaves)[1]

    @cached_property
    def _equations(self) -> tuple[Equations, StructTree]:
        return trace(self.function, *self.consts, self.carry_structs, self.x)

    @cached_property
    def _marked(self) -> dict[Any, int]:
        """For each variable that is marked, the number of its leaf in the carry."""
        leaf_of: dict[Any, int] = {}
        for equation in self._equations[0].equations:
            name = equation.params.get("name", "")
            if equation.primitive.name == "name" and name.startswith(_MARK):
                leaf = int(name.removeprefix(_MARK))
                leaf_of.setdefault(equation.invars[0], leaf)
        return leaf_of

    def carry(self, s: Array, nondiff: ArrayTree) -> ArrayTree:
        ends = accumulate(math.prod(leaf.shape) for leaf in self._leaves)
        parts = jnp.split(s, list(ends)[:-1])
        leaves = [
            part.reshape(leaf.shape).astype(leaf.dtype)
            for part, leaf in zip(parts, self._leaves, strict=bool(self._leaves))
        ]
        return join(leaves, self.carry_structs, nondiff)

    def vector(self, carry: ArrayTree) -> Array:
        leaves = [leaf.ravel().astype(self.dtype) for leaf in real_leaves(carry)]
        return jnp.concatenate(leaves) if leaves else jnp.zeros(0, self.dtype)

    def dependencies(
        self, function: Callable | None = None
    ) -> tuple[list[np.ndarray], np.ndarray]:
        """Returns where Jacobians of the carry after a step can be other than 0.

        By θ, `(n, columns)` for each leaf, and by the carry before. `function` is a
        step in place of this one.
        """
        _, nondiff = pytrees.partition((self.consts, self.carry_structs))
        x, nondiff = jax.tree.map(
            lambda leaf: np.zeros(leaf.shape, leaf.dtype), (self.x, nondiff)
        )

        def after(theta: list[Array], s: Array) -> Array:
            return (function or self)(RowOperands(theta, s, x, *nondiff))[0]

        s = jax.ShapeDtypeStruct((self.size,), self.dtype)
        by_theta, by_s = dependencies(after, self.theta, s)
        return [pattern.reshape(self.size, -1) for pattern in by_theta], by_s


def real_leaves(tree: Tree) -> list[Any]:
    """Returns the floating leaves, and two real leaves for each complex leaf."""
    leaves = []
    for leaf in jax.tree.leaves(pytrees.inexact(tree)):
        is_complex = jnp.issubdtype(leaf.dtype, jnp.complexfloating)
        leaves += [leaf.real, leaf.imag] if is_complex else [leaf]
    return leaves


def add_flat(leaves: list[Array], terms: list[Array]) -> list[Array]:
    """Returns sums in the shapes and dtypes of `leaves`; `terms` are flat."""
    pairs = zip(leaves, terms, strict=True)
    return [leaf + term.reshape(leaf.shape).astype(leaf.dtype) for leaf, term in pairs]


def join(leaves: list[Array], like: StructTree, nondiff: ArrayTree) -> Any:
    """Reverses `real_leaves`; `nondiff` has the other leaves, None elsewhere."""
    remaining = iter(leaves)

    def leaf(struct: jax.ShapeDtypeStruct) -> Array:
        if jnp.issubdtype(struct.dtype, jnp.complexfloating):
            return jax.lax.complex(next(remaining), next(remaining))
        return next(remaining)

    return pytrees.combine(jax.tree.map(leaf, pytrees.inexact(like)), nondiff)
