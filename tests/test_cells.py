"""What every cell must do; the tests walk `CELLS`."""

from functools import cache, partial

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import (
    ALL_CELLS,
    BATCH,
    CELLS,
    QUICK_CELLS,
    TIME,
    assert_close,
    assert_equal,
    each_cell,
    random_params,
    random_setting,
    under_cell,
)
from levels import by_level
from user_cells import CountingCell

import rnncells

# Batch axes.
ROWS = (2, 3)


@cache
def compiled(name, dtype=None, param_dtype="float32"):
    """Returns a cell, and its step and its sequence as compiled functions.

    Tests share them, as compilation takes nearly all of their time.
    """
    cell = ALL_CELLS[name].make(dtype=dtype, param_dtype=param_dtype)
    rnn = rnncells.RNN(cell, return_carry=True)
    return cell, jax.jit(cell.apply), jax.jit(rnn.apply)


def python_loop(step, params, carry, inputs):
    """Returns the last carry and the outputs, one step of `(time, ...)` at a time."""
    outputs = []
    for x in inputs:
        carry, y = step(params, carry, x)
        outputs.append(y)
    return carry, stacked(outputs)


def stacked(trees):
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)


def first_of(tree):
    return jax.tree.map(lambda leaf: np.asarray(leaf)[0], tree)


def batch_first(tree):
    """Returns `(time, *batch, ...)` as `(*batch, time, ...)`."""
    return jax.tree.map(lambda leaf: np.moveaxis(leaf, 0, len(ROWS)), tree)


def time_first(tree):
    """Returns `(*batch, time, ...)` as `(time, *batch, ...)`."""
    return jax.tree.map(lambda leaf: np.moveaxis(leaf, len(ROWS), 0), tree)


def run_in_float32(name, params, inputs):
    """Returns the last carry and the outputs; all tests of a cell share the program."""
    cell, _, sequence = compiled(name)
    start = cell.initialize_carry(None, (*ROWS, *CELLS[name].input_shape))
    return sequence(params, inputs, initial_carry=start)


def dtypes_of(tree):
    return {str(leaf.dtype) for leaf in jax.tree.leaves(tree)}


@each_cell(ALL_CELLS)
def test_sequence_equals_the_steps_of_each_row(name, rng):
    """The rows of any batch axes are independent; also of a step, by `vmap`."""
    case = ALL_CELLS[name]
    _, params, carry, _ = random_setting(case, rng, *ROWS)
    inputs = case.inputs(rng, TIME, *ROWS)
    cell, step, sequence = compiled(name)

    last, y = sequence(under_cell(params), batch_first(inputs), initial_carry=carry)

    rows = jax.jit(jax.vmap(jax.vmap(cell.apply, (None, 0, 0)), (None, 0, 0)))
    expected = python_loop(rows, params, carry, inputs)
    assert_close((last, time_first(y)), expected)
    assert_close(step(params, carry, inputs[0]), rows(params, carry, inputs[0]))


@each_cell(default=["ConvLSTMCell-peepholes"])
def test_step_is_recurrence_of_projection(name, rng):
    """Also of the projection of a whole sequence at once, and without `jit`."""
    case = CELLS[name]
    cell, params, carry, _ = random_setting(case, rng, *ROWS)
    inputs = case.inputs(rng, TIME, *ROWS)
    _, step, _ = compiled(name)

    @jax.jit
    def composed(params, carry, inputs):
        recur = partial(cell.apply, params, carry, method="recur")
        return jax.vmap(recur)(cell.apply(params, inputs, method="project"))

    expected = stacked([step(params, carry, x) for x in inputs])
    assert_close(composed(params, carry, inputs), expected)
    if name in QUICK_CELLS:
        assert_close(cell.apply(params, carry, inputs[0]), first_of(expected))


@each_cell()
def test_sample_may_be_array_struct_or_shape(name, rng, key):
    case = CELLS[name]
    cell = case.make(carry_init=nn.initializers.normal())
    x = case.inputs(rng, 2, 3)
    expected = cell.initialize_carry(key, x)

    struct = jax.ShapeDtypeStruct(x.shape, x.dtype)
    for sample in (struct, x.shape, list(x.shape), tuple(np.array(x.shape))):
        assert_equal(cell.initialize_carry(key, sample), expected)
    assert_equal(cell.initialize_carry(rng=key, input_shape=x.shape), expected)
    assert_equal(cell.initialize_carry(key=key, sample_input=x), expected)


@pytest.mark.parametrize("init", [lambda *_: np.ones(4), lambda *_: jnp.full(4, 2.0)])
def test_initial_carry_is_a_strongly_typed_array_of_jax(init):
    carry = rnncells.RNN(rnncells.GRUCell(4, carry_init=init)).initialize_carry(
        None, (3,)
    )
    assert isinstance(carry, jax.Array) and not carry.weak_type


@each_cell(default=["ConvLSTMCell-peepholes"])
def test_initialize_carry_can_be_traced_and_mapped(name, rng, key):
    case = CELLS[name]
    cell = case.make(carry_init=nn.initializers.normal())
    x = case.inputs(rng, *ROWS)
    expected = cell.initialize_carry(key, x)

    assert_close(jax.jit(cell.initialize_carry)(key, x), expected)
    structs = jax.eval_shape(cell.initialize_carry, key, x)
    chex.assert_trees_all_equal_shapes_and_dtypes(structs, expected)
    keys = jnp.stack([key, jax.random.key(8)])
    many = jax.jit(jax.vmap(cell.initialize_carry, in_axes=(0, None)))(keys, x)
    assert_close(first_of(many), jax.device_get(expected))


@each_cell()
def test_sizes_have_their_names(name, rng):
    """The number of feature axes, also by its old name, and the width of the output."""
    cell, params, carry, x = random_setting(CELLS[name], rng, *ROWS)
    axes = len(CELLS[name].input_shape)
    assert cell.num_feature_dims == cell.num_feature_axes == axes
    _, y = jax.eval_shape(cell.apply, params, carry, x)
    # Where the output is projected, `features` counts the units.
    assert y.shape[-1] == getattr(cell, "proj_features", cell.features)


HALF_PRECISION = [(name, dtype) for name in CELLS for dtype in ("bfloat16", "float16")]


@pytest.mark.parametrize(
    "name, dtype",
    by_level(
        HALF_PRECISION,
        [("LSTMCell", "float16"), ("ConvLSTMCell-peepholes", "bfloat16")],
    ),
)
def test_half_precision_parameters(name, dtype, rng):
    """Parameters and carry have that dtype, and outputs are those of float32.

    The carry of an LRU is complex.
    """
    cell, _, sequence = compiled(name, param_dtype=dtype)
    inputs = CELLS[name].inputs(rng, *ROWS, TIME)
    params = random_params(
        rng, rnncells.RNN(CELLS[name].make(param_dtype=dtype)), inputs
    )

    carry, y = sequence(params, inputs)

    assert dtypes_of(params) == {dtype}
    assert dtypes_of(carry) == {"complex64" if name == "LRUCell" else dtype}
    wide = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), params)
    _, expected = run_in_float32(name, wide, inputs)
    np.testing.assert_allclose(y.astype(jnp.float32), expected, atol=0.05)


@pytest.mark.parametrize(
    "name, dtype", by_level(HALF_PRECISION, [("LSTMCell", "bfloat16")])
)
def test_half_precision_computation(name, dtype, rng):
    """The carry keeps the dtype of the parameters."""
    inputs = CELLS[name].inputs(rng, *ROWS, TIME)
    cell, _, sequence = compiled(name, dtype)
    params = random_params(rng, rnncells.RNN(cell), inputs, scale=0.3)

    carry, y = sequence(params, inputs)

    own = jax.eval_shape(cell.initialize_carry, None, inputs[:, 0])
    assert dtypes_of(carry) == dtypes_of(own) <= {"float32", "complex64"}
    _, expected = run_in_float32(name, params, inputs)
    np.testing.assert_allclose(y.astype(jnp.float32), expected, atol=0.05)
    if dtype == "bfloat16" and name in ("LSTMCell", "LSTM1997Cell"):
        in_flax = nn.RNN(cell, return_carry=True)
        carry_in_flax, y_in_flax = jax.jit(in_flax.apply)(params, inputs)
        assert dtypes_of(carry_in_flax) == {"float32"}
        np.testing.assert_allclose(y_in_flax.astype(jnp.float32), expected, atol=0.05)
    # Rounded, as it was not computed in the dtype of the parameters.
    assert (y != expected).any()


@each_cell([name for name in CELLS if name != "LRUCell"])
def test_real_carry_keeps_its_dtype(name, rng):
    cell, params, carry, x = random_setting(CELLS[name], rng, *ROWS)
    for dtype in ("bfloat16", "float16", "float32"):
        given = jax.tree.map(
            lambda leaf, dtype=dtype: jax.ShapeDtypeStruct(leaf.shape, dtype), carry
        )
        new, _ = jax.eval_shape(cell.apply, params, given, x)
        assert dtypes_of(new) == {dtype}


# GRUs of complex inputs are tested in test_engine.py.
@each_cell(
    [name for name in CELLS if name != "LRUCell"], default=["ConvLSTMCell-peepholes"]
)
def test_complex_inputs_can_be_scanned(name, rng, float64):
    case = CELLS[name]
    real, imaginary = map(np.asarray, case.inputs(rng, 2, BATCH, TIME))
    inputs = real + 0.3j * imaginary
    cell, step, sequence = compiled(name, param_dtype="float64")
    params = random_params(rng, rnncells.RNN(cell), inputs)

    carry, y = sequence(params, inputs)

    inner = {"params": params["params"]["cell"]}
    x = inputs.swapaxes(0, 1)
    start = jax.eval_shape(cell.initialize_carry, jax.random.key(0), x[0])
    start = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), start)
    expected = python_loop(step, inner, start, x)
    y = np.asarray(y)
    assert_close((carry, y.swapaxes(0, 1)), expected, rtol=1e-11, atol=1e-12)
    assert y.dtype == jnp.complex128 and np.abs(np.imag(y)).max() > 1e-3


@each_cell(default=["ConvLSTMCell-peepholes"])
def test_flax_bidirectional_runs_the_cell(name, rng):
    case = CELLS[name]
    inputs = case.inputs(rng, 2, TIME)
    lengths = jnp.array([3, 5])

    def both(rnn, bidirectional):
        return bidirectional(rnn(case.make()), rnn(case.make()))

    ours = both(rnncells.RNN, rnncells.Bidirectional)
    params = random_params(rng, ours, inputs)
    expected = jax.jit(ours.apply)(params, inputs, seq_lengths=lengths)
    for layer in (both(nn.RNN, nn.Bidirectional), both(rnncells.RNN, nn.Bidirectional)):
        actual = jax.jit(layer.apply)(params, inputs, seq_lengths=lengths)
        assert_close(actual, expected)


@each_cell(default=["ConvLSTMCell-peepholes"])
def test_flax_scan_lifts_the_class(name, rng, key):
    case = CELLS[name]
    cell, params, carry, _ = random_setting(case, rng, *ROWS)
    inputs = case.inputs(rng, TIME, *ROWS)
    lifted = nn.scan(
        type(cell), variable_broadcast="params", split_rngs={"params": False}
    )(**case.options)

    actual = jax.jit(lifted.apply)(params, carry, inputs)

    _, step, _ = compiled(name)
    assert_close(actual, python_loop(step, params, carry, inputs))
    made = nn.tabulate(lifted, key)(carry, inputs)
    assert f"Scan{case.name}" in made


def test_own_cell_with_parts_of_other_dtypes(rng, key):
    cell, inputs = CountingCell(4), np.ones((2, 5, 3), np.float32)
    start = cell.initialize_carry(key, inputs[:, 0])
    chex.assert_shape(start["n"], (2,))
    chex.assert_type(start["n"], jnp.int32)
    assert jnp.abs(start["h"]).min() > 0
    rnn = rnncells.RNN(cell, return_carry=True)
    params = random_params(rng, rnn, inputs)
    lengths = jnp.array([2, 5])
    carry, _ = jax.jit(rnn.apply)(params, inputs, seq_lengths=lengths)
    np.testing.assert_array_equal(carry["n"], lengths)
