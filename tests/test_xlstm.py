"""SLSTMCell where its gates overflow."""

import jax
import jax.numpy as jnp
import numpy as np
from cases import BATCH, TIME

import rnncells


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
