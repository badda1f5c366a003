"""RNN and Bidirectional over layouts of batch and time, dtypes and devices."""

from functools import partial

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import (
    BATCH,
    CELLS,
    TIME,
    assert_close,
    assert_equal,
    random_like,
    random_params,
)
from levels import by_level
from sequences import LENGTHS, MASK, RESETS, ROWS, STEPS, WAYS, run, setting

import rnncells

each_direction = pytest.mark.parametrize("reverse", [False, True])


@pytest.mark.parametrize(
    "batch",
    by_level([((),), ((3,),), ((2, 3),), ((3, 3),)], [((),), ((2, 3),), ((3, 3),)]),
)
def test_final_carry_for_any_batch_axes(batch, rng):
    # flax.linen fails for (2, 3) and returns a carry of a wrong shape for (3, 3).
    case = CELLS["LSTMCell"]
    inputs = case.inputs(rng, *batch, TIME)
    # Few different lengths, because each compiles a program for one row.
    lengths = rng.choice([0, TIME - 2, TIME], batch)
    rnn = rnncells.RNN(case.make(), return_carry=True)
    params = random_params(rng, rnn, inputs)

    apply = jax.jit(rnn.apply)
    of_batch = apply(params, inputs, seq_lengths=jnp.asarray(lengths))
    carry, y = jax.tree.map(np.asarray, of_batch)

    for row in np.ndindex(*batch):
        alone = apply(params, inputs[row][: lengths[row]])
        assert_close(jax.tree.map(lambda leaf, r=row: leaf[r], carry), alone[0])
        assert_close(y[row][: lengths[row]], alone[1])


@pytest.mark.parametrize("reverse", by_level([False, True], [True]))
def test_time_major_equals_batch_major(reverse, rng):
    case = CELLS["ConvLSTMCell-2d"]
    rnn, params, inputs, _, _ = setting(case, rng, reverse=reverse)

    def swap(tree):
        return jax.tree.map(lambda leaf: np.swapaxes(leaf, 0, 1), tree)

    apply = partial(rnn.apply, return_all_carries=True)
    expected = jax.jit(apply)(params, inputs, **WAYS["all"])
    actual = jax.jit(partial(apply, time_major=True))(
        params, swap(inputs), seq_lengths=LENGTHS, mask=MASK.T, resets=RESETS.T
    )
    assert_close(swap(actual), expected)


def test_final_carry_needs_no_memory_over_time():
    def temporaries(steps):
        rnn = rnncells.RNN(
            rnncells.LSTMCell(64), return_carry=True, projection=rnncells.Chunk(8)
        )
        x = jax.ShapeDtypeStruct((8, steps, 3), jnp.float32)
        lengths = jax.ShapeDtypeStruct((8,), jnp.int32)
        params = jax.eval_shape(rnn.init, jax.random.key(0), x)

        def final(params, x, lengths):
            return rnn.apply(params, x, seq_lengths=lengths)[0]

        compiled = jax.jit(final).lower(params, x, lengths).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    inputs = 4 * 8 * 3
    growth = temporaries(512) - temporaries(256)
    # A history of one part of the carry would take 64 / 3 times the inputs.
    assert growth <= 6 * 256 * inputs


def test_empty_sequences(rng):
    case = CELLS["LSTMCell"]
    rnn = rnncells.RNN(case.make(), return_carry=True)
    params = random_params(rng, rnn, case.inputs(rng, BATCH, TIME))
    start = rnn.cell.initialize_carry(jax.random.key(0), (BATCH, 3))
    for ways in ({}, {"seq_lengths": np.zeros(BATCH, int)}, {"reverse": True}):
        carry, y = run(rnn, params, jnp.ones((BATCH, 0, 3)), **ways)
        assert_equal(carry, start)
        chex.assert_shape(y, (BATCH, 0, 4))


@pytest.mark.parametrize(
    "dtype", by_level(["int8", "uint8", "int16", "int32"], ["int8", "uint8"])
)
def test_lengths_may_be_small_integer_dtypes(dtype, rng):
    # 300 steps are more than 8 bits hold.
    lengths = np.array([100, 0, 120, 1], dtype)
    rnn = rnncells.RNN(rnncells.GRUCell(4), return_carry=True)
    inputs = jnp.asarray(rng.standard_normal((ROWS, 300, 3)), jnp.float32)
    params = random_params(rng, rnn, inputs)
    expected = run(rnn, params, inputs, reverse=True, seq_lengths=lengths.astype(int))
    assert_equal(run(rnn, params, inputs, reverse=True, seq_lengths=lengths), expected)


@pytest.mark.several_devices
def test_batch_may_be_sharded(rng):
    mesh = jax.make_mesh((4,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    rnn = rnncells.RNN(rnncells.LSTMCell(4), return_carry=True)
    inputs = jnp.asarray(rng.standard_normal((ROWS, STEPS, 3)), jnp.float32)
    params = random_params(rng, rnn, inputs)

    def gradient(params, inputs, lengths):
        def loss(params):
            (c, h), y = rnn.apply(params, inputs, seq_lengths=lengths)
            return jnp.sum(c * h) + jnp.sum(y**2), (c, h)

        return jax.grad(loss, has_aux=True)(params)

    sharded = jax.device_put((inputs, jnp.asarray(LENGTHS)), sharding)
    gradient = jax.jit(gradient)
    actual, carry = gradient(params, *sharded)
    assert all(len(leaf.sharding.device_set) == 4 for leaf in carry)
    assert_close((actual, carry), gradient(params, inputs, LENGTHS))


@each_direction
def test_lengths_out_of_range_are_clipped_under_jit(reverse, rng):
    rnn, params, inputs, _, _ = setting(
        CELLS["GRUCell"], rng, return_carry=True, reverse=reverse
    )
    run = jax.jit(lambda lengths: rnn.apply(params, inputs, seq_lengths=lengths))
    clipped = jnp.array([STEPS, 0, 3, 1])
    assert_equal(run(jnp.array([99, -5, 3, 1])), run(clipped))


def test_resets_keep_the_dtype_of_the_carry(rng):
    # A rollout stored in half precision, continued with resets.
    rnn, params, inputs, fresh, carry = setting(
        CELLS["LSTMCell"], rng, return_carry=True
    )
    half = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), carry)
    with pytest.warns(UserWarning, match="the state is rounded to bfloat16"):
        last, _ = run(rnn, params, inputs, initial_carry=half, resets=RESETS)
    assert {leaf.dtype for leaf in last} == {jnp.dtype(jnp.bfloat16)}


def test_bidirectional_with_all_options_equals_its_directions(rng):
    case = CELLS["LSTMCell"]
    inputs = case.inputs(rng, ROWS, STEPS)
    layer = rnncells.Bidirectional(
        rnncells.RNN(case.make()), rnncells.RNN(case.make()), return_carry=True
    )
    params = random_params(rng, layer, inputs)
    rnn = rnncells.RNN(case.make(), return_carry=True)
    sides = [
        {"params": params["params"][side]} for side in ("forward_rnn", "backward_rnn")
    ]
    carries = random_like(rng, jax.eval_shape(layer.apply, params, inputs)[0])

    for swapped in (False, True):
        ways = WAYS["all"] | {"reverse": swapped}
        got, y = run(layer, params, inputs, initial_carry=carries, **ways)
        for side in (0, 1):
            ways["reverse"] = swapped != bool(side)
            given = {"initial_carry": carries[side]} | ways
            half = y[..., 4 * side : 4 * side + 4]
            assert_close((got[side], half), run(rnn, sides[side], inputs, **given))


def test_bidirectional_returns_all_carries(rng):
    case = CELLS["GRUCell"]
    inputs = case.inputs(rng, ROWS, STEPS)
    layer = rnncells.Bidirectional(
        rnncells.RNN(case.make()), rnncells.RNN(case.make()), return_all_carries=True
    )
    params = random_params(rng, layer, inputs)
    (fwd, bwd), y = layer.apply(params, inputs)
    assert_equal(jnp.concatenate([fwd, bwd], axis=-1), y)


def test_bidirectional_computes_carries_only_if_asked(rng):
    class Recorder(nn.Module):
        @nn.compact
        def __call__(self, inputs, *, return_carry, **_):
            assert not return_carry
            return inputs

    layer = rnncells.Bidirectional(Recorder(), Recorder())
    layer.apply({}, jnp.ones((BATCH, TIME, 3)), seq_lengths=jnp.array([1, 2]))


def test_bidirectional_gives_each_direction_its_reset_carry(rng):
    case = CELLS["GRUCell"]
    inputs = case.inputs(rng, ROWS, STEPS)
    rnn = rnncells.RNN(case.make())
    layer = rnncells.Bidirectional(rnn, rnncells.RNN(case.make()))
    params = random_params(rng, layer, inputs)
    others = random_like(rng, (jnp.zeros((ROWS, 4)),) * 2)
    y = run(layer, params, inputs, resets=RESETS, reset_carry=others)
    for side, name in enumerate(("forward_rnn", "backward_rnn")):
        own = {"params": params["params"][name]}
        expected = run(
            rnn,
            own,
            inputs,
            reverse=bool(side),
            resets=RESETS,
            reset_carry=others[side],
        )
        assert_close(y[..., 4 * side : 4 * side + 4], expected)
