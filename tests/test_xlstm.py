"""SLSTMCell against the equations of its paper."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from by_hand import assert_sequence_follows, assert_step_follows
from cases import ALL_CELLS, BATCH, CELLS, TIME, each_cell
from equations import affine, in_blocks

import rnncells

CASES = [name for name in ALL_CELLS if name.startswith("SLSTMCell")]


def equations_of(case):
    def equations(np, p, carry, x):
        c, n, m, h = carry
        z, i, f, o = (
            affine(x, p[f"i{a}"]) + in_blocks(np, h, p[f"h{a}"]) for a in "zifo"
        )
        log_f = f if "forget_gate" in case.options else -np.log1p(np.exp(-f))
        # Not stabilized: the memory and the normalizer themselves.
        c, n = np.exp(m) * c, np.exp(m) * n
        c = np.exp(log_f) * c + np.exp(i) * np.tanh(z)
        n = np.exp(log_f) * n + np.exp(i)
        h = c / n / (1 + np.exp(-o))
        m = np.maximum(log_f + m, i)
        return (np.exp(-m) * c, np.exp(-m) * n, m, h), h

    return equations


@pytest.mark.parametrize("name", CASES)
def test_step_follows_the_equations(name, rng, float64):
    assert_step_follows(ALL_CELLS[name], equations_of(ALL_CELLS[name]), rng)


@each_cell(CASES, always=CELLS)
def test_sequence_follows_the_equations(name, rng, float64):
    assert_sequence_follows(ALL_CELLS[name], equations_of(ALL_CELLS[name]), rng)


def test_first_step_is_finite_for_gates_of_any_size():
    """An empty memory has no scale, so a small input gate does not underflow."""
    rnn, x = rnncells.RNN(rnncells.SLSTMCell(2)), jnp.ones((BATCH, TIME, 3))
    params = jax.jit(rnn.init)(jax.random.key(0), x)
    params["params"]["cell"]["hi"]["bias"] = jnp.array([-300.0, 300.0])

    def loss(params):
        y = rnn.apply(params, x)
        return jnp.sum(y), y

    gradient, y = jax.jit(jax.grad(loss, has_aux=True))(params)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))
    assert np.abs(y).min() > 0
