"""Lengths, masks and resets, in any combination, against a loop over rows and steps."""

from functools import partial

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
from jax import export

import rnncells

each_cell = pytest.mark.parametrize("case", CELLS.values(), ids=CELLS)
each_padding = pytest.mark.parametrize("padded_outputs", ["run", "hold", "zero"])
each_direction = pytest.mark.parametrize("reverse", [False, True])

ROWS, STEPS = 4, 6
LENGTHS = np.array([6, 4, 0, 1])
MASK = np.array(
    [[1, 0, 1, 1, 0, 1], [0, 1, 0, 1, 1, 0], [1, 1, 1, 1, 1, 1], [0, 1, 0, 0, 0, 0]],
    bool,
)
RESETS = np.array(
    [[0, 1, 0, 0, 1, 0], [1, 0, 1, 0, 1, 1], [0, 0, 1, 0, 0, 0], [0, 0, 0, 0, 0, 1]],
    bool,
)
WAYS = {
    "lengths": {"seq_lengths": LENGTHS},
    "mask": {"mask": MASK},
    "resets": {"resets": RESETS},
    "lengths+mask": {"seq_lengths": LENGTHS, "mask": MASK},
    "lengths+resets": {"seq_lengths": LENGTHS, "resets": RESETS},
    "mask+resets": {"mask": MASK, "resets": RESETS},
    "all": {"seq_lengths": LENGTHS, "mask": MASK, "resets": RESETS},
}
each_way = pytest.mark.parametrize("ways", WAYS.values(), ids=WAYS)


def walk(length, mask, resets, reverse):
    """Returns the steps of a row that count, in order, and before which it restarts."""
    steps = [t for t in range(length) if mask[t]]
    order = steps[::-1] if reverse else steps
    visits, before = [], -1
    for t in order:
        if reverse:
            # Between this step and the one processed before it, to the right of it.
            right = length if before == -1 else before + 1
            restart = any(resets[t + 1 : right])
        else:
            restart = any(resets[before + 1 : t + 1])
        visits.append((t, restart))
        before = t
    return visits


def row_by_row(cell, params, carry, fresh, inputs, ways, reverse):
    """Returns each row's last carry, and its carry and output at each step."""
    apply = jax.jit(cell.apply)
    lengths = ways.get("seq_lengths", np.full(ROWS, STEPS))
    mask = ways.get("mask", np.ones((ROWS, STEPS), bool))
    resets = ways.get("resets", np.zeros((ROWS, STEPS), bool))
    lasts, visits = [], []
    for row in range(ROWS):
        state, new = (jax.tree.map(lambda x, r=row: x[r], c) for c in (carry, fresh))
        for t, restart in walk(lengths[row], mask[row], resets[row], reverse):
            state, y = apply(params, new if restart else state, inputs[row, t])
            visits.append(((row, t), state, y))
        lasts.append(state)
    return jax.tree.map(lambda *x: jnp.stack(x), *lasts), visits


def run(layer, params, inputs, reverse=False, keep_order=True, **arguments):
    """Applies a layer, compiled: faster than step by step where much is compared."""
    apply = partial(layer.apply, reverse=reverse, keep_order=keep_order)
    return jax.jit(apply)(params, inputs, **arguments)


def setting(case, rng, **options):
    inputs = case.inputs(rng, ROWS, STEPS)
    rnn = rnncells.RNN(case.make(carry_init=nn.initializers.ones_init()), **options)
    params = random_params(rng, rnn, inputs)
    fresh = rnn.cell.initialize_carry(jax.random.key(0), inputs[:, 0])
    return rnn, params, inputs, fresh, random_like(rng, fresh)


@pytest.mark.parametrize(
    "name, ways",
    [
        (name, way)
        for name in CELLS
        for way in WAYS
        # All ways with two cells, all cells with everything at once.
        if name in ("LSTMCell", "ConvLSTMCell-2d") or way == "all"
    ],
)
@each_direction
def test_all_ways_equal_row_by_row(name, ways, reverse, rng):
    case, ways = CELLS[name], WAYS[ways]
    rnn, params, inputs, fresh, carry = setting(case, rng, return_carry=True)
    cell_params = {"params": params["params"]["cell"]}

    last, y = run(rnn, params, inputs, initial_carry=carry, reverse=reverse, **ways)

    expected, visits = row_by_row(
        rnn.cell, cell_params, carry, fresh, inputs, ways, reverse
    )
    assert_close(last, expected)
    for index, _, output in visits:
        assert_close(y[index], output)


@pytest.mark.parametrize("ways", ["lengths", "mask+resets", "all"])
@each_direction
@each_padding
def test_all_carries_are_those_after_each_step(ways, reverse, padded_outputs, rng):
    case, ways = CELLS["LSTMCell"], WAYS[ways]
    rnn, params, inputs, fresh, carry = setting(
        case, rng, padded_outputs=padded_outputs, return_carry=True
    )
    history = rnn.clone(return_all_carries=True)
    arguments = {"initial_carry": carry, "reverse": reverse, **ways}

    last, _ = run(rnn, params, inputs, **arguments)
    carries, y = run(history, params, inputs, **arguments)

    cell_params = {"params": params["params"]["cell"]}
    _, visits = row_by_row(rnn.cell, cell_params, carry, fresh, inputs, ways, reverse)
    for index, state, output in visits:
        assert_close(jax.tree.map(lambda leaf, i=index: leaf[i], carries), state)
        assert_close(y[index], output)
    if not (reverse and "seq_lengths" in ways):
        end = 0 if reverse else -1
        assert_equal(jax.tree.map(lambda leaf: leaf[:, end], carries), last)


@each_way
@each_direction
def test_padded_outputs_are_zero_or_held(ways, reverse, rng):
    case = CELLS["GRUCell"]
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
            order = [*range(length)][::-1] + [*range(STEPS)][:length:-1]
        for t in order:
            held = counted.get((row, t), held)
            expected = counted.get((row, t), np.zeros_like(held))
            np.testing.assert_allclose(zero[row, t], expected, rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(hold[row, t], held, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "name, ways, padded_outputs",
    [
        *((name, "all", "run") for name in CELLS),
        *(("LSTMCell", way, "run") for way in ("lengths", "mask")),
        *(("LSTMCell", way, "zero") for way in ("lengths", "mask", "all")),
        *(("LSTMCell", way, "hold") for way in ("lengths", "mask", "all")),
    ],
)
@each_direction
def test_nan_in_padding_reaches_no_value_and_no_gradient(
    name, ways, padded_outputs, reverse, rng
):
    rnn, params, inputs, _, carry = setting(
        CELLS[name], rng, return_carry=True, padded_outputs=padded_outputs
    )
    ways = WAYS[ways]
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


@each_padding
def test_steps_that_do_not_count_leave_the_carry_to_the_bit(padded_outputs, rng):
    rnn, params, inputs, _, carry = setting(
        CELLS["LSTMCell"], rng, return_carry=True, padded_outputs=padded_outputs
    )
    for ways in (
        {"seq_lengths": np.zeros(ROWS, int)},
        {"mask": np.zeros((ROWS, STEPS), bool)},
        {"mask": np.zeros((ROWS, STEPS), bool), "resets": RESETS},
    ):
        last, _ = rnn.apply(params, inputs, initial_carry=carry, **ways)
        assert_equal(last, carry)


def test_padding_runs_on_as_in_flax(rng):
    rnn, params, inputs, _, carry = setting(CELLS["GRUCell"], rng)
    theirs = nn.RNN(nn.GRUCell(4))
    for reverse in (False, True):
        arguments = {
            "initial_carry": carry,
            "seq_lengths": LENGTHS,
            "reverse": reverse,
        }
        assert_close(
            rnn.apply(params, inputs, **arguments),
            theirs.apply(params, inputs, **arguments),
        )


@pytest.mark.parametrize("batch", [(), (3,), (2, 3), (3, 3)])
def test_final_carry_for_any_batch_axes(batch, rng):
    # flax.linen fails for (2, 3) and returns a carry of a wrong shape for (3, 3).
    case = CELLS["LSTMCell"]
    inputs = case.inputs(rng, *batch, TIME)
    lengths = rng.integers(0, TIME + 1, batch)
    rnn = rnncells.RNN(case.make(), return_carry=True)
    params = random_params(rng, rnn, inputs)

    carry, y = rnn.apply(params, inputs, seq_lengths=lengths)

    apply = jax.jit(rnn.apply)
    for row in np.ndindex(*batch):
        alone = apply(params, inputs[row][: lengths[row]])
        assert_close(jax.tree.map(lambda leaf, r=row: leaf[r], carry), alone[0])
        assert_close(y[row][: lengths[row]], alone[1])


@each_direction
def test_resets_go_to_the_reset_carry_and_not_to_the_initial_one(reverse, rng):
    rnn, params, inputs, fresh, carry = setting(
        CELLS["GRUCell"], rng, return_carry=True
    )
    # A new sequence at the first step processed: nothing of `initial_carry` is left.
    resets = np.zeros((ROWS, STEPS), bool)
    resets[:, 0] = True
    arguments = {"resets": resets, "initial_carry": carry, "reverse": reverse}
    if reverse:
        return assert_equal(
            rnn.apply(params, inputs, **arguments),
            rnn.apply(params, inputs, initial_carry=carry, reverse=True),
        )
    assert_close(
        rnn.apply(params, inputs, **arguments),
        rnn.apply(params, inputs, initial_carry=fresh),
    )
    other = random_like(rng, carry)
    assert_close(
        rnn.apply(params, inputs, reset_carry=other, **arguments),
        rnn.apply(params, inputs, initial_carry=other),
    )


@each_direction
def test_packed_sequences_equal_separate_ones(reverse, rng):
    case = CELLS["LSTMCell"]
    sizes = (3, 1, 4)
    parts = [case.inputs(rng, size) for size in sizes]
    packed = jnp.concatenate(parts)
    starts = np.isin(np.arange(sum(sizes)), np.cumsum((0, *sizes[:-1])))
    rnn = rnncells.RNN(case.make(), reverse=reverse, keep_order=True)
    params = random_params(rng, rnn, packed)

    together = rnn.apply(params, packed, resets=starts)

    apart = [rnn.apply(params, part) for part in parts]
    assert_close(together, jnp.concatenate(apart))


def test_bidirectional_with_all_ways_equals_its_directions(rng):
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

    for ways in (WAYS["lengths"], WAYS["all"]):
        for swapped in (False, True):
            got, y = run(
                layer, params, inputs, initial_carry=carries, reverse=swapped, **ways
            )
            for side in (0, 1):
                expected = run(
                    rnn,
                    sides[side],
                    inputs,
                    initial_carry=carries[side],
                    reverse=swapped != bool(side),
                    **ways,
                )
                half = y[..., 4 * side : 4 * side + 4]
                assert_close((got[side], half), expected)


def test_bidirectional_returns_all_carries(rng):
    case = CELLS["GRUCell"]
    inputs = case.inputs(rng, ROWS, STEPS)
    layer = rnncells.Bidirectional(
        rnncells.RNN(case.make()), rnncells.RNN(case.make()), return_all_carries=True
    )
    params = random_params(rng, layer, inputs)
    (fwd, bwd), y = layer.apply(params, inputs)
    assert_equal(jnp.concatenate([fwd, bwd], axis=-1), y)


def test_bidirectional_makes_no_carries_that_nobody_wants(rng):
    class Recorder(nn.Module):
        @nn.compact
        def __call__(self, inputs, *, return_carry, **_):
            assert not return_carry
            return inputs

    layer = rnncells.Bidirectional(Recorder(), Recorder())
    layer.apply({}, jnp.ones((BATCH, TIME, 3)), seq_lengths=jnp.array([1, 2]))


@each_direction
def test_time_major_equals_batch_major(reverse, rng):
    case = CELLS["ConvLSTMCell-2d"]
    rnn, params, inputs, _, _ = setting(case, rng, reverse=reverse)

    def swap(tree):
        return jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1), tree)

    ways = WAYS["all"]
    expected = rnn.apply(params, inputs, return_all_carries=True, **ways)
    actual = rnn.apply(
        params,
        swap(inputs),
        time_major=True,
        return_all_carries=True,
        seq_lengths=LENGTHS,
        mask=MASK.T,
        resets=RESETS.T,
    )
    assert_close(swap(actual), expected)


class SumCell(nn.Module):
    """A user's cell: pytrees everywhere, no base class, no initialize_carry."""

    num_feature_dims: int = 1

    @nn.compact
    def __call__(self, carry, inputs):
        gain = self.param("gain", nn.initializers.ones_init(), (3,))
        total = carry["total"] + gain * inputs["x"] + inputs["image"].sum((-1, -2))
        return {"total": total}, {"total": total, "twice": 2 * total}


@each_direction
def test_pytrees_of_different_rank(reverse, rng):
    inputs = {
        "x": jnp.asarray(rng.standard_normal((ROWS, STEPS, 3)), jnp.float32),
        "image": jnp.ones((ROWS, STEPS, 3, 5, 7)),
    }
    # The first leaf is the image: it has three feature axes.
    rnn = rnncells.RNN(SumCell(num_feature_dims=3), return_carry=True, reverse=reverse)
    carry = {"total": jnp.zeros((ROWS, 3))}
    params = rnn.init(jax.random.key(0), inputs, initial_carry=carry)

    last, y = rnn.apply(
        params, inputs, initial_carry=carry, mask=MASK, seq_lengths=LENGTHS
    )

    counts = MASK & (np.arange(STEPS) < LENGTHS[:, None])
    steps = np.asarray(inputs["x"] + 35) * counts[:, :, None]
    np.testing.assert_allclose(last["total"], steps.sum(1), rtol=1e-5)
    np.testing.assert_allclose(y["twice"], 2 * y["total"])


@pytest.mark.parametrize("name", [name for name, case in CELLS.items() if case.in_flax])
def test_cells_of_flax_run(name, rng):
    case, ways = CELLS[name], WAYS["all"]
    inputs = case.inputs(rng, ROWS, STEPS)
    theirs = rnncells.RNN(case.make_flax(), return_carry=True)
    ours = rnncells.RNN(case.make(), return_carry=True)
    params = random_params(rng, theirs, inputs)
    assert_close(run(theirs, params, inputs, **ways), run(ours, params, inputs, **ways))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "complex64"])
def test_cells_of_flax_run_in_other_dtypes(dtype, rng):
    # In flax.linen.RNN these do not scan: the type of the carry changes.
    inputs = jnp.asarray(rng.standard_normal((ROWS, STEPS, 3)), jnp.float32)
    if dtype == "complex64":
        layer = rnncells.RNN(nn.SimpleCell(4))
        inputs = inputs.astype(dtype)
    else:
        layer = rnncells.RNN(nn.SimpleCell(4, dtype=dtype))
    params = random_params(rng, layer, inputs)
    assert layer.apply(params, inputs).dtype == dtype


def test_streams_of_random_numbers_differ_by_step():
    class Dropped(nn.Module):
        num_feature_axes: int = 1

        @nn.compact
        def __call__(self, carry, x):
            return carry, nn.Dropout(0.5, deterministic=False)(x)

    x = jnp.ones((1, 50, 3))
    streams = {"params": False, "dropout": True}
    rnn = rnncells.RNN(Dropped(), split_rngs=streams)
    y = rnn.apply({}, x, initial_carry=(), rngs={"dropout": jax.random.key(0)})
    assert 0.2 < np.mean(np.asarray(y[0, 1:] != y[0, :-1])) < 0.8


def test_final_carry_needs_no_memory_over_time():
    def temporaries(steps):
        rnn = rnncells.RNN(rnncells.LSTMCell(64), return_carry=True)
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
        carry, y = rnn.apply(params, jnp.ones((BATCH, 0, 3)), **ways)
        assert_equal(carry, start)
        assert y.shape == (BATCH, 0, 4)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32"])
def test_lengths_may_be_narrow_integers(dtype, rng):
    # 300 steps are more than 8 bits hold.
    lengths = np.array([100, 0, 120, 1], dtype)
    rnn = rnncells.RNN(rnncells.GRUCell(4), return_carry=True)
    inputs = jnp.asarray(rng.standard_normal((ROWS, 300, 3)), jnp.float32)
    params = random_params(rng, rnn, inputs)
    expected = run(rnn, params, inputs, reverse=True, seq_lengths=lengths.astype(int))
    assert_equal(run(rnn, params, inputs, reverse=True, seq_lengths=lengths), expected)


def test_layers_export_with_symbolic_batch_and_time(rng):
    layer = rnncells.Bidirectional(
        rnncells.RNN(rnncells.LSTMCell(4)),
        rnncells.RNN(rnncells.GRUCell(3)),
        return_carry=True,
    )
    batch, time = export.symbolic_shape("batch, time")
    inputs = jnp.asarray(rng.standard_normal((ROWS, STEPS, 3)), jnp.float32)
    params = random_params(rng, layer, inputs)

    def apply(inputs, lengths, mask, resets):
        return layer.apply(
            params, inputs, seq_lengths=lengths, mask=mask, resets=resets
        )

    arguments = [
        jax.ShapeDtypeStruct((batch, time, 3), jnp.float32),
        jax.ShapeDtypeStruct((batch,), jnp.int32),
        *[jax.ShapeDtypeStruct((batch, time), jnp.bool_)] * 2,
    ]
    platforms = ("cpu", "cuda", "tpu")
    exported = export.export(jax.jit(apply), platforms=platforms)(*arguments)

    values = (inputs, LENGTHS.astype(np.int32), MASK, RESETS)
    assert_close(exported.call(*values), apply(*values))


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
    actual, carry = jax.jit(gradient)(params, *sharded)
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


def test_resets_leave_the_precision_of_the_carry(rng):
    # A rollout stored in half precision, continued with resets.
    rnn, params, inputs, fresh, carry = setting(
        CELLS["LSTMCell"], rng, return_carry=True
    )
    half = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), carry)
    last, _ = run(rnn, params, inputs, initial_carry=half, resets=RESETS)
    assert {leaf.dtype for leaf in last} == {jnp.dtype(jnp.bfloat16)}


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


@jax.tree_util.register_pytree_node_class
class State:
    """A carry of a user's class, which cannot be compared."""

    def __init__(self, h, key, steps):
        self.parts = h, key, steps

    def tree_flatten(self):
        return self.parts, None

    @classmethod
    def tree_unflatten(cls, _, parts):
        return cls(*parts)


class Noisy(nn.Module):
    """A user's cell, its carry with a random key and a counter."""

    num_feature_axes: int = 1

    @nn.compact
    def __call__(self, carry, x):
        h, key, steps = carry.parts
        key, used = jax.random.split(key)
        h = 0.5 * h + x + jax.random.normal(used, x.shape)
        return State(h, key, steps + 1), h


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_carries_may_hold_keys_and_counters(dtype):
    rnn = rnncells.RNN(Noisy(), return_carry=True)
    start = State(jnp.zeros((2, 3), dtype), jax.random.key(0), 0)
    carry, _ = rnn.apply({}, jnp.ones((2, 5, 3), dtype), initial_carry=start)
    h, key, steps = carry.parts
    assert steps == 5 and h.dtype == dtype
    assert jnp.issubdtype(key.dtype, jax.dtypes.prng_key)


def test_either_name_of_the_number_of_feature_dims_will_do():
    class Echo(nn.RNNCellBase):
        num_feature_dims = 1

        def __call__(self, carry, x):
            return carry, x

    x = jnp.ones((2, 5, 3))
    assert_equal(rnncells.RNN(Echo()).apply({}, x, initial_carry=()), x)

    class Nameless(rnncells.RNNCellBase):
        def __call__(self, carry, x):
            return carry, x

    with pytest.raises(NotImplementedError, match="must define `num_feature_dims`"):
        rnncells.RNN(Nameless()).apply({}, x, initial_carry=())
