"""Cells and layers under JAX's flags."""

import re
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from cases import ALL_CELLS, BATCH, LINEAR, TIME, assert_close, random_params
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
        layer = (CELLS | PLAIN)[name]
        shape = ALL_CELLS[name.split("-plain")[0]].input_shape
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
