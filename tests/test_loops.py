"""A loop over time is one class and one line of the table."""

import jax
import jax.numpy as jnp
import pytest
from cases import assert_close

import rnncells
from rnncells.loops.request import Loop, StepRequest
from rnncells.loops.table import LOOPS


class PythonLoop(Loop):
    """Takes the steps one by one, without a loop of JAX."""

    name = "Python loop"
    options = {"gradient": ("hooked",), "memory": ("less",)}

    def check(self, request: StepRequest) -> None:
        _ = request.function  # raises Obstacle

    def run(self, request: StepRequest) -> tuple[tuple, tuple]:
        function, consts, xs, _ = request.function
        carry, results = request.carry, []
        for t in range(request.steps):
            x = jax.tree.map(lambda leaf, t=t: leaf[t], xs)
            carry, (ys, _) = function(consts, carry, x)
            results.append(ys)
        return carry, jax.tree.map(lambda *leaves: jnp.stack(leaves), *results)


def test_loop_of_a_user_runs_with_options_that_no_other_loop_takes(rng):
    hook = rnncells.Bptt(carry_hook=lambda d_carry: d_carry)
    x = jnp.asarray(rng.standard_normal((2, 5, 3)), jnp.float32)
    cell, lengths = rnncells.GRUCell(4), jnp.array([5, 2])
    rnn = rnncells.RNN(cell, return_carry=True)
    (carry, y), params = rnn.init_with_output(jax.random.key(0), x, seq_lengths=lengths)
    with pytest.raises(ValueError, match="exclude each other"):
        rnncells.RNN(cell, gradient=hook, memory="sqrt")
    LOOPS.append(PythonLoop())
    try:
        looped = rnncells.RNN(cell, gradient=hook, memory="sqrt", return_carry=True)
        results = looped.apply(params, x, seq_lengths=lengths)
    finally:
        LOOPS.pop()
    assert_close(results, (carry, y))
