"""Newton's method against the loop over time, and the tables of its page."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import ALL_CELLS, assert_close, random_like, random_params
from levels import by_level

import rnncells
from benchmarks import newton as benchmark
from rnncells import Newton, diagnostics
from rnncells.recurrence import newton

BATCH, TIME, FEATURES = 3, 40, 6


def setting(rng, cell, **call):
    """Returns a function of a layer's options to its results and gradients.

    Also returns the random parameters, the inputs and the carry that it is called with.
    """
    plain = rnncells.RNN(cell)
    inputs = jnp.asarray(rng.standard_normal((BATCH, TIME, 4)))
    params = random_params(rng, plain, inputs, scale=0.3)
    carry = jax.eval_shape(cell.initialize_carry, None, inputs[:, 0])
    at = params, inputs, random_like(rng, carry)

    def outcome(rnn, params, inputs, carry):
        options = {"return_carry": True, "initial_carry": carry, **call}
        found = rnn.apply(params, inputs, **options)
        found, certificate = found if rnn.return_certificate else (found, None)
        leaves = jax.tree.leaves(found)
        terms = [jnp.sum(jnp.sin((k + 1) * leaf)) for k, leaf in enumerate(leaves)]
        return sum(terms), (found, certificate)

    gradient = jax.value_and_grad(outcome, (1, 2, 3), has_aux=True)
    run = jax.jit(gradient, static_argnums=0)

    def results(*options, **fields):
        implementation = Newton(*options) if options else "auto"
        fields |= {"implementation": implementation}
        rnn = rnncells.RNN(cell, return_certificate=bool(options), **fields)
        (_, (found, certificate)), gradients = run(rnn, *at)
        return (found, gradients), certificate

    return results, at


CALLS = {
    "whole": {},
    "masks": {
        "seq_lengths": jnp.array([TIME, 0, 11]),
        "mask": jnp.arange(BATCH * TIME).reshape(BATCH, TIME) % 5 != 2,
        "resets": jnp.arange(BATCH * TIME).reshape(BATCH, TIME) % 7 == 3,
    },
}
OTHERS = [
    ("GRUCell", "whole", ("full",), {}),
    ("GRUCell", "masks", ("diagonal", 0.0, 1e-9, 60), {"reverse": True}),
    ("LSTMCell", "masks", ("full", 0.1, None, 60), {"padded_outputs": "hold"}),
    ("LSTMCell", "whole", ("diagonal", 0.0, 1e-9, 60), {"time_major": False}),
    ("SimpleCell", "masks", ("full",), {"gradient": rnncells.TruncatedBptt(7)}),
]
# Each option once.
IN_EVERY_RUN = [
    ("LSTMCell", "masks", ("diagonal", 0.0, 1e-9, 60), {"reverse": True}),
    (
        *("SimpleCell", "masks", ("full", 0.1, None, 60)),
        {"gradient": rnncells.TruncatedBptt(7), "padded_outputs": "hold"},
    ),
]


@pytest.mark.parametrize(
    "name, call, options, fields", by_level([*OTHERS, *IN_EVERY_RUN], IN_EVERY_RUN)
)
def test_newton_equals_the_loop(name, call, options, fields, rng, float64):
    cell = getattr(rnncells, name)(FEATURES, param_dtype=float)
    results, _ = setting(rng, cell, **CALLS[call])
    found, certificate = results(*options, **fields)
    expected, _ = results(**fields)
    assert_close(found, expected, rtol=1e-6, atol=1e-6)
    assert certificate.converged.all() and certificate.converged.shape == (BATCH,)
    assert certificate.iterations < 60


def test_heads_are_blocks_of_the_jacobian(monkeypatch, float64):
    """All heads, and all units that see only themselves, share derivatives.

    So do the parts of c, which depend on themselves alone, beside those of h.
    """
    expected = {
        rnncells.LSTMCell(6, num_heads=3): (3, 4, 3),
        rnncells.LSTMCell(6): (1, 12, 7),
        rnncells.IndRNNCell(6): (6, 1, 1),
    }
    for cell, (blocks, size, colors) in expected.items():
        problem = problem_of(cell, monkeypatch)
        assert problem.full_blocks.members.shape == (blocks, size)
        assert problem.full_blocks.colors.max() + 1 == colors


def problem_of(cell, monkeypatch):
    """Returns the problem of a cell, as the layer makes it."""
    found, make = [], newton.problem

    def spy(*args):
        found.append(make(*args))
        return found[-1]

    monkeypatch.setattr(newton, "problem", spy)
    rnn, x = rnncells.RNN(cell, implementation="newton"), jnp.ones((2, 3, 4))
    params = jax.eval_shape(rnn.init, jax.random.key(0), x)
    jax.eval_shape(rnn.apply, params, x)
    return found[-1]


@pytest.mark.default
@pytest.mark.parametrize("gain, is_chaotic", by_level([(12.0, True), (1.0, False)], 1))
def test_a_chaotic_recurrence_falls_back_to_the_loop(gain, is_chaotic, rng, float64):
    cell = rnncells.GRUCell(FEATURES, param_dtype=float)
    inputs = jnp.asarray(0.3 * rng.standard_normal((BATCH, 150, 4)))
    plain = rnncells.RNN(cell)
    params = random_params(rng, plain, inputs, scale=0.3)
    kernels = params["params"]["cell"]
    for gate in ("hr", "hz", "hn"):
        kernels[gate]["kernel"] *= gain
    newton = rnncells.RNN(cell, implementation="newton", return_certificate=True)

    @jax.jit
    def run(params):
        record = diagnostics.record(plain, params, inputs, jacobians=True)
        (steps,) = record.values()
        exponents = diagnostics.lyapunov_exponents(steps.jacobians)
        return (
            exponents.max(),
            newton.apply(params, inputs),
            plain.apply(params, inputs),
        )

    exponent, (found, certificate), expected = run(params)

    assert (exponent > 0) == is_chaotic
    assert certificate.converged.all() == (not is_chaotic)
    assert (certificate.iterations == 32) == is_chaotic
    assert_close(found, expected, rtol=1e-9, atol=1e-9)


@pytest.fixture(scope="module")
def trained():
    return benchmark.trained()


@pytest.mark.exhaustive
def test_newton_solves_a_trained_network(trained):
    params, before, after = trained
    assert after < before / 100
    rnn = rnncells.RNN(benchmark.CELL, implementation="newton", return_certificate=True)
    x = jax.jit(benchmark.waves, static_argnums=1)(jax.random.key(5), 64)
    found, certificate = jax.jit(rnn.apply)(params, x)
    assert certificate.converged.all() and certificate.iterations < 20
    expected = jax.jit(rnncells.RNN(benchmark.CELL).apply)(params, x)
    assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "name",
    by_level(["SLSTMCell", "LTCCell", "LRUCell", "SimpleCell-heads"], ["LTCCell"], 0),
)
def test_newton_runs_cells_of_the_shared_table(name, rng, float64):
    case = ALL_CELLS[name]
    cell = case.make(param_dtype=float)
    plain = rnncells.RNN(cell, implementation="scan")
    newton = rnncells.RNN(cell, implementation=Newton(iterations=60))
    x = case.inputs(rng, BATCH, 9)
    params = random_params(rng, plain, x, scale=0.3)
    expected = jax.jit(plain.apply)(params, x)
    assert_close(jax.jit(newton.apply)(params, x), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.default
def test_second_derivatives_jvp_and_vmap(rng, float64):
    cell = rnncells.SimpleCell(3, param_dtype=float)
    x, dx = (jnp.asarray(rng.standard_normal((2, 2, 9, 4))) for _ in range(2))
    params = random_params(rng, rnncells.RNN(cell), x[0], scale=0.5)

    def results(implementation):
        rnn = rnncells.RNN(cell, implementation=implementation)
        loss = lambda x: jnp.sum(jnp.sin(rnn.apply(params, x)))  # noqa: E731
        both = lambda x, dx: jax.jvp(jax.grad(loss), (x,), (dx,))  # noqa: E731
        return jax.jit(jax.vmap(both))(x, dx)

    newton = Newton(tolerance=1e-13)
    assert_close(results(newton), results("auto"), rtol=1e-9, atol=1e-10)


GROWTH = {
    "grows by 1.15, nothing else": (nn.tanh, 1.15 * np.eye(4), Newton()),
    "grows beside a unit that does not": (nn.relu, np.diag([0, 1, 0.5, 1.2]), Newton()),
    "moves to the next unit": (nn.tanh, 1.3 * np.eye(4)[::-1], Newton("diagonal")),
    "damped": (nn.tanh, 1.2 * np.eye(4), Newton(damping=0.9)),
}


@pytest.mark.parametrize("name", by_level(GROWTH, 2))
def test_certified_carries_are_those_of_the_loop_where_differences_grow(name):
    """A pulse that is far below the tolerance grows to the size of the signal."""
    activation, recurrent, newton = GROWTH[name]
    cell = rnncells.SimpleCell(4, activation_fn=activation)
    plain = rnncells.RNN(cell)
    rnn = rnncells.RNN(cell, implementation=newton, return_certificate=True)
    kernels = {"i": {"kernel": jnp.eye(4), "bias": jnp.zeros(4)}}
    kernels["h"] = {"kernel": jnp.asarray(recurrent, jnp.float32)}
    x = jnp.zeros((2, 90, 4)).at[:, :, 0].set(1).at[1, 0, 1:].set(1e-7)

    @jax.jit
    def run(x):
        params = {"params": {"cell": kernels}}
        return *rnn.apply(params, x), plain.apply(params, x)

    found, certificate, expected = run(x)
    assert jnp.abs(expected[1, -1, 1:]).max() > 1e-2 * jnp.abs(expected[1, 0, 3])
    error = jnp.abs(found - expected).max((1, 2))
    assert (error <= 1e-4 * jnp.abs(expected).max((1, 2))).all()
    assert (certificate.error[certificate.converged] <= 2e-4).all()


@pytest.mark.parametrize("is_small_part", by_level([False, True], 1))
def test_rounding_that_grows_is_an_error(is_small_part, rng):
    """After enough iterations, Jacobi's method is exact, as a loop is."""
    size = 1e-20 if is_small_part else 1.0
    cell = rnncells.SimpleCell(4, activation_fn=lambda z: size * jnp.sin(z / size))
    if is_small_part:  # of a carry that is large
        cell = rnncells.StackedCell([rnncells.SimpleCell(3), cell])
    newton = Newton("diagonal", iterations=40)
    rnn = rnncells.RNN(cell, implementation=newton, return_certificate=True)
    x = jnp.asarray(rng.standard_normal((2, 30, 4)), jnp.float32)
    params = random_params(rng, rnncells.RNN(cell), x, scale=3.0)
    if is_small_part:
        layers = params["params"]["cell"]
        layers["layers_0"]["h"]["kernel"] = jnp.zeros((3, 3))
        i = layers["layers_1"]["i"]
        layers["layers_1"]["i"] = jax.tree.map(lambda leaf: size * leaf, i)
    _, certificate = jax.jit(rnn.apply)(params, x)
    assert (certificate.residual < 1e-5).all()
    assert not certificate.converged.any()


@pytest.mark.parametrize("batch, steps", [(0, 5), (2, 0)])
def test_nothing_to_solve_for_has_converged(batch, steps):
    rnn = rnncells.RNN(
        rnncells.GRUCell(4), implementation="newton", return_certificate=True
    )
    x = jnp.ones((batch, steps, 3))
    params = rnn.init(jax.random.key(0), x)
    found, certificate = rnn.apply(params, x)
    assert found.shape == (batch, steps, 4)
    assert certificate.converged.shape == certificate.error.shape == (batch,)
    assert certificate.converged.all() and certificate.iterations == 0
