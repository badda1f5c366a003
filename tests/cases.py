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
QUICK_CELLS = ["LSTMCell", "GRUCell"]
# One cell of each form, in addition to these.
CELL_FORMS = {
    "two products in series": "GRUCell-reset-before",
    "more carries": "SLSTMCell",
    "convolutions, and peepholes": "ConvLSTMCell-peepholes",
    "memory blocks with a truncated gradient": "LSTM1997Cell",
    "element-wise linear, of complex numbers": "LRUCell",
    "matrix state": "MLSTMCell",
    "wrapper": "ZoneoutCell",
}
assert {*QUICK_CELLS, *CELL_FORMS.values()} <= ALL_CELLS.keys()


def level_of(name, default=CELL_FORMS.values()):
    """Returns the marker of the level of a cell's row; none if it is quick."""
    if name in QUICK_CELLS:
        return []
    return pytest.mark.default if name in default else pytest.mark.exhaustive


def each_cell(cells=CELLS, default=CELL_FORMS.values()):
    """Parametrizes a test by the names of cells, each with the level of its form.

    Args:
      cells: names of the cells.
      default: cells that every run tests, in addition to an LSTM and a GRU; without
        any of these, every run tests the first cell.
    """
    chosen = default if {*cells} & {*default, *QUICK_CELLS} else [*cells][:1]
    rows = [pytest.param(name, marks=level_of(name, chosen)) for name in cells]
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


def values_and_gradients(function, *arguments):
    """Returns what a function returns, and the gradients of a mixture of it."""

    def mixed(*arguments):
        outputs = function(*arguments)
        leaves = enumerate(jax.tree.leaves(outputs), 1)
        terms = [jnp.sum(jnp.sin(k * leaf)) for k, leaf in leaves]
        return sum(term.real + term.imag for term in terms), outputs

    positions = tuple(range(len(arguments)))
    gradient = jax.value_and_grad(mixed, positions, has_aux=True, allow_int=True)
    (_, outputs), gradients = jax.jit(gradient)(*arguments)
    return outputs, jax.tree.map(
        lambda g: None if g.dtype == jax.dtypes.float0 else g, gradients
    )


def assert_equals_the_plain_loop(
    rnn, params, inputs, carry=None, tolerance=1e-12, **options
):
    """Compares the values and gradients of a layer with those in the plain loop."""
    plain = rnn.clone(implementation="scan", memory="full", projection="auto")

    def run(layer, params, inputs, carry):
        return layer.apply(params, inputs, initial_carry=carry, **options)

    actual, expected = (
        values_and_gradients(partial(run, layer), params, inputs, carry)
        for layer in (rnn, plain)
    )
    assert_close(actual, expected, rtol=tolerance, atol=tolerance)


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


def exactly(actual, expected):
    """Asserts equality up to rounding in float64."""
    assert_close(actual, expected, rtol=1e-12, atol=1e-12)


def assert_equal(actual, expected):
    """Asserts equal structures, shapes and dtypes, and bit-identical values."""
    assert_close(actual, expected, rtol=0, atol=0)
