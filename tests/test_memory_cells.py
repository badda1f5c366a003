"""LSTM1997Cell and LSTM2000Cell: weight counts, truncated gradients, initial values."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import random_params
from equations.memory_cells import on_line
from equations.parts import arrays
from levels import by_level

import rnncells


class Net(nn.Module):
    """A net of the paper: memory cells, and a logistic output layer."""

    cell: nn.Module
    outputs: int
    output_bias: bool = False

    @nn.compact
    def __call__(self, x):
        y = rnncells.RNN(self.cell)(x)
        dtype = self.cell.param_dtype
        output = nn.Dense(self.outputs, self.output_bias, param_dtype=dtype)
        return nn.sigmoid(output(y))


GATES = "ifgo"
OLD, NEW = rnncells.LSTM1997Cell, rnncells.LSTM2000Cell


@pytest.mark.parametrize(
    "make, blocks, size, time, gate_feedback",
    by_level(
        [(OLD, 3, 2, 12, True), (OLD, 2, 2, 40, True), (OLD, 4, 1, 20, True)]
        + [(NEW, 3, 2, 12, True), (NEW, 3, 2, 12, False)]
        + [(NEW, 4, 1, 20, True), (NEW, 4, 1, 20, False)],
        [(OLD, 3, 2, 12, True), (NEW, 3, 2, 12, True), (NEW, 4, 1, 20, False)],
    ),
)
def test_truncated_gradient_equals_the_online_algorithm_of_the_paper(
    make, blocks, size, time, gate_feedback, rng, float64
):
    cell = make(blocks, size, param_dtype=float, gate_feedback=gate_feedback)
    net = Net(cell, 3, True)
    x, targets = rng.standard_normal((time, 5)), rng.uniform(size=(time, 3))
    params = random_params(rng, net, x)

    def loss(params):
        y = net.apply(params, x)
        return 0.5 * jnp.sum((targets - y) ** 2), y

    (_, y), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)

    tree, gradient = arrays(params), arrays(gradient)
    (name,) = set(tree) - {"Dense_0"}
    output = tree["Dense_0"]
    columns = {}
    for gate in GATES if "if" in tree[name] else "igo":
        kernel, bias = tree[name][f"h{gate}"]["kernel"], tree[name][f"h{gate}"]["bias"]
        columns[gate] = np.vstack([tree[name][f"i{gate}"]["kernel"], kernel, bias])
    given = columns, output["kernel"], output["bias"], x, targets, size, gate_feedback
    changes, expected = zip(*on_line(*given))
    change = jax.tree.map(lambda *leaves: sum(leaves), *changes)
    close = {"rtol": 1e-12, "atol": 1e-12}
    np.testing.assert_allclose(y, expected, **close)
    for gate in set(GATES) & set(change):
        recurrent = gradient[name][f"h{gate}"]
        parts = gradient[name][f"i{gate}"]["kernel"], recurrent["kernel"]
        actual = np.vstack([*parts, recurrent["bias"]])
        np.testing.assert_allclose(-actual, change[gate], **close)
    np.testing.assert_allclose(-gradient["Dense_0"]["kernel"], change["k"], **close)
    np.testing.assert_allclose(-gradient["Dense_0"]["bias"], change["b_k"], **close)


def test_sizes_follow_from_blocks_or_features():
    cell = rnncells.LSTM1997Cell(2, 2)
    assert cell.features == 4
    assert cell.clone(blocks=3).features == 6
    assert cell.clone(block_size=3).features == 6
    assert cell.clone(g=nn.sigmoid).features == 4
    by_features = rnncells.LSTM1997Cell(features=4, block_size=2)
    assert by_features.blocks == 2 and by_features == cell
    assert by_features.clone(features=8).blocks == 4


def test_squashing_functions_can_be_replaced(rng):
    cell = rnncells.LSTM1997Cell(2, g=nn.sigmoid, h=lambda s: s)
    x, carry = jnp.ones((1, 3)), (jnp.zeros((1, 2)), jnp.zeros((1, 6)))
    params = random_params(rng, cell, carry, x)
    (s, _), _ = cell.apply(params, carry, x)
    assert (s > 0).all()


def test_initial_weights_and_biases_follow_the_options(key):
    cell = rnncells.LSTM2000Cell(
        *(3, 2),
        weight_range=0.2,
        input_gate_bias=(-0.5, -1, -1.5),
        forget_gate_bias=(0.5, 1, 1.5),
        biases=("in", "forget", "cell"),
    )
    x = jnp.ones((1, 400))
    params = cell.init(key, cell.initialize_carry(key, x), x)["params"]
    kernels = np.concatenate([params[f"i{name}"]["kernel"].ravel() for name in GATES])
    assert -0.2 <= kernels.min() < -0.195 and 0.195 < kernels.max() < 0.2
    assert abs(kernels.mean()) < 0.01
    np.testing.assert_array_equal(params["hi"]["bias"], [-0.5, -1, -1.5])
    np.testing.assert_array_equal(params["hf"]["bias"], [0.5, 1, 1.5])
    assert 0 < np.abs(params["hg"]["bias"]).max() < 0.2
    assert "bias" not in params["ho"]
    assert set(params) == {"ii", "if", "ig", "io", "hi", "hf", "hg", "ho"}
