"""What every cell must do; the tests walk `CELLS`."""

from functools import cache, partial

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import parameterized
from cases import (
    ALL_CELLS,
    BATCH,
    CELLS,
    DISTINCT,
    FORMS,
    TIME,
    assert_close,
    assert_equal,
    each_cell,
    random_params,
    random_setting,
    under_cell,
)
from covering import exhaustive_but
from jax.test_util import check_grads
from user_cells import CountingCell

import rnncells


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
    return carry, jax.tree.map(lambda *steps: jnp.stack(steps), *outputs)


def batch_first(tree):
    """Returns `(time, batch, ...)` as `(batch, time, ...)`, and the other way round."""
    return jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1), tree)


def dtypes_of(tree):
    return {str(leaf.dtype) for leaf in jax.tree.leaves(tree)}


def test_every_public_cell_is_in_the_table():
    public = {name for name in dir(rnncells) if name.endswith("Cell")}
    assert public == {case.name for case in ALL_CELLS.values()}


@each_cell(ALL_CELLS)
def test_scan_equals_python_loop(name, rng):
    case = ALL_CELLS[name]
    _, params, carry, _ = random_setting(case, rng, BATCH)
    inputs = case.inputs(rng, TIME, BATCH)
    _, step, sequence = compiled(name)

    last, y = sequence(under_cell(params), batch_first(inputs), initial_carry=carry)

    expected = python_loop(step, params, carry, inputs)
    assert_close((last, batch_first(y)), expected)


class StepTest(chex.TestCase):
    """A step, compiled and not."""

    @chex.variants(with_jit=True, without_jit=True)
    @parameterized.parameters(*CELLS)
    def test_step_is_recurrence_of_projection(self, name):
        rng = np.random.default_rng(7)
        _, params, carry, x = random_setting(CELLS[name], rng, BATCH)
        cell, step, _ = compiled(name)

        def composed(cell, carry, x):
            return cell.recur(carry, cell.project(x))

        expected = step(params, carry, x)
        actual = self.variant(nn.apply(composed, cell))(params, carry, x)
        assert_close(actual, expected)


@each_cell()
def test_projection_of_a_sequence_equals_those_of_its_steps(name, rng):
    case = CELLS[name]
    cell, params, _, _ = random_setting(case, rng, BATCH)
    inputs = case.inputs(rng, TIME, BATCH)

    project = jax.jit(partial(cell.apply, method="project"))
    whole = project(params, inputs)

    steps = [project(params, x) for x in inputs]
    assert_close(whole, jax.tree.map(lambda *leaves: jnp.stack(leaves), *steps))


@each_cell()
@pytest.mark.parametrize("batch", [(), (2, 3)])
def test_rows_of_any_batch_axes_are_independent(name, batch, rng):
    _, params, carry, x = random_setting(CELLS[name], rng, *batch)
    _, step, _ = compiled(name)
    together = step(params, carry, x)

    for row in np.ndindex(*batch):
        alone = jax.tree.map(lambda leaf, row=row: leaf[row], (carry, x))
        expected = step(params, *alone)
        assert_close(jax.tree.map(lambda leaf, row=row: leaf[row], together), expected)


@each_cell()
def test_vmap_equals_batch(name, rng):
    _, params, carry, x = random_setting(CELLS[name], rng, BATCH)
    cell, step, _ = compiled(name)

    actual = jax.jit(jax.vmap(cell.apply, in_axes=(None, 0, 0)))(params, carry, x)

    assert_close(actual, step(params, carry, x))


# Gradients that are truncated on purpose are compared with the paper's in
# test_lstm1997.py. In test_engine.py every gradient is compared with that of JAX.
@each_cell([n for n, case in ALL_CELLS.items() if case.exact_gradient], always=FORMS)
def test_gradients_are_derivatives(name, rng, float64):
    case = ALL_CELLS[name]
    cell, params, carry, _ = random_setting(case, rng, BATCH)
    inputs = case.inputs(rng, 3, BATCH)
    rnn = rnncells.RNN(cell, return_carry=True, time_major=True)

    def run(params, carry, inputs):
        return rnn.apply(under_cell(params), inputs, initial_carry=carry)

    check_grads(jax.jit(run), (params, carry, inputs), order=1, modes=["rev"], eps=1e-5)


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


@each_cell(always=FORMS)
def test_initialize_carry_can_be_traced_and_mapped(name, rng, key):
    case = CELLS[name]
    cell = case.make(carry_init=nn.initializers.normal())
    x = case.inputs(rng, BATCH)
    expected = cell.initialize_carry(key, x)

    assert_close(jax.jit(cell.initialize_carry)(key, x), expected)
    structs = jax.eval_shape(cell.initialize_carry, key, x)
    chex.assert_trees_all_equal_shapes_and_dtypes(structs, expected)
    keys = jax.random.split(key, 3)
    many = jax.vmap(cell.initialize_carry, in_axes=(0, None))(keys, x)
    first = jax.tree.map(lambda leaf: leaf[0], many)
    assert_close(first, cell.initialize_carry(keys[0], x))


@each_cell()
def test_number_of_feature_dims_has_two_names(name):
    case = CELLS[name]
    cell = case.make()
    assert cell.num_feature_dims == len(case.input_shape)
    assert cell.num_feature_axes == len(case.input_shape)


@each_cell()
def test_features_is_the_width_of_the_output(name, rng):
    cell, params, carry, x = random_setting(CELLS[name], rng, BATCH)
    _, y = jax.eval_shape(cell.apply, params, carry, x)
    # Where the output is projected, `features` counts the units.
    assert y.shape[-1] == getattr(cell, "proj_features", cell.features)


# All distinct cells in bfloat16, and one of each form in float16.
BFLOAT = "bfloat16"
HALF_PRECISION = [(name, BFLOAT) for name in DISTINCT]
HALF_PRECISION += [(name, "float16") for name in FORMS]
HALF_PRECISION_PARAMETERS = exhaustive_but(
    HALF_PRECISION,
    [(name, ("bfloat16", "float16")[k % 2]) for k, name in enumerate(FORMS)],
)


@pytest.mark.parametrize("name, dtype", HALF_PRECISION_PARAMETERS)
def test_half_precision_parameters(name, dtype, rng):
    """Parameters and carry have that dtype, and outputs are those of float32."""
    cell, _, sequence = compiled(name, param_dtype=dtype)
    inputs = CELLS[name].inputs(rng, BATCH, TIME)
    params = random_params(
        rng, rnncells.RNN(CELLS[name].make(param_dtype=dtype)), inputs
    )

    carry, y = sequence(params, inputs)

    assert dtypes_of(params) == dtypes_of(carry) == {dtype}
    wide = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), params)
    _, expected = compiled(name)[-1](wide, inputs)
    np.testing.assert_allclose(y.astype(jnp.float32), expected, atol=0.05)


@pytest.mark.parametrize(
    "name, dtype",
    exhaustive_but(
        HALF_PRECISION,
        [
            (name, BFLOAT)
            for name in [*FORMS, "MLSTMCell", "LayerNormGRUCell", "LRUCell"]
        ],
    ),
)
def test_half_precision_computation(name, dtype, rng):
    """The carry keeps the dtype of the parameters."""
    inputs = CELLS[name].inputs(rng, BATCH, TIME)
    cell, _, sequence = compiled(name, dtype)
    params = random_params(rng, rnncells.RNN(cell), inputs, scale=0.3)

    carry, y = sequence(params, inputs)

    own = jax.eval_shape(cell.initialize_carry, None, inputs[:, 0])
    assert dtypes_of(carry) == dtypes_of(own) <= {"float32", "complex64"}
    _, expected = compiled(name)[-1](params, inputs)
    np.testing.assert_allclose(y.astype(jnp.float32), expected, atol=0.05)
    if dtype == "bfloat16" and name in FORMS:
        in_flax = nn.RNN(cell, return_carry=True)
        carry_in_flax, y_in_flax = jax.jit(in_flax.apply)(params, inputs)
        assert dtypes_of(carry_in_flax) == {"float32"}
        np.testing.assert_allclose(y_in_flax.astype(jnp.float32), expected, atol=0.05)
    # Rounded, as it was not computed in the dtype of the parameters.
    assert (y != expected).any()


@each_cell([name for name in CELLS if name != "LRUCell"])
def test_real_carry_keeps_its_dtype(name, rng):
    cell, params, carry, x = random_setting(CELLS[name], rng, BATCH)
    for dtype in ("bfloat16", "float16", "float32"):
        given = jax.tree.map(lambda leaf, dtype=dtype: leaf.astype(dtype), carry)
        new, _ = jax.eval_shape(cell.apply, params, given, x)
        assert dtypes_of(new) == {dtype}


@each_cell(always=FORMS)
def test_complex_inputs_can_be_scanned(name, rng, float64):
    case = CELLS[name]
    inputs = case.inputs(rng, BATCH, TIME) + 0.3j * case.inputs(rng, BATCH, TIME)
    cell, step, sequence = compiled(name, param_dtype="float64")
    params = random_params(rng, rnncells.RNN(cell), inputs)

    carry, y = sequence(params, inputs)

    inner = {"params": params["params"]["cell"]}
    start = cell.initialize_carry(jax.random.key(0), inputs[:, 0])
    expected = python_loop(step, inner, start, batch_first(inputs))
    assert_close((carry, batch_first(y)), expected, rtol=1e-11, atol=1e-12)
    assert y.dtype == jnp.complex128 and jnp.abs(y.imag).max() > 1e-3


@each_cell()
def test_flax_rnn_runs_the_cell(name, rng):
    cell, _, sequence = compiled(name)
    inputs = CELLS[name].inputs(rng, BATCH, TIME)
    params = random_params(rng, rnncells.RNN(cell), inputs)

    actual = jax.jit(nn.RNN(cell, return_carry=True).apply)(params, inputs)

    assert_close(actual, sequence(params, inputs))


@each_cell(always=FORMS)
def test_flax_bidirectional_runs_the_cell(name, rng):
    case = CELLS[name]
    inputs = case.inputs(rng, BATCH, TIME)
    lengths = jnp.array([3, 5])

    def both(rnn, bidirectional):
        return bidirectional(rnn(case.make()), rnn(case.make()))

    ours = both(rnncells.RNN, rnncells.Bidirectional)
    params = random_params(rng, ours, inputs)
    expected = jax.jit(ours.apply)(params, inputs, seq_lengths=lengths)
    for layer in (both(nn.RNN, nn.Bidirectional), both(rnncells.RNN, nn.Bidirectional)):
        actual = jax.jit(layer.apply)(params, inputs, seq_lengths=lengths)
        assert_close(actual, expected)


@each_cell(always=FORMS)
def test_flax_scan_lifts_the_class(name, rng, key):
    case = CELLS[name]
    cell, params, carry, _ = random_setting(case, rng, BATCH)
    inputs = case.inputs(rng, TIME, BATCH)
    lifted = nn.scan(
        type(cell), variable_broadcast="params", split_rngs={"params": False}
    )(**case.options)

    actual = jax.jit(lifted.apply)(params, carry, inputs)

    _, step, _ = compiled(name)
    assert_close(actual, python_loop(step, params, carry, inputs))
    made = nn.tabulate(lifted, key)(carry, inputs)
    assert f"Scan{case.name}" in made


def test_own_cell_with_parts_of_other_dtypes(rng, key):
    cell, inputs = CountingCell(4), jnp.ones((2, 5, 3))
    start = cell.initialize_carry(key, inputs[:, 0])
    chex.assert_shape(start["n"], (2,))
    chex.assert_type(start["n"], jnp.int32)
    assert jnp.abs(start["h"]).min() > 0
    rnn = rnncells.RNN(cell, return_carry=True)
    params = random_params(rng, rnn, inputs)
    lengths = jnp.array([2, 5])

    carry, y = rnn.apply(params, inputs, initial_carry=start, seq_lengths=lengths)

    np.testing.assert_array_equal(carry["n"], lengths)
    inner = {"params": params["params"]["cell"]}
    step = jax.jit(cell.apply)
    _, expected = python_loop(step, inner, start, batch_first(inputs))
    assert_close(y[0], batch_first(expected)[0])


@each_cell()
def test_wrong_carries_raise(name, rng):
    cell, params, carry, x = random_setting(CELLS[name], rng, BATCH)
    wrong = {
        "too wide": jax.tree.map(lambda leaf: jnp.repeat(leaf, 2, -1), carry),
        "without batch": jax.tree.map(lambda leaf: leaf[0], carry),
        "other batch": jax.tree.map(lambda leaf: leaf[:1], carry),
        "too few parts": jax.tree.leaves(carry)[0][:, :1],
        "a list": [*jax.tree.leaves(carry)],
    }
    for reason, given in wrong.items():
        with pytest.raises(ValueError, match="`carry` of .* must have shapes"):
            cell.apply(params, given, x)
            pytest.fail(reason)
    integers = jax.tree.map(lambda leaf: leaf.real.astype(int), carry)
    with pytest.raises(TypeError, match="must be floating or complex, got int"):
        cell.apply(params, integers, x)
