"""Named values, their cotangents, Jacobians and statistics, against NumPy and loops."""

import cProfile
import itertools
import sys
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from equations.parts import sigmoid
from equations.table import EQUATIONS
from levels import by_level
from user_cells import FlaxCell

import rnncells
from rnncells import diagnostics

BATCH, TIME, INPUTS, FEATURES = 2, 5, 3, 4
LENGTHS = np.array([5, 3])
MASK = np.array([[1, 0, 1, 1, 1], [1, 1, 1, 0, 1]], bool)
RESETS = np.array([[0, 1, 1, 0, 0], [0, 1, 0, 0, 0]], bool)


pytestmark = pytest.mark.usefixtures("float64")


class LeakyCell(FlaxCell):
    """A cell of a user, with one method and its own names."""

    @nn.compact
    def __call__(self, carry, inputs):
        old = carry
        rate = nn.sigmoid(nn.Dense(self.features, param_dtype=float)(inputs))
        kernel = self.param("kernel", nn.initializers.normal(), (self.features,) * 2)
        candidate = jnp.tanh(old @ kernel)
        _private = candidate + 1
        carry = old + rate * (candidate - old)
        return carry, 2 * carry


def named(equations, names):
    """Returns equations that also return some of their local values, by name."""

    def run(weights, carry, x):
        values = {}

        def profile(frame, event, argument):
            if event == "return" and frame.f_code is equations.__code__:
                values.update(frame.f_locals)

        sys.setprofile(profile)
        try:
            new, _ = equations(weights, carry, x)
        finally:
            sys.setprofile(None)
        return new, {name: values[name] for name in names}

    return run


lstm, gru, simple = (
    named(EQUATIONS[f"{name}Cell"], names)
    for name, names in [("LSTM", "ifgoch"), ("GRU", "rznh"), ("Simple", "ah")]
)


def leaky(w, h, x):
    rate = sigmoid(x @ w["Dense_0"]["kernel"] + w["Dense_0"]["bias"])
    candidate = np.tanh(h @ w["kernel"])
    new = h + rate * (candidate - h)
    return new, {"old": h, "rate": rate, "candidate": candidate, "carry": new}


CELLS = {
    "LSTMCell": (rnncells.LSTMCell, lstm),
    "GRUCell": (rnncells.GRUCell, gru),
    "SimpleCell": (rnncells.SimpleCell, simple),
    "a user's cell": (LeakyCell, leaky),
}


def made(layer, seed=0):
    """Returns variables with random biases, and inputs, in float64."""
    random = np.random.RandomState(seed)
    x = random.randn(BATCH, TIME, INPUTS)
    params = jax.eval_shape(layer.init, jax.random.key(0), x)
    return jax.tree.map(lambda leaf: random.randn(*leaf.shape) / 2, params), x


def by_hand(equations, weights, carry, x, resets=None, mask=None, reverse=False):
    """Runs equations of NumPy over time; returns values and carries of every step."""
    start, found = carry, [None] * TIME
    for t in reversed(range(TIME)) if reverse else range(TIME):
        if resets is not None:
            carry = jax.tree.map(
                lambda new, old: np.where(resets[:, t, None], new, old), start, carry
            )
        new, found[t] = equations(weights, carry, x[:, t])
        found[t]["new carry"] = new
        if mask is not None:
            new = jax.tree.map(
                lambda new, old: np.where(mask[:, t, None], new, old), new, carry
            )
        carry = new
    return jax.tree.map(lambda *steps: np.stack(steps, 1), *found)


def zeros_like_carry(layer, x):
    carry = layer.cell.initialize_carry(jax.random.key(0), x[:, 0].shape)
    return jax.tree.map(lambda leaf: np.zeros(leaf.shape), carry)


def check(recorded, expected, mask=None):
    carry = expected["new carry"]
    names = expected.keys() - {"new carry"}
    assert names <= recorded.values.keys()
    assert not any(name.startswith("_") for name in recorded.values)
    where = np.ones((BATCH, TIME), bool) if mask is None else mask
    recorded = jax.device_get(recorded)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a[where], b[where], 0, 1e-12),
        ({name: recorded.values[name] for name in names}, recorded.carry),
        ({name: expected[name] for name in names}, carry),
    )


@pytest.mark.parametrize("name", by_level(CELLS, 2))
def test_named_values_equal_equations_in_numpy(name):
    kind, equations = CELLS[name]
    options = {} if kind == LeakyCell else {"param_dtype": float}
    rnn = rnncells.RNN(kind(FEATURES, **options))
    variables, x = made(rnn)
    found = jax.jit(partial(diagnostics.record, rnn))(variables, x)
    weights = variables["params"]["cell"]
    expected = by_hand(equations, weights, zeros_like_carry(rnn, x), x)
    check(found[""], expected)
    assert found[""].mask.all()
    step_values = jax.jit(partial(diagnostics.step_values, rnn.cell))
    step = step_values({"params": weights}, zeros_like_carry(rnn, x), x[:, 0])
    for key in expected.keys() - {"new carry"}:
        np.testing.assert_allclose(step[key], expected[key][:, 0], 0, 1e-12)


LSTM_RNN = rnncells.RNN(rnncells.LSTMCell(FEATURES, param_dtype=float))
VALID = MASK & (np.arange(TIME) < LENGTHS[:, None])


def last_steps_reversed(resets):
    """Returns the steps before which a pass from right to left resets the carry."""
    return np.concatenate([resets[:, 1:], np.zeros((BATCH, 1), bool)], 1)


@pytest.mark.parametrize(
    "time_major, reverse", by_level([*itertools.product([False, True], repeat=2)], 1)
)
def test_values_stand_at_the_steps_of_the_inputs(time_major, reverse):
    variables, x = made(LSTM_RNN)
    arrays = {"mask": MASK, "resets": RESETS}
    inputs = x
    if time_major:
        inputs, arrays = x.swapaxes(0, 1), {k: v.T for k, v in arrays.items()}
    options = {"jacobians": True, "reverse": reverse, "time_major": time_major}
    record = jax.jit(partial(diagnostics.record, LSTM_RNN, **options))
    found = jax.device_get(record(variables, inputs, **arrays, seq_lengths=LENGTHS)[""])
    carry = zeros_like_carry(LSTM_RNN, x)
    inside = RESETS & (np.arange(TIME) < LENGTHS[:, None])
    resets = last_steps_reversed(inside) if reverse else inside
    weights = variables["params"]["cell"]
    expected = by_hand(lstm, weights, carry, x, resets, VALID, reverse)
    check(found, expected, VALID)
    np.testing.assert_array_equal(found.mask, VALID)
    # A reset cuts the carry, also at a masked step, and other masked steps hand it on.
    size = 2 * FEATURES
    held = ~VALID & ~resets
    identity = np.broadcast_to(np.eye(size), (*VALID.shape, size, size))
    np.testing.assert_array_equal(found.jacobians[held], identity[held])
    assert (resets & ~VALID).any() and not found.jacobians[resets].any()
    assert (np.abs(found.jacobians[VALID & ~resets]).max((-2, -1)) > 0.01).all()


@pytest.mark.default
def test_layers_in_layers_have_paths():
    cell = partial(rnncells.SimpleCell, FEATURES, param_dtype=float)
    both = rnncells.Bidirectional(rnncells.RNN(cell()), rnncells.RNN(cell()))
    stack = rnncells.Stack(
        [both, rnncells.ElmanRNN(FEATURES, num_layers=2, param_dtype=float)]
    )
    variables, x = made(stack)
    found = jax.jit(partial(diagnostics.record, stack))(variables, x)
    carry, weights = np.zeros((BATCH, FEATURES)), variables["params"]
    below = weights["layers_0"]
    forward = by_hand(simple, below["forward_rnn"]["cell"], carry, x)
    backward = by_hand(simple, below["backward_rnn"]["cell"], carry, x, reverse=True)
    merged = np.concatenate([forward["h"], backward["h"]], -1)
    first = by_hand(simple, weights["layers_1"]["layers_0"]["cell"], carry, merged)
    second = by_hand(simple, weights["layers_1"]["layers_1"]["cell"], carry, first["h"])
    expected = {
        "layers_0/forward_rnn": forward,
        "layers_0/backward_rnn": backward,
        "layers_1/layers_0": first,
        "layers_1/layers_1": second,
    }
    assert set(found) == set(expected)
    for path, values in expected.items():
        check(found[path], values)


def tapped_lstm(w, x, taps):
    """Returns the outputs of a masked LSTM whose values have taps, in a plain loop."""

    def step(carry, at):
        (c, h), (x, tap, is_valid) = carry, at
        a = jnp.concatenate(
            [
                x @ w[f"i{k}"]["kernel"] + h @ w[f"h{k}"]["kernel"] + w[f"h{k}"]["bias"]
                for k in "ifgo"
            ],
            -1,
        )
        i, f, g, o = jnp.split(a + tap["a"], 4, -1)
        i, f = nn.sigmoid(i) + tap["i"], nn.sigmoid(f) + tap["f"]
        g, o = jnp.tanh(g) + tap["g"], nn.sigmoid(o) + tap["o"]
        new_c = f * c + i * g + tap["c"]
        new_h = o * jnp.tanh(new_c) + tap["h"]
        kept = is_valid[:, None]
        return (jnp.where(kept, new_c, c), jnp.where(kept, new_h, h)), new_h

    start = (jnp.zeros((BATCH, FEATURES)),) * 2
    steps = jax.tree.map(lambda leaf: leaf.swapaxes(0, 1), (x, taps, VALID))
    return jax.lax.scan(step, start, steps)[1].swapaxes(0, 1)


def test_cotangents_equal_the_gradient_of_a_loop():
    variables, x = made(LSTM_RNN)
    weights = np.random.RandomState(1).randn(BATCH, TIME, FEATURES)

    def loss(outputs):
        return jnp.sum(jnp.where(VALID[..., None], weights * outputs**2, 0))

    found = jax.jit(partial(diagnostics.cotangents, loss, LSTM_RNN))(
        variables, x, seq_lengths=LENGTHS, mask=MASK
    )[""]
    found = jax.device_get(found)
    gradient = jax.grad(
        lambda taps: loss(tapped_lstm(variables["params"]["cell"], x, taps))
    )
    taps = jax.tree.map(np.zeros_like, found.values)
    expected = jax.device_get(jax.jit(gradient)(taps))
    assert set(found.values) == set("aifgoch")
    for name, value in expected.items():
        np.testing.assert_allclose(found.values[name], value, 0, 1e-12, err_msg=name)
        assert value[VALID].any() and not np.asarray(value[~VALID]).any()
    c, h = found.carry
    np.testing.assert_allclose(c, expected["c"], 0, 1e-12)
    np.testing.assert_allclose(h, expected["h"], 0, 1e-12)
    norms = np.sqrt(np.sum(expected["c"] ** 2 + expected["h"] ** 2, -1))
    np.testing.assert_allclose(diagnostics.norms(found.carry), norms, 0, 1e-12)


@pytest.mark.default
def test_cotangents_of_a_reversed_layer_stand_at_the_steps_of_the_inputs():
    variables, x = made(LSTM_RNN)
    at = 1  # the output there depends on no earlier step of the inputs

    def loss(outputs):
        return jnp.sum(outputs[:, at])

    options = {"reverse": True, "keep_order": True}
    cotangents = partial(diagnostics.cotangents, loss, LSTM_RNN, **options)
    found = jax.device_get(jax.jit(cotangents)(variables, x)[""])
    reached = np.abs(found.values["o"]).max((0, 2)) > 0
    np.testing.assert_array_equal(reached, np.arange(TIME) >= at)
    np.testing.assert_array_equal(found.carry[1][:, at], 1)


class CountingCell(nn.RNNCellBase):
    """A cell whose carry has an integer, and a leaf that no step changes."""

    num_feature_axes = 1

    def initialize_carry(self, key, input_shape):
        zeros = jnp.zeros((*input_shape[:-1], INPUTS))
        return jnp.zeros(input_shape[:-1], jnp.int32), zeros + 2.0, zeros

    @nn.compact
    def __call__(self, carry, inputs):
        count, scale, h = carry
        count = count + 1
        h = scale * h + inputs
        return (count, scale, h), h


@pytest.mark.default
def test_carries_can_have_integers_and_constants():
    rnn = rnncells.RNN(CountingCell())
    x = np.ones((BATCH, TIME, INPUTS))
    record = partial(diagnostics.record, rnn, jacobians=True)
    found = jax.device_get(jax.jit(record)({}, x)[""])
    np.testing.assert_array_equal(found.values["count"][0], np.arange(1, TIME + 1))
    np.testing.assert_array_equal(found.carry[1], 2.0)
    expected = np.eye(2 * INPUTS)  # of (scale, h)
    expected[INPUTS:, INPUTS:] *= 2
    expected[INPUTS:, :INPUTS] += np.eye(INPUTS) * found.carry[2][0, 1, 0]
    np.testing.assert_array_equal(found.jacobians[0, 2], expected)

    def loss(outputs):
        return jnp.sum(outputs[:, -1])

    gradients = jax.jit(partial(diagnostics.cotangents, loss, rnn))({}, x)[""]
    count, scale, h = jax.device_get(gradients.carry)
    assert count.shape == (BATCH, TIME) and not count.any()
    np.testing.assert_array_equal(h[0, :, 0], 2.0 ** np.arange(TIME)[::-1])
    # By the scale after step t, h_t being fixed: all later steps read it.
    before = found.carry[2][0, :, 0]
    terms = [2.0 ** (TIME - 1 - s) * before[s - 1] for s in range(1, TIME)]
    later = [sum(terms[t:]) for t in range(TIME)]
    np.testing.assert_array_equal(scale[0, :, 0], later)


@pytest.mark.parametrize("reverse", by_level([False, True], 1))
def test_gradients_of_the_carry_equal_those_of_a_loop(reverse):
    rnn = rnncells.RNN(rnncells.GRUCell(FEATURES, param_dtype=float), reverse=reverse)
    variables, x = made(rnn)
    weights = {"params": variables["params"]["cell"]}
    record = partial(diagnostics.record, rnn, jacobians=True)
    found = jax.device_get(jax.jit(record)(variables, x)[""])
    steps = list(range(TIME))[::-1] if reverse else list(range(TIME))
    step = jax.jit(lambda carry, x: rnn.cell.apply(weights, carry, x)[0])

    def final(carry, after):
        for t in steps[after + 1 :]:
            carry = step(carry, x[0, t])
        return carry

    spectral, frobenius = (
        jax.jit(partial(diagnostics.carry_gradients, reverse=reverse, norm=norm))(
            found.jacobians
        )
        for norm in ("spectral", "frobenius")
    )
    for after, t in enumerate(steps):
        by_loop = jax.jacobian(final)(found.carry[0, t], after)
        for norms, order in ((spectral, 2), (frobenius, "fro")):
            expected = np.linalg.norm(by_loop, order)
            np.testing.assert_allclose(norms[0, t], expected, 1e-12)
    last = steps[-2]
    by_step = jax.jacobian(final)(found.carry[0, last], TIME - 2)
    np.testing.assert_allclose(found.jacobians[0, steps[-1]], by_step, 0, 1e-12)


class Map(nn.RNNCellBase):
    """A cell without parameters: a map of its carry."""

    function: object
    start: tuple
    num_feature_axes = 1

    def initialize_carry(self, key, input_shape):
        return jnp.broadcast_to(
            jnp.array(self.start), (*input_shape[:-1], len(self.start))
        )

    def __call__(self, carry, inputs):
        carry = self.function(carry)
        return carry, carry


def exponents(function, start, steps, **options):
    rnn = rnncells.RNN(Map(function, start))
    x = jnp.zeros((steps, 1))

    @jax.jit
    def of_layer(x):
        found = diagnostics.record(rnn, {}, x, jacobians=True, **options)[""]
        return diagnostics.lyapunov_exponents(found.jacobians, found.mask)

    return of_layer(x)


@pytest.mark.default
def test_lyapunov_exponents_of_a_linear_map_are_those_of_its_eigenvalues():
    random = np.random.RandomState(0)
    vectors = random.randn(3, 3)
    matrix = vectors @ np.diag([1.5, -0.7, 0.2]) @ np.linalg.inv(vectors)
    found = exponents(lambda h: h @ matrix.T, (0.0, 0.0, 0.0), 2000)
    # The directions settle in the first steps, whose share is 1 / 2000.
    np.testing.assert_allclose(found, np.log([1.5, 0.7, 0.2]), 0, 2e-3)
    # Half of the steps, at any place, have the same exponents.
    mask = np.arange(2000) % 2 == 0
    half = exponents(lambda h: h @ matrix.T, (0.0, 0.0, 0.0), 2000, mask=mask)
    np.testing.assert_allclose(half, found, 0, 2e-3)


@pytest.mark.default
def test_lyapunov_exponent_of_the_logistic_map_is_ln_2():
    found = exponents(lambda x: 4 * x * (1 - x), (0.3,), 20_000)
    np.testing.assert_allclose(found, np.log(2), 0, 2e-3)


def test_norms_are_ordered_by_the_distance_to_the_last_valid_step():
    values = np.arange(10.0).reshape(2, 5)
    mask = np.array([[1, 1, 0, 1, 0], [1, 1, 1, 1, 1]], bool)
    found = jax.jit(diagnostics.by_lag)(values, mask)
    nan = np.nan
    np.testing.assert_array_equal(found, [[3, 1, 0, nan, nan], [9, 8, 7, 6, 5]])
    found = diagnostics.by_lag(values, mask, reverse=True)
    np.testing.assert_array_equal(found, [[0, 1, 3, nan, nan], [5, 6, 7, 8, 9]])
    np.testing.assert_array_equal(diagnostics.by_lag(values), values[:, ::-1])


def test_norms_of_tiny_gradients_are_not_zero():
    norms = jax.jit(diagnostics.norms)
    tiny, zero = np.full((1, 1, 4), 1e-30, np.float32), np.zeros((1, 1, 4), np.float32)
    np.testing.assert_allclose(norms((tiny, tiny)), np.sqrt(8) * 1e-30, 1e-6)
    steps = np.full((3, 1, 1), 1e-15, np.float32)
    carry_gradients = jax.jit(partial(diagnostics.carry_gradients, norm="frobenius"))
    np.testing.assert_allclose(carry_gradients(steps), [1e-30, 1e-15, 1], 1e-6)
    assert norms((zero, zero)) == 0


@pytest.mark.parametrize("scale", by_level([1e-25, 1e25], 1))
def test_drift_of_tiny_and_huge_states_is_that_of_states_times_a_factor(scale):
    states = np.random.RandomState(0).standard_normal((BATCH, TIME, FEATURES))
    expected = diagnostics.drift(states, MASK)
    found = diagnostics.drift(np.float32(scale * states), MASK)
    for actual, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(actual / scale, wanted, 1e-5)


@pytest.mark.default
def test_statistics_leave_out_masked_steps():
    random = np.random.RandomState(0)
    gate = random.rand(BATCH, TIME, FEATURES)
    valid = [[gate[b, t] for t in range(TIME) if VALID[b, t]] for b in range(BATCH)]
    rows = np.array(sum(valid, []))
    gate[~VALID] = np.nan
    found = jax.jit(diagnostics.saturation)(gate, VALID, low=0.3, high=0.6)
    np.testing.assert_allclose(found.left, (rows < 0.3).mean(0))
    np.testing.assert_allclose(found.right, (rows > 0.6).mean(0))
    drift = jax.jit(diagnostics.drift)(gate, VALID)
    for t in range(TIME):
        at = gate[VALID[:, t], t]
        expected = [at.mean(), at.std(), np.linalg.norm(at, axis=-1).mean()]
        if VALID[:, t].any():
            np.testing.assert_allclose([a[t] for a in drift], expected, 0, 1e-12)


@pytest.mark.default
def test_jitted_and_rematerialized_cells_have_names():
    variables, x = made(LSTM_RNN)
    carry = zeros_like_carry(LSTM_RNN, x)
    expected = by_hand(lstm, variables["params"]["cell"], carry, x)
    for lifted in (nn.jit, nn.remat):
        rnn = rnncells.RNN(lifted(rnncells.LSTMCell)(FEATURES, param_dtype=float))
        check(jax.jit(partial(diagnostics.record, rnn))(variables, x)[""], expected)
        own = {"params": variables["params"]["cell"]}
        rnn.cell.apply(own, carry, x[:, 0])  # fills the caches of traces
        step = diagnostics.step_values(rnn.cell, own, carry, x[:, 0])
        np.testing.assert_allclose(step["f"], expected["f"][:, 0], 0, 1e-12)


@pytest.mark.default
def test_cells_in_cells_have_paths():
    cells = [
        rnncells.ZoneoutCell(rnncells.GRUCell(FEATURES), deterministic=True),
        nn.remat(rnncells.SimpleCell)(FEATURES),
        nn.Dense(INPUTS),
    ]
    rnn = rnncells.RNN(rnncells.StackedCell(cells))
    variables, x = made(rnn)
    found = jax.jit(partial(diagnostics.record, rnn))(variables, x)[""].values
    assert {"layers_0/cell/r", "layers_0/cell/n", "layers_1/a"} <= set(found)
    assert not any(name.startswith("layers_2") for name in found)


class RandomTwice(nn.Module):
    """Calls one layer of a random cell twice; the draws of the second call differ."""

    rnn: nn.Module

    def __call__(self, inputs):
        return [self.rnn(inputs, return_all_carries=True)[0] for _ in range(2)]


@pytest.mark.default
def test_random_cells_draw_the_same_masks():
    cell = rnncells.ZoneoutCell(rnncells.SimpleCell(FEATURES, param_dtype=float), 0.5)
    variables, x = made(RandomTwice(rnncells.RNN(cell.clone(deterministic=True))))
    rnn = rnncells.RNN(cell.clone(deterministic=False))
    rngs = {name: jax.random.key(3) for name in rnn.rng_streams if name != "params"}
    model = RandomTwice(rnn)
    carries = jax.jit(model.apply)(variables, x, rngs=rngs)
    assert not np.array_equal(*carries)
    found = jax.jit(partial(diagnostics.record, model))(variables, x, rngs=rngs)
    for path, expected in zip(("rnn", "rnn#1"), carries, strict=True):
        jax.tree.map(np.testing.assert_allclose, found[path].carry, expected)


def test_other_profilers_go_on():
    variables, x = made(LSTM_RNN)
    calls = []

    def profile(frame, event, argument):
        calls.append(event)

    sys.setprofile(profile)
    try:
        diagnostics.record(LSTM_RNN, variables, x)
        assert sys.getprofile() is profile and calls
    finally:
        sys.setprofile(None)
    with cProfile.Profile() as profiler:
        diagnostics.record(LSTM_RNN, variables, x)
        np.median(x)
    codes = [entry.code for entry in profiler.getstats()]
    assert "median" in [getattr(code, "co_name", None) for code in codes]


def test_profiler_is_restored_after_an_error():
    class Broken(LeakyCell):
        def __call__(self, carry, inputs):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        diagnostics.step_values(Broken(2), {}, jnp.zeros((1, 2)), jnp.zeros((1, 3)))
    assert sys.getprofile() is None


class TwelveCalls(nn.Module):
    """Calls one layer twelve times, with the inputs times 1, 2, ..."""

    label: str

    @nn.compact
    def __call__(self, x):
        rnn = rnncells.RNN(rnncells.SimpleCell(2), name=self.label)
        return [rnn((k + 1) * x) for k in range(12)]


@pytest.mark.exhaustive
@pytest.mark.parametrize("label", ["rnn", "rnn#b", "of_layer"])
def test_cotangents_of_many_calls_belong_to_their_calls(label, rng):
    """As text, call 10 is before call 2."""
    x = jnp.asarray(rng.standard_normal((1, 2, 3)), jnp.float32)
    layer = TwelveCalls(label)
    params = layer.init(jax.random.key(0), x)

    def loss(outputs):
        return sum(k * y.sum() for k, y in enumerate(outputs))

    found = diagnostics.cotangents(loss, layer, params, x)
    for k in range(12):
        by_call = found[f"{label}#{k}" if k else label].carry[:, -1]
        np.testing.assert_allclose(by_call, np.full((1, 2), k))


class Reader(LeakyCell):
    """A cell that reads its inputs and its carry with a recurrent layer."""

    @nn.compact
    def __call__(self, carry, inputs):
        window = jnp.stack([inputs, jnp.cos(inputs) * carry.sum()], -2)
        carry = rnncells.RNN(rnncells.SimpleCell(self.features))(window)[..., -1, :]
        return carry, carry


@pytest.mark.exhaustive
def test_layers_in_a_cell_are_parts_of_its_step(rng):
    x, rnn = jnp.asarray(rng.standard_normal((BATCH, 2, 3))), rnncells.RNN(Reader(2))
    params = rnn.init(jax.random.key(0), x)

    def loss(outputs):
        return outputs[:, -1].sum()

    def after(h):
        return rnn.apply(params, h, x[:, 1], method="step")[1].sum()

    found = diagnostics.cotangents(loss, rnn, params, x)
    assert list(found) == list(diagnostics.record(rnn, params, x)) == [""]
    expected = jax.grad(after)(rnn.apply(params, x)[:, 0])
    np.testing.assert_allclose(found[""].carry[:, 0], expected, 1e-6)


@pytest.mark.exhaustive
@pytest.mark.parametrize("mutable", ["batch_stats", True, ["batch_stats"]])
def test_diagnostics_take_the_filters_of_apply(mutable):
    x = jnp.ones((BATCH, 2, 3))
    layer = nn.Sequential([nn.BatchNorm(False), rnncells.RNN(LeakyCell(2))])
    variables = layer.init(jax.random.key(0), x)
    found = diagnostics.cotangents(jnp.sum, layer, variables, x, mutable=mutable)
    assert list(found) == ["layers_1"]


@pytest.mark.exhaustive
def test_carries_of_several_ranks_and_no_rows(rng):
    cell = rnncells.MLSTMCell(FEATURES, num_heads=2)
    rnn, x = rnncells.RNN(cell), jnp.asarray(rng.standard_normal((BATCH, 2, INPUTS)))
    params = rnn.init(jax.random.key(0), x)
    found = diagnostics.record(rnn, params, x)[""]
    squares = [np.sum(np.square(v), tuple(range(2, v.ndim))) for v in found.carry]
    np.testing.assert_allclose(diagnostics.norms(found.carry), sum(squares) ** 0.5)
    empty = diagnostics.record(rnn, params, x[:0], jacobians=True)[""]
    sizes = sum(v[0, 0].size for v in found.carry)
    assert empty.jacobians.shape == (0, 2, sizes, sizes)
    assert diagnostics.norms(empty.carry).shape == (0, 2)
    assert diagnostics.drift(empty.carry[0], empty.mask).norm.shape == (2,)


@pytest.mark.default
def test_statistics_promote_no_dtypes():
    steps = jnp.full((BATCH, TIME, 1, 1), 2.0)
    values = jnp.full((BATCH, TIME, FEATURES), 3 + 4j)
    with jax.numpy_dtype_promotion("strict"):
        exponents = diagnostics.lyapunov_exponents(steps, jnp.asarray(MASK))
        norms = diagnostics.norms(values)
    # The product of five steps, by the number of valid ones.
    np.testing.assert_allclose(exponents, np.log(2) * 5 / MASK.sum(1)[:, None], 1e-6)
    np.testing.assert_allclose(norms, np.full((BATCH, TIME), 10), 1e-6)
