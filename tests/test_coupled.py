"""CoupledLSTMCell against its equations, and against the LSTM that it is."""

import jax
import pytest
from by_hand import activations, assert_sequence_follows, assert_step_follows
from cases import ALL_CELLS, CELLS, assert_close, each_cell, random_setting
from equations import affine

import rnncells

CASES = [name for name in ALL_CELLS if name.startswith("CoupledLSTMCell")]


def equations_of(case):
    def equations(np, p, carry, x):
        c, h = carry
        gate, squash = activations(np, case)
        i = gate(affine(x, p["ii"]) + affine(h, p["hi"]))
        f = 1 - i
        g = squash(affine(x, p["ig"]) + affine(h, p["hg"]))
        o = gate(affine(x, p["io"]) + affine(h, p["ho"]))
        c = f * c + i * g
        h = o * squash(c)
        return (c, h), h

    return equations


@pytest.mark.parametrize("name", CASES)
def test_step_follows_the_equations(name, rng, float64):
    assert_step_follows(ALL_CELLS[name], equations_of(ALL_CELLS[name]), rng)


@each_cell(CASES, always=CELLS)
def test_sequence_follows_the_equations(name, rng, float64):
    assert_sequence_follows(ALL_CELLS[name], equations_of(ALL_CELLS[name]), rng)


def test_coupled_lstm_equals_lstm_with_negated_forget_gate(rng, float64):
    cell, params, carry, x = random_setting(ALL_CELLS["CoupledLSTMCell"], rng, 2)
    p = params["params"]
    opposite = {f"{k}f": jax.tree.map(lambda w: -w, p[f"{k}i"]) for k in "ih"}
    lstm = rnncells.LSTMCell(4, param_dtype=float)
    expected = lstm.apply({"params": p | opposite}, carry, x)
    assert_close(cell.apply(params, carry, x), expected, rtol=1e-12, atol=1e-12)


def test_cell_state_stays_in_its_bounds(rng, key):
    """What is forgotten is what is replaced: no state leaves [-1, 1]."""
    rnn = rnncells.RNN(rnncells.CoupledLSTMCell(4), return_carry=True)
    x = 9 * jax.random.normal(key, (2, 50, 3))
    (c, _), _ = rnn.apply(rnn.init(key, x), x)
    assert abs(c).max() <= 1
