"""Lengths, masks and resets against loops; layouts, dtypes, Bidirectional."""

import re
from functools import partial
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import (
    CELLS,
    TIME,
    assert_close,
    assert_equal,
    random_like,
    random_params,
)
from levels import by_level
from sequences import LENGTHS, MASK, RESETS, ROWS, STEPS, WAYS, row_by_row, run, setting

import rnncells

PADDED_OUTPUTS = ["run", "hold", "zero"]


@pytest.mark.parametrize(
    "name, way, reverse",
    by_level(
        [
            (name, way, reverse)
            for name in CELLS
            for way in WAYS
            for reverse in (False, True)
            # All ways with two cells, all cells with everything at once.
            if name in ("LSTMCell", "ConvLSTMCell-2d") or way == "all"
        ],
        [
            ("LSTMCell", "all", True),
            *(("LSTMCell", way, True) for way in ("lengths", "mask+resets")),
            *(("LSTMCell", way, False) for way in ("mask", "lengths+resets", "all")),
            ("ConvLSTMCell-peepholes", "all", True),
            ("MLSTMCell", "all", False),
        ],
    ),
)
def test_lengths_masks_and_resets_equal_row_by_row(name, way, reverse, rng):
    case, ways = CELLS[name], WAYS[way]
    rnn, *arrays = setting(case, rng, return_carry=True)
    params, inputs, fresh, carry = jax.device_get(arrays)
    cell_params = {"params": params["params"]["cell"]}

    last, y = run(rnn, params, inputs, initial_carry=carry, reverse=reverse, **ways)

    expected, visits = row_by_row(
        rnn.cell, cell_params, carry, fresh, inputs, ways, reverse
    )
    assert_close(last, expected)
    y = np.asarray(y)
    for index, _, output in visits:
        assert_close(y[index], output)


@pytest.mark.parametrize(
    "way, reverse, padded_outputs",
    by_level(
        [*product(["lengths", "mask+resets", "all"], [False, True], PADDED_OUTPUTS)],
        [("all", True, "run")],
    ),
)
def test_all_carries_are_those_after_each_step(way, reverse, padded_outputs, rng):
    case, ways = CELLS["LSTMCell"], WAYS[way]
    rnn, params, inputs, fresh, carry = setting(
        case, rng, padded_outputs=padded_outputs, return_carry=True
    )
    history = rnn.clone(return_all_carries=True)
    arguments = {"initial_carry": carry, "reverse": reverse, **ways}

    carries, y = run(history, params, inputs, **arguments)

    cell_params = {"params": params["params"]["cell"]}
    _, visits = row_by_row(rnn.cell, cell_params, carry, fresh, inputs, ways, reverse)
    for index, state, output in visits:
        assert_close(jax.tree.map(lambda leaf, i=index: leaf[i], carries), state)
        assert_close(y[index], output)
    if not (reverse and "seq_lengths" in ways):
        last, _ = run(rnn, params, inputs, **arguments)
        end = 0 if reverse else -1
        assert_equal(jax.tree.map(lambda leaf: leaf[:, end], carries), last)


@pytest.mark.parametrize(
    "way, reverse", by_level([*product(WAYS, [False, True])], [("all", True)])
)
def test_padded_outputs_are_zero_or_held(way, reverse, rng):
    case, ways = CELLS["GRUCell"], WAYS[way]
    rnn, params, inputs, fresh, carry = setting(case, rng)
    arguments = {"initial_carry": carry, "reverse": reverse, **ways}

    def outputs(padded_outputs):
        layer = rnncells.RNN(rnn.cell, padded_outputs=padded_outputs)
        return np.asarray(run(layer, params, inputs, **arguments))

    zero, hold = outputs("zero"), outputs("hold")

    cell_params = {"params": params["params"]["cell"]}
    _, visits = row_by_row(rnn.cell, cell_params, carry, fresh, inputs, ways, reverse)
    counted = {index: y for index, _, y in visits}
    for row in range(ROWS):
        held = np.zeros_like(zero[0, 0])
        order = range(STEPS)
        if reverse:
            # With lengths, padding is processed after the valid part.
            length = ways.get("seq_lengths", np.full(ROWS, STEPS))[row]
            order = [*reversed(range(length)), *range(length, STEPS)]
        for t in order:
            held = counted.get((row, t), held)
            expected = counted.get((row, t), np.zeros_like(held))
            np.testing.assert_allclose(zero[row, t], expected, rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(hold[row, t], held, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "name, way, padded_outputs, reverse",
    by_level(
        [
            *product(CELLS, ["all"], ["run"], [False, True]),
            *product(["LSTMCell"], ["lengths", "mask"], ["run"], [False, True]),
            *product(
                ["LSTMCell"],
                ["lengths", "mask", "all"],
                ["hold", "zero"],
                [False, True],
            ),
        ],
        [
            ("GRUCell-reset-before", "all", "run", False),
            ("LSTMCell", "all", "hold", True),
        ],
    ),
)
def test_nan_in_padding_reaches_no_value_and_no_gradient(
    name, way, padded_outputs, reverse, rng
):
    rnn, params, inputs, _, carry = setting(
        CELLS[name], rng, return_carry=True, padded_outputs=padded_outputs
    )
    ways = WAYS[way]
    lengths = ways.get("seq_lengths", np.full(ROWS, STEPS))
    counts = (np.arange(STEPS) < lengths[:, None]) & ways.get("mask", True)

    def only(where, leaf, other):
        return jnp.where(
            where.reshape(*counts.shape, *(1,) * (leaf.ndim - 2)), leaf, other
        )

    def loss(params, carry, inputs):
        last, y = rnn.apply(
            params,
            inputs,
            initial_carry=carry,
            reverse=reverse,
            keep_order=True,
            **ways,
        )
        # What a careful user does with padding: select first, reduce then.
        loss = jnp.sum(only(counts, y, 0) ** 2)
        return loss + sum(jnp.sum(jnp.sin(x)) for x in jax.tree.leaves(last)), last

    gradient = jax.jit(jax.value_and_grad(loss, (0, 1, 2), has_aux=True))
    clean = gradient(params, carry, only(counts, inputs, 0.0))
    for poison in (jnp.nan, jnp.inf):
        assert_equal(gradient(params, carry, only(counts, inputs, poison)), clean)


@pytest.mark.parametrize(
    "name, padded_outputs",
    by_level(
        list(product(["GRUCell", "MinGRUCell", "MLSTMCell"], PADDED_OUTPUTS)),
        [("GRUCell", "run")],
    ),
)
def test_windows_and_steps_equal_the_whole_sequence(name, padded_outputs, rng):
    """Also where a reset falls on a masked step at the end of a window."""
    rnn, params, inputs, _, carry = setting(
        CELLS[name], rng, return_carry=True, padded_outputs=padded_outputs
    )
    mask, resets = np.roll(MASK, 1, 1), np.roll(RESETS, 1, 1)
    assert (resets & ~mask)[:, 2].any() and (resets & ~mask)[:, 5].any()

    def window(carry, steps):
        arguments = {"mask": mask[:, steps], "resets": resets[:, steps]}
        # With lengths, the final carry is kept apart from one that runs on.
        arguments["seq_lengths"] = np.full(ROWS, steps.stop - steps.start)
        return run(rnn, params, inputs[:, steps], initial_carry=carry, **arguments)

    expected, whole = window(carry, slice(0, 6))
    first, y = window(carry, slice(0, 3))
    last, z = window(first, slice(3, 6))
    valid = mask[..., None]
    assert_close(last, expected)
    assert_close(jnp.concatenate([y, z], 1) * valid, whole * valid)
    if padded_outputs != "hold":
        step = jax.jit(partial(rnn.apply, method="step"))
        for t in range(STEPS):
            at = {"mask": mask[:, t], "resets": resets[:, t]}
            carry, y = step(params, carry, inputs[:, t], **at)
        assert_close(carry, expected)


def test_reset_carry_is_used_without_an_initial_one(rng):
    rnn, params, inputs, fresh, other = setting(
        CELLS["LSTMCell"], rng, return_carry=True
    )
    arguments = {"resets": RESETS, "reset_carry": other}
    last, y = run(rnn, params, inputs, **arguments)
    cell_params = {"params": params["params"]["cell"]}
    expected, visits = row_by_row(
        rnn.cell, cell_params, fresh, other, inputs, {"resets": RESETS}, False
    )
    assert_close(last, expected)
    for index, _, output in visits:
        assert_close(y[index], output)


@pytest.mark.parametrize("implementation", ["auto", "scan"])
def test_loop_takes_four_steps_in_an_iteration_on_a_gpu(implementation, monkeypatch):
    rnn = rnncells.RNN(rnncells.SimpleCell(3), implementation=implementation)
    x = jnp.ones((2, 9, 4))
    params = jax.eval_shape(rnn.init, jax.random.key(0), x)

    def steps(rnn):
        traced = jax.make_jaxpr(lambda params: rnn.apply(params, x))(params)
        return set(re.findall(r"unroll=(\d+)", str(traced)))

    assert steps(rnn) == {"1"}
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert steps(rnn) == {"4"}
    assert steps(rnn.clone(unroll=3)) == {"3"}


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


@pytest.mark.parametrize("reverse", [False, True])
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
    shapes = jax.eval_shape(layer.apply, params, inputs)[0]
    carries = {
        name: random_like(rng, shapes) for name in ("initial_carry", "reset_carry")
    }

    for swapped in (False, True):
        ways = WAYS["all"] | {"reverse": swapped}
        got, y = run(layer, params, inputs, **carries, **ways)
        for side in (0, 1):
            ways["reverse"] = swapped != bool(side)
            own = {name: pair[side] for name, pair in carries.items()}
            half = y[..., 4 * side : 4 * side + 4]
            expected = run(rnn, sides[side], inputs, **own, **ways)
            assert_close((got[side], half), expected)
