"""`LSTM`, `GRU`, `ElmanRNN` and `Stack`: what PyTorch cannot tell, and mistakes."""

import itertools
from functools import partial

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import assert_close, assert_equal, jit_apply, random_like, random_params
from levels import by_level
from sequences import LENGTHS, MASK, RESETS, ROWS, STEPS

import rnncells

FEATURES_IN, FEATURES = 3, 4
KEY = jax.random.key(0)
X = jnp.ones((ROWS, STEPS, FEATURES_IN))
LAYERS = {
    "LSTM": rnncells.LSTM,
    "LSTM-projected": partial(rnncells.LSTM, proj_features=2),
    "GRU": rnncells.GRU,
    "GRU-reset-before": partial(rnncells.GRU, reset_after=False),
    "ElmanRNN": partial(rnncells.ElmanRNN, nonlinearity="relu"),
}
WAYS = {"seq_lengths": LENGTHS, "mask": MASK, "resets": RESETS}


def inputs_of(rng, *leading):
    values = rng.standard_normal((*leading, FEATURES_IN))
    return values.astype(jnp.result_type(float))


def setting(rng, make, **options):
    layer = make(FEATURES, param_dtype=float, **options)
    x = inputs_of(rng, ROWS, STEPS)
    params = random_params(rng, layer, x)
    _, states = jax.eval_shape(layer.apply, params, x)
    return layer, params, x, random_like(rng, states)


def by_hand(layer, params, x, states, ways):
    """Returns outputs and carries of single RNNs, one after the other."""
    carries, parts = [], [states] if not isinstance(states, tuple) else states[::-1]
    count = layer.num_layers * (2 if layer.bidirectional else 1)
    for k in range(layer.num_layers):
        outputs = []
        for side in ("forward_rnn", "backward_rnn")[: count // layer.num_layers]:
            own = params["params"][f"layers_{k}"]
            own = own[side] if layer.bidirectional else own
            index = len(carries)
            carry = tuple(part[index] for part in parts)
            rnn = rnncells.RNN(layer.cell(), padded_outputs="zero", return_carry=True)
            carry, y = rnn.apply(
                {"params": own},
                x,
                initial_carry=carry if len(carry) > 1 else carry[0],
                reverse=side == "backward_rnn",
                keep_order=True,
                **ways,
            )
            carries.append(carry)
            outputs.append(y)
        x = jnp.concatenate(outputs, axis=-1)
    return x, carries


@pytest.mark.parametrize(
    "name, bidirectional",
    by_level(
        [*itertools.product(LAYERS, [False, True])],
        [("LSTM", False), ("ElmanRNN", True)],
    ),
)
def test_layers_equal_rnns_one_after_the_other(name, bidirectional, rng, float64):
    make = LAYERS[name]
    options = {"num_layers": 2, "bidirectional": bidirectional}
    layer, params, x, states = setting(rng, make, **options)

    y, last = jax.jit(partial(layer.apply, **WAYS))(params, x, states)

    one_by_one = jax.jit(partial(by_hand, layer, ways=WAYS))
    expected, carries = one_by_one(params, x, states)
    np.testing.assert_allclose(y, expected, rtol=1e-12, atol=1e-13)
    lasts = last[::-1] if isinstance(last, tuple) else (last,)
    for index, carry in enumerate(carries):
        parts = carry if isinstance(carry, tuple) else (carry,)
        for part, own in zip(lasts, parts, strict=True):
            np.testing.assert_allclose(part[index], own, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(
    "name, time_major",
    by_level([*itertools.product(LAYERS, [False, True])], [("LSTM-projected", False)]),
)
def test_all_states_hold_outputs_and_last_states(name, time_major, rng, float64):
    make = LAYERS[name]
    layer, params, x, states = setting(rng, make, num_layers=2, bidirectional=True)
    ways = {"seq_lengths": LENGTHS, "mask": MASK}
    if time_major:
        x = np.swapaxes(x, 0, 1)
        ways["mask"] = MASK.T
    apply = partial(layer.apply, **ways, time_major=time_major)

    with_states = jax.jit(partial(apply, return_all_states=True))
    y, last, everywhere = jax.device_get(with_states(params, x, states))

    assert_close((y, last), jax.jit(apply)(params, x, states), rtol=1e-12)
    h_all = everywhere[0] if isinstance(everywhere, tuple) else everywhere
    counts = MASK & (np.arange(STEPS) < LENGTHS[:, None])
    counts = counts.T if time_major else counts
    both = np.concatenate([h_all[2], h_all[3]], axis=-1)
    np.testing.assert_array_equal(y[counts], both[counts])
    axis = 0 if time_major else 1
    for part, own in zip(
        jax.tree.leaves(everywhere), jax.tree.leaves(last), strict=True
    ):
        for index in range(4):
            end = np.take(part[index], -1 if index % 2 == 0 else 0, axis)
            np.testing.assert_array_equal(end, own[index])


@pytest.mark.parametrize(
    "name",
    by_level(
        LAYERS,
        # The others differ from these in one option, tested in other files.
        ["LSTM-projected", "GRU", "ElmanRNN"],
    ),
)
def test_empty_sequences_leave_the_states_unchanged(name, rng):
    make = LAYERS[name]
    layer, params, x, states = setting(rng, make, bidirectional=True)

    y, last, everywhere = jit_apply(
        layer, params, x[:, :0], states, return_all_states=True
    )

    width = jax.tree.leaves(states)[0].shape[-1]
    chex.assert_shape(y, (ROWS, 0, 2 * width))
    assert_equal(last, states)
    assert all(leaf.shape[2] == 0 for leaf in jax.tree.leaves(everywhere))


class RandomStates(rnncells.MultiLayerRNN):
    @nn.nowrap
    def cell(self):
        return rnncells.GRUCell(self.features, carry_init=nn.initializers.normal())


def test_a_key_gives_the_initial_states_of_call_and_run(rng):
    layer = RandomStates(FEATURES, num_layers=2)
    x = inputs_of(rng, ROWS, STEPS)
    params, key = layer.init(KEY, x), jax.random.key(3)
    states = layer.initialize_carry(key, x[:, 0])
    y, last = layer.apply(params, x, init_key=key)
    assert_equal((y, last), layer.apply(params, x, states))
    assert_equal((last, y), layer.apply(params, x, init_key=key, method="run"))
    resets = jnp.zeros((ROWS, STEPS), bool).at[:, 2].set(True)
    y, _ = layer.apply(params, x, init_key=key, resets=resets)
    assert_close(y[:, 2:], layer.apply(params, x[:, 2:], states)[0])


def test_learned_states_start_each_sequence(rng, float64):
    make = partial(rnncells.LSTM, num_layers=2, bidirectional=True)
    layer, params, x, _ = setting(rng, make, learn_states=True)
    chex.assert_shape(params["params"]["h_0"], (4, FEATURES))
    rest = {k: v for k, v in params["params"].items() if k not in ("h_0", "c_0")}
    given = tuple(
        jnp.broadcast_to(params["params"][name][:, None], (4, ROWS, FEATURES))
        for name in ("h_0", "c_0")
    )
    plain, apply = layer.clone(learn_states=False), jax.jit(layer.apply)

    half = STEPS // 2
    first = apply(params, x[:, :half])

    assert_equal(first, jax.jit(plain.apply)({"params": rest}, x[:, :half], given))
    # At resets too: two sequences in a row are as two rows.
    resets = np.arange(STEPS) == np.full((ROWS, 1), half)

    def total(params):
        joined, _ = layer.apply(params, x, resets=resets)
        return joined.sum(), joined

    gradient, joined = jax.jit(jax.grad(total, has_aux=True))(params)
    second, _ = apply(params, x[:, half:])
    expected = np.concatenate([first[0], second], 1)
    np.testing.assert_allclose(joined, expected, rtol=1e-12, atol=1e-12)
    assert all(gradient["params"][name].all() for name in ("h_0", "c_0"))


@pytest.mark.parametrize("where", by_level(["field", "call"], 1))
def test_dropout_acts_only_between_layers(where, rng):
    options = {"deterministic": False} if where == "field" else {}
    call = {} if where == "field" else {"deterministic": False}
    layer = rnncells.ElmanRNN(FEATURES, num_layers=2, dropout=0.5, **options)
    x = inputs_of(rng, ROWS, STEPS).astype(jnp.float32)
    init = partial(layer.init, **call)
    params = random_like(rng, jax.eval_shape(init, {"params": KEY, "dropout": KEY}, x))
    first = rnncells.ElmanRNN(FEATURES)
    own = {"params": {"layers_0": params["params"]["layers_0"]}}
    second = {"params": {"layers_0": params["params"]["layers_1"]}}
    between, h_1 = jit_apply(first, own, x)

    y, h_n = jit_apply(layer, params, x, rngs={"dropout": jax.random.key(5)}, **call)

    # The first layer is as without dropout; the second is not.
    np.testing.assert_array_equal(h_n[0], h_1[0])
    assert not np.allclose(y, jit_apply(first, second, between)[0])
    none = jit_apply(layer.clone(deterministic=None), params, x, deterministic=True)
    assert_close(none, jit_apply(layer.clone(dropout=0.0), params, x))


@pytest.mark.default
def test_dropout_drops_the_given_share(rng):
    """An identity layer shows what the second layer gets."""
    layer = rnncells.ElmanRNN(
        50, num_layers=2, dropout=0.25, nonlinearity="relu", deterministic=False
    )
    x, zeros = np.ones((30, 1, 50), np.float32), np.zeros(50, np.float32)
    eye = {"i": {"kernel": np.diag(zeros + 1), "bias": zeros}}
    eye["h"] = {"kernel": np.diag(zeros)}
    params = {"params": {f"layers_{k}": {"cell": eye} for k in range(2)}}

    y, _ = jit_apply(layer, params, x, rngs={"dropout": KEY})

    assert set(np.unique(y)) == {np.float32(0), np.float32(1 / 0.75)}
    # Of 1500 numbers: 4 standard deviations.
    assert abs((y == 0).mean() - 0.25) < 4 * np.sqrt(0.25 * 0.75 / 1500)


def test_stack_runs_its_layers_in_order(rng, float64):
    layers = [
        rnncells.LSTMCell(4, param_dtype=float),
        nn.Dense(6, param_dtype=float),
        nn.relu,
        rnncells.RNN(rnncells.SimpleCell(5, param_dtype=float)),
    ]
    stack = rnncells.Stack(layers, return_carry=True)
    x = inputs_of(rng, ROWS, STEPS)
    params = random_params(rng, stack, x)

    (lstm_carry, last), y = jax.jit(partial(stack.apply, **WAYS))(params, x)

    rnns = [
        rnncells.RNN(rnncells.LSTMCell(4, param_dtype=float), return_carry=True),
        rnncells.RNN(rnncells.SimpleCell(5, param_dtype=float), return_carry=True),
    ]

    @jax.jit
    def one_by_one(own, x):
        carry, h = rnns[0].apply({"params": {"cell": own["layers_0"]}}, x, **WAYS)
        h = nn.relu(nn.Dense(6).apply({"params": own["layers_1"]}, h))
        return carry, *rnns[1].apply({"params": own["layers_3"]}, h, **WAYS)

    expected = one_by_one(params["params"], x)
    assert_close((lstm_carry, last, y), expected, rtol=1e-12)


@pytest.mark.default
def test_skip_connections_equal_those_of_haiku(rng):
    stack = rnncells.Stack(
        [rnncells.SimpleCell(width) for width in (4, 5, 2)], skip_connections=True
    )
    x = inputs_of(rng, ROWS, STEPS).astype(jnp.float32)
    params = random_params(rng, stack, x)

    y = jit_apply(stack, params, x)

    @jax.jit
    def one_by_one(params, x):
        outputs, h = [], x
        for k, cell in enumerate(stack.layers):
            own = {"params": {"cell": params["params"][f"layers_{k}"]}}
            outputs.append(rnncells.RNN(cell).apply(own, h))
            h = jnp.concatenate([outputs[-1], x], axis=-1)
        return jnp.concatenate(outputs, axis=-1)

    assert_close(y, one_by_one(params, x))


def test_stack_takes_every_kind_of_layer(rng):
    stack = rnncells.Stack(
        [
            nn.RNN(nn.GRUCell(4)),
            rnncells.Bidirectional(
                rnncells.RNN(rnncells.GRUCell(4)), rnncells.RNN(rnncells.GRUCell(5))
            ),
            rnncells.LSTM(3, num_layers=2),
            rnncells.Stack([rnncells.SimpleCell(2), nn.Dense(7)]),
        ],
        return_carry=True,
    )
    x = inputs_of(rng, STEPS, ROWS).astype(jnp.float32)

    init = partial(stack.init_with_output, time_major=True)
    (carries, y), params = jax.eval_shape(init, KEY, x)

    chex.assert_shape(y, (STEPS, ROWS, 7))
    assert len(carries) == 4
    run = partial(stack.apply, time_major=True)
    again, _ = jax.eval_shape(run, params, x, initial_carry=carries)
    chex.assert_trees_all_equal_shapes(again, carries)


def test_stack_returns_the_final_carries(rng):
    rnn = rnncells.RNN(rnncells.GRUCell(FEATURES), return_all_carries=True)
    x = inputs_of(rng, ROWS, STEPS).astype(jnp.float32)

    stack = rnncells.Stack([rnn], return_carry=True)
    (carry,), y = jit_apply(stack, random_params(rng, stack, x), x)

    np.testing.assert_array_equal(carry, y[:, -1])


def test_layers_can_be_static_arguments(rng):
    initial = rnncells.initializers.pytorch(FEATURES)
    layers = (
        rnncells.LSTM(FEATURES, **initial),
        rnncells.RNN(rnncells.GRUCell(FEATURES), split_rngs={"params": False}),
    )
    for layer in layers:
        assert hash(layer) == hash(layer.clone())
        assert layer == layer.clone()


MIXING = {
    "Dense": nn.Dense(5),
    "LayerNorm of a step": nn.LayerNorm(),
    "BatchNorm": nn.BatchNorm(use_running_average=False),
    "GroupNorm": nn.GroupNorm(2),
    "InstanceNorm": nn.InstanceNorm(),
    "LayerNorm": nn.LayerNorm(reduction_axes=(-2, -1)),
    "RMSNorm": nn.RMSNorm(reduction_axes=(1,), feature_axes=-1),
    "Conv": nn.Conv(5, (3,)),
    "ConvTranspose": nn.ConvTranspose(5, 3),
    "attention": nn.MultiHeadDotProductAttention(2),
}


@pytest.mark.default
def test_padding_does_not_count_in_layers_of_flax(rng):
    """They compute what they do for each row alone, and have finite gradients."""
    lengths, width = (5, 0, 3), 4
    x = rng.standard_normal((3, 5, width)).astype(np.float32)
    valid = np.arange(7) < np.array(lengths)[:, None]
    padded = np.where(valid[..., None], np.pad(x, ((0, 0), (0, 2), (0, 0))), 9)
    padded[1:, 4] = np.nan
    stacks = {name: rnncells.Stack([layer]) for name, layer in MIXING.items()}
    params = {name: random_params(rng, stack, x) for name, stack in stacks.items()}

    @jax.jit
    def both(params):
        found, expected = {}, {}
        for name, stack in stacks.items():
            layer, own = MIXING[name], jax.tree.map(jnp.asarray, params[name])
            inner = {kind: tree["layers_0"] for kind, tree in own.items()}
            apply = partial(layer.apply, inner, mutable=["batch_stats"])
            rows = [x[k, None, :n] for k, n in enumerate(lengths) if n]
            if name == "BatchNorm":
                expected[name] = apply(jnp.concatenate(rows, 1))[0][0]
            else:
                expected[name] = jnp.concatenate([apply(row)[0][0] for row in rows])

            def loss(own, stack=stack, options=options_of(name)):
                y, _ = stack.apply(own, **options, mutable=["batch_stats"])
                y = y.swapaxes(0, 1) if options.get("time_major") else y
                y = y[valid]
                return jnp.sum(y**2), y

            grads, found[name] = jax.grad(loss, has_aux=True)(own)
            found[name] += 0 * sum(map(jnp.sum, jax.tree.leaves(grads)))
        return found, expected

    def options_of(name):
        if name == "BatchNorm":
            return {
                "inputs": padded.swapaxes(0, 1),
                "mask": valid.T,
                "time_major": True,
            }
        return {"inputs": padded, "seq_lengths": np.array(lengths)}

    found, expected = both(params)
    for name in MIXING:
        np.testing.assert_allclose(found[name], expected[name], atol=1e-5, err_msg=name)


class Normed(nn.Module):
    """A module of a user with a layer, and layers that see other steps."""

    @nn.compact
    def __call__(self, x):
        x = x + rnncells.GRU(6)(x)[0]
        x = nn.BatchNorm(use_running_average=False)(x=nn.Dense(4)(x))
        near = jnp.abs(jnp.arange(6)[:, None] - jnp.arange(6)) < 2
        attention = nn.MultiHeadDotProductAttention(2)
        return nn.Conv(4, (3,))(inputs=attention(x, mask=near))


@pytest.mark.default
def test_padding_does_not_count_inside_of_other_modules(rng):
    """Lengths can be a list of traced numbers, and inputs several arrays."""
    inner = nn.Sequential([nn.Sequential([Normed()]), nn.LayerNorm()])
    stack = rnncells.Stack([lambda xs: jnp.concatenate(xs, -1), inner])
    x = jnp.asarray(rng.standard_normal((2, 6, 3)), jnp.float32)
    params = jax.jit(stack.init)(jax.random.key(0), (x, x))

    @jax.jit
    def run(x, lengths):
        options = {"seq_lengths": lengths, "mutable": ["batch_stats"]}
        return stack.apply(params, (x, 2 * x), **options)[0]

    y, z = run(x, [6, 3]), run(x.at[1, 3:].set(9.0), [6, 3])
    assert_close(y[0], z[0])
    assert_close(y[1, :3], z[1, :3])


def test_time_may_change_where_no_layer_needs_the_lengths(rng):
    stack = rnncells.Stack([rnncells.GRUCell(4), lambda y: y[:, ::2], nn.Dense(2)])
    params = jax.eval_shape(stack.init, KEY, X)
    y = jax.eval_shape(partial(stack.apply, seq_lengths=LENGTHS), params, X)
    assert y.shape == (ROWS, -(-STEPS // 2), 2)


def test_initial_carry_needs_no_parameters_of_setup():
    """A cell that declares parameters in `setup` makes its carry without them."""
    cell = rnncells.RGLRUCell(FEATURES)
    around = rnncells.ZoneoutCell(cell, deterministic=True)
    for layer in (cell, around, rnncells.StackedCell([cell])):
        carry = rnncells.Stack([layer]).initialize_carry(None, (ROWS, FEATURES))
        assert [leaf.shape for leaf in jax.tree.leaves(carry)] == [(ROWS, FEATURES)]


@pytest.mark.parametrize(
    "layer",
    [
        rnncells.RNN(rnncells.GRUCell(4), learn_initial_carry=True),
        rnncells.Stack([rnncells.LSTM(4, learn_states=True)]),
    ],
    ids=["RNN", "Stack"],
)
def test_a_batch_shape_is_enough_while_parameters_are_created(layer):
    options = {"method": "initialize_carry"}
    init = partial(layer.init_with_output, KEY, None, **options)
    carry, params = init(batch_shape=(ROWS,))
    assert_equal((carry, params), init((ROWS, FEATURES_IN)))
    assert_equal(carry, layer.apply(params, None, batch_shape=(ROWS,), **options))
