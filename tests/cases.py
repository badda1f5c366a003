"""The cells that the shared tests walk, and what those tests have in common.

The names are those of `rnncells/public.py`. Options of a cell, and its rows, are beside
its equations in tests/equations/. All sizes differ, so that a swapped axis fails.
"""

from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from covering import exhaustive_but
from equations.table import BATCH as BATCH
from equations.table import FEATURES as FEATURES
from equations.table import FEATURES_IN as FEATURES_IN
from equations.table import ROWS, WITHOUT_PRODUCTS, Case
from equations.table import TIME as TIME
from equations.table import VARIANTS as VARIANTS_OF

import rnncells
import rnncells.public
from rnncells.loops.table import LINEAR as LINEAR_LOOP

# In the order of `rnncells/public.py`.
PUBLIC_CELLS = [name for name in vars(rnncells.public) if name.endswith("Cell")]
# Every property is tested with these. A cell without equations fails their test.
CELLS = {
    key: case
    for name in PUBLIC_CELLS
    for key, case in ROWS.get(name, {name: Case(name, {"features": FEATURES})}).items()
}
# Options that change a step and nothing else: tested are the step, its sequence and
# gradients, and equality with Flax.
VARIANTS = {key: case for rows in VARIANTS_OF.values() for key, case in rows.items()}
ALL_CELLS = CELLS | VARIANTS
# Cells of `CELLS` whose carry is multiplied by no weights, so that the fast loop has
# nothing to take out of its steps.
LINEAR = [name for name, case in CELLS.items() if LINEAR_LOOP.is_for(case.make())]
WITH_PRODUCTS = [n for n, case in CELLS.items() if case.name not in WITHOUT_PRODUCTS]
# All of `CELLS` but those that share nearly all code with another one.
DISTINCT = [
    name
    for name in CELLS
    if name
    not in ("OptimizedLSTMCell", "LSTM1997Cell-full-gradient", "ConvLSTMCell-strides")
]
# One cell of each form: Flax's LSTM; two products in series; convolutions and
# peepholes; blocks of memory cells with a truncated gradient.
FORMS = ["LSTMCell", "GRUCell-reset-before", "ConvLSTMCell-peepholes", "LSTM1997Cell"]


def each_cell(cells=CELLS, always=DISTINCT):
    """Parametrizes a test by the names of cells.

    Args:
      cells: names of the cells.
      always: those that every run tests; `-m exhaustive` tests the others.
    """
    names = [(name,) for name in cells]
    unknown = set(always) - set(ALL_CELLS)
    if unknown:
        raise ValueError(f"`always` must be names of cells, got {sorted(unknown)}.")
    chosen = [(name,) for name in cells if name in always]
    rows = exhaustive_but(names, chosen)
    return pytest.mark.parametrize("name", rows)


def random_like(rng, tree, scale=0.7):
    """Returns normal values in place of every leaf: zeros hide a misplaced bias."""
    return jax.tree.map(
        lambda leaf: jnp.asarray(scale * rng.standard_normal(leaf.shape), leaf.dtype),
        tree,
    )


def random_setting(case, rng, *batch):
    """Returns a cell, random parameters, a random carry and the inputs of one step."""
    cell = case.make(param_dtype=jnp.result_type(float))
    x = case.inputs(rng, *batch)
    carry = jax.eval_shape(cell.initialize_carry, jax.random.key(0), x)
    params = jax.eval_shape(cell.init, jax.random.key(0), carry, x)
    return cell, random_like(rng, params), random_like(rng, carry), x


def random_params(rng, layer, *inputs, scale=0.7, **kwargs):
    """Returns random parameters of a layer, in the tree and dtypes of its own."""
    return random_like(
        rng, jax.eval_shape(layer.init, jax.random.key(0), *inputs, **kwargs), scale
    )


def jit_apply(layer, variables, *inputs, **options):
    """Compiles `layer.apply` and calls it.

    Options that are Python numbers, strings or functions are static.
    """
    static = {
        name: value
        for name, value in options.items()
        if isinstance(value, int | float | str) or callable(value)
    }
    arrays = {name: value for name, value in options.items() if name not in static}
    return jax.jit(partial(layer.apply, **static))(variables, *inputs, **arrays)


def under_cell(params):
    """Returns a cell's parameters as those of an RNN around it."""
    return {"params": {"cell": params["params"]}}


def assert_close(actual, expected, rtol=1e-5, atol=1e-6):
    """Asserts equal structures, shapes and dtypes, and close values."""
    # Numbers of Python have no shape.
    actual, expected = (
        jax.tree.map(lambda x: x if hasattr(x, "shape") else np.asarray(x), tree)
        for tree in (actual, expected)
    )
    chex.assert_trees_all_equal_shapes_and_dtypes(actual, expected)
    chex.assert_trees_all_close(actual, expected, rtol=rtol, atol=atol)


def assert_equal(actual, expected):
    """Asserts equal structures, shapes and dtypes, and bit-identical values."""
    assert_close(actual, expected, rtol=0, atol=0)
