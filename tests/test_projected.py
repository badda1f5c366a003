"""ProjectedLSTMCell against its equations in NumPy."""

import chex
import numpy as np
from cases import CELLS, random_setting
from equations import affine, arrays, sigmoid


def test_projected_lstm_cell_follows_its_equations(rng, float64):
    cell, params, carry, x = random_setting(CELLS["ProjectedLSTMCell"], rng, 3)

    (c, h), y = cell.apply(params, carry, x)

    p, (c_, h_), x = arrays(params), arrays(carry), arrays(x)
    i = sigmoid(affine(x, p["ii"]) + affine(h_, p["hi"]))
    f = sigmoid(affine(x, p["if"]) + affine(h_, p["hf"]))
    g = np.tanh(affine(x, p["ig"]) + affine(h_, p["hg"]))
    o = sigmoid(affine(x, p["io"]) + affine(h_, p["ho"]))
    expected_c = f * c_ + i * g
    expected_h = affine(o * np.tanh(expected_c), p["hr"])
    np.testing.assert_allclose(c, expected_c, rtol=1e-12)
    np.testing.assert_allclose(h, expected_h, rtol=1e-12)
    np.testing.assert_array_equal(y, h)
    chex.assert_shape([c, h], [(3, 4), (3, 2)])
