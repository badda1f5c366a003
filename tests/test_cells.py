"""What every cell must do; the tests walk `CELLS`."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import (
    ALL_CELLS,
    BATCH,
    CELLS,
    TIME,
    assert_close,
    assert_equal,
    random_params,
    random_setting,
    under_cell,
)
from jax.test_util import check_grads
from user_cells import CountingCell

import rnncells

each_cell = pytest.mark.parametrize("case", CELLS.values(), ids=CELLS)
each_dtype = pytest.mark.parametrize("dtype", ["bfloat16", "float16"])


def python_loop(cell, params, carry, inputs):
    """Returns the last carry and the outputs, one step of `(time, ...)` at a time."""
    outputs, apply = [], jax.jit(cell.apply)
    for x in inputs:
        carry, y = apply(params, carry, x)
        outputs.append(y)
    return carry, jax.tree.map(lambda *steps: jnp.stack(steps), *outputs)


def test_every_public_cell_is_in_the_table():
    public = {name for name in dir(rnncells) if name.endswith("Cell")}
    assert public == {case.name for case in ALL_CELLS.values()}


@pytest.mark.parametrize("case", ALL_CELLS.values(), ids=ALL_CELLS)
def test_scan_equals_python_loop(case, rng):
    cell, params, carry, _ = random_setting(case, rng, BATCH)
    inputs = case.inputs(rng, TIME, BATCH)
    rnn = rnncells.RNN(cell, return_carry=True, time_major=True)

    actual = jax.jit(rnn.apply)(under_cell(params), inputs, initial_carry=carry)

    assert_close(actual, python_loop(cell, params, carry, inputs))


@each_cell
def test_step_is_recurrence_of_projection(case, rng):
    cell, params, carry, x = random_setting(case, rng, BATCH)

    def composed(cell, carry, x):
        return cell.recur(carry, cell.project(x))

    assert_close(
        jax.jit(nn.apply(composed, cell))(params, carry, x),
        jax.jit(cell.apply)(params, carry, x),
    )


@each_cell
def test_whole_sequence_projects_as_its_steps(case, rng):
    cell, params, _, _ = random_setting(case, rng, BATCH)
    inputs = case.inputs(rng, TIME, BATCH)

    project = jax.jit(partial(cell.apply, method="project"))
    whole = project(params, inputs)

    steps = [project(params, x) for x in inputs]
    assert_close(whole, jax.tree.map(lambda *leaves: jnp.stack(leaves), *steps))


@each_cell
def test_jit_equals_eager(case, rng):
    cell, params, carry, x = random_setting(case, rng, BATCH)

    actual = jax.jit(cell.apply)(params, carry, x)

    assert_close(actual, cell.apply(params, carry, x))


@each_cell
@pytest.mark.parametrize("batch", [(), (2, 3)])
def test_rows_of_any_batch_axes_are_alone(case, batch, rng):
    cell, params, carry, x = random_setting(case, rng, *batch)
    apply = jax.jit(cell.apply)
    together = apply(params, carry, x)

    for row in np.ndindex(*batch):
        alone = jax.tree.map(lambda leaf, row=row: leaf[row], (carry, x))
        expected = apply(params, *alone)
        assert_close(jax.tree.map(lambda leaf, row=row: leaf[row], together), expected)


@each_cell
def test_vmap_equals_batch(case, rng):
    cell, params, carry, x = random_setting(case, rng, BATCH)

    actual = jax.jit(jax.vmap(cell.apply, in_axes=(None, 0, 0)))(params, carry, x)

    assert_close(actual, jax.jit(cell.apply)(params, carry, x))


# Gradients truncated on purpose are compared with the paper's in test_lstm1997.py.
@pytest.mark.parametrize(
    "case", [pytest.param(c, id=n) for n, c in ALL_CELLS.items() if c.exact_gradient]
)
def test_gradients_are_derivatives(case, rng, float64):
    cell, params, carry, _ = random_setting(case, rng, BATCH)
    inputs = case.inputs(rng, 3, BATCH)
    rnn = rnncells.RNN(cell, return_carry=True, time_major=True)

    def run(params, carry, inputs):
        return rnn.apply(under_cell(params), inputs, initial_carry=carry)

    check_grads(jax.jit(run), (params, carry, inputs), order=1, modes=["rev"], eps=1e-5)


@each_cell
def test_sample_may_be_array_struct_or_shape(case, rng, key):
    cell = case.make(carry_init=nn.initializers.normal())
    x = case.inputs(rng, 2, 3)
    expected = cell.initialize_carry(key, x)

    struct = jax.ShapeDtypeStruct(x.shape, x.dtype)
    for sample in (struct, x.shape, list(x.shape), tuple(np.array(x.shape))):
        assert_equal(cell.initialize_carry(key, sample), expected)
    assert_equal(cell.initialize_carry(rng=key, input_shape=x.shape), expected)
    assert_equal(cell.initialize_carry(key=key, sample_input=x), expected)


@each_cell
def test_initial_carry_is_traced(case, rng, key):
    cell = case.make(carry_init=nn.initializers.normal())
    x = case.inputs(rng, BATCH)
    expected = cell.initialize_carry(key, x)

    assert_close(jax.jit(cell.initialize_carry)(key, x), expected)
    structs = jax.eval_shape(cell.initialize_carry, key, x)
    assert jax.tree.map(jnp.shape, structs) == jax.tree.map(jnp.shape, expected)
    keys = jax.random.split(key, 3)
    many = jax.vmap(cell.initialize_carry, in_axes=(0, None))(keys, x)
    first = jax.tree.map(lambda leaf: leaf[0], many)
    assert_close(first, cell.initialize_carry(keys[0], x))


@each_cell
def test_number_of_feature_dims_has_two_names(case):
    cell = case.make()
    assert cell.num_feature_dims == len(case.input_shape)
    assert cell.num_feature_axes == len(case.input_shape)


@each_cell
def test_features_is_the_width_of_the_output(case, rng):
    cell, params, carry, x = random_setting(case, rng, BATCH)
    _, y = jax.eval_shape(cell.apply, params, carry, x)
    # Where the output is projected, `features` counts the units.
    assert y.shape[-1] == getattr(cell, "proj_features", cell.features)


@each_cell
@each_dtype
def test_half_precision_parameters(case, dtype, rng, key):
    cell = case.make(param_dtype=dtype)
    inputs = case.inputs(rng, BATCH, TIME)
    rnn = rnncells.RNN(cell, return_carry=True)

    (carry, y), params = jax.jit(rnn.init_with_output)(key, inputs)

    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype(dtype)}
    assert {leaf.dtype for leaf in jax.tree.leaves(carry)} == {jnp.dtype(dtype)}
    wide = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), params)
    expected = jax.jit(rnncells.RNN(case.make()).apply)(wide, inputs)
    np.testing.assert_allclose(y.astype(jnp.float32), expected, atol=0.05)


@each_cell
@pytest.mark.parametrize(
    "layer, dtype",
    [(rnncells.RNN, "bfloat16"), (rnncells.RNN, "float16"), (nn.RNN, "bfloat16")],
)
def test_half_precision_computation(case, dtype, layer, rng):
    cell = case.make(dtype=dtype)
    inputs = case.inputs(rng, BATCH, TIME)
    rnn = layer(cell, return_carry=True)
    params = random_params(rng, rnn, inputs, scale=0.3)

    carry, y = jax.jit(rnn.apply)(params, inputs)

    assert {leaf.dtype for leaf in jax.tree.leaves(carry)} == {jnp.dtype("float32")}
    expected = jax.jit(rnncells.RNN(case.make()).apply)(params, inputs)
    np.testing.assert_allclose(y.astype(jnp.float32), expected, atol=0.05)


@each_cell
def test_real_carry_keeps_its_dtype(case, rng):
    cell, params, carry, x = random_setting(case, rng, BATCH)
    for dtype in ("bfloat16", "float16", "float32"):
        given = jax.tree.map(lambda leaf, dtype=dtype: leaf.astype(dtype), carry)
        new, _ = jax.eval_shape(cell.apply, params, given, x)
        assert {leaf.dtype for leaf in jax.tree.leaves(new)} == {jnp.dtype(dtype)}


@each_cell
def test_complex_input_goes_through_the_scan(case, rng):
    inputs = case.inputs(rng, BATCH, TIME).astype(jnp.complex64)
    inputs = inputs + 0.3j * case.inputs(rng, BATCH, TIME)
    cell = case.make()
    rnn = rnncells.RNN(cell, return_carry=True)

    params = random_params(rng, rnn, inputs)

    carry, y = jax.jit(rnn.apply)(params, inputs)

    inner = {"params": params["params"]["cell"]}
    start = cell.initialize_carry(jax.random.key(0), inputs[:, 0])
    expected = python_loop(cell, inner, start, jnp.moveaxis(inputs, 1, 0))
    assert_close((carry, jnp.moveaxis(y, 1, 0)), expected)
    assert y.dtype == jnp.complex64 and jnp.abs(y.imag).max() > 1e-3


@each_cell
def test_flax_rnn_runs_the_cell(case, rng):
    cell = case.make()
    inputs = case.inputs(rng, BATCH, TIME)
    rnn = rnncells.RNN(cell, return_carry=True)
    params = random_params(rng, rnn, inputs)

    actual = jax.jit(nn.RNN(cell, return_carry=True).apply)(params, inputs)

    assert_close(actual, jax.jit(rnn.apply)(params, inputs))


@each_cell
def test_flax_bidirectional_runs_the_cell(case, rng):
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


@each_cell
def test_flax_scan_lifts_the_class(case, rng, key):
    cell, params, carry, _ = random_setting(case, rng, BATCH)
    inputs = case.inputs(rng, TIME, BATCH)
    lifted = nn.scan(
        type(cell), variable_broadcast="params", split_rngs={"params": False}
    )(**case.options)

    actual = jax.jit(lifted.apply)(params, carry, inputs)

    assert_close(actual, python_loop(cell, params, carry, inputs))
    made = nn.tabulate(lifted, key)(carry, inputs)
    assert f"Scan{case.name}" in made


def test_own_cell_with_parts_of_other_dtypes(rng, key):
    cell, inputs = CountingCell(4), jnp.ones((2, 5, 3))
    start = cell.initialize_carry(key, inputs[:, 0])
    assert start["n"].dtype == jnp.int32 and start["n"].shape == (2,)
    assert jnp.abs(start["h"]).min() > 0
    rnn = rnncells.RNN(cell, return_carry=True)
    params = random_params(rng, rnn, inputs)
    lengths = jnp.array([2, 5])

    carry, y = rnn.apply(params, inputs, initial_carry=start, seq_lengths=lengths)

    np.testing.assert_array_equal(carry["n"], lengths)
    inner = {"params": params["params"]["cell"]}
    _, expected = python_loop(cell, inner, start, jnp.moveaxis(inputs, 1, 0))
    expected = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, 1), expected)
    assert_close(y[0], expected[0])


@each_cell
def test_wrong_carries_raise(case, rng):
    cell, params, carry, x = random_setting(case, rng, BATCH)
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
    integers = jax.tree.map(lambda leaf: leaf.astype(int), carry)
    with pytest.raises(TypeError, match="must be floating or complex, got int"):
        cell.apply(params, integers, x)
