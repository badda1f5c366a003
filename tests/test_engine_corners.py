"""Cells and transformations that are out of the ordinary equal the plain loop."""

import itertools
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import user_cells
from cases import (
    assert_close,
    assert_equal,
    assert_equals_the_plain_loop,
    jit_apply,
    random_like,
    random_params,
    values_and_gradients,
)
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from levels import by_level
from user_cells import CountingCell, FlaxCell

import rnncells
from rnncells.recurrence.engine.affine import Concatenation

ROWS, STEPS, FEATURES = 8, 5, 4


class OwnCell(user_cells.OwnCell):
    """The base of the cells below, which replace one member."""

    param_dtype: object = jnp.float64


def each_memory(always):
    """Parametrizes a test by memory policies, of which every run tests one."""
    rows = [("full",), ("sqrt",)]
    return pytest.mark.parametrize("memory", by_level(rows, [always]))


EXACT = {"rtol": 1e-12, "atol": 1e-12}


@pytest.fixture
def inputs(rng):
    return jnp.asarray(rng.standard_normal((ROWS, STEPS, 3)), jnp.result_type(float))


@pytest.fixture
def params(float64, inputs):
    rng = np.random.default_rng(1)
    return random_params(rng, rnncells.RNN(OwnCell(FEATURES)), inputs)


@each_memory("sqrt")
def test_jitted_methods_are_right_at_every_call(memory, params, inputs, float64):
    """What one trace of them holds must not be of another's products."""

    class CompiledCell(OwnCell):
        recur = nn.jit(OwnCell.recur)

    cell, plain = CompiledCell(FEATURES), OwnCell(FEATURES)
    expected = jit_apply(rnncells.RNN(plain), params, inputs)
    for _ in range(2):
        # Each call compiles a new program.
        assert_close(jit_apply(rnncells.RNN(cell), params, inputs), expected, **EXACT)
    rnn = rnncells.RNN(cell, memory=memory)
    assert_equals_the_plain_loop(rnn, params, inputs)
    inner = {"params": params["params"]["cell"]}
    at = jnp.ones((ROWS, FEATURES)), inputs[:, 0]
    actual, expected = (jit_apply(layer, inner, *at) for layer in (cell, plain))
    assert_close(actual, expected, **EXACT)


class Scaled(nn.Module):
    """A cell whose activation closes over a parameter of the model."""

    implementation: str = "auto"

    @nn.compact
    def __call__(self, x):
        scale = self.param("scale", nn.initializers.ones, ())
        cell = rnncells.SimpleCell(4, activation_fn=lambda a: jnp.tanh(scale * a))
        return rnncells.RNN(cell, implementation=self.implementation)(x)


class Tied(nn.Module):
    """A model and its cell share a layer."""

    implementation: str = "auto"

    def setup(self):
        self.dense = nn.Dense(4)
        cell = rnncells.SimpleCell(4, activation_fn=self.dense)
        self.rnn = rnncells.RNN(cell, implementation=self.implementation)

    def __call__(self, x):
        return self.dense(self.rnn(x))


@pytest.mark.parametrize("model", by_level([Scaled, Tied], 1))
def test_arrays_that_a_cell_closes_over_are_differentiated(model, rng):
    x = jnp.asarray(rng.standard_normal((2, 5, 3)), jnp.float32)
    params = random_params(rng, model("scan"), x)
    actual, expected = (
        jax.jit(jax.grad(lambda p, m=model(i): jnp.sum(m.apply(p, x) ** 2)))(params)
        for i in ("auto", "scan")
    )
    assert_close(actual, expected)


class SpikingCell(OwnCell):
    def recur(self, carry, projected):
        spikes = jnp.where(carry > 0.1, 1.0, 0.0)
        h = 0.5 * carry + self.affine(spikes, "h") + projected
        return h, h


def test_weights_may_be_integers(params, inputs, float64):
    kernel = {"kernel": jnp.ones((FEATURES,) * 2, jnp.int8), "bias": jnp.zeros(4)}
    params = {"params": {"cell": {**params["params"]["cell"], "h": kernel}}}

    def gradient(rnn):
        return jax.jit(jax.grad(lambda x: rnn.apply(params, x).sum()))(inputs)

    rnn = rnncells.RNN(OwnCell(FEATURES))
    plain = rnn.clone(implementation="scan")
    assert_close(gradient(rnn), gradient(plain), **EXACT)


def test_concatenation_equals_that_of_jax(rng, float64):
    """Also of concatenated arrays, along either axis, and of two dtypes."""
    shapes, dtypes = [(2, 3), (2, 3), (2, 4), (1, 10)], [float, "f4", float, float]
    arrays = [np.asarray(rng.standard_normal(s), t) for s, t in zip(shapes, dtypes)]

    def nested(concatenate, a, b, c, d):
        inner = concatenate([concatenate([a, b], -1), c], -1)
        return concatenate([inner, d], 0) ** 3

    def results(concatenate):
        f = partial(nested, concatenate)
        value, vjp = jax.vjp(f, *arrays)
        tangent = jax.jvp(f, arrays, arrays)[1]
        return value, vjp(value), tangent, jax.vmap(vjp)(jnp.stack([value, 2 * value]))

    assert_close(results(Concatenation()), results(jnp.concatenate), **EXACT)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "make, dtype", [(rnncells.LSTMCell, jnp.bfloat16), (rnncells.GRUCell, jnp.float32)]
)
def test_weakly_typed_inputs_take_the_dtype_of_params(make, dtype, rng, float64):
    """Inputs that are made of a Python number have no dtype of their own."""
    weak = jnp.full((2, STEPS, 3), 0.5)
    assert weak.weak_type
    rnn = rnncells.RNN(make(FEATURES, param_dtype=dtype))
    simple = rnncells.RNN(rnncells.SimpleCell(FEATURES, param_dtype=dtype))
    for layer in (rnn, rnncells.Bidirectional(simple, simple.clone())):
        params = random_params(rng, layer, weak)
        (y, (gradient, _)), expected = (
            values_and_gradients(layer.apply, params, x)
            for x in (weak, weak.astype(dtype))
        )
        assert y.dtype == dtype
        # The gradient by the inputs has the dtype of the inputs.
        assert_equal((y, gradient), (expected[0], expected[1][0]))
    plain = rnn.clone(implementation="scan")
    key = jax.random.key(0)
    y, _ = jax.eval_shape(lambda: plain.init_with_output(key, weak))
    assert y.dtype == dtype


class AutonomousCell(OwnCell):
    """Its inputs give it the batch axes and nothing else."""

    def project(self, inputs):
        return ()

    def recur(self, carry, projected):
        h = jnp.tanh(self.affine(carry, "h"))
        return h, h


class NumberCell(OwnCell):
    """A Python number in what `project` returns."""

    def project(self, inputs):
        return self.affine(inputs, "i"), 0.5

    def recur(self, carry, projected):
        z, number = projected
        h = jnp.tanh(self.affine(carry, "h") + z) * number
        return h, h


class PairCell(OwnCell):
    """Its inputs are a pytree."""

    def project(self, inputs):
        return self.affine(inputs["a"] + inputs["b"], "i")

    def recur(self, carry, projected):
        h = jnp.tanh(self.affine(carry, "h") + projected)
        return h, h


@jax.custom_vjp
def scaled(weight, h):
    """Returns two results, of which the first depends on the weight alone."""
    return jnp.tanh(weight), h * weight


def scaled_forward(weight, h):
    return scaled(weight, h), (weight, h)


def scaled_backward(residuals, cotangents):
    weight, h = residuals
    d_tanh, d_scaled = cotangents
    of_scaled = (d_scaled * h).sum(range(h.ndim - 1))
    return d_tanh * (1 - jnp.tanh(weight) ** 2) + of_scaled, d_scaled * weight


scaled.defvjp(scaled_forward, scaled_backward)


class CustomGradientCell(OwnCell):
    """With a `jax.custom_vjp` in `recur`."""

    def setup(self):
        super().setup()
        init = nn.initializers.normal(1.0)
        self.scale = self.param("scale", init, (self.features,), self.param_dtype)

    def recur(self, carry, projected):
        _, h = scaled(self.scale, carry)
        # This call does not read the carry: the fast loop takes all steps at once.
        gain, x = scaled(self.scale, projected)
        h = jnp.tanh(self.affine(h, "h") + x) * gain
        return h, h


class CallbackCell(OwnCell):
    """With a `pure_callback` that cannot be vmapped."""

    def recur(self, carry, projected):
        like = jax.ShapeDtypeStruct(carry.shape, carry.dtype)
        half = jax.lax.stop_gradient(carry)
        half = jax.pure_callback(lambda h: np.asarray(h) / 2, like, half)
        h = jnp.tanh(self.affine(carry, "h") + projected + half)
        return h, h


class VectorGate(FlaxCell):
    """Without a batch, its product is of two vectors: a number."""

    @nn.compact
    def __call__(self, h, x):
        weight = self.param("w", nn.initializers.normal(), (FEATURES,), jnp.float64)
        dense = nn.Dense(FEATURES, param_dtype=jnp.float64)
        h = h * nn.sigmoid(h @ weight + x.sum()) + dense(x)
        return h, h


class SumCell(FlaxCell):
    """The gradient of its step reads no residuals; it has no output."""

    @nn.compact
    def __call__(self, h, x):
        return h + nn.Dense(FEATURES, param_dtype=jnp.float64)(x), None


class OuterCell(OwnCell):
    """It contains a layer over sequences."""

    features: int = FEATURES
    num_feature_dims = 2

    def setup(self):
        self.inner = rnncells.RNN(OwnCell(FEATURES))

    def project(self, inputs):
        return inputs

    def recur(self, carry, projected):
        h = self.inner(projected, initial_carry=carry)[..., -1, :]
        return h, h


WIDE = {"param_dtype": jnp.float64}
PAIRS = rnncells.ZoneoutCell(PairCell(FEATURES), rate=0.3, deterministic=True)
# A cell, the shape of its inputs, and whether the fast loop runs it.
CORNERS = {
    "layer in a cell": (OuterCell(), (2, 3, 4, 3), True),
    "scalar in the carry": (CountingCell(FEATURES, **WIDE), (STEPS, 3), True),
    "scalar of each row": (CountingCell(FEATURES, **WIDE), (2, STEPS, 3), True),
    "nothing projected": (AutonomousCell(FEATURES), (ROWS, STEPS, 3), True),
    "a number projected": (NumberCell(FEATURES), (ROWS, STEPS, 3), True),
    "product of vectors": (VectorGate(), (STEPS, 3), True),
    "no residuals and no output": (SumCell(), (ROWS, STEPS, 3), True),
    "pytrees in a wrapper": (PAIRS, (ROWS, STEPS, 3), True),
    "half precision and numbers": (
        SpikingCell(FEATURES, param_dtype=jnp.bfloat16),
        *((ROWS, STEPS, 3), True),
    ),
    "custom gradient": (CustomGradientCell(FEATURES), (2, STEPS, 3), False),
    "callback": (CallbackCell(FEATURES), (2, STEPS, 3), False),
}
QUICK = [("scalar of each row", "full"), ("nothing projected", "full")]
QUICK += [("layer in a cell", "full"), ("pytrees in a wrapper", "full")]
QUICK += [("custom gradient", "full"), ("callback", "full")]
QUICK += [("product of vectors", "full"), ("no residuals and no output", "sqrt")]


@pytest.mark.parametrize(
    "name, memory",
    by_level(
        [
            (name, memory)
            for name, (*_, is_fast) in CORNERS.items()
            for memory in (("full", "sqrt") if is_fast else ("full",))
        ],
        *(QUICK, len(QUICK)),
    ),
)
def test_cells_out_of_the_ordinary_equal_the_plain_loop(name, memory, rng, float64):
    cell, shape, _ = CORNERS[name]
    x = jnp.asarray(rng.standard_normal(shape), getattr(cell, "param_dtype", float))
    inputs = {"a": x, "b": 2 * x} if cell is PAIRS else x
    projection = "auto" if memory == "full" else rnncells.Chunk(3)
    options = {"memory": memory, "projection": projection}
    rnn = rnncells.RNN(cell, return_carry=True, **options)
    params, tolerance = random_params(rng, rnn, inputs), 1e-12
    first = jax.tree.map(lambda leaf: leaf[..., 0, :], inputs)
    carry = rnn.initialize_carry(jax.random.key(0), first)
    if name == "half precision and numbers":
        # Made of a Python number, the carry has no dtype of its own.
        carry, tolerance = jnp.full(carry.shape, 0.5), 0.1
    assert_equals_the_plain_loop(rnn, params, inputs, carry, tolerance)


MAPPED = 3
ARGUMENTS = ["params", "inputs", "carry"]


class OpenCell(OwnCell):
    """Its state does not depend on its inputs; its output does."""

    def recur(self, carry, projected):
        h = jnp.tanh(self.affine(carry, "h"))
        return h, h + projected


class CentredCell(OwnCell):
    """Subtracts the mean over a named axis."""

    def recur(self, carry, projected):
        h = jnp.tanh(self.affine(carry, "h") + projected)
        h = h - jax.lax.pmean(h, "rows")
        return h, h


def made(rng, cell, *leading):
    """Returns params, inputs and a carry, with leading axes, in float64."""
    rnn = rnncells.RNN(cell(FEATURES), return_carry=True)
    inputs = jnp.asarray(rng.standard_normal((*leading, STEPS, 3)))
    params = random_like(rng, jax.eval_shape(rnn.init, jax.random.key(0), inputs))
    carry = jnp.asarray(rng.standard_normal((*leading, FEATURES)))
    return rnn, params, inputs, carry


def loss(rnn, params, inputs, carry, **options):
    result = rnn.apply(params, inputs, initial_carry=carry, **options)
    return sum(jnp.sum(jnp.sin(leaf + 1)) for leaf in jax.tree.leaves(result))


def in_both_loops(rnn, program):
    """Returns the results of `program(rnn)`, in the fast and in the plain loop."""
    return [
        jax.jit(program(rnn.clone(implementation=implementation)))()
        for implementation in ("auto", "scan")
    ]


@pytest.mark.parametrize(
    "mapped, result",
    by_level(
        [*itertools.product(ARGUMENTS, ["return_carry", "return_all_carries"])],
        [("params", "return_carry"), ("inputs", "return_all_carries")],
    ),
)
def test_vmap_of_a_gradient_and_its_converse_equal_the_plain_loop(
    mapped, result, rng, float64
):
    rnn, *at = made(rng, OpenCell, 2)
    k = ARGUMENTS.index(mapped)
    times = 1 + jnp.arange(MAPPED)
    at[k] = jax.tree.map(lambda leaf: jnp.multiply.outer(times, leaf), at[k])
    axes = [0 if name == mapped else None for name in ARGUMENTS]

    def program(rnn):
        of = jax.jit(partial(loss, rnn, **{result: True}))
        if result == "return_carry":
            gradient = jax.value_and_grad(jax.checkpoint(of), (0, 1, 2))
            return partial(jax.vmap(gradient, axes), *at)

        def total(*at):
            return jax.vmap(of, axes)(*at).sum()

        return partial(jax.value_and_grad(total, (0, 1, 2)), *at)

    fast, plain = in_both_loops(rnn, program)
    assert_close(fast, plain, **EXACT)


def test_named_axes_equal_the_plain_loop(rng, float64):
    # Without the axis, CentredCell cannot be initialized.
    _, params, inputs, carry = made(rng, OwnCell, ROWS)
    rnn = rnncells.RNN(CentredCell(FEATURES))

    def program(rnn):
        of = jax.vmap(partial(loss, rnn), (None, 0, 0), axis_name="rows")
        return partial(
            jax.value_and_grad(lambda *at: of(*at).sum(), (0, 1, 2)),
            *(params, inputs, carry),
        )

    fast, plain = in_both_loops(rnn, program)
    assert_close(fast, plain, **EXACT)


@pytest.mark.exhaustive
@pytest.mark.several_devices
def test_arrays_on_an_explicit_mesh_need_no_set_mesh(rng, float64):
    mesh = jax.make_mesh((4,), ("rows",), axis_types=(AxisType.Explicit,))
    rnn, params, inputs, carry = made(rng, OwnCell, ROWS)
    expected = rnn.apply(params, inputs, initial_carry=carry)
    rows = NamedSharding(mesh, PartitionSpec("rows"))
    inputs, carry = (jax.device_put(leaf, rows) for leaf in (inputs, carry))
    params = jax.device_put(params, NamedSharding(mesh, PartitionSpec()))

    for apply in (rnn.apply, jax.jit(rnn.apply)):
        actual = apply(params, inputs, initial_carry=carry)
        assert_close(jax.tree.map(np.asarray, actual), expected, **EXACT)
