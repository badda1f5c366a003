"""SimpleCell against Elman's equation in NumPy."""

import numpy as np
import pytest
from cases import ALL_CELLS, random_setting
from equations import affine, arrays

PHI = {"SimpleCell": np.tanh, "SimpleCell-relu": lambda a: np.maximum(a, 0)}


@pytest.mark.parametrize("name", [*PHI, "SimpleCell-residual"])
def test_simple_cell_follows_its_equation(name, rng, float64):
    cell, params, carry, x = random_setting(ALL_CELLS[name], rng, 2)

    last, y = cell.apply(params, carry, x)

    p, h, x = arrays(params), arrays(carry), arrays(x)
    a = affine(x, p["i"]) + affine(h, p["h"])
    expected = PHI.get(name, lambda a: np.tanh(a + h))(a)
    np.testing.assert_allclose(y, expected, rtol=1e-12)
    np.testing.assert_array_equal(last, y)
