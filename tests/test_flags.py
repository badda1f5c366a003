"""Cells and layers under JAX's flags, and exported for other machines."""

import re
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import ALL_CELLS, BATCH, LINEAR, TIME, assert_close, random_params
from jax import export
from levels import by_level

import rnncells

RNN = rnncells.RNN
# Layers by name, with the width of their inputs.
LAYERS = {
    "LSTM": (rnncells.LSTM(4, bidirectional=True, num_layers=2), 3),
    "LSTM-projected": (rnncells.LSTM(4, proj_features=2, learn_states=True), 3),
    "GRU": (rnncells.GRU(4), 3),
    "ElmanRNN": (rnncells.ElmanRNN(4), 3),
    "Bidirectional": (
        rnncells.Bidirectional(RNN(nn.GRUCell(4)), RNN(rnncells.MinGRUCell(4))),
        3,
    ),
    "Stack": (
        rnncells.Stack([rnncells.LSTMCell(4), nn.Dense(5), rnncells.GRUCell(2)]),
        3,
    ),
    "XLSTMBlock": (rnncells.XLSTMBlock(4, num_heads=2), 4),
    "GriffinBlock": (rnncells.GriffinBlock(4, num_heads=2), 4),
    "newton": (RNN(rnncells.GRUCell(4), implementation="newton"), 3),
    "associative": (RNN(rnncells.LRUCell(4), implementation="associative"), 3),
    "memory": (RNN(rnncells.LSTMCell(4), memory="sqrt", reverse=True), 3),
    "truncated": (RNN(rnncells.GRUCell(4), gradient=rnncells.TruncatedBptt(2)), 3),
    "forward": (RNN(rnncells.GRUCell(4), gradient=rnncells.Rtrl()), 3),
}
# Flags that must not change the traced program.
SAME_PROGRAM = {
    "strict dtypes": lambda: jax.numpy_dtype_promotion("strict"),
    "rank promotion": lambda: jax.numpy_rank_promotion("raise"),
    "leaks": jax.checking_leaks,
}
# Flags that change how the program runs.
SAME_VALUES = {
    "nans": lambda: jax.debug_nans(True),
    "infs": lambda: jax.debug_infs(True),
    "x64": lambda: jax.enable_x64(True),
}
CELLS = {name: RNN(case.make(), return_carry=True) for name, case in ALL_CELLS.items()}
PLAIN = {f"{name}-plain": CELLS[name].clone(implementation="scan") for name in LINEAR}
CHOSEN = [("strict dtypes", "LSTM"), ("rank promotion", "LTCCell"), ("leaks", "GRU")]


def setting(name, rng):
    """Returns a layer, its inputs, and options of its call."""
    if name in LAYERS:
        layer, width = LAYERS[name]
        shape = (width,)
    else:
        layer, shape = (
            (CELLS | PLAIN)[name],
            ALL_CELLS[name.split("-plain")[0]].input_shape,
        )
    inputs = jnp.asarray(rng.standard_normal((BATCH, TIME, *shape)), jnp.float32)
    options = {"seq_lengths": jnp.array([TIME, 3], jnp.int32)}
    if "Block" not in name:
        options["mask"], options["resets"] = jnp.asarray(
            rng.random((2, BATCH, TIME)) < 0.6
        )
    return layer, inputs, options


def loss(layer, options, params, inputs):
    leaves = jax.tree.leaves(layer.apply(params, inputs, **options))
    return sum(jnp.sum(jnp.sin(leaf.real) + leaf.imag**2) for leaf in leaves)


@pytest.mark.parametrize(
    "flag, name",
    by_level([(f, n) for f in SAME_PROGRAM for n in (*LAYERS, *CELLS, *PLAIN)], CHOSEN),
)
def test_flags_that_refuse_code_do_not_change_the_program(flag, name, rng):
    """Initial values, values and gradients are then the same, too."""
    layer, inputs, options = setting(name, rng)
    key = jax.random.key(0)
    params = jax.eval_shape(layer.init, key, inputs)

    def programs():
        # JAX caches traces by function.
        gradient = jax.value_and_grad(partial(loss, layer, options), (0, 1))
        made = jax.make_jaxpr(lambda key: layer.init(key, inputs))(key)
        found = jax.make_jaxpr(gradient)(params, inputs)
        return [re.sub(r"0x[0-9a-f]+", "", str(jaxpr)) for jaxpr in (made, found)]

    expected = programs()
    with SAME_PROGRAM[flag]():
        assert programs() == expected


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "flag, name", [(f, n) for f in SAME_VALUES for n in (*LAYERS, *CELLS, *PLAIN)]
)
def test_flags_that_check_numbers_do_not_change_values(flag, name, rng):
    layer, inputs, options = setting(name, rng)
    params = random_params(rng, layer, inputs)
    compute = jax.jit(jax.value_and_grad(partial(loss, layer, options), (0, 1)))
    expected = compute(params, inputs)
    with SAME_VALUES[flag]():
        assert_close(compute(params, inputs), expected)


@pytest.mark.parametrize(
    "flag, name",
    by_level(
        [(flag, name) for flag in ("nans", "infs") for name in ("newton", *ALL_CELLS)],
        [("nans", "LSTMCell")],
    ),
)
def test_flags_that_check_numbers_pass_each_operation(flag, name, rng):
    """Outside of `jit`, JAX checks the result of every operation."""
    layer, inputs, options = setting(name, rng)
    params = random_params(rng, layer, inputs)
    step = partial(layer.apply, params, None, inputs[:, 0], method="step")
    expected = layer.apply(params, inputs, **options), step()
    with SAME_VALUES[flag]():
        assert_close((layer.apply(params, inputs, **options), step()), expected)


def test_named_scopes_of_cells_are_in_the_program_of_the_fast_loop():
    class Scoped(nn.RNNCellBase):
        num_feature_axes = 1

        @nn.compact
        def __call__(self, h, x):
            with jax.named_scope("outer"):
                a = nn.Dense(4, name="i")(x) + nn.Dense(4, name="h")(h)
                # Of a function that is traced on its own.
                h = jax.jit(jax.named_scope("inner")(nn.tanh))(a)
            return h, h

        def initialize_carry(self, rng, input_shape):
            return jnp.zeros((*input_shape[:-1], 4))

    rnn, inputs = RNN(Scoped()), jnp.ones((2, 5, 3))
    params = jax.eval_shape(rnn.init, jax.random.key(0), inputs)
    gradient = jax.jit(jax.grad(lambda p: rnn.apply(p, inputs).sum()))
    text = gradient.lower(params).as_text(debug_info=True)
    assert re.search(r"outer/\S*inner\S*/tanh", text)


FEATURES_IN = 3
PLATFORMS = ("cpu", "cuda", "tpu")
EXPORTED = {
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
        [(name, host) for name in EXPORTED for host in ("cpu", "gpu")],
        [("LSTM-bidirectional-projected", "gpu"), ("MinGRU", "cpu")],
    ),
)
def test_export_sequences_with_symbolic_batch_and_time(name, host, rng, monkeypatch):
    layer = EXPORTED[name]
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
    by_level(
        [name for name in EXPORTED if "bidirectional" not in name], ["StackedCell"]
    ),
)
def test_export_steps_with_symbolic_batch(name, rng):
    layer = EXPORTED[name]
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


@pytest.mark.exhaustive
def test_export_films_with_symbolic_sizes(rng, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    cell = rnncells.ConvLSTMCell(2, (3, 3))
    layer = rnncells.RNN(cell, return_carry=True)
    params = random_params(rng, layer, jnp.ones((2, 5, 4, 6, FEATURES_IN)))
    sizes = export.symbolic_shape("batch, time, height, width")
    inputs = jax.ShapeDtypeStruct((*sizes, FEATURES_IN), jnp.float32)
    loaded = through_bytes(layer.apply, params, inputs)
    x = jnp.asarray(rng.standard_normal((3, 2, 5, 7, FEATURES_IN)), jnp.float32)
    assert_close(loaded.call(params, x), jax.jit(layer.apply)(params, x))


@pytest.mark.default
def test_exported_functions_are_differentiable(rng):
    layer = EXPORTED["ElmanRNN"]
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
