"""What XLA makes of the gradient of whole layers: every loop is the engine's."""

import jax
import jax.numpy as jnp
import pytest
from compiled import Program

import rnncells

# A prime, which divides the size of every array of states, and of no array of weights.
BATCH = 11
TIME, FEATURES_IN = 24, 7
LAYERS = {
    "LSTM": (rnncells.LSTM(13, num_layers=2, bidirectional=True), 4),
    "LSTM-projected": (rnncells.LSTM(13, num_layers=2, proj_features=5), 2),
    "GRU": (rnncells.GRU(13, num_layers=2), 2),
    "ElmanRNN": (rnncells.ElmanRNN(13, num_layers=2), 2),
    "Stack": (rnncells.Stack([rnncells.LSTMCell(13), rnncells.GRUCell(5)]), 2),
}
# Of one step; the projection is one more product, and masks select by row.
MOST_OPERATIONS = 15


def outputs_of(layer, params, inputs, **ways):
    outputs = layer.apply(params, inputs, **ways)
    return outputs[0] if isinstance(outputs, tuple) else outputs


@pytest.fixture(scope="module", params=LAYERS)
def built(request):
    """The loops over steps of a gradient by parameters and inputs; how many RNNs."""
    layer, rnns = LAYERS[request.param]
    inputs = jax.ShapeDtypeStruct((BATCH, TIME, FEATURES_IN), jnp.float32)
    params = jax.eval_shape(layer.init, jax.random.key(0), inputs)
    assert all(leaf.size % BATCH for leaf in jax.tree.leaves(params))

    def loss(params, inputs):
        return jnp.mean(outputs_of(layer, params, inputs) ** 2)

    compiled = jax.jit(jax.grad(loss, (0, 1))).lower(params, inputs).compile()
    return Program(compiled.as_text()).innermost, rnns


def test_each_rnn_is_one_loop_forward_and_one_backward(built):
    loops, rnns = built
    assert len(loops) == 2 * rnns
    assert {loop.trips for loop in loops} == {TIME}


def test_no_step_computes_an_array_of_the_size_of_weights(built):
    for loop in built[0]:
        assert [i.text for i in loop.of_weights(BATCH)] == []


def test_a_step_has_few_operations(built):
    for loop in built[0]:
        lines = [operation.text for operation in loop.operations]
        assert len(lines) <= MOST_OPERATIONS, "\n".join(lines)
