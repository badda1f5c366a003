"""A check that a step computes each row of the batch by itself."""

import jax
import jax.numpy as jnp
import numpy as np
from chex import ArrayTree
from jax import Array

from rnncells.loops.request import PureStep
from rnncells.loops.rows import Batch
from rnncells.recurrence.pytrees import combine, inexact, is_inexact, partition, structs


def check_independent_rows(
    name: str, batch: Batch, pure: PureStep, carry: ArrayTree
) -> None:
    """Raises ValueError if a row of a step depends on other rows of the batch.

    At random values, two rows along each batch axis show any such dependence.
    """
    if not batch.sizes:
        return
    small, count = Batch((2,) * len(batch.sizes)), 2 ** len(batch.sizes)

    def small_structs(tree: ArrayTree, lead: int = 0) -> ArrayTree:
        def struct(leaf: Array) -> jax.ShapeDtypeStruct:
            shape = leaf.shape[lead + len(batch.sizes) :]
            return jax.ShapeDtypeStruct((*small.sizes, *shape), leaf.dtype)

        return jax.tree.map(struct, tree)

    shared, keys = structs(pure.consts[0]), structs(pure.xs[1], drop_axis=0)
    xs, rng = small_structs(pure.xs[0], 1), np.random.default_rng(0)
    rows = small_structs(pure.consts[1]), small_structs(carry), xs
    shared, keys, (reset_carry, before, xs) = jax.tree.map(
        lambda leaf: _random_like(leaf, rng), (shared, keys, rows)
    )
    # Every row is updated; none is reset.
    masks = {"update": xs.update, "final": xs.final}
    xs = xs._replace(**jax.tree.map(np.ones_like, masks))
    rows = reset_carry, before, xs
    constants = partition(rows)[1]

    @jax.jit
    @jax.jacrev
    def derivatives(varied: ArrayTree) -> Array | int:
        reset_carry, carry, xs = combine(varied, constants)
        outputs = pure.function((shared, reset_carry), carry, (xs, keys))
        leaves = jax.tree.leaves(inexact(outputs))
        return sum(jnp.abs(leaf).reshape(count, -1).sum(1) for leaf in leaves)

    try:
        # A compiled program runs on concrete arrays even while JAX traces the layer.
        with jax.disable_jit(False):
            compiled = derivatives.lower(inexact(rows)).compile()
            jacobians = jax.tree.leaves(compiled(inexact(rows)))
    except (TypeError, ValueError) as error:
        raise ValueError(
            "Forward methods of `gradient` and implementation='newton' need a cell "
            "that runs with any batch axes, and every array of its carry must begin "
            f"with them, got {name}, which fails with the axes {small.sizes}: {error}"
        ) from error
    for derivative in map(np.asarray, jacobians):
        depends = np.isfinite(derivative) & (derivative != 0)
        by_row = depends.reshape(count, count, -1).any(-1)
        if (by_row & ~np.eye(count, dtype=bool)).any():
            raise ValueError(
                "Forward methods of `gradient` and implementation='newton' need a cell "
                f"that computes each row of the batch by itself, got {name}, whose "
                "rows depend on each other. Use neither."
            )


def _random_like(struct: jax.ShapeDtypeStruct, rng: np.random.Generator) -> np.ndarray:
    """Returns random numbers of a shape and dtype; zeros of other dtypes."""
    if not is_inexact(struct):
        return np.zeros(struct.shape, struct.dtype)
    return rng.standard_normal(struct.shape).astype(struct.dtype)
