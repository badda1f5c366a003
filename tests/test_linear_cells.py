"""Linear, liquid and sLSTM cells: gates of 0 and 1, overflow, elapsed times."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import ALL_CELLS, BATCH, TIME, assert_close, random_params
from levels import by_level

import rnncells
from rnncells.cells.slstm import quotient


def test_gates_that_underflow_leave_min_lstm_finite():
    cell = rnncells.MinLSTMCell(1, use_bias=False)
    carry, x = jnp.array([2.0]), jnp.array([1.0])
    params = cell.init(jax.random.key(0), carry, x)
    # In float32, σ(-200) and σ(-202) are 0; their quotient is not.
    for name, weight in {"f": -200.0, "i": -202.0, "n": 2.5}.items():
        params["params"][name]["kernel"] = jnp.array([[weight]])
    h, _ = cell.apply(params, carry, x)
    f = 1 / (1 + np.exp(-2))
    np.testing.assert_allclose(h, [f * 2 + (1 - f) * 3], rtol=1e-6)


def test_mlstm_is_finite_where_its_gates_overflow(rng):
    """exp(200) is no float32; only ratios of such numbers are computed."""
    cell = rnncells.MLSTMCell(4, num_heads=2, forget_gate="exp")
    rnn, x = rnncells.RNN(cell), jnp.ones((BATCH, 7, 3))
    params = random_params(rng, rnn, x)
    params["params"]["cell"]["i"]["bias"] = jnp.array([200.0, -200.0])
    params["params"]["cell"]["f"]["bias"] = jnp.array([3.0, -90.0])
    loss = lambda params: jnp.sum(rnn.apply(params, x) ** 2)  # noqa: E731
    gradient = jax.jit(jax.grad(loss))(params)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


@pytest.mark.parametrize("implementation", by_level(["auto", "scan"], 1))
def test_mlstm_reads_0_with_a_query_of_0(implementation):
    """Also where exp(-m), the least denominator, is 0 in the dtype of the values."""
    rnn = rnncells.RNN(rnncells.MLSTMCell(2), implementation=implementation)
    x = jnp.array([[1.0, 2.0], [0.0, 0.0], [3.0, 1.0]])
    params = rnn.init(jax.random.key(0), x)
    params["params"]["cell"]["i"]["bias"] = jnp.array([120.0])
    y = jax.jit(rnn.apply)(params, x)
    assert (y[1] == 0).all() and np.isfinite(y).all() and (y[2] != 0).all()


def test_divisions_of_half_precision_have_derivatives():
    """Squares of these denominators are infinite, or 0, in float16."""
    for below in (1000, 1 / 1000):
        slope = jax.grad(quotient, 1)(jnp.float16(below), jnp.float16(below))
        np.testing.assert_allclose(slope, -1 / below, rtol=1e-3)


def test_keys_of_delta_nets_have_a_gradient_near_0_in_float16():
    """The slope of the norm is 1000 there, and that of silu is 0."""
    x = jnp.full(2, -60, jnp.float16)
    _, vjp = jax.vjp(rnncells.DeltaNetCell(2)._normed, x)
    assert (vjp(jnp.full(2, 1000, jnp.float16))[0] == 0).all()


def test_gated_delta_net_has_a_gradient_where_its_decay_is_0_in_float16():
    rnn = rnncells.RNN(rnncells.GatedDeltaNetCell(2, dtype=jnp.float16))
    x = jnp.ones((3, 2), jnp.float16)
    params = rnn.init(jax.random.key(0), x)
    params["params"]["cell"]["a"] = jnp.array([15.0])
    gradient = jax.jit(jax.grad(lambda params: rnn.apply(params, x).sum()))(params)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


# Inputs at which gates are exactly 0 and 1, and products are finite.
SATURATING = {"float16": 60, "bfloat16": 300, "float32": 1000}


@pytest.mark.parametrize(
    "name, dtype, implementation",
    by_level(
        list(itertools.product(ALL_CELLS, SATURATING, ["auto", "scan"])),
        [("RGLRUCell", "float16", "auto")],
    ),
)
def test_gradients_are_finite_where_gates_are_0_and_1(name, dtype, implementation, rng):
    case = ALL_CELLS[name]
    rnn = rnncells.RNN(case.make(dtype=dtype), implementation=implementation)
    scale = SATURATING[dtype]
    inputs = (scale * case.inputs(rng, BATCH, 5)).astype(dtype)
    params = rnn.init(jax.random.key(0), inputs)

    def loss(params, inputs):
        y = rnn.apply(params, inputs).astype(jnp.float32)
        return jnp.mean(y / scale), y

    run = jax.jit(jax.grad(loss, (0, 1), has_aux=True))
    for leaf in jax.tree.leaves(run(params, inputs)):
        assert np.isfinite(leaf).all()


def test_initial_eigenvalues_are_on_the_ring(key):
    cell = rnncells.LRUCell(500, min_radius=0.5, max_radius=0.9, max_phase=0.3)
    carry = cell.initialize_carry(None, (3,))
    p = jax.device_get(jax.jit(cell.init)(key, carry, jnp.ones(3))["params"])
    radius, phase = np.exp(-np.exp(p["nu"])), np.exp(p["theta"])
    assert 0.5 <= radius.min() < 0.52 and 0.88 < radius.max() <= 0.9
    assert 0 < phase.min() < 0.02 and 0.28 < phase.max() <= 0.3
    np.testing.assert_allclose(np.exp(2 * p["gamma"]), 1 - radius**2, rtol=1e-4)
    cell = rnncells.RGLRUCell(500, min_radius=0.5, max_radius=0.9)
    p = jax.jit(cell.init)(key, jnp.zeros(500), jnp.ones(500))["params"]
    a = 1 / (1 + np.exp(p["Lambda"])) ** 8
    assert 0.5 <= a.min() < 0.52 and 0.88 < a.max() < 0.901


def test_first_step_is_finite_for_gates_of_any_size():
    """An empty memory has no scale, so a small input gate does not underflow."""
    rnn, x = rnncells.RNN(rnncells.SLSTMCell(2)), jnp.ones((BATCH, TIME, 3))
    params = jax.jit(rnn.init)(jax.random.key(0), x)
    params["params"]["cell"]["hi"]["bias"] = jnp.array([-300.0, 300.0])

    def loss(params):
        y = rnn.apply(params, x)
        return jnp.sum(y), y

    gradient, y = jax.jit(jax.grad(loss, has_aux=True))(params)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))
    assert np.abs(y).min() > 0


def test_sru_adds_inputs_of_its_own_width_and_scales_them(rng):
    cell = rnncells.SRUCell(4, highway_scale=1.5)
    carry, x = jnp.zeros((BATCH, 4)), jnp.asarray(rng.standard_normal((BATCH, 4)))
    params = cell.init(jax.random.key(0), carry, x)
    assert "p" not in params["params"]
    params["params"]["r"] = jax.tree.map(jnp.zeros_like, params["params"]["r"])
    params["params"]["r"]["bias"] -= 30
    params["params"]["vr"]["kernel"] *= 0
    _, h = cell.apply(params, carry, x)
    np.testing.assert_allclose(h, 1.5 * x, rtol=1e-6)


@pytest.mark.parametrize("name", ["CfCCell", "LTCCell"])
def test_elapsed_times_differ_from_step_to_step(name, rng, float64):
    """Without them, the time from step to step is 1; LTC solves it in equal parts."""
    cell = ALL_CELLS[name].make(param_dtype=float)
    rnn = rnncells.RNN(cell)
    x = ALL_CELLS[name].inputs(rng, BATCH, TIME)
    params = random_params(rng, rnn, x)
    run = jax.jit(rnn.apply)
    ones = jnp.ones((BATCH, TIME))
    assert_close(run(params, (x, ones)), run(params, x), 1e-12, 1e-12)
    # Only the second row has another time at the third step.
    later = ones.at[1, 2].set(0.25)
    different = jnp.abs(run(params, (x, later)) - run(params, x)).max(-1) > 1e-6
    assert (
        different == (jnp.arange(TIME) >= 2) & (jnp.arange(BATCH)[:, None] == 1)
    ).all()


def test_gradient_of_a_pure_cfc_in_float16_is_finite_where_its_decay_is_0():
    cell = rnncells.CfCCell(2, mode="pure", param_dtype="float16")
    x, h = jnp.ones((3, 4), "float16"), jnp.zeros((3, 2), "float16")
    params = cell.init(jax.random.key(0), h, x)["params"]
    params |= {"A": jnp.full(2, 1e3, "float16")}
    params["g"]["bias"] = jnp.full(2, 100, "float16")

    def loss(params):
        return 10 * cell.apply({"params": params}, h, x)[1].sum()

    gradient = jax.grad(loss)(params)
    np.testing.assert_array_equal(gradient["A"], 30)
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


def test_ltc_takes_steps_of_any_duration(rng):
    """Of 0, where nothing changes, and of any, with float16's gradient."""
    x, v = (jnp.asarray(rng.standard_normal((3, 2)), jnp.float16) for _ in range(2))
    elapsed = jnp.array([0, 1e-4, 1000], jnp.float16)
    cells = [rnncells.LTCCell(2, unfolds=2, param_dtype=d) for d in ("f2", "f4")]
    params = cells[0].init(jax.random.key(0), v, (x, elapsed))

    def gradient(cell, dtype):
        at = jax.tree.map(lambda leaf: leaf.astype(dtype), (params, v, x, elapsed))

        def loss(params, v, x, elapsed):
            return jnp.sum(cell.apply(params, v, (x, elapsed))[1])

        return jax.jit(jax.grad(loss, (0, 1, 2)))(*at)

    expected = gradient(cells[1], jnp.float32)
    found = jax.tree.map(lambda leaf: leaf.astype("f4"), gradient(cells[0], "f2"))
    assert_close(found, expected, rtol=0.1, atol=0.05)
    after, _ = cells[0].apply(params, v, (x, elapsed))
    np.testing.assert_allclose(after[0], v[0], rtol=1e-3)
