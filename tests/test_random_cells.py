"""Cells that draw random numbers: masks, and streams over time."""

import itertools
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import (
    assert_close,
    assert_equal,
    assert_equals_the_plain_loop,
    jit_apply,
    random_like,
    random_params,
)
from equations.gru import gru
from equations.lstm import lstm
from equations.parts import arrays
from levels import by_level

import rnncells

BATCH, TIME, FEATURES_IN, FEATURES = 2, 7, 3, 4
SPLIT = {"params": False, "dropout": True}
FIXED = {"params": False, "dropout": False}
KEYS = {
    "params": jax.random.key(0),
    "dropout": jax.random.key(1),
    "zoneout": jax.random.key(9),
}


def zoneout(rate=0.4, inner=rnncells.LSTMCell, **options):
    cell = inner(FEATURES, param_dtype=jnp.result_type(float))
    return rnncells.ZoneoutCell(cell, rate, **{"deterministic": False} | options)


simple_zoneout = partial(zoneout, inner=rnncells.SimpleCell)


def variational(name, **options):
    rates = {"input_rate": 0.3, "recurrent_rate": 0.4}
    options = rates | {"deterministic": False} | options
    options["param_dtype"] = jnp.result_type(float)
    return getattr(rnncells, name)(FEATURES, **options)


class NoisyCell(rnncells.SimpleCell):
    """A user's: noise on the state, by its own key at each step."""

    def recur(self, carry, projected):
        carry, output = super().recur(carry, projected)
        noise = jax.random.normal(self.make_rng("dropout"), carry.shape, carry.dtype)
        return carry + 0.1 * noise, output


CELLS = {
    "zoneout": (zoneout, SPLIT),
    "zoneout-simple": (simple_zoneout, SPLIT),
    "zoneout-fixed": (zoneout, FIXED),
    "zoneout-gru": (partial(zoneout, inner=rnncells.GRUCell), SPLIT),
    "variational-lstm": (partial(variational, "VariationalLSTMCell"), FIXED),
    "variational-split": (partial(variational, "VariationalLSTMCell"), SPLIT),
    "variational-gru": (partial(variational, "VariationalGRUCell"), FIXED),
    "zoneout-variational": (
        lambda: rnncells.ZoneoutCell(
            variational("VariationalLSTMCell"), 0.4, False, "zoneout"
        ),
        {"params": False},
    ),
    "stacked": (
        lambda: rnncells.StackedCell(
            [
                rnncells.SimpleCell(5, param_dtype=jnp.result_type(float)),
                nn.Dropout(0.4),
                simple_zoneout(),
            ],
            deterministic=False,
        ),
        SPLIT,
    ),
    "drop-connect": (
        lambda: rnncells.DropConnectCell(
            rnncells.GRUCell(FEATURES, num_heads=2, param_dtype=jnp.result_type(float)),
            *(0.4, False),
        ),
        FIXED,
    ),
    "own": (lambda: NoisyCell(FEATURES, param_dtype=jnp.result_type(float)), SPLIT),
}


def inputs_of(rng, *leading):
    values = rng.standard_normal((*leading, FEATURES_IN))
    return values.astype(jnp.result_type(float))


def setting(rng, make, streams, **options):
    x = inputs_of(rng, BATCH, TIME)
    rnn = rnncells.RNN(make(), split_rngs=streams, **options)
    shapes = jax.eval_shape(rnn.init, KEYS, x)
    return rnn, random_like(rng, shapes), x


def gradients(rnn):
    """Returns a compiled function of parameters, inputs and a key."""

    @jax.jit
    def compute(params, x, key=KEYS["dropout"]):
        def loss(params, x):
            rngs = {"dropout": key, "zoneout": KEYS["zoneout"]}
            y = rnn.apply(params, x, rngs=rngs)
            return jnp.sum(jnp.sin(y)), y

        (_, y), pulled = jax.value_and_grad(loss, (0, 1), has_aux=True)(params, x)
        return y, pulled

    return compute


OPTIONS = {
    "chunks": {"projection": rnncells.Chunk(2)},
    "recompute": {"memory": "recompute"},
    "starts": {"memory": rnncells.Chunk(4)},
    # The last chunk has fewer steps than the others.
    "both": {"memory": rnncells.Chunk(4), "projection": rnncells.Chunk(2)},
}


@pytest.mark.parametrize(
    "name, option",
    by_level([*itertools.product(CELLS, OPTIONS)], [("zoneout-simple", "recompute")]),
)
def test_fast_loop_draws_what_the_plain_loop_draws(name, option, rng, float64):
    make, streams = CELLS[name]
    plain, params, x = setting(rng, make, streams, implementation="scan")
    # `OPTIONS` raise unless the fast loop runs.
    fast = rnncells.RNN(make(), split_rngs=streams, **OPTIONS[option])

    compute = gradients(fast)
    y, pulled = compute(params, x)
    expected, expected_pulled = gradients(plain)(params, x)

    assert_close(y, expected, rtol=0, atol=1e-14)
    assert_close(pulled, expected_pulled, rtol=1e-12, atol=1e-13)
    other, _ = compute(params, x, jax.random.key(2))
    assert not np.allclose(other, y)


@pytest.mark.parametrize("name", by_level(CELLS, ["zoneout-simple"]))
def test_each_call_draws_what_the_plain_loop_draws(name, rng):
    make, streams = CELLS[name]
    plain, params, x = setting(rng, make, streams, implementation="scan")

    def uses(rnn, x):
        _, first_step = rnn.step(None, x[:, 0])
        return rnn(x), rnn(x), first_step, rnn(x)

    rngs = {name: KEYS[name] for name in ("dropout", "zoneout")}
    fast = plain.clone(implementation="auto")
    actual, expected = (
        jit_apply(layer, params, x, rngs=rngs, method=uses) for layer in (fast, plain)
    )

    assert_close(actual, expected)
    assert not np.allclose(actual[0], actual[1])


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", [jnp.int8, bool])
def test_masks_apply_to_inputs_of_any_dtype(kind, rng):
    rnn, params, x = setting(rng, partial(variational, "VariationalLSTMCell"), FIXED)
    x = x > 0
    rngs = {"dropout": KEYS["dropout"]}
    y = jit_apply(rnn, params, x.astype(kind), rngs=rngs)
    assert_close(y, jit_apply(rnn, params, x.astype(jnp.float32), rngs=rngs))


def test_cell_within_a_cell_in_compact_takes_the_plain_loop(rng):
    class Model(nn.Module):
        options: dict

        @nn.compact
        def __call__(self, x):
            cell = rnncells.ZoneoutCell(rnncells.GRUCell(FEATURES), 0.5, False)
            return rnncells.RNN(cell, **self.options)(x)

    x = inputs_of(rng, BATCH, TIME)
    params = jax.eval_shape(Model({}).init, KEYS, x)
    with pytest.raises(ValueError, match="create them in `setup`"):
        Model({"memory": "sqrt"}).apply(params, x, rngs={"dropout": KEYS["dropout"]})


RAW, TYPED = jax.random.PRNGKey, jax.random.key


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "impl, make_key", [*itertools.product(["rbg", "unsafe_rbg"], [RAW, TYPED])]
)
def test_keys_of_any_generator_draw_what_the_plain_loop_draws(
    impl, make_key, rng, float64
):
    plain, params, x = setting(rng, simple_zoneout, SPLIT, implementation="scan")
    fast = plain.clone(implementation="auto")
    with jax.default_prng_impl(impl):
        key = make_key(5)
        actual, expected = (gradients(rnn)(params, x, key) for rnn in (fast, plain))
        assert_close(actual, expected, rtol=1e-12, atol=1e-13)


class DroppingCell(rnncells.SimpleCell):
    """A user's: dropout on the inputs."""

    def setup(self):
        super().setup()
        self.dropout = nn.Dropout(0.5, deterministic=False)

    def project(self, inputs):
        return super().project(self.dropout(inputs))


@pytest.mark.parametrize(
    "features, streams",
    by_level([*itertools.product([FEATURES, None], [SPLIT, FIXED])], [(None, FIXED)]),
)
def test_dropout_in_project_draws_what_the_plain_loop_draws(
    features, streams, rng, float64
):
    cell = DroppingCell(features, param_dtype=jnp.float64)
    rnn = rnncells.RNN(cell, split_rngs=streams)
    x = inputs_of(rng, BATCH, TIME)
    carry = jnp.asarray(rng.standard_normal((BATCH, FEATURES)))
    params = random_like(rng, jax.eval_shape(rnn.init, KEYS, x, initial_carry=carry))
    assert_equals_the_plain_loop(rnn, params, x, carry, rngs=KEYS)


def test_vmapped_rows_draw_from_their_own_keys(rng):
    rnn, params, x = setting(rng, simple_zoneout, SPLIT)
    keys = jax.random.split(jax.random.key(3), BATCH)

    def run(x, key):
        return rnn.apply(params, x, rngs={"dropout": key})

    together = jax.jit(jax.vmap(run))(x, keys)

    run = jax.jit(run)
    alone = np.stack([run(x[row], keys[row]) for row in range(BATCH)])
    assert_close(together, alone)


def test_zoneout_keeps_old_states_at_the_given_rate(rng, float64):
    inner = rnncells.LSTMCell(50)
    cell = rnncells.ZoneoutCell(inner, rate=(0.7, 0.2), deterministic=False)
    carry = tuple(jnp.asarray(rng.standard_normal((BATCH, 50))) for _ in range(2))
    x = inputs_of(rng, BATCH)
    params = random_params(rng, inner, carry, x)
    new, _ = jit_apply(inner, params, carry, x)

    (c, h), y = jit_apply(
        cell,
        {"params": {"cell": params["params"]}},
        carry,
        x,
        rngs={"dropout": jax.random.key(4)},
    )

    for zoned, old, candidate, rate in zip((c, h), carry, new, (0.7, 0.2), strict=True):
        kept = zoned == old
        np.testing.assert_array_equal(zoned, jnp.where(kept, old, candidate))
        # Of 100 numbers: 4 standard deviations.
        assert abs(kept.mean() - rate) < 4 * np.sqrt(rate * (1 - rate) / kept.size)
    assert (y == h).all()


def masks(monkeypatch, rng):
    """Puts known masks in place of drawn ones; returns them, by shape without time."""
    drawn = {}

    def bernoulli(key, p=0.5, shape=None, **_):
        shape = tuple(n for n in shape if n != 1)
        return jnp.asarray(drawn.setdefault(shape, rng.random(shape) < p))

    monkeypatch.setattr(jax.random, "bernoulli", bernoulli)
    return drawn


def masked_lstm(p, carry, x, mask):
    return lstm(p, (carry[0], mask * carry[1]), x)


@pytest.mark.parametrize(
    "name, step",
    [
        ("VariationalLSTMCell", masked_lstm),
        ("VariationalGRUCell", lambda *args: gru(*args[:3], mask=args[3])),
    ],
)
def test_variational_dropout_follows_its_equations(
    name, step, rng, float64, monkeypatch
):
    rnn, params, x = setting(rng, partial(variational, name), FIXED)
    drawn = masks(monkeypatch, rng)

    y = jit_apply(rnn, params, x, rngs={"dropout": KEYS["dropout"]})

    z_x = drawn[BATCH, FEATURES_IN] / 0.7
    z_h = drawn[BATCH, FEATURES] / 0.6
    state = np.zeros((BATCH, FEATURES))
    carry = (state, state) if "LSTM" in name else state
    for t in range(TIME):
        inputs = z_x * np.asarray(x[:, t])
        carry, expected = step(arrays(params)["cell"], carry, inputs, z_h)
        np.testing.assert_allclose(y[:, t], expected, rtol=1e-12)


@pytest.mark.parametrize("implementation", by_level(["auto", "scan"], 1))
def test_masks_of_an_inner_cell_are_equal_at_all_steps(implementation, rng):
    """With the same inputs, a reset at each step, and nothing kept, all steps agree."""
    cell = rnncells.ZoneoutCell(
        variational("VariationalLSTMCell"), rate=0.0, rng_collection="zoneout"
    )
    rnn = rnncells.RNN(cell, implementation=implementation)
    x = jnp.broadcast_to(inputs_of(rng, BATCH, 1), (BATCH, TIME, FEATURES_IN))
    params = random_like(rng, jax.eval_shape(rnn.init, KEYS, x))
    resets = jnp.ones((BATCH, TIME), bool)

    y, other = (
        jit_apply(
            rnn, params, x, resets=resets, rngs=KEYS | {"dropout": jax.random.key(n)}
        )
        for n in (1, 2)
    )

    assert_close(y, jnp.broadcast_to(y[:, :1], y.shape))
    assert not np.allclose(y, other)


@pytest.mark.parametrize(
    "name",
    by_level(["zoneout-simple", "zoneout", "variational-lstm"], ["zoneout-simple"]),
)
def test_cells_declare_their_random_streams(name, rng):
    make, streams = CELLS[name]
    told, params, x = setting(rng, make, streams)
    rngs = {"dropout": KEYS["dropout"]}

    y = jit_apply(rnncells.RNN(make()), params, x, rngs=rngs)

    assert_equal(y, jit_apply(told, params, x, rngs=rngs))
    both = rnncells.Bidirectional(rnncells.RNN(make()), rnncells.RNN(make()))
    stack = rnncells.Stack([make(), make()])
    for layer in (both, stack):
        own = random_like(rng, jax.eval_shape(layer.init, KEYS, x))
        first, second = (
            jit_apply(layer, own, x, rngs={"dropout": jax.random.key(n)})
            for n in (1, 2)
        )
        assert not np.allclose(first, second)


@pytest.mark.exhaustive
def test_variational_cell_has_the_initial_values_of_the_plain_cell(rng):
    chrono = {"bias_init": rnncells.initializers.chrono(50)}
    x = inputs_of(rng, BATCH, TIME)
    own = rnncells.RNN(variational("VariationalLSTMCell", **chrono))
    plain = rnncells.RNN(rnncells.LSTMCell(FEATURES, **chrono))
    both = jax.jit(lambda keys, x: [rnn.init(keys, x) for rnn in (own, plain)])
    assert_equal(*both(KEYS, x))


@pytest.mark.exhaustive
def test_masks_of_a_cell_under_remat_equal_the_plain_loop(rng):
    def make():
        rates = {"input_rate": 0.3, "recurrent_rate": 0.4}
        remat = nn.remat(rnncells.VariationalGRUCell)
        return remat(FEATURES, **rates, deterministic=False)

    rnn, params, x = setting(rng, make, FIXED)
    plain = rnn.clone(implementation="scan")
    y, expected = (
        jit_apply(layer, params, x, rngs={"dropout": KEYS["dropout"]})
        for layer in (rnn, plain)
    )
    assert_close(y, expected)


def test_drop_connect_multiplies_by_one_scaled_mask(rng, float64):
    """Without inputs and from the identity, a linear cell shows powers of its kernel.

    All rows of the batch and all steps share one mask.
    """
    size, rate = 40, 0.3
    cell = rnncells.SimpleCell(size, activation_fn=lambda x: x, param_dtype=float)
    rnn = rnncells.RNN(rnncells.DropConnectCell(cell, rate, deterministic=False))
    x = jnp.zeros((size, 3, 2))
    of_cell = random_params(rng, rnncells.RNN(cell), x)["params"]["cell"]
    of_cell["i"]["bias"] = jnp.zeros(size)
    params = {"params": {"cell": {"cell": of_cell}}}
    y = jit_apply(
        rnn,
        *(params, x),
        initial_carry=jnp.eye(size),
        rngs={"dropout": jax.random.key(3)},
    )
    W, dropped = of_cell["h"]["kernel"], y[:, 0]
    is_zero = dropped == 0
    np.testing.assert_allclose(dropped, jnp.where(is_zero, 0, W / (1 - rate)))
    assert abs(is_zero.mean() - rate) < 0.05
    np.testing.assert_allclose(y[:, 1], dropped @ dropped, rtol=1e-9, atol=1e-9)
    expected = jit_apply(
        rnncells.RNN(cell),
        {"params": {"cell": of_cell}},
        x,
        initial_carry=jnp.eye(size),
    )
    found = jit_apply(rnn, params, x, initial_carry=jnp.eye(size), deterministic=True)
    assert_equal(found, expected)
