"""Layers exported for other machines, with batch and time of any size, and reloaded."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import assert_close, random_params
from jax import export
from levels import by_level

import rnncells

FEATURES_IN = 3
PLATFORMS = ("cpu", "cuda", "tpu")
LAYERS = {
    "LSTM": rnncells.LSTM(4, num_layers=2),
    "LSTM-bidirectional-projected": rnncells.LSTM(
        4, bidirectional=True, proj_features=2
    ),
    "GRU": rnncells.GRU(4, num_layers=2),
    "ElmanRNN": rnncells.ElmanRNN(4),
    "Stack": rnncells.Stack([rnncells.SimpleCell(4), rnncells.LSTMCell(5)]),
    "RNN": rnncells.RNN(rnncells.MGUCell(4)),
    "StackedCell": rnncells.RNN(
        rnncells.StackedCell([rnncells.GRUCell(4), nn.Dense(2), nn.LSTMCell(5)])
    ),
    "MinGRU": rnncells.RNN(rnncells.MinGRUCell(4), unroll=2),
    "MLSTM": rnncells.RNN(rnncells.MLSTMCell(4, num_heads=2)),
    "CausalConv": rnncells.RNN(rnncells.CausalConvCell(FEATURES_IN)),
    "foreign": rnncells.RNN(nn.GRUCell(4), implementation="scan"),
}


def through_bytes(function, *arguments, **options):
    """Returns a function after it was exported, written, and read again."""
    exported = export.export(jax.jit(function), platforms=PLATFORMS)(*arguments)
    return export.deserialize(exported.serialize(**options))


@pytest.mark.parametrize(
    "name, host",
    by_level(
        [(name, host) for name in LAYERS for host in ("cpu", "gpu")],
        [("LSTM-bidirectional-projected", "gpu"), ("MinGRU", "cpu")],
    ),
)
def test_export_sequences_with_symbolic_batch_and_time(name, host, rng, monkeypatch):
    layer = LAYERS[name]
    # Some defaults depend on the backend, such as `unroll`.
    monkeypatch.setattr(jax, "default_backend", lambda: host)
    params = random_params(rng, layer, jnp.ones((2, 5, FEATURES_IN)))
    batch, time = export.symbolic_shape("batch, time")
    inputs = jax.ShapeDtypeStruct((batch, time, FEATURES_IN), jnp.float32)
    lengths = jax.ShapeDtypeStruct((batch,), jnp.int32)

    def function(params, inputs, lengths):
        return layer.apply(params, inputs, seq_lengths=lengths)

    loaded = through_bytes(function, params, inputs, lengths)

    assert loaded.platforms == PLATFORMS
    # The export has symbols for these sizes, so it treats all sizes alike.
    x = jnp.asarray(rng.standard_normal((7, 3, FEATURES_IN)), jnp.float32)
    lengths = jnp.asarray(rng.integers(0, 4, 7), jnp.int32)
    expected = jax.jit(function)(params, x, lengths)
    assert_close(loaded.call(params, x, lengths), expected)


@pytest.mark.parametrize(
    "name",
    by_level([name for name in LAYERS if "bidirectional" not in name], ["StackedCell"]),
)
def test_export_steps_with_symbolic_batch(name, rng):
    layer = LAYERS[name]
    params = random_params(rng, layer, jnp.ones((2, 5, FEATURES_IN)))
    step = jax.jit(partial(layer.apply, method="step"))
    (batch,) = export.symbolic_shape("batch")
    x_t = jax.ShapeDtypeStruct((batch, FEATURES_IN), jnp.float32)
    carry, _ = jax.eval_shape(step, params, None, x_t)

    loaded = through_bytes(step, params, carry, x_t)

    assert loaded.platforms == PLATFORMS
    for rows in (1, 6):
        x = jnp.asarray(rng.standard_normal((rows, 4, FEATURES_IN)), jnp.float32)
        carry, _ = step(params, None, x[:, 0])
        expected = carry
        for t in range(1, 4):
            carry, y = loaded.call(params, carry, x[:, t])
            expected, expected_y = step(params, expected, x[:, t])
        assert_close((carry, y), (expected, expected_y))


@pytest.mark.default
def test_exported_functions_are_differentiable(rng):
    layer = LAYERS["ElmanRNN"]
    params = random_params(rng, layer, jnp.ones((2, 5, FEATURES_IN)))
    batch, time = export.symbolic_shape("batch, time")
    inputs = jax.ShapeDtypeStruct((batch, time, FEATURES_IN), jnp.float32)

    def function(params, inputs):
        y, _ = layer.apply(params, inputs)
        return jnp.sum(jnp.sin(y))

    loaded = through_bytes(function, params, inputs, vjp_order=1)

    x = jnp.asarray(rng.standard_normal((3, 4, FEATURES_IN)), jnp.float32)
    actual, expected = (
        jax.jit(jax.grad(f))(params, x) for f in (loaded.call, function)
    )
    assert_close(actual, expected)
    assert all(np.any(leaf) for leaf in jax.tree.leaves(actual))


GRADIENTS = {
    "convolution": (rnncells.ConvLSTMCell(4, (3, 3)), (2, 5, 8, 8, FEATURES_IN)),
    # So many weights that the program for CPU multiplies from the left.
    "many weights": (rnncells.LSTMCell(263), (2, 5, FEATURES_IN)),
    "of 1997": (rnncells.LSTM1997Cell(blocks=3, block_size=2), (2, 5, FEATURES_IN)),
}


@pytest.mark.parametrize("name", by_level(GRADIENTS, 1))
def test_gradients_exported_from_cpu_have_no_forms_of_cpu(name):
    cell, shape = GRADIENTS[name]
    rnn, inputs = rnncells.RNN(cell), jax.ShapeDtypeStruct(shape, jnp.float32)
    params = jax.eval_shape(rnn.init, jax.random.key(0), inputs)

    def loss(params, inputs):
        return jnp.sum(rnn.apply(params, inputs) ** 2)

    gradient = jax.jit(jax.grad(loss, (0, 1)))

    def count(platform, operation):
        exported = export.export(gradient, platforms=[platform])(params, inputs)
        return exported.mlir_module().count(operation)

    for platform in ("cuda", "tpu"):
        assert count(platform, "optimization_barrier") == 0
        products = count(platform, "stablehlo.dot_general")
        convolutions = count(platform, "stablehlo.convolution")
        # Of the projection and of the recurrence: forward, and back by both operands.
        expected = (0, 6) if name == "convolution" else (5 + (name != "of 1997"), 0)
        assert (products, convolutions) == expected
    has_barriers = name != "of 1997"
    assert (count("cpu", "optimization_barrier") > 0) == has_barriers
