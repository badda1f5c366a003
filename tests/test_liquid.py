"""SRU, and cells of liquid networks: elapsed times, and half precision."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import ALL_CELLS, BATCH, TIME, assert_close, random_params

import rnncells


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
