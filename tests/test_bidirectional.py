"""Bidirectional equals its two directions, run one by one."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from cases import (
    BATCH,
    CELLS,
    TIME,
    assert_close,
    assert_equal,
    random_like,
    random_params,
)
from sequences import RESETS, ROWS, STEPS, WAYS, run

import rnncells


def test_bidirectional_with_all_options_equals_its_directions(rng):
    case = CELLS["LSTMCell"]
    inputs = case.inputs(rng, ROWS, STEPS)
    layer = rnncells.Bidirectional(
        rnncells.RNN(case.make()), rnncells.RNN(case.make()), return_carry=True
    )
    params = random_params(rng, layer, inputs)
    rnn = rnncells.RNN(case.make(), return_carry=True)
    sides = [
        {"params": params["params"][side]} for side in ("forward_rnn", "backward_rnn")
    ]
    carries = random_like(rng, jax.eval_shape(layer.apply, params, inputs)[0])

    for ways in (WAYS["lengths"], WAYS["all"]):
        for swapped in (False, True):
            got, y = run(
                layer, params, inputs, initial_carry=carries, reverse=swapped, **ways
            )
            for side in (0, 1):
                expected = run(
                    rnn,
                    sides[side],
                    inputs,
                    initial_carry=carries[side],
                    reverse=swapped != bool(side),
                    **ways,
                )
                half = y[..., 4 * side : 4 * side + 4]
                assert_close((got[side], half), expected)


def test_bidirectional_returns_all_carries(rng):
    case = CELLS["GRUCell"]
    inputs = case.inputs(rng, ROWS, STEPS)
    layer = rnncells.Bidirectional(
        rnncells.RNN(case.make()), rnncells.RNN(case.make()), return_all_carries=True
    )
    params = random_params(rng, layer, inputs)
    (fwd, bwd), y = layer.apply(params, inputs)
    assert_equal(jnp.concatenate([fwd, bwd], axis=-1), y)


def test_bidirectional_computes_carries_only_if_asked(rng):
    class Recorder(nn.Module):
        @nn.compact
        def __call__(self, inputs, *, return_carry, **_):
            assert not return_carry
            return inputs

    layer = rnncells.Bidirectional(Recorder(), Recorder())
    layer.apply({}, jnp.ones((BATCH, TIME, 3)), seq_lengths=jnp.array([1, 2]))


def test_bidirectional_gives_each_direction_its_reset_carry(rng):
    case = CELLS["GRUCell"]
    inputs = case.inputs(rng, ROWS, STEPS)
    rnn = rnncells.RNN(case.make())
    layer = rnncells.Bidirectional(rnn, rnncells.RNN(case.make()))
    params = random_params(rng, layer, inputs)
    others = random_like(rng, (jnp.zeros((ROWS, 4)),) * 2)
    y = run(layer, params, inputs, resets=RESETS, reset_carry=others)
    for side, name in enumerate(("forward_rnn", "backward_rnn")):
        own = {"params": params["params"][name]}
        expected = run(
            rnn,
            own,
            inputs,
            reverse=bool(side),
            resets=RESETS,
            reset_carry=others[side],
        )
        assert_close(y[..., 4 * side : 4 * side + 4], expected)
