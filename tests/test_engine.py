"""The fast loop equals the plain loop, differentiated by JAX: values and gradients."""

import itertools
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import (
    ALL_CELLS,
    CELLS,
    assert_close,
    assert_equals_the_plain_loop,
    level_of,
    random_like,
    random_params,
    values_and_gradients,
)
from levels import by_level
from sequences import ROWS, STEPS, WAYS
from user_cells import USER_CELLS

import rnncells
from rnncells import Chunk
from rnncells.recurrence.engine import affine

# Number of steps: chunks of 4 divide it, chunks of 3 leave a shorter one.
CHOICES_STEPS = 8
CHOICES = {
    "default": {},
    "recompute": {"memory": "recompute"},
    "recompute-chunk": {"memory": "recompute", "projection": Chunk(2)},
    "sqrt": {"memory": "sqrt"},
    "chunks-with-a-rest": {"memory": Chunk(3)},
    "projection-whole": {"projection": "whole"},
    "projection-chunks": {"projection": Chunk(4)},
    "projection-with-a-rest": {"projection": Chunk(3)},
    "projection-step-by-step": {"projection": Chunk(1)},
    "unrolled": {"unroll": 2},
}


# Two products in series, and convolutions and peepholes.
FORMS = ["GRUCell-reset-before", "ConvLSTMCell-peepholes"]
# On several devices, the engine computes gates apart, or convolves with the batch axis
# first.
ON_SEVERAL_DEVICES = {
    "LSTMCell": [],
    "LayerNormLSTMCell": [pytest.mark.exhaustive],
    "ConvLSTMCell-peepholes": [pytest.mark.exhaustive],
}


def float64_cells():
    """Yields all cells, each with the memory policies that it is tested with.

    By default, cells have one policy, and LSTMCell on several devices the other.
    """
    both = ("full", Chunk(4))
    for k, (name, case) in enumerate(ALL_CELLS.items()):
        make = partial(case.make, param_dtype=jnp.float64)
        marks, at = level_of(name, FORMS), case.input_shape
        if name == "GRUCell":  # Its other form has two products in series.
            marks = pytest.mark.exhaustive
        yield pytest.param(make, at, both[k % 2 :][:1], id=name, marks=marks)
        marks = pytest.mark.exhaustive
        yield pytest.param(make, at, both, id=f"{name}-both-policies", marks=marks)
        if name in ON_SEVERAL_DEVICES:
            marks = [pytest.mark.several_devices, *ON_SEVERAL_DEVICES[name]]
            policies = both[:1] if name == "LSTMCell" else both[1:]
            name += "-several-devices"
            yield pytest.param(make, at, policies, id=name, marks=marks)
    for name, cell in USER_CELLS.items():
        make = partial(cell, 4, param_dtype=jnp.float64)
        # Its carry has integers.
        marks = [] if name == "CountingCell" else pytest.mark.exhaustive
        yield pytest.param(make, (3,), (Chunk(4),), id=name, marks=marks)
        marks = pytest.mark.exhaustive
        yield pytest.param(make, (3,), ("full",), id=f"{name}-full", marks=marks)


def loss(rnn, params, inputs, weights, **arguments):
    """Returns a number in which every output counts, nonlinearly."""
    outcome = rnn.apply(params, inputs, **arguments)
    leaves = jax.tree.leaves(outcome)
    return sum(jnp.sum(jnp.sin(w * leaf)) for w, leaf in zip(weights, leaves))


def outcome(rnn, params, inputs, carry, fresh=None, **arguments):
    """Returns the values of a layer, and the gradients of all of its arguments."""

    def run(params, inputs, carry, fresh):
        carries = {"initial_carry": carry, "reset_carry": fresh}
        return rnn.apply(params, inputs, **carries, **arguments)

    return values_and_gradients(run, params, inputs, carry, fresh)


def setting(make, input_shape, rng, steps=STEPS, **options):
    inputs = jnp.asarray(rng.standard_normal((ROWS, steps, *input_shape)))
    rnn = rnncells.RNN(make(), return_carry=True, **options)
    params = random_params(rng, rnn, inputs)
    carry = rnn.cell.initialize_carry(jax.random.key(0), inputs[:, 0])
    return rnn, params, inputs, random_like(rng, carry), random_like(rng, carry)


def float64_setting(name, rng, **options):
    cell = CELLS[name].make if name in CELLS else partial(USER_CELLS[name], 4)
    return setting(partial(cell, param_dtype=jnp.float64), (3,), rng, **options)


@cache
def all_ways(make, input_shape):
    """Returns a layer, its arguments, values and gradients of the plain loop.

    They are NumPy arrays, which tests on one device and on several share.
    """
    rng = np.random.default_rng(7)
    rnn, *at = setting(make, input_shape, rng, padded_outputs="hold")
    plain, at = rnn.clone(implementation="scan"), jax.device_get(at)
    return rnn, at, jax.device_get(outcome(plain, *at, **WAYS["all"]))


@pytest.mark.parametrize("make, input_shape, policies", list(float64_cells()))
def test_every_cell_equals_the_plain_loop(make, input_shape, policies, float64):
    rnn, at, expected = all_ways(make, input_shape)
    for memory in policies:
        fast = rnn.clone(memory=memory, projection=Chunk(4))
        actual = outcome(fast, *at, **WAYS["all"])
        assert_close(actual, expected, rtol=1e-12, atol=1e-12)


each_number_of_devices = pytest.mark.parametrize(
    "devices",
    [1, pytest.param(8, marks=[pytest.mark.several_devices, pytest.mark.exhaustive])],
)


@cache
def many_weights(width):
    """Returns what `all_ways` returns, without lengths, masks and resets."""
    make = partial(rnncells.LSTMCell, width, param_dtype=jnp.float64)
    rnn, *at, _ = setting(make, (3,), np.random.default_rng(7))
    params, *at = jax.device_get(at)
    at = jax.tree.map(lambda leaf: 0.1 * leaf, params), *at
    plain = rnn.clone(implementation="scan")
    return rnn, at, jax.device_get(outcome(plain, *at))


@pytest.mark.default
@each_number_of_devices
def test_many_weights_and_few_rows_equal_the_plain_loop(devices, monkeypatch, float64):
    """The loop then multiplies from the left, by weights that it transposes.

    Gradients of weights are formed of transposed rows, as at some widths in jax 0.10.
    """
    monkeypatch.setattr(affine, "_HAS_SLOW_WIDTH", True)
    monkeypatch.setattr(affine, "_SLOW_WIDTH", 4)
    assert jax.device_count() == devices
    width = 128
    kernel_bytes = width * 4 * width * np.dtype(float).itemsize
    assert kernel_bytes >= affine._MUCH_TO_PACK and ROWS <= affine._FEW_ROWS
    rnn, at, expected = many_weights(width)
    actual = outcome(rnn, *at)
    assert_close(actual, expected, rtol=1e-12, atol=1e-12)


@cache
def plain(name):
    """Returns a layer, its arguments, values and gradients of the plain loop."""
    rng = np.random.default_rng(7)
    rnn, *at, _ = float64_setting(name, rng, steps=CHOICES_STEPS)
    return rnn, at, outcome(rnn.clone(implementation="scan"), *at)


@pytest.mark.parametrize(
    "name, choice",
    by_level(
        [*itertools.product(["LSTMCell", "MultiplicativePeepholeCell"], CHOICES)],
        [("LSTMCell", "sqrt"), ("MultiplicativePeepholeCell", "recompute-chunk")],
    ),
)
def test_memory_and_projection_equal_the_plain_loop(name, choice, float64):
    rnn, at, expected = plain(name)
    actual = outcome(rnn.clone(**CHOICES[choice]), *at)
    assert_close(actual, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "name",
    by_level(
        ["SimpleCell", "LSTMCell", "GRUCell-reset-before"], ["GRUCell-reset-before"]
    ),
)
def test_complex_inputs_equal_the_plain_loop(name, rng, float64):
    rnn, params, inputs, _, _ = float64_setting(name, rng)
    inputs = inputs + 1j * jnp.asarray(rng.standard_normal(inputs.shape))
    assert_equals_the_plain_loop(rnn, params, inputs, tolerance=1e-11)


def forward_modes(of, x, direction):
    """Returns derivatives in forward mode, alone and with other transformations."""

    def along(x, direction=direction):
        return jax.jvp(of, (x,), (direction,))[1]

    _, linear = jax.linearize(of, x)
    xs = three_points(x)
    return {
        "of jit and checkpoint": jax.jvp(
            jax.checkpoint(jax.jit(of)), (x,), (direction,)
        ),
        "linearize": linear(direction),
        "transposed": jax.linear_transpose(linear, x)(1.0),
        "many points": jax.vmap(along, (0, None))(xs, direction),
        "of vmap": jax.jvp(jax.vmap(of), (xs,), (xs,)),
        "forward over forward": jax.jvp(along, (x,), (direction,))[1],
        "reverse over forward": jax.grad(along)(x),
        "forward over reverse": jax.jvp(jax.grad(of), (x,), (direction,))[1],
        "of a factor": jax.jvp(lambda k: k * of(x), (2.0,), (1.0,)),
    }


def three_points(x):
    return jax.tree.map(lambda leaf: jnp.stack([leaf, 2 * leaf, leaf - 1]), x)


def by_reverse_mode(of, x, direction):
    """Returns the results of `forward_modes`, computed by reverse mode."""

    def dot(*trees):
        products = jax.tree.map(jnp.vdot, *trees)
        return sum(jax.tree.leaves(products))

    xs = three_points(x)
    values, gradients = jax.vmap(jax.value_and_grad(of))(xs)
    value, gradient = jax.tree.map(lambda leaf: leaf[0], (values, gradients))
    second = jax.grad(lambda x: dot(jax.grad(of)(x), direction))(x)
    derivative = dot(gradient, direction)
    return {
        "of jit and checkpoint": (value, derivative),
        "linearize": derivative,
        "transposed": (gradient,),
        "many points": jax.vmap(partial(dot, direction))(gradients),
        "of vmap": (values, jax.vmap(dot)(gradients, xs)),
        "forward over forward": dot(second, direction),
        "reverse over forward": second,
        "forward over reverse": second,
        "of a factor": (2 * value, value),
    }


@pytest.mark.parametrize(
    "name, memory",
    by_level(
        [
            ("SimpleCell", "full"),
            # One product, two in series, and weights used outside of `product`.
            *itertools.product(
                ["LSTMCell", "GRUCell-reset-before", "MultiplicativePeepholeCell"],
                ("full", Chunk(2)),
            ),
        ],
        [("SimpleCell", "full")],
    ),
)
def test_forward_mode_equals_the_plain_loop(name, memory, rng, float64):
    rnn, params, inputs, carry, _ = float64_setting(name, rng, memory=memory)
    x = params, inputs[:2, :3], jax.tree.map(lambda leaf: leaf[:2], carry)
    direction = random_like(rng, x)

    def of(rnn, x):
        params, inputs, carry = x
        return loss(rnn, params, inputs, [1.1, 0.7, 1.3], initial_carry=carry)

    plain = rnn.clone(memory="full", implementation="scan")
    actual = jax.jit(partial(forward_modes, partial(of, rnn)))(x, direction)
    expected = jax.jit(partial(by_reverse_mode, partial(of, plain)))(x, direction)
    assert_close(actual, expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("name", by_level(["LSTMCell", "GRUCell"], ["GRUCell"]))
def test_half_precision_is_as_close_to_float64_as_the_plain_loop(name, rng):
    """Sums over time and batch are taken in float32: errors do not grow with T."""
    steps, chunk = 240, Chunk(10)
    cell = CELLS[name].make(dtype=jnp.bfloat16)
    rnn = rnncells.RNN(cell, projection=chunk)
    inputs = jnp.asarray(rng.standard_normal((ROWS, steps, 3)), jnp.float32)
    params = random_params(rng, rnn, inputs, scale=0.3)

    def gradients(rnn, params, inputs):
        of = partial(loss, rnn, weights=[1.0])
        gradient = jax.jit(jax.grad(lambda p, x: of(p, x).astype(float)))
        return jax.device_get(gradient(params, inputs))

    def error(gradient, exact):
        return max(
            float(np.linalg.norm(a - b) / np.linalg.norm(b))
            for a, b in zip(
                jax.tree.leaves(gradient), jax.tree.leaves(exact), strict=True
            )
        )

    fast = gradients(rnn, params, inputs)
    scan = rnn.clone(implementation="scan", projection="auto")
    plain = gradients(scan, params, inputs)
    with jax.enable_x64(True):
        wide = scan.clone(cell=cell.clone(dtype=None, param_dtype=jnp.float64))
        to64 = partial(jax.tree.map, lambda leaf: np.asarray(leaf, np.float64))
        exact = gradients(wide, to64(params), to64(inputs))
        fast_error, plain_error = error(fast, exact), error(plain, exact)
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(fast))
    assert fast_error < 1.1 * plain_error
    assert fast_error < 0.05


@pytest.mark.parametrize(
    "options, projection",
    by_level(
        [({"dtype": jnp.bfloat16}, "whole"), ({"param_dtype": jnp.bfloat16}, Chunk(7))],
        1,
    ),
)
@each_number_of_devices
def test_gradients_of_half_precision_are_summed_in_float32(
    devices, options, projection
):
    """In bfloat16, 256 + 1 is 256."""
    assert jax.device_count() == devices
    cell = rnncells.SimpleCell(2, activation_fn=lambda x: x, **options)
    rnn = rnncells.RNN(cell, projection=projection)
    inputs = jnp.ones((3, 700, 1), jnp.bfloat16)
    like = jax.eval_shape(rnn.init, jax.random.key(0), inputs)
    params = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), like)

    def loss(params):
        return rnn.apply(params, inputs).sum()

    # Without recurrent weights, each output has a gradient of 1.
    gradient = jax.jit(jax.grad(loss))(params)["params"]["cell"]["i"]
    for leaf in jax.tree.leaves(gradient):
        np.testing.assert_array_equal(leaf, jnp.full(leaf.shape, 3 * 700, leaf.dtype))


def test_cell_that_overrides_call_takes_the_plain_loop(rng):
    class DoublingCell(rnncells.SimpleCell):
        def __call__(self, carry, inputs):
            carry, output = super().__call__(carry, inputs)
            return carry, 2 * output

    inputs = jnp.asarray(rng.standard_normal((ROWS, STEPS, 3)), jnp.float32)
    once, twice = rnncells.RNN(rnncells.SimpleCell(4)), rnncells.RNN(DoublingCell(4))
    params = random_params(rng, once, inputs)
    expected = 2 * once.apply(params, inputs)
    assert_close(twice.apply(params, inputs), expected)
