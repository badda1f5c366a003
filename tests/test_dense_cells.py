"""LSTMs and GRUs: widths, coupled gates, peepholes, layer normalization, and heads."""

from functools import partial

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import (
    ALL_CELLS,
    assert_close,
    assert_equal,
    random_like,
    random_params,
    random_setting,
)
from compiled import Program
from user_cells import OwnCell

import rnncells
from rnncells.cells.contract.parameters import ElementwiseAffine
from rnncells.cells.layer_norm import standardize


def with_constants(cell, x, **biases):
    """Returns parameters: kernels 0.01, recurrent 0.02, biases 0.03 or as given."""
    shapes = jax.eval_shape(rnncells.RNN(cell).init, jax.random.key(0), x)
    of_cell = shapes["params"]["cell"]
    for gate, leaves in of_cell.items():
        values = {"kernel": 0.01 if gate[0] == "i" else 0.02}
        values["bias"] = biases.get(gate, 0.03)
        for name, leaf in leaves.items():
            leaves[name] = jnp.full(leaf.shape, values[name])
    return shapes


# Keras has two biases; those of r and z add up in one of Flax's.
TWO_BIASES = {"ir": 0.06, "iz": 0.06}


@pytest.mark.parametrize(
    "cell, biases, expected",
    [
        (rnncells.LSTMCell(3), {}, (0.57019705, 0.8661914, 0.9459622)),
        (rnncells.LSTMCell(3), {"hf": 1.0}, (0.6288687, 0.86899155, 0.9460773)),
        (rnncells.GRUCell(3), TWO_BIASES, (0.5217289, 0.6371659, 0.39384964)),
        (
            rnncells.GRUCell(3, reset_after=False),
            {},
            (0.51447755, 0.6426879, 0.40208298),
        ),
    ],
)
def test_numbers_are_those_of_the_tests_of_keras(cell, biases, expected):
    x = jnp.arange(72.0).reshape(3, 6, 4)
    y = rnncells.RNN(cell).apply(with_constants(cell, x, **biases), x)
    np.testing.assert_allclose(y[:, -1], np.tile(expected, (3, 1)).T, atol=1e-5)


def test_numbers_with_a_mask_are_those_of_the_tests_of_keras():
    x, cell = jnp.arange(24.0).reshape(2, 4, 3), rnncells.GRUCell(2)
    mask = np.array([[1, 1, 0, 1], [1, 0, 0, 1]], bool)
    rnn = rnncells.RNN(cell, padded_outputs="hold")
    y = rnn.apply(with_constants(cell, x, **TWO_BIASES), x, mask=mask)
    expected = (0.03606692, 0.09497581, 0.09497581, 0.19393763)
    np.testing.assert_allclose(y[0, :, 0], expected, atol=1e-5)
    np.testing.assert_allclose(y[1, -1], 0.30818558, atol=1e-5)


@pytest.mark.parametrize("name", ["LSTMCell", "GRUCell", "MGUCell", "SimpleCell"])
def test_features_none_takes_the_width_of_the_carry(name, key):
    cell, x = getattr(rnncells, name)(None), jnp.ones((2, 3))
    named = getattr(rnncells, name)(4)
    carry = named.initialize_carry(key, x)

    params = cell.init(key, carry, x)
    assert_equal(params, named.init(key, carry, x))
    rnn = rnncells.RNN(cell)
    in_rnn = rnn.init(key, x[:, None], initial_carry=carry)
    assert jax.tree.map(jnp.shape, in_rnn["params"]["cell"]) == jax.tree.map(
        jnp.shape, params["params"]
    )
    with pytest.raises(ValueError, match="`features` of .* is None"):
        rnn.init(key, x[:, None])


def test_reset_before_the_product_has_no_recurrent_bias(key):
    cell, x = rnncells.GRUCell(4, reset_after=False), jnp.ones((2, 3))
    params = cell.init(key, cell.initialize_carry(key, x), x)
    assert set(params["params"]["hn"]) == {"kernel"}


@pytest.mark.parametrize("features", [4, None])
def test_peephole_lstm_starts_as_an_lstm(features, rng, key):
    cell, lstm = rnncells.PeepholeLSTMCell(features), rnncells.LSTMCell(4)
    x = jax.random.normal(key, (2, 3))
    carry = random_like(rng, lstm.initialize_carry(key, x))
    params = cell.init(key, carry, x)

    actual = cell.apply(params, carry, x)

    for name in ("pi", "pf", "po"):
        assert_equal(params["params"].pop(name), {"kernel": jnp.zeros(4)})
    assert_equal(params, lstm.init(key, carry, x))
    assert_close(actual, lstm.apply(params, carry, x))


@pytest.mark.parametrize("axes", [0, 3])
def test_diagonal_has_a_weight_for_each_element_of_its_trailing_axes(axes, rng, key):
    x = jax.random.normal(key, (5, 2, 3, 4))
    layer = ElementwiseAffine(axes, use_bias=True)
    params = random_like(rng, jax.eval_shape(layer.init, key, x))
    kernel, bias = params["params"]["kernel"], params["params"]["bias"]
    assert kernel.shape == bias.shape == x.shape[4 - axes :]
    assert_close(layer.apply(params, x), x * kernel + bias)


def test_gradient_of_diagonal_is_summed_in_the_dtype_of_its_weights(key):
    """There is no 1001 in bfloat16."""
    rows = jnp.ones((1001, 3), jnp.bfloat16)
    layer = ElementwiseAffine(use_bias=True, dtype=jnp.bfloat16)
    params = layer.init(key, rows)
    outputs, pull = jax.vjp(lambda p: layer.apply(p, rows), params)
    (gradient,) = pull(jnp.ones_like(outputs))
    assert outputs.dtype == jnp.bfloat16
    assert_equal(gradient, jax.tree.map(lambda w: jnp.full(3, 1001.0), params))


def test_half_precision_is_normalized_in_float32(rng):
    x = jnp.asarray(rng.standard_normal((2, 2000)) + 8, jnp.bfloat16)
    expected = standardize(x.astype(jnp.float32), 1e-5)
    actual = standardize(x, 1e-5)
    assert actual.dtype == jnp.bfloat16
    assert_close(actual, expected.astype(jnp.bfloat16), rtol=0, atol=0)


@pytest.mark.parametrize(
    "name, of_bias_init",
    [
        ("LayerNormLSTMCell", {"norm_x"}),
        ("LayerNormGRUCell", {"norm_x", "norm_xn", "norm_hn"}),
    ],
)
def test_scales_start_at_one_and_shifts_at_zero(name, of_bias_init, key):
    x = jnp.ones((2, 3))
    for options in ({}, {"bias_init": nn.initializers.constant(5.0)}):
        cell = ALL_CELLS[name].make(**options)
        params = cell.init(key, cell.initialize_carry(key, x), x)["params"]
        norms = {k: v for k, v in params.items() if k.startswith("norm")}
        for norm_name, leaves in norms.items():
            assert (leaves["kernel"] == 1).all()
            is_given = options and norm_name in of_bias_init
            assert (leaves["bias"] == (5 if is_given else 0)).all()
        gates = [leaves for k, leaves in params.items() if k not in norms]
        assert all(set(leaves) == {"kernel"} for leaves in gates)


@pytest.mark.parametrize("name", ["LayerNormLSTMCell", "LayerNormGRUCell"])
def test_gradients_are_finite_where_the_variance_is_zero(name, rng):
    """The carry before the first step is, and so may be the inputs."""
    cell, params, carry, x = random_setting(ALL_CELLS[name], rng, 2)
    zeros = jax.tree.map(np.zeros_like, (carry, x))

    @jax.jit
    @partial(jax.grad, argnums=(0, 1))
    def gradient(params, carry_and_x):
        return cell.apply(params, *carry_and_x)[1].sum()

    chex.assert_tree_all_finite(gradient(params, zeros))


FEATURES, HEADS = 6, 2


def test_heads_are_multiplied_in_one_product_per_step(rng):
    """Forward one product in the loop, and backward one; weights after the loop."""
    rnn = rnncells.RNN(rnncells.LSTMCell(FEATURES, num_heads=HEADS))
    x = jnp.asarray(rng.standard_normal((2, 50, 3)), jnp.float32)
    params = random_params(rng, rnn, x)
    gradient = jax.jit(jax.grad(lambda params: jnp.sum(rnn.apply(params, x) ** 2)))
    program = Program(gradient.lower(params).compile().as_text())
    assert [len(body.products) for body in program.loops] == [1, 1]


def test_each_head_starts_orthogonal(key):
    cell = rnncells.LSTMCell(FEATURES, num_heads=HEADS)
    carry = cell.initialize_carry(None, (3,))
    kernel = cell.init(key, carry, jnp.ones(3))["params"]["hi"]["kernel"]
    assert kernel.shape == (HEADS, 3, 3)
    eye = jnp.broadcast_to(jnp.eye(3), kernel.shape)
    assert_close(kernel @ kernel.mT, eye, atol=1e-5)
    assert abs(kernel[0] - kernel[1]).max() > 0.1


class TwoKindsCell(OwnCell):
    def setup(self):
        self.gates("i")
        self.gates("h", num_heads=2)

    def project(self, inputs):
        return self.affine(inputs, "i", "h")


def test_gates_with_different_heads_cannot_be_joined():
    cell = TwoKindsCell(4)
    with pytest.raises(ValueError, match=r"one number of heads, got \[1, 2\]"):
        cell.init(jax.random.key(0), jnp.zeros(4), jnp.ones(4))
    message = "must divide the widths that gate `h` connects, 3 and 4, got 2"
    with pytest.raises(ValueError, match=message):
        cell.init(jax.random.key(0), jnp.zeros(4), jnp.ones(3))


@pytest.mark.parametrize(
    "named",
    [nn.with_partitioning, nn.with_logical_partitioning],
    ids=["mesh", "logical"],
)
def test_axis_of_blocks_gets_no_name(named, key):
    init = named(nn.initializers.lecun_normal(), ("rows", "columns"))
    cell = rnncells.GRUCell(FEATURES, num_heads=HEADS, recurrent_kernel_init=init)
    carry = cell.initialize_carry(None, (3,))
    params = jax.eval_shape(cell.init, key, carry, jnp.ones(3))["params"]
    assert params["hn"]["kernel"].names == (None, "rows", "columns")
