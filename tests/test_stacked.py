"""A stack as one cell: it equals its layers, each run over the whole sequence."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import (
    assert_close,
    assert_equal,
    jit_apply,
    random_like,
    random_params,
    values_and_gradients,
)
from compiled import Program
from levels import by_level
from sequences import ROWS, STEPS, WAYS

import rnncells

FEATURES_IN = 3
NORMAL = nn.initializers.normal(1.0)


class Leaky(nn.Module):
    """A cell of a user: it has only what Flax asks for."""

    features: int
    num_feature_axes = 1

    @nn.nowrap
    def initialize_carry(self, rng, input_shape):
        dtype = jnp.result_type(float)
        return jax.random.normal(rng, (*input_shape[:-1], self.features), dtype)

    @nn.compact
    def __call__(self, h, x):
        dense = partial(nn.Dense, self.features, param_dtype=jnp.result_type(float))
        h = 0.5 * h + jnp.tanh(dense(name="x")(x) + dense(name="h")(h))
        return h, h


class Echo(nn.Module):
    """A cell of a user without parameters: the output is the input."""

    num_feature_axes: int = 1

    @nn.nowrap
    def initialize_carry(self, rng, input_shape):
        return ()

    def __call__(self, carry, x):
        return carry, x


def layers():
    """Returns cells of rnncells and a user, modules, and a function."""
    dtype = {"param_dtype": jnp.result_type(float)}
    return [
        nn.Dense(6, **dtype),
        rnncells.LSTMCell(4, carry_init=NORMAL, **dtype),
        nn.LayerNorm(**dtype),
        jnp.tanh,
        Leaky(7),
        nn.Dense(2, **dtype),
    ]


def of_rnns(params):
    """Returns parameters of cells as those of RNNs, where the layers are RNNs."""
    cells = {"layers_1", "layers_4"}
    return {k: {"cell": p} if k in cells else p for k, p in params.items()}


@pytest.mark.parametrize("reverse", by_level([False, True], [False]))
def test_one_loop_equals_one_loop_for_each_layer(reverse, rng, float64):
    if reverse:
        options = {"reverse": True, "keep_order": True}
        run = [
            rnncells.RNN(layer, **options)
            if hasattr(layer, "initialize_carry")
            else layer
            for layer in layers()
        ]
        stack, rename = rnncells.Stack(run, return_carry=True), of_rnns
    else:
        options, rename = {}, dict
        stack = rnncells.Stack(layers(), return_carry=True)
    # `memory` raises unless the fast loop runs.
    rnn = rnncells.RNN(
        rnncells.StackedCell(layers()), return_carry=True, memory="recompute", **options
    )
    x = jnp.asarray(rng.standard_normal((ROWS, STEPS, FEATURES_IN)))
    params = random_params(rng, rnn, x)["params"]["cell"]
    carry = random_like(rng, rnn.initialize_carry(jax.random.key(0), x[:, 0]))

    # Resets restore random carries, which depend on the key.
    ways = WAYS["mask+resets"] | {"init_key": jax.random.key(5)}

    def one_loop(params, x, carry):
        params = {"params": {"cell": params}}
        return rnn.apply(params, x, initial_carry=carry, **ways)

    def layer_by_layer(params, x, carry):
        params = {"params": rename(params)}
        return stack.apply(params, x, initial_carry=carry, **ways)

    actual = values_and_gradients(one_loop, params, x, carry)
    expected = values_and_gradients(layer_by_layer, params, x, carry)
    assert_close(actual, expected, rtol=1e-12, atol=1e-12)


def test_initial_carries_and_parameters_are_those_of_a_stack(rng):
    stack, rnn = rnncells.Stack(layers()), rnncells.RNN(rnncells.StackedCell(layers()))
    x = jnp.asarray(rng.standard_normal((2, 5, FEATURES_IN)), jnp.float32)
    key = jax.random.key(3)

    carry = rnn.initialize_carry(key, x[:, 0])
    shapes = jax.eval_shape(rnn.init, key, x)["params"]["cell"]

    assert_equal(carry, stack.initialize_carry(key, x[:, 0]))
    assert not np.allclose(*carry[0])
    assert_equal(carry, rnn.initialize_carry(key, batch_shape=(2,)))
    expected = jax.eval_shape(stack.init, key, x)["params"]
    assert jax.tree.map(str, shapes) == jax.tree.map(str, expected)


@pytest.mark.default
def test_weight_gradients_are_outside_of_the_loops():
    """With sizes that differ from the batch, which is a prime."""
    cell = rnncells.StackedCell(
        [nn.Dense(9), rnncells.LSTMCell(13), nn.Dense(7), nn.GRUCell(5), nn.Dense(3)]
    )
    rnn, x = rnncells.RNN(cell), jax.ShapeDtypeStruct((11, 24, 8), jnp.float32)
    params = jax.eval_shape(rnn.init, jax.random.key(0), x)

    def loss(params, x):
        return jnp.mean(rnn.apply(params, x) ** 2)

    compiled = jax.jit(jax.grad(loss, (0, 1))).lower(params, x).compile()
    program = Program(compiled.as_text())
    forward, back = program.innermost
    # No step depends on the last Dense, so its cotangents are computed at once.
    assert [len(forward.products), len(back.products)] == [5, 4]
    for loop in (forward, back):
        assert [i.text for i in loop.of_weights(11)] == []


@pytest.mark.parametrize("split", [None, True, False])
def test_dropout_draws_a_new_mask_at_each_step_unless_told_otherwise(split):
    cell = rnncells.StackedCell([nn.Dropout(0.5), Echo()])
    options = {} if split is None else {"split_rngs": {"dropout": split}}
    rnn, x = rnncells.RNN(cell, **options), jnp.ones((2, 40, 3))
    rngs = {"dropout": jax.random.key(0)}

    y = jit_apply(rnn, {}, x, deterministic=False, rngs=rngs)

    changes = np.mean(np.asarray(y[:, 1:] != y[:, :-1]))
    assert (changes == 0) if split is False else (0.3 < changes < 0.7)
    assert_equal(jit_apply(rnn, {}, x, deterministic=True), x)


@pytest.mark.default
def test_cells_of_a_compact_method_run_in_the_fast_loop(rng, float64):
    class Model(nn.Module):
        options: dict

        @nn.compact
        def __call__(self, x):
            dtype = {"param_dtype": float}
            head, inner = nn.Dense(3, **dtype), rnncells.SimpleCell(3, **dtype)
            zoneout = rnncells.ZoneoutCell(inner, 0.4, deterministic=True)
            nested = rnncells.StackedCell([zoneout, jnp.tanh])
            cell = rnncells.StackedCell([nested, nn.SimpleCell(5, **dtype), head])
            # The model has other layers, and uses the same one elsewhere.
            y = rnncells.RNN(cell, **self.options)(x)
            return head(nn.Dense(5, **dtype)(y))

    x = jnp.asarray(rng.standard_normal((2, 5, FEATURES_IN)))
    params = random_params(rng, Model({}), x)
    assert {"SimpleCell_0", "SimpleCell_1", "Dense_0"} < set(params["params"])

    # `memory` raises unless the fast loop runs.
    actual, expected = (
        values_and_gradients(Model(options).apply, params, x)
        for options in ({"memory": "recompute"}, {"implementation": "scan"})
    )
    assert_close(actual, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.exhaustive
def test_inputs_may_have_other_feature_axes_than_the_first_cell(rng):
    def flatten(x):
        return x.reshape(*x.shape[:-2], -1)

    cell = rnncells.StackedCell([flatten, rnncells.GRUCell(4)], input_dims=2)
    images = jnp.asarray(rng.standard_normal((2, 5, 3, 7)), jnp.float32)
    params = random_params(rng, rnncells.RNN(cell), images)
    alone = {"params": {"cell": params["params"]["cell"]["layers_1"]}}
    expected = jit_apply(rnncells.RNN(rnncells.GRUCell(4)), alone, flatten(images))
    assert_equal(jit_apply(rnncells.RNN(cell), params, images), expected)

    tokens = jnp.asarray(rng.integers(0, 6, (2, 5)))
    cell = rnncells.StackedCell([nn.Embed(6, 3), rnncells.GRUCell(4)])
    params = random_params(rng, rnncells.RNN(cell), tokens)
    stack = rnncells.Stack([nn.Embed(6, 3), rnncells.GRUCell(4)])
    expected = jit_apply(stack, {"params": params["params"]["cell"]}, tokens)
    assert_close(jit_apply(rnncells.RNN(cell), params, tokens), expected)


@pytest.mark.exhaustive
def test_wrappers_take_a_stacked_cell(rng):
    cell = rnncells.StackedCell([rnncells.LSTMCell(4), rnncells.SimpleCell(3)])
    assert cell.features == 3
    x = jnp.asarray(rng.standard_normal((2, 5, FEATURES_IN)), jnp.float32)
    rnn = rnncells.RNN(rnncells.ZoneoutCell(cell, 0.4, deterministic=True))
    params = random_params(rng, rnn, x)
    carry, x = jax.device_get((rnn.initialize_carry(None, x[:, 0]), x))
    plain = {"params": {"cell": params["params"]["cell"]["cell"]}}

    first = jit_apply(rnn, params, carry, x[:, 0], method="step")[0]

    expected = jit_apply(rnncells.RNN(cell), plain, carry, x[:, 0], method="step")[0]
    expected = jax.device_get(expected)
    assert_close(first, jax.tree.map(lambda a, b: 0.4 * a + 0.6 * b, carry, expected))
    report = rnncells.check_cell(cell, (2, FEATURES_IN))
    assert [finding.kind for finding in report.findings] == ["right"] * 4
