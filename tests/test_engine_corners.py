"""Cells and programs that are out of the ordinary run as in the plain loop."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import user_cells
from cases import assert_close, assert_equal, jit_apply, random_params
from jax.sharding import Mesh, PartitionSpec
from levels import by_level
from test_engine import setting, value_and_gradients
from user_cells import CountingCell

import rnncells

ROWS, STEPS, FEATURES = 8, 5, 4


class OwnCell(user_cells.OwnCell):
    """The base of the cells below, which replace one member."""

    param_dtype: object = jnp.float64


def outputs_and_gradients(rnn, params, inputs, carry=None):
    def loss(params, inputs):
        outputs = rnn.apply(params, inputs, initial_carry=carry)
        return sum(jnp.sum(jnp.sin(y)) for y in jax.tree.leaves(outputs)), outputs

    return jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True))(params, inputs)


def assert_equals_the_plain_loop(rnn, params, inputs, carry=None, **tolerances):
    plain = rnn.clone(implementation="scan", memory="full")
    expected = outputs_and_gradients(plain, params, inputs, carry)
    actual = outputs_and_gradients(rnn, params, inputs, carry)
    assert_close(actual, expected, **tolerances)


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


INSIDE = {
    "vmap": lambda product, h: jax.vmap(product)(h),
    "jit": lambda product, h: jax.jit(product)(h),
    "checkpoint": lambda product, h: jax.checkpoint(product)(h),
    "cond": lambda product, h: jax.lax.cond(
        h.sum() > 0, product, lambda h: 2 * product(h), h
    ),
    "loop": lambda product, h: jax.lax.fori_loop(
        0, 3, lambda _, h: jnp.tanh(product(h)), h
    ),
    "gradient": lambda product, h: jax.grad(
        lambda h: jax.checkpoint(partial(loop_of, product))(h).sum()
    )(h),
}


def loop_of(product, h):
    """JAX writes the gradient of a loop in a checkpoint as a call of its own kind."""
    return jax.lax.scan(lambda h, _: (jnp.tanh(product(h)), None), h, length=3)[0]


@pytest.mark.parametrize("transform", by_level(INSIDE.values(), 2), ids=INSIDE)
def test_products_inside_transformations_equal_the_plain_loop(transform, rng, float64):
    """They are formed where they stand, and not after the loop."""

    class TwiceCell(rnncells.SimpleCell):
        def recur(self, carry, projected):
            def product(h):
                return self.affine(h, "h")

            inner = product(carry) if self.is_initializing() else None
            inner = transform(product, carry) if inner is None else inner
            return super().recur(carry, projected + inner)

    make = partial(TwiceCell, 4, param_dtype=jnp.float64)
    rnn, params, inputs, carry, _ = setting(make, (3,), rng)
    expected = value_and_gradients(
        rnn.clone(implementation="scan"), params, inputs, carry
    )
    actual = value_and_gradients(rnn, params, inputs, carry)
    assert_close(actual, expected, rtol=1e-12, atol=1e-12)


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
    assert_equals_the_plain_loop(rnn, params, inputs, **EXACT)
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


@each_memory("full")
def test_cell_may_contain_a_layer_over_sequences(memory, params, rng, float64):
    class OuterCell(rnncells.RNNCellBase):
        features: int = FEATURES
        num_feature_dims = 2

        def carry_shape(self, input_shape):
            return (self.features,)

        def setup(self):
            self.inner = rnncells.RNN(OwnCell(FEATURES))

        def project(self, inputs):
            return inputs

        def recur(self, carry, projected):
            h = self.inner(projected, initial_carry=carry)[..., -1, :]
            return h, h

    x = jnp.asarray(rng.standard_normal((2, 3, 4, 3)))
    inner = {"params": {"cell": {"inner": params["params"]}}}
    carry = jnp.zeros((2, FEATURES))
    rnn = rnncells.RNN(OuterCell(), memory=memory)
    assert_equals_the_plain_loop(rnn, inner, x, carry, **EXACT)


@pytest.mark.parametrize("batch", by_level([((),), ((2,),)], 1))
def test_leaves_of_the_carry_may_be_scalars(batch, rng, float64):
    cell = CountingCell(FEATURES, param_dtype=jnp.float64)
    x = jnp.asarray(rng.standard_normal((*batch, STEPS, 3)))
    rnn = rnncells.RNN(cell)
    params = random_params(rng, rnn, x)
    plain = rnn.clone(implementation="scan")
    actual, expected = (jit_apply(layer, params, x) for layer in (rnn, plain))
    assert_close(actual, expected, **EXACT)


class SpikingCell(OwnCell):
    def recur(self, carry, projected):
        spikes = jnp.where(carry > 0.1, 1.0, 0.0)
        h = 0.5 * carry + self.affine(spikes, "h") + projected
        return h, h


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "make, number, memory",
    [
        (make, number, memory)
        for make, number in ((SpikingCell, None), (OwnCell, 0.5))
        for memory in ("full", "sqrt")
    ],
)
def test_python_numbers_do_not_change_dtypes(make, number, memory, params, inputs):
    """As in a cell that spikes, and for a carry that is made of a number."""
    half = partial(jax.tree.map, lambda leaf: leaf.astype(jnp.bfloat16))
    at = half(params), half(inputs)
    carry = None if number is None else jnp.full((ROWS, FEATURES), number)
    rnn = rnncells.RNN(make(FEATURES, param_dtype=jnp.bfloat16), memory=memory)
    assert_equals_the_plain_loop(rnn, *at, carry, rtol=0.1, atol=0.1)


def test_weights_may_be_integers(params, inputs, float64):
    kernel = {"kernel": jnp.ones((FEATURES,) * 2, jnp.int8), "bias": jnp.zeros(4)}
    params = {"params": {"cell": {**params["params"]["cell"], "h": kernel}}}

    def gradient(rnn):
        return jax.jit(jax.grad(lambda x: rnn.apply(params, x).sum()))(inputs)

    rnn = rnncells.RNN(OwnCell(FEATURES))
    plain = rnn.clone(implementation="scan")
    assert_close(gradient(rnn), gradient(plain), **EXACT)


@pytest.mark.exhaustive
@pytest.mark.several_devices
def test_shard_map_with_typed_arrays(params, inputs, float64):
    mesh = Mesh(np.array(jax.devices()), ("batch",))
    rows, all_ = PartitionSpec("batch"), PartitionSpec()
    carry = jnp.ones((ROWS, FEATURES))
    rnn = rnncells.RNN(OwnCell(FEATURES))

    def run(params, inputs, carry):
        return rnn.apply(params, inputs, initial_carry=carry)

    def loss(run, params):
        return jnp.sum(run(params, inputs, carry) ** 2)

    mapped = jax.shard_map(run, mesh=mesh, in_specs=(all_, rows, rows), out_specs=rows)
    actual, expected = (
        jax.jit(jax.value_and_grad(partial(loss, f)))(params) for f in (mapped, run)
    )
    assert_close(actual, expected, **EXACT)


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
        actual, expected = (
            outputs_and_gradients(layer, params, x) for x in (weak, weak.astype(dtype))
        )
        assert actual[0][1].dtype == dtype
        # The gradient by the inputs has the dtype of the inputs.
        assert_equal((actual[0], actual[1][0]), (expected[0], expected[1][0]))
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


@pytest.mark.parametrize("cell", by_level([AutonomousCell, NumberCell], 1))
def test_project_may_return_anything(cell, params, inputs, float64):
    rnn, carry = rnncells.RNN(cell(FEATURES)), jnp.ones((ROWS, FEATURES))
    actual, expected = (
        outputs_and_gradients(layer, params, inputs, carry)
        for layer in (rnn, rnn.clone(implementation="scan"))
    )
    assert_close(actual, expected, **EXACT)


@each_memory("full")
def test_wrapped_cells_may_have_pytrees_as_inputs(memory, params, inputs, float64):
    cell = rnncells.ZoneoutCell(PairCell(FEATURES), rate=0.3, deterministic=True)
    inner = {"params": {"cell": {"cell": params["params"]["cell"]}}}
    pair = {"a": inputs, "b": 2 * inputs}
    rnn = rnncells.RNN(cell, memory=memory)
    assert_equals_the_plain_loop(rnn, inner, pair, **EXACT)
