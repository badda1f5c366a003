"""LSTM1997Cell and LSTM2000Cell: weight counts, truncated gradients, initial values."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import ALL_CELLS, assert_close, random_params, random_setting
from equations.memory_cells import g, h
from equations.parts import arrays, sigmoid
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


def on_line_changes(p, w_k, b_k, x, targets, size, gate_feedback):
    """The algorithm of both papers, forward in time, for rate 1.

    The numbers are equations of 1997, which has no forget gates: they are 1.

    Returns the changes of all weights, `(inputs or hidden units or 1, units)` each, and
    the outputs.
    """
    blocks, cells = p["hi"]["kernel"].shape[1], p["hg"]["kernel"].shape[1]
    f = sigmoid
    columns = {}
    for name in GATES if "if" in p else "igo":
        kernel = p[f"h{name}"]["kernel"]
        bias = p[f"h{name}"].get("bias", np.zeros(kernel.shape[1]))
        columns[name] = np.vstack([p[f"i{name}"]["kernel"], kernel, bias])
    change = {name: np.zeros_like(w) for name, w in columns.items()}
    change |= {"k": np.zeros_like(w_k), "b_k": np.zeros_like(b_k)}
    s, y = np.zeros(cells), np.zeros(len(p["hi"]["kernel"]))
    # ds_c / dw: of c itself, of the input gate and the forget gate of its block.
    ds_c, ds_in, ds_forget = (np.zeros_like(columns["g"]) for _ in range(3))
    outputs = []
    for x_t, t_t in zip(x, targets, strict=True):
        src = np.concatenate([x_t, y, [1.0]])
        net = {name: src @ column for name, column in columns.items()}
        gates = {name: f(net[name]) for name in "ifo" if name in net}
        wide = {name: np.repeat(gate, size) for name, gate in gates.items()}
        slope = {name: gate * (1 - gate) for name, gate in wide.items()}
        forget = wide.get("f", 1)
        ds_in = forget * ds_in + np.outer(src, g(net["g"]) * slope["i"])  # (25)
        d_g = 4 * f(net["g"]) * (1 - f(net["g"]))
        ds_c = forget * ds_c + np.outer(src, d_g * wide["i"])  # (27)
        ds_forget = forget * ds_forget + np.outer(src, s * slope.get("f", 0))
        s = forget * s + wide["i"] * g(net["g"])
        y_c = wide["o"] * h(s)
        y_k = f(y_c @ w_k + b_k)
        e_k = y_k * (1 - y_k) * (t_t - y_k)  # (19)
        back = w_k @ e_k
        e_out = (slope["o"] * h(s) * back).reshape(blocks, size).sum(1)  # (21)
        e_s = wide["o"] * 2 * f(s) * (1 - f(s)) * back  # (23)
        change["k"] += np.outer(y_c, e_k)  # (22)
        change["b_k"] += e_k
        change["o"] += np.outer(src, e_out)  # (22)
        change["i"] += (e_s * ds_in).reshape(-1, blocks, size).sum(-1)  # (26)
        if "f" in change:
            change["f"] += (e_s * ds_forget).reshape(-1, blocks, size).sum(-1)
        change["g"] += e_s * ds_c  # (28)
        y = np.concatenate([y_c, *gates.values()]) if gate_feedback else y_c
        outputs.append(y_k)
    return change, np.array(outputs)


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
    change, expected = on_line_changes(
        *(tree[name], output["kernel"], output["bias"]),
        *(x, targets, size, gate_feedback),
    )
    close = {"rtol": 1e-12, "atol": 1e-12}
    np.testing.assert_allclose(y, expected, **close)
    for gate in set(GATES) & set(change):
        recurrent = gradient[name][f"h{gate}"]
        parts = gradient[name][f"i{gate}"]["kernel"], recurrent["kernel"]
        actual = np.vstack([*parts, recurrent["bias"]])
        np.testing.assert_allclose(-actual, change[gate], **close)
    np.testing.assert_allclose(-gradient["Dense_0"]["kernel"], change["k"], **close)
    np.testing.assert_allclose(-gradient["Dense_0"]["bias"], change["b_k"], **close)


def test_initial_weights_and_biases_follow_the_options(key):
    cell = rnncells.LSTM1997Cell(
        3, 2, weight_range=0.2, input_gate_bias=(-1, -3, -5), biases=("in", "cell")
    )
    x = jnp.ones((1, 400))
    params = cell.init(key, cell.initialize_carry(key, x), x)["params"]
    np.testing.assert_array_equal(params["hi"]["bias"], [-1, -3, -5])
    assert "bias" not in params["ho"]
    kernels = np.concatenate([params[f"i{name}"]["kernel"].ravel() for name in "igo"])
    assert -0.2 <= kernels.min() < -0.195 and 0.195 < kernels.max() < 0.2
    assert abs(kernels.mean()) < 0.01
    assert np.abs(params["hg"]["bias"]).max() < 0.2


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


def test_open_forget_gates_give_the_cells_of_1997(rng, float64):
    case = ALL_CELLS["LSTM2000Cell-cells-feed-back"]
    cell, params, carry, _ = random_setting(case, rng, 2)
    x = case.inputs(rng, 2, 20)
    of_1997 = dict(params["params"])
    forget = {k: jax.tree.map(jnp.zeros_like, of_1997.pop(k)) for k in ("if", "hf")}
    forget["hf"]["bias"] += 100.0  # whose sigmoid is 1
    old = ALL_CELLS["LSTM1997Cell-cells-feed-back"].make(param_dtype=float)

    def run(cell, params):
        rnn = rnncells.RNN(cell, return_carry=True)
        tree = {"params": {"cell": params}}
        return jax.jit(rnn.apply)(tree, x, initial_carry=carry)

    actual = run(cell, of_1997 | forget)
    assert_close(actual, run(old, of_1997), rtol=1e-12, atol=1e-12)


def test_initial_biases_of_2000_follow_the_options(key):
    cell = rnncells.LSTM2000Cell(
        *(3, 2),
        weight_range=0.2,
        input_gate_bias=(-0.5, -1, -1.5),
        forget_gate_bias=(0.5, 1, 1.5),
        biases=("in", "forget", "cell"),
    )
    x = jnp.ones((1, 4))
    params = cell.init(key, cell.initialize_carry(key, x), x)["params"]
    np.testing.assert_array_equal(params["hi"]["bias"], [-0.5, -1, -1.5])
    np.testing.assert_array_equal(params["hf"]["bias"], [0.5, 1, 1.5])
    assert 0 < np.abs(params["hg"]["bias"]).max() < 0.2
    assert "bias" not in params["ho"]
    assert set(params) == {"ii", "if", "ig", "io", "hi", "hf", "hg", "ho"}
