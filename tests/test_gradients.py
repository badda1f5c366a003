"""Methods to form a gradient: equalities with backpropagation through time."""

from functools import cache, partial
from typing import Any

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import (
    ALL_CELLS,
    CELLS,
    FEATURES,
    assert_close,
    assert_equal,
    exactly,
    random_like,
    random_params,
)
from levels import by_level
from user_cells import FlaxCell

import rnncells
from rnncells import (
    BlockRtrl,
    Bptt,
    Online,
    Rflo,
    Rtrl,
    SnAp,
    Truncated1997,
    TruncatedBptt,
    Uoro,
)
from rnncells.recurrence.sparsity import dependencies

BATCH, TIME = 2, 5
# Every method that goes forward in time.
FORWARD = [
    kind(8) if "steps" in kind.__dataclass_fields__ else kind()
    for kind in rnncells.gradients.ForwardGradient.__subclasses__()
]
# Constants, as random numbers take long to compile.
ONES = nn.initializers.ones
Dense = partial(nn.Dense, kernel_init=ONES)


class Problem:
    """A loss of a layer with lengths, a mask, resets and an initial carry."""

    def __init__(self, cell, inputs, rng, scale=0.5):
        self.cell, self.inputs = cell, inputs
        rnn = rnncells.RNN(cell)
        params = random_params(rng, rnn, inputs, scale=scale)
        carry = rnn.initialize_carry(None, inputs[:, 0])
        self.params = params, random_like(rng, carry)
        self.options = {
            "seq_lengths": np.array([TIME, 4]),
            "mask": np.arange(BATCH * TIME).reshape(BATCH, TIME) != 2,
            "resets": np.arange(BATCH * TIME).reshape(BATCH, TIME) == TIME + 2,
            "return_carry": True,
        }

    def value_and_grad(self, gradient, options=None, **fields):
        """Returns the loss and its gradient, compiled, by a method."""
        options = self.options if options is None else options

        @jax.jit
        def compute(params):
            def loss(params):
                variables, carry = params
                rnn = rnncells.RNN(self.cell, gradient=gradient, **fields)
                found = rnn.apply(
                    variables, self.inputs, initial_carry=carry, **options
                )
                leaves = jax.tree.leaves(found)
                return sum(
                    jnp.sum(jnp.abs(jnp.sin(leaf + 0.3)) ** 2) for leaf in leaves
                )

            return jax.value_and_grad(loss)(params)

        return compute(self.params)


def problem_of(name, rng, **options):
    case = ALL_CELLS[name]
    cell = case.make(param_dtype=jnp.result_type(float), **options)
    return Problem(cell, case.inputs(rng, BATCH, TIME), rng)


def differs(actual, expected):
    leaves = zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True)
    return max(np.abs(np.subtract(a, b)).max() for a, b in leaves) > 1e-3


@cache
def float64_problem(name):
    """Returns a problem, its value, and its gradient by backpropagation."""
    problem = problem_of(name, np.random.default_rng(7))
    return problem, *problem.value_and_grad(Bptt())


def assert_equals_bptt(name, *methods):
    problem, value, gradient = float64_problem(name)
    for method in methods:
        found, by_method = problem.value_and_grad(method)
        assert_equal(found, value)
        exactly(by_method, gradient)


each_structure = pytest.mark.parametrize(
    "name", by_level([*CELLS, "ConvLSTMCell-1d", "StackedCell"], ["SimpleCell"])
)


@each_structure
def test_exact_methods_equal_bptt(name, float64):
    assert_equals_bptt(name, Rtrl(), BlockRtrl(2))


@pytest.mark.exhaustive
@each_structure
def test_truncation_after_the_whole_sequence_equals_bptt(name, float64):
    assert_equals_bptt(name, SnAp(TIME), TruncatedBptt(TIME))


def by_hand(step, cut, params, problem, window):
    """Returns outputs and final carry of a loop over the steps of a `Problem`.

    `cut(carry, rows)` returns the carry that a step sees; `rows` is true for rows
    whose first valid step of a window this is.
    """
    variables, carry = params
    options, start = problem.options, jax.tree.map(jnp.zeros_like, carry)
    times, mask = np.arange(TIME), options["mask"].T

    def one(state, now):
        carry, final, fresh = state
        x, t, mask, valid, reset = now
        fresh = fresh | (t % window == 0)
        carry = cut(carry, fresh & mask & (t > 0))
        carry = where(reset, start, carry)
        new, y = step(variables, carry, x)
        carry, final = where(mask, new, carry), where(valid, new, final)
        return (carry, final, fresh & ~mask), y

    valid = mask & (times[:, None] < options["seq_lengths"])
    by_time = jnp.moveaxis(problem.inputs, 1, 0)
    xs = by_time, times, mask, valid, options["resets"].T
    (_, final, _), outputs = jax.lax.scan(one, (carry, carry, np.ones(BATCH, bool)), xs)
    return final, jnp.moveaxis(outputs, 0, 1)


def where(rows, a, b):
    def choose(a, b):
        return jnp.where(rows.reshape(-1, *(1,) * (a.ndim - 1)), a, b)

    return jax.tree.map(choose, a, b)


def gradient_by_hand(step, cut, problem, window=TIME):
    @jax.jit
    @jax.grad
    def gradient(params):
        found = by_hand(step, cut, params, problem, window)
        return sum(jnp.sum(jnp.sin(x + 0.3) ** 2) for x in jax.tree.leaves(found))

    return gradient(problem.params)


def step_of(cell):
    def step(variables, carry, x):
        return cell.apply({"params": variables["params"]["cell"]}, carry, x)

    return step


def test_truncated_bptt_cuts_at_the_borders_of_windows(float64):
    """Also where a border lies at a masked step: before the row's next valid step."""
    problem, _, by_bptt = float64_problem("SimpleCell")
    stopped = partial(jax.tree.map, jax.lax.stop_gradient)
    expected = gradient_by_hand(
        step_of(problem.cell),
        lambda carry, rows: where(rows, stopped(carry), carry),
        problem,
        window=2,
    )
    _, found = problem.value_and_grad(TruncatedBptt(2))
    exactly(found, expected)
    assert differs(found, by_bptt)
    by_chunks = problem.value_and_grad(TruncatedBptt(2), memory=rnncells.Chunk(2))
    exactly(by_chunks[1], expected)


def test_truncation_of_1997_cuts_the_gradient_of_h(float64):
    """In backpropagation, and by traces forward in time."""
    problem, _, _ = float64_problem("LSTMCell")

    def cut(carry, rows):
        return carry[0], jax.lax.stop_gradient(carry[1])

    def step(variables, carry, x):
        c, h = carry
        return step_of(problem.cell)(variables, (c, jax.lax.stop_gradient(h)), x)

    expected = gradient_by_hand(step, lambda carry, rows: carry, problem)
    exactly(problem.value_and_grad(Truncated1997())[1], expected)
    exactly(problem.value_and_grad(Rflo())[1], expected)


class LeakyCell(FlaxCell):
    """The cell of Murray: h = (1 - α) h + α tanh(W x + U h)."""

    @nn.compact
    def __call__(self, h, x):
        options = {"use_bias": False, "param_dtype": jnp.result_type(float)}
        a = Dense(self.features, name="W", **options)(x)
        a = a + Dense(self.features, name="U", **options)(h)
        h = 0.75 * h + 0.25 * jnp.tanh(a)
        return h, h


# By method: a cell, names of its gates of inputs and states, how much an influence
# decays in a step, and the derivative of the new state by its pre-activation.
INFLUENCES = {
    SnAp(1): (
        *(rnncells.SimpleCell(FEATURES, param_dtype=float), "i", "h"),
        *(lambda U, slope: slope * np.diag(U), lambda slope: slope),
    ),
    Rflo(): (
        *(LeakyCell(FEATURES), "W", "U"),
        *(lambda U, slope: 0.75, lambda slope: 0.25 * slope),
    ),
}


@pytest.mark.default
@pytest.mark.parametrize("method", INFLUENCES, ids=str)
def test_influences_follow_the_equations_of_their_papers(method, rng, float64):
    """On the unit of a weight alone, in NumPy: Menick et al.; of Murray, p and q."""
    cell, of_inputs, of_states, decay, derivative = INFLUENCES[method]
    x = CELLS["SimpleCell"].inputs(rng, BATCH, TIME)
    rnn = rnncells.RNN(cell, gradient=method)
    variables = random_params(rng, rnn, x, scale=0.5)
    d_ys = rng.standard_normal((BATCH, TIME, FEATURES))

    @jax.jit
    def by_layer(variables):
        ys, vjp = jax.vjp(lambda variables: rnn.apply(variables, x), variables)
        return ys, vjp(jnp.asarray(d_ys))[0]["params"]["cell"]

    ys, found = by_layer(variables)
    params = jax.tree.map(np.asarray, variables["params"]["cell"])
    W, U = params[of_inputs], params[of_states]["kernel"]
    weights = np.concatenate([W["kernel"], [W.get("bias", np.zeros(FEATURES))], U])
    h, influence, total = np.zeros((BATCH, FEATURES)), 0, 0
    for t in range(TIME):
        sources = np.concatenate([x[:, t], np.ones((BATCH, 1)), h], 1)
        slope = 1 - np.tanh(sources @ weights) ** 2
        own = derivative(slope)[:, None] * sources[..., None]
        kept = np.broadcast_to(decay(U, slope), slope.shape)[:, None]
        influence = kept * influence + own
        total = total + np.sum(d_ys[:, t, None] * influence, 0)
        h = ys[:, t]
    kernel, bias, recurrent = np.split(total, [x.shape[-1], x.shape[-1] + 1])
    of_W = {"kernel": kernel} | ({"bias": bias[0]} if "bias" in W else {})
    expected = {of_inputs: of_W, of_states: {"kernel": recurrent}}
    exactly(found, jax.tree.map(jnp.asarray, expected))


@pytest.mark.default
def test_snap_2_is_exact_in_a_dense_layer(float64):
    """Every unit reaches every other in one step."""
    assert_equals_bptt("SimpleCell", SnAp(2))


@pytest.mark.default
def test_mean_of_uoro_is_bptt_within_its_standard_error(rng, float64):
    """Of 5,000 draws. Sums over all parameters by random signs give 8 numbers."""
    (problem, _, exact), draws = float64_problem("SimpleCell"), 5_000

    @jax.jit
    @partial(jax.vmap, in_axes=(None, 0))
    @partial(jax.grad, argnums=0)
    def gradients(params, key):
        variables, carry = params
        rnn = rnncells.RNN(problem.cell, gradient=Uoro())
        found = rnn.apply(
            variables,
            problem.inputs,
            initial_carry=carry,
            rngs={"uoro": key},
            **problem.options,
        )
        return sum(jnp.sum(jnp.sin(x + 0.3) ** 2) for x in jax.tree.leaves(found))

    found = gradients(problem.params, jax.random.split(jax.random.key(0), draws))
    rows = np.concatenate(
        [np.reshape(leaf, (draws, -1)) for leaf in jax.tree.leaves(found)], 1
    )
    flat = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(exact)])
    signs = rng.choice([-1.0, 1.0], (rows.shape[1], 8))
    projected, expected = rows @ signs, flat @ signs
    error = projected.std(0) / np.sqrt(draws)
    assert (np.abs(projected.mean(0) - expected) < 4 * error).all()
    # Not because the error is large: it separates the mean from zero.
    assert (np.abs(expected) > 4 * error).any()


class IndependentCell(LeakyCell):
    """An element-wise recurrence: h = tanh(W x + u ⊙ h)."""

    @nn.compact
    def __call__(self, h, x):
        dtype = jnp.result_type(float)
        u = self.param("u", ONES, (self.features,), dtype)
        h = jnp.tanh(Dense(self.features, param_dtype=dtype)(x) + u * h)
        return h, h


class DiagonalCell(LeakyCell):
    """A linear recurrence with complex eigenvalues: h = λ ⊙ h + B x."""

    @nn.nowrap
    def initialize_carry(self, key, sample):
        dtype = jnp.promote_types(sample.dtype, jnp.complex64)
        return jnp.zeros((*sample[:-1], self.features), dtype)

    @nn.compact
    def __call__(self, h, x):
        dtype = jnp.result_type(float)
        phase = self.param("phase", ONES, (self.features,), dtype)
        log_rate = self.param("log_rate", ONES, (self.features,), dtype)
        shape = (x.shape[-1], self.features)
        B = self.param("B", ONES, shape, jnp.promote_types(dtype, jnp.complex64))
        h = jnp.exp(-jnp.exp(log_rate) + 1j * phase) * h + x @ B
        y = Dense(self.features, param_dtype=dtype)(h.real)
        return h, y + Dense(self.features, param_dtype=dtype)(h.imag)


@pytest.mark.parametrize(
    "method",
    by_level([method for method in FORWARD if method.is_online], [Rtrl()]),
    ids=str,
)
def test_learning_on_line_adds_up_to_the_gradient_of_the_layer(method, rng, float64):
    case = CELLS["LSTMCell"]
    rnn = rnncells.RNN(case.make(param_dtype=float), gradient=method)
    x = case.inputs(rng, BATCH, TIME)
    variables = random_params(rng, rnn, x, scale=0.5)
    # The layer of Uoro also draws for the carry after a reset.
    has_reset = not isinstance(method, Uoro)
    resets = jnp.zeros((BATCH, TIME), bool).at[1, 2].set(has_reset)
    rngs = {"uoro": jax.random.key(3)}

    def loss(y):
        return jnp.sum(jnp.sin(y + 0.3) ** 2)

    @jax.jit
    def by_layer(variables):
        def of(variables):
            options = {"resets": resets} if has_reset else {}
            y = rnn.apply(variables, x, rngs=rngs, **options)
            return loss(y), y

        return jax.grad(of, has_aux=True)(variables)

    online = Online(rnn)

    @jax.jit
    def on_line(variables):
        def step(so_far, now):
            state, total = so_far
            x_t, reset = now
            state, y, grads = online.step(
                variables, state, x_t, jax.grad(loss), resets=reset
            )
            return (state, jax.tree.map(jnp.add, total, grads)), y

        state = online.init(variables, x[:, 0], rngs=rngs)
        zeros = jax.tree.map(jnp.zeros_like, variables)
        by_time = jnp.moveaxis(x, 1, 0), resets.T
        (_, total), ys = jax.lax.scan(step, (state, zeros), by_time)
        return total, jnp.moveaxis(ys, 0, 1)

    total, y = on_line(variables)
    expected, by_rnn = by_layer(variables)
    exactly(y, by_rnn)
    exactly(total, expected)


def clipped(d_carry):
    return jax.tree.map(lambda d: jnp.clip(d, -0.2, 0.1), d_carry)


@pytest.mark.default
def test_hook_acts_on_the_gradient_of_every_carry(rng, float64):
    """Against backpropagation in closed form, and against PyTorch's order of hooks."""
    from rnncells.reference import lstm_step, lstm_step_vjp

    problem, _, _ = float64_problem("LSTMCell")
    variables, carry = problem.params
    params, x = variables["params"]["cell"], problem.inputs
    d_ys = random_like(rng, jnp.zeros((BATCH, TIME, FEATURES)))

    @jax.jit
    def by_hand(params):
        def forward(carry, x):
            return lstm_step(params, carry, x)[0], carry

        def back(state, now):
            total, (d_c, d_h) = state
            carry, x, d_y = now
            hooked = clipped((d_c, d_h + d_y))
            grads, d_carry, _ = lstm_step_vjp(params, carry, x, hooked, zeros)
            return (jax.tree.map(jnp.add, total, grads), d_carry), None

        by_time, zeros = jnp.moveaxis(x, 1, 0), jnp.zeros((BATCH, FEATURES))
        _, carries = jax.lax.scan(forward, carry, by_time)
        start = jax.tree.map(jnp.zeros_like, params), (zeros, zeros)
        steps = carries, by_time, jnp.moveaxis(d_ys, 1, 0)
        (total, _), _ = jax.lax.scan(back, start, steps, reverse=True)
        return total

    @jax.jit
    def by_layer(variables):
        rnn = rnncells.RNN(problem.cell, gradient=Bptt(carry_hook=clipped))

        def run(variables):
            return rnn.apply(variables, x, initial_carry=carry)

        return jax.vjp(run, variables)[1](d_ys)[0]["params"]["cell"]

    expected = by_hand(params)
    exactly(by_layer(variables), expected)


@pytest.mark.default
def test_hook_may_have_side_effects(rng):
    """At every step, in the order of the backward pass."""
    rnn, x, seen = rnncells.ElmanRNN(3), np.ones((5, 2), "f4"), []

    def record(d_carry):
        jax.debug.callback(lambda d: seen.append(d.copy()), d_carry)
        return d_carry

    params = random_params(rng, rnn, x, scale=0.3)
    recording = rnn.clone(gradient=Bptt(carry_hook=record))
    jax.jit(jax.grad(lambda p: recording.apply(p, x)[0][-1].sum()))(params)
    jax.effects_barrier()
    assert len(seen) == 5
    np.testing.assert_array_equal(max(seen, key=lambda d: abs(d).sum()), np.ones(3))


@pytest.mark.exhaustive
def test_directions_and_layers_take_a_method(rng, float64):
    x = CELLS["SimpleCell"].inputs(rng, BATCH, TIME)

    def gradient(method):
        layer = rnncells.ElmanRNN(
            FEATURES, bidirectional=True, gradient=method, param_dtype=float
        )
        params = random_params(np.random.default_rng(1), layer, x)

        def loss(params):
            lengths = jnp.array([TIME, 3])
            y, states = layer.apply(params, x, seq_lengths=lengths)
            leaves = jax.tree.leaves(states)
            return jnp.sum(jnp.sin(y)) + sum(jnp.sum(s**2) for s in leaves)

        return jax.jit(jax.grad(loss))(params)

    exactly(gradient(Rtrl()), gradient(Bptt()))


@pytest.mark.parametrize("method", by_level(FORWARD, [Rtrl()]), ids=str)
def test_memory_does_not_depend_on_time(method):
    """Temporaries of the compiled gradient.

    With jax 0.10, XLA also copies the inputs and cotangents once.
    """
    rnn = rnncells.RNN(rnncells.SimpleCell(6), gradient=method)
    params = jax.eval_shape(rnn.init, jax.random.key(0), jnp.zeros((BATCH, 8, 3)))

    def temporaries(time):
        x = jax.ShapeDtypeStruct((time, BATCH, 3), jnp.float32)
        d_y = jax.ShapeDtypeStruct((time, BATCH, 6), jnp.float32)

        def gradient(params, x, d_y):
            def run(params):
                rngs = {"uoro": jax.random.key(0)}
                return rnn.apply(params, x, time_major=True, rngs=rngs)

            return jax.vjp(run, params)[1](d_y)[0]

        compiled = jax.jit(gradient).lower(params, x, d_y).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    copied = (1024 - 128) * BATCH * (3 + 6) * 4
    grown = temporaries(1024) - temporaries(128)
    assert grown in ((0,) if jax.__version_info__ >= (0, 12) else (0, copied))


@jax.custom_jvp
def spike(x):
    """A step function with a surrogate gradient."""
    return (x > 0).astype(x.dtype)


spike.defjvp(lambda x, t: (spike(*x), t[0] / (1 + jnp.abs(x[0])) ** 2))


@jax.custom_vjp
def centered(x):
    """The identity, whose derivative mixes the elements."""
    return x * 1.0


centered.defvjp(
    lambda x: (centered(x), None), lambda _, d: (d - d.mean(-1, keepdims=True),)
)


@jax.custom_jvp
def clipped_norm(x):
    """Clips the norm of a vector to 2."""
    return x * jnp.minimum(1, 2 / jnp.sqrt(1e-9 + jnp.sum(x**2, -1, keepdims=True)))


@clipped_norm.defjvp
def _clipped_norm_jvp(primals, tangents):
    """The elements are mixed only outside of the ball."""
    (x,), (d,) = primals, tangents
    norm = jnp.sqrt(1e-9 + jnp.sum(x**2, -1, keepdims=True))
    projected = d - x * jnp.sum(x * d, -1, keepdims=True) / norm**2
    return clipped_norm(x), jnp.where(norm > 2, 2 / norm * projected, d)


class SpikingCell(LeakyCell):
    """h = h / 2 + spike(W x + u ⊙ h), or the same with `centered`."""

    function: Any = spike

    @nn.compact
    def __call__(self, h, x):
        dtype = jnp.result_type(float)
        u = self.param("u", ONES, (self.features,), dtype)
        a = Dense(self.features, param_dtype=dtype)(x) + u * h
        h = 0.5 * h + self.function(a)
        return h, h


KEPT = [(IndependentCell(FEATURES), 1), (DiagonalCell(FEATURES), 2)]
KEPT += [(SpikingCell(FEATURES, spike), 1)]
# Paths of a function, or of its derivative at one point, are too few.
KEPT += [(SpikingCell(FEATURES, f), FEATURES) for f in (centered, clipped_norm)]


@pytest.mark.exhaustive
@pytest.mark.parametrize("cell, kept", KEPT)
def test_elementwise_recurrences_keep_a_number_for_each_weight(
    cell, kept, rng, float64
):
    """Complex numbers count as two, and custom derivatives by what they depend on."""
    size = 9 if isinstance(cell, SpikingCell) else 1
    problem = Problem(cell, size * CELLS["SimpleCell"].inputs(rng, BATCH, TIME), rng)
    exactly(problem.value_and_grad(Rtrl())[1], problem.value_and_grad(Bptt())[1])
    online = Online(rnncells.RNN(cell, gradient=Rtrl()))
    state = jax.eval_shape(online.init, problem.params[0], problem.inputs[:, 0])
    assert max(leaf.shape[1] for leaf in state.influence) == kept


class OldCarryCell(LeakyCell):
    """Its output reads the carries before and after the step, and the inputs."""

    @nn.compact
    def __call__(self, h, x):
        a = Dense(self.features, param_dtype=x.dtype)(x)
        new = jnp.tanh(a + 0.3 * jnp.roll(h, 1, -1))
        return new, new * h + jnp.sin(a)


@pytest.mark.parametrize(
    "cell",
    by_level(
        [OldCarryCell(FEATURES), rnncells.LSTMCell(FEATURES, param_dtype=float)], 1
    ),
    ids=lambda cell: type(cell).__name__,
)
def test_gradient_of_inputs_is_that_of_the_outputs_of_their_own_step(
    cell, rng, float64
):
    """Every forward method promises this. No loss reads the outputs of masked steps."""
    problem = Problem(cell, CELLS["SimpleCell"].inputs(rng, BATCH, TIME), rng)
    variables, carry = problem.params
    mask, resets = problem.options["mask"], problem.options["resets"]
    weights = rng.standard_normal((*mask.shape, FEATURES)) * mask[..., None]

    def by(gradient):
        rnn = rnncells.RNN(cell, gradient=gradient)
        options = {"initial_carry": carry, "mask": mask, "resets": resets}

        def loss(x):
            y = rnn.apply(variables, x, rngs={"uoro": jax.random.key(0)}, **options)
            return jnp.sum(weights * y)

        return jax.jit(jax.grad(loss))(problem.inputs)

    # The gradient of every carry is cut.
    expected = by(TruncatedBptt(1))
    assert (np.abs(expected) > 1e-6)[mask].all()
    for method in (Rtrl(), SnAp(1), Uoro()):
        exactly(by(method), expected)


class CoupledRows(LeakyCell):
    """Its rows depend on each other."""

    @nn.compact
    def __call__(self, h, x):
        h = jnp.tanh(Dense(self.features)(x) + h - h.mean(0, keepdims=True))
        return h, h


class CoupledLater(CoupledRows):
    """The same, but its output does not show it."""

    @nn.compact
    def __call__(self, h, x):
        new, _ = super().__call__(h, x)
        return new, h


class UnbatchedPart(LeakyCell):
    """An array of its carry has no batch axes."""

    @nn.nowrap
    def initialize_carry(self, key, sample):
        return jnp.zeros((*sample[:-1], self.features)), jnp.arange(1.0 * self.features)

    @nn.compact
    def __call__(self, carry, x):
        h, k = carry
        h = jnp.tanh(Dense(self.features)(x) + h + k)
        return (h, 0.5 * k), h


@pytest.mark.parametrize(
    "cell, message",
    [
        (CoupledRows(BATCH), "got CoupledRows, whose rows depend on each other"),
        (CoupledLater(BATCH), "got CoupledLater, whose rows depend on each other"),
        (UnbatchedPart(3), "every array of its carry must begin with them, got Unba"),
    ],
)
def test_forward_methods_refuse_cells_that_mix_rows(cell, message):
    """Also where sizes agree by chance."""
    rnn, x = rnncells.RNN(cell, gradient=Rtrl()), jnp.ones((3, 4, 2))
    params = jax.eval_shape(rnn.init, jax.random.key(0), x)
    for options in {}, {"mask": jnp.ones((3, 4), bool)}:
        with pytest.raises(ValueError, match=message):
            jax.eval_shape(partial(rnn.apply, **options), params, x)


@pytest.mark.exhaustive
@pytest.mark.parametrize("narrow, wide", [("f4", "f8"), ("bfloat16", "f4")])
@pytest.mark.parametrize("is_wide", [False, True])
def test_carries_and_parameters_may_have_different_dtypes(
    narrow, wide, is_wide, float64
):
    of_carry, of_params = (wide, narrow) if is_wide else (narrow, wide)
    cell, x = rnncells.GRUCell(2, param_dtype=of_params), jnp.ones((2, 4, 3), of_params)
    params = rnncells.RNN(cell).init(jax.random.key(0), x)
    carry, rngs = jnp.zeros((2, 2), of_carry), {"uoro": jax.random.key(1)}
    for method in Rtrl(), BlockRtrl(2), Uoro():
        rnn = rnncells.RNN(cell, gradient=method)

        def loss(params, rnn=rnn):
            return rnn.apply(params, x, initial_carry=carry, rngs=rngs).sum()

        chex.assert_trees_all_equal_dtypes(jax.jit(jax.grad(loss))(params), params)


@pytest.mark.exhaustive
def test_forward_methods_run_without_jit(rng):
    rnn = rnncells.RNN(rnncells.SimpleCell(FEATURES), gradient=Rtrl())
    x = np.ones((BATCH, 1, 3), np.float32)
    params = random_params(rng, rnn, x)
    with jax.disable_jit():
        y = rnn.apply(params, x)
    assert_close(y, jax.jit(rnn.apply)(params, x))


@pytest.mark.default
def test_structure_of_a_function_contains_that_of_its_derivatives(rng):
    """Of a function with reductions, products, slices, a condition and a loop."""

    def function(x, w):
        a = jnp.tanh(x) @ w
        b = jnp.concatenate([a[:2] * x[1:3], x[::-1][:1], a[3:]])
        c = jnp.where(x.sum() > 0, b, 2 * b) + jax.nn.relu(x)[0]
        d = jax.lax.fori_loop(0, 2, lambda _, v: 0.5 * v, c[:2])
        return jnp.concatenate([c, d, jax.lax.stop_gradient(x[:1]), x[3:] ** 2])

    x, w = rng.standard_normal(4), rng.standard_normal((4, 4))
    shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, jnp.float32), (x, w))
    patterns = dependencies(function, *shapes)
    jacobian = jax.jit(jax.jacobian(function, (0, 1)))(x, w)
    for pattern, exact in zip(patterns, jacobian, strict=True):
        assert pattern.shape == exact.shape
        assert not (np.asarray(exact) != 0)[~pattern].any()
    by_x, by_w = patterns
    assert not by_x[6].any() and not by_w[6:].any()
    assert (by_x[7] == [False, False, False, True]).all()
    # Column j of w reaches only a[j].
    assert (by_w[3] == [[False, False, False, True]] * 4).all()


@pytest.mark.default
def test_random_numbers_of_uoro_are_needed_for_its_gradient_only(rng):
    rnn = rnncells.RNN(rnncells.SimpleCell(3), gradient=Uoro())
    x = jnp.ones((2, 4, 3))
    params = random_params(rng, rnn, x)
    y = jax.jit(rnn.apply)(params, x)
    plain = rnncells.RNN(rnncells.SimpleCell(3))
    assert_equal(y, jax.jit(plain.apply)(params, x))
    with pytest.raises(ValueError, match='Pass rngs={"uoro": key} to `apply`'):
        jax.eval_shape(jax.grad(lambda params: rnn.apply(params, x).sum()), params)
