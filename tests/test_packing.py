"""Packed sequences equal separate ones."""

from functools import partial

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import (
    CELLS,
    FEATURES_IN,
    assert_close,
    assert_equal,
    exactly,
    random_like,
    random_params,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from levels import by_level

import rnncells
from rnncells import packing

# Shapes are few, so that little is compiled: what varies is lengths.
SEQUENCES, LONGEST, ROWS, ROW_LENGTHS = 7, 5, 8, (5, 9)
plannable = st.lists(st.integers(0, 11), max_size=30)
batches = st.lists(st.integers(0, LONGEST), min_size=SEQUENCES, max_size=SEQUENCES)
# A test fails each time or never, and not for being slow.
each_case = settings(
    max_examples=50,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
some_cases = settings(each_case, max_examples=5)


def random_sequences(rng, lengths):
    """Returns sequences of an array and an integer at each step."""
    return [
        {
            "x": rng.standard_normal((n, FEATURES_IN)).astype(np.float32),
            "label": rng.integers(1, 100, n).astype(np.int32),
        }
        for n in lengths
    ]


def as_batch(sequences, time, padding=0):
    """Returns a padded batch."""

    def pad(*leaves):
        features = leaves[0].shape[1:]
        batch = np.full((len(leaves), time, *features), padding, leaves[0].dtype)
        for row, leaf in zip(batch, leaves, strict=True):
            row[: len(leaf)] = leaf
        return batch

    return jax.tree.map(pad, *sequences)


@each_case
@given(plannable, st.integers(11, 25), st.integers(0, 2))
def test_rows_hold_each_step_of_each_sequence_once(lengths, row_length, spare):
    rows = len(packing.plan(lengths, row_length).mask) + spare
    plan = packing.plan(lengths, row_length, rows)

    np.testing.assert_array_equal(plan.seq_lengths, lengths)
    assert set(plan.seq_rows) <= set(range(rows))
    for row in range(rows):
        inside = sorted(
            (plan.seq_starts[k], k)
            for k, length in enumerate(lengths)
            if length and plan.seq_rows[k] == row
        )
        steps = []
        for segment, (start, k) in enumerate(inside, 1):
            assert start == len(steps)
            steps += [(segment, t, k, True, t == 0) for t in range(lengths[k])]
        steps += [(0, 0, 0, False, True)] * (row_length - len(steps))
        in_rows = plan.segment_ids, plan.positions, plan.seq_ids, plan.mask, plan.resets
        got = np.stack([array[row] for array in in_rows], axis=-1)
        np.testing.assert_array_equal(got, steps)


@each_case
@given(plannable, st.integers(11, 25))
def test_longest_goes_first_into_the_first_row_with_room(lengths, row_length):
    filled = []
    for length in sorted(lengths, reverse=True):
        room = [row for row, n in enumerate(filled) if n + length <= row_length]
        if not room:
            filled.append(0)
            room = [len(filled) - 1]
        filled[room[0]] += length

    plan = packing.plan(lengths, row_length)

    np.testing.assert_array_equal(plan.mask.sum(axis=1), filled or [0])


@each_case
@given(batches, st.sampled_from(ROW_LENGTHS))
def test_unpack_inverts_pack_bit_identically(rng, lengths, row_length):
    sequences = random_sequences(rng, lengths)
    batch = as_batch(sequences, LONGEST)

    packed = packing.pack(sequences, row_length, ROWS)
    rows = jax.jit(packing.Plan.pack)(packed.plan, batch)

    assert_equal(rows, packed.inputs)
    assert jax.tree.leaves(rows)[0].shape[:2] == (ROWS, row_length)
    assert_equal(packing.unpack(rows, packed.plan), sequences)
    unpack = jax.jit(packing.Plan.unpack, static_argnums=2)
    assert_equal(unpack(packed.plan, rows, LONGEST), batch)
    wide = unpack(packed.plan, rows, None)
    assert_equal(wide, as_batch(sequences, row_length))


@each_case
@given(batches)
def test_last_takes_the_last_step_or_the_first_in_reverse(rng, lengths):
    sequences = random_sequences(rng, lengths)
    rows, plan = packing.pack(sequences, ROW_LENGTHS[1], ROWS)
    initial = as_batch(random_sequences(rng, [1] * SEQUENCES), 1)
    initial = jax.tree.map(lambda leaf: leaf[:, 0], initial)
    last = jax.jit(packing.Plan.last, static_argnums=2)
    for reverse, end in ((False, -1), (True, 0)):
        for k, sequence in enumerate(sequences):
            for start in (None, initial):
                got = last(plan, rows, reverse, start)
                if lengths[k]:
                    expected = jax.tree.map(lambda leaf: leaf[end], sequence)
                elif start is None:
                    expected = {"x": np.zeros(FEATURES_IN), "label": 0}
                else:
                    expected = jax.tree.map(lambda leaf: leaf[k], initial)
                got = jax.tree.map(lambda leaf: leaf[k], got)
                jax.tree.map(np.testing.assert_array_equal, got, expected)


DIRECTIONS = {
    "forward": lambda make: rnncells.RNN(make()),
    "reverse": lambda make: rnncells.RNN(make(), reverse=True, keep_order=True),
    "bidirectional": lambda make: rnncells.Bidirectional(
        rnncells.RNN(make()), rnncells.RNN(make())
    ),
}


def setting(name, direction, rng):
    """Returns a layer, its parameters, and carries before the first step."""
    # Carries that do not begin with zeros show where they begin anew.
    options = {"param_dtype": float, "carry_init": nn.initializers.ones_init()}
    make = partial(CELLS[name].make, **options)
    layer = DIRECTIONS[direction](make)
    params = random_params(rng, layer, jnp.ones((2, 3, FEATURES_IN)))
    initial = make().initialize_carry(jax.random.key(0), (SEQUENCES, FEATURES_IN))
    initial = jax.device_get(initial)
    return layer, params, (initial,) * 2 if direction == "bidirectional" else initial


def last_carries(plan, direction, carries, initial):
    if direction != "bidirectional":
        return plan.last(carries, direction == "reverse", initial)
    (forward, backward), (first, second) = carries, initial
    return plan.last(forward, False, first), plan.last(backward, True, second)


def inner(tree, weights):
    return sum(
        jax.tree.leaves(jax.tree.map(lambda a, b: jnp.vdot(a, b), tree, weights))
    )


def with_gradient(run):
    """Returns derivatives of the values' product with weights, and the values."""

    def weighted(params, inputs, weights, *plan):
        values = run(params, inputs, *plan)
        return inner(values, weights), values

    return jax.jit(jax.grad(weighted, (0, 1), has_aux=True))


@pytest.mark.parametrize(
    "name, direction",
    by_level(
        [
            ("LSTMCell", "forward"),
            ("SimpleCell", "reverse"),
            ("LSTMCell", "bidirectional"),
            ("GRUCell", "bidirectional"),
        ],
        [("LSTMCell", "bidirectional")],
    ),
)
def test_packed_equals_each_sequence_alone(name, direction, rng, float64):
    layer, params, initial = setting(name, direction, rng)

    @with_gradient
    def packed(params, inputs, plan):
        ways = {"resets": plan.resets, "mask": plan.mask, "return_all_carries": True}
        carries, outputs = layer.apply(params, plan.pack(inputs), **ways)
        last = last_carries(plan, direction, carries, initial)
        return last, plan.unpack(outputs, LONGEST)

    @with_gradient
    def alone(params, sequence):
        return layer.apply(params, sequence, return_carry=True)

    features = (8 if direction == "bidirectional" else 4,)
    values = (initial, jnp.zeros((SEQUENCES, LONGEST, *features)))

    @some_cases
    @given(st.lists(st.sampled_from([0, 1, 4]), min_size=SEQUENCES, max_size=SEQUENCES))
    def equal(lengths):
        inputs = rng.standard_normal((SEQUENCES, LONGEST, FEATURES_IN))
        past = np.arange(LONGEST) >= np.array(lengths)[:, None]
        inputs[past] = np.nan
        weights = jax.device_get(random_like(rng, values))
        plan = packing.plan(lengths, ROW_LENGTHS[1], ROWS)

        found = jax.device_get(packed(params, inputs, weights, plan))
        (d_params, d_inputs), (last, outputs) = found

        assert not np.any(outputs[past]) and not np.any(d_inputs[past])
        total = jax.tree.map(np.zeros_like, params)
        for k, n in enumerate(lengths):
            of_k = jax.tree.map(lambda leaf: leaf[k], (last, weights[0], initial))
            if n == 0:
                assert_equal(of_k[0], of_k[2])
                continue
            (d_own, d_sequence), expected = alone(
                params, inputs[k, :n], (of_k[1], weights[1][k, :n])
            )
            exactly((of_k[0], outputs[k, :n]), expected)
            exactly(d_inputs[k, :n], d_sequence)
            total = jax.tree.map(np.add, total, d_own)
        exactly(d_params, total)

    equal()


@pytest.mark.default
def test_plans_of_one_shape_are_compiled_once(rng):
    rnn = rnncells.RNN(rnncells.GRUCell(4))

    @jax.jit
    @chex.assert_max_traces(n=1)
    def run(params, packed):
        return rnn.apply(params, packed.inputs, resets=packed.resets, mask=packed.mask)

    params = None
    for lengths in ([4, 1, 3, 5], [5, 5, 0, 0], [0, 0, 0, 0]):
        sequences = [sequence["x"] for sequence in random_sequences(rng, lengths)]
        packed = packing.pack(sequences, row_length=6, rows=3)
        params = random_params(rng, rnn, packed.inputs) if params is None else params
        outputs = run(params, packed)
        shapes = [y.shape for y in packing.unpack(outputs, packed.plan)]
        assert shapes == [(n, 4) for n in lengths]


def test_lists_are_packed_and_unpacked_within_transformations(rng):
    sequences = [sequence["x"] for sequence in random_sequences(rng, [3, 0, 2])]

    @jax.jit
    @jax.grad
    def gradient(sequences):
        inputs, plan = packing.pack(sequences, row_length=4)
        first, _, third = packing.unpack(inputs**3, plan)
        return jnp.sum(first) + 2 * jnp.sum(third)

    expected = [
        factor * 3 * x**2 for factor, x in zip((1, 0, 2), sequences, strict=True)
    ]
    assert_close(gradient(sequences), jax.tree.map(jnp.asarray, expected))


@pytest.mark.default
def test_plans_can_be_mapped_over(rng):
    plans = [packing.plan(lengths, 5, 3) for lengths in ([4, 2, 5], [0, 1, 1])]
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *plans)
    batches = rng.standard_normal((2, 3, LONGEST, FEATURES_IN)).astype(np.float32)

    def there_and_back(plan, batch):
        rows = plan.pack(batch)
        return rows, plan.unpack(rows), plan.last(rows, reverse=True)

    found = jax.device_get(jax.jit(jax.vmap(there_and_back))(stacked, batches))
    alone = jax.jit(there_and_back)
    for k, plan in enumerate(plans):
        assert_equal([leaf[k] for leaf in found], list(alone(plan, batches[k])))


@pytest.mark.parametrize("sequences, time", [(0, 5), (3, 0)])
def test_empty_batches_are_packed_into_one_row_of_padding(sequences, time):
    plan = packing.plan([0] * sequences, row_length=4)
    rows = plan.pack(np.ones((sequences, time, FEATURES_IN)))
    assert_equal(rows, jnp.zeros((1, 4, FEATURES_IN)))
    chex.assert_shape(plan.unpack(rows, time), (sequences, time, FEATURES_IN))
    chex.assert_shape(plan.last(rows), (sequences, FEATURES_IN))
    assert [x.shape for x in packing.unpack(rows, plan)] == [(0, 3)] * sequences


@pytest.mark.parametrize("bidirectional", by_level([False, True], [True]))
def test_last_states_are_those_of_each_sequence_alone(bidirectional, rng):
    layer = rnncells.LSTM(
        4, num_layers=2, bidirectional=bidirectional, learn_states=True
    )
    lengths = (3, 1, 0, 3, 1)
    sequences = [rng.standard_normal((n, 3)).astype(np.float32) for n in lengths]
    inputs, plan = packing.pack(sequences, row_length=5)
    ways = {"resets": plan.resets, "mask": plan.mask, "return_all_states": True}
    params = random_params(rng, layer, inputs)

    @jax.jit
    def last_states(params):
        _, _, states = layer.apply(params, inputs, **ways)
        start = layer.apply(params, None, (len(lengths), 3), method="initialize_carry")
        return plan.last_states(states, bidirectional=bidirectional, initial=start)

    lasts, apply = jax.device_get(last_states(params)), jax.jit(layer.apply)
    for k, sequence in enumerate(sequences):
        _, alone = apply(params, sequence)
        for last, own in zip(lasts, alone, strict=True):
            np.testing.assert_allclose(last[:, k], own, atol=1e-6)
