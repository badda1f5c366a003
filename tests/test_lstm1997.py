"""LSTM1997Cell: the paper's equations, weight counts, and its truncated gradient."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import ALL_CELLS, random_params, random_setting
from covering import exhaustive_but
from equations import affine, arrays, sigmoid

import rnncells

CASES = [name for name in ALL_CELLS if name.startswith("LSTM1997Cell")]


def g(x):
    return 4 * sigmoid(x) - 2


def h(x):
    return 2 * sigmoid(x) - 1


@pytest.mark.parametrize("name", CASES)
def test_memory_cells_follow_their_equations(name, rng, float64):
    cell, params, carry, x = random_setting(ALL_CELLS[name], rng, 2)

    (s, y), y_c = cell.apply(params, carry, x)

    p, (s_, y_), x = arrays(params), arrays(carry), arrays(x)
    y_in = sigmoid(affine(x, p["ii"]) + affine(y_, p["hi"]))
    y_out = sigmoid(affine(x, p["io"]) + affine(y_, p["ho"]))
    net_c = affine(x, p["ig"]) + affine(y_, p["hg"])
    expected_s = s_ + np.repeat(y_in, 2, axis=-1) * g(net_c)
    np.testing.assert_allclose(s, expected_s, rtol=1e-12)
    np.testing.assert_allclose(
        y_c, np.repeat(y_out, 2, axis=-1) * h(expected_s), rtol=1e-12
    )
    fed_back = [y_c, y_in, y_out] if cell.gate_feedback else [y_c]
    np.testing.assert_allclose(y, np.concatenate(fed_back, axis=-1), rtol=1e-12)


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


@pytest.mark.parametrize(
    "blocks, size, inputs, outputs, biases, output_bias, weights",
    [
        pytest.param(4, 1, 7, 7, ("in", "out"), False, 264, id="1, 4 blocks"),
        pytest.param(3, 2, 7, 7, ("in", "out"), False, 276, id="1, 3 blocks"),
        pytest.param(2, 1, 54, 2, (), False, 364, id="2c, p = 50"),
        pytest.param(2, 1, 104, 2, (), False, 664, id="2c, p = 100"),
        pytest.param(2, 1, 204, 2, (), False, 1264, id="2c, p = 200"),
        pytest.param(2, 1, 504, 2, (), False, 3064, id="2c, p = 500"),
        pytest.param(2, 1, 1004, 2, (), False, 6064, id="2c, p = 1000"),
        pytest.param(3, 1, 1, 1, ("in", "cell", "out"), False, 102, id="3"),
        pytest.param(2, 2, 2, 1, ("in", "cell", "out"), True, 93, id="4 and 5"),
        pytest.param(2, 2, 8, 4, ("in", "cell", "out"), True, 156, id="6a"),
        pytest.param(3, 2, 8, 8, ("in", "cell", "out"), True, 308, id="6b"),
    ],
)
def test_networks_have_the_number_of_weights_of_the_paper(
    blocks, size, inputs, outputs, biases, output_bias, weights, key
):
    cell = rnncells.LSTM1997Cell(blocks, size, biases=biases)
    net = Net(cell, outputs, output_bias)
    x = jax.ShapeDtypeStruct((2, 5, inputs), jnp.float32)
    params = jax.eval_shape(net.init, key, x)
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == weights


def on_line_changes(p, w_k, b_k, x, targets, size):
    """The paper's algorithm, forward in time: equations (19) to (28), for rate 1.

    Returns the changes of all weights, `(inputs or hidden units or 1, units)` each, and
    the outputs.
    """
    blocks, cells = p["hi"]["kernel"].shape[1], p["hg"]["kernel"].shape[1]
    f = sigmoid
    columns = {}
    for name in "igo":
        bias = p[f"h{name}"].get("bias", np.zeros(p[f"h{name}"]["kernel"].shape[1]))
        columns[name] = np.vstack(
            [p[f"i{name}"]["kernel"], p[f"h{name}"]["kernel"], bias]
        )
    change = {name: np.zeros_like(w) for name, w in columns.items()}
    change |= {"k": np.zeros_like(w_k), "b_k": np.zeros_like(b_k)}
    s, y = np.zeros(cells), np.zeros(cells + 2 * blocks)
    ds_in = np.zeros_like(columns["g"])  # ds_c / dw of the input gate of c's block
    ds_c = np.zeros_like(columns["g"])
    outputs = []
    for x_t, t_t in zip(x, targets, strict=True):
        src = np.concatenate([x_t, y, [1.0]])
        net_in, net_c, net_out = (src @ columns[name] for name in "igo")
        y_in, y_out = f(net_in), f(net_out)
        wide_in, wide_out = np.repeat(y_in, size), np.repeat(y_out, size)
        ds_in += np.outer(src, g(net_c) * np.repeat(y_in * (1 - y_in), size))  # (25)
        ds_c += np.outer(src, 4 * f(net_c) * (1 - f(net_c)) * wide_in)  # (27)
        s = s + wide_in * g(net_c)
        y_c = wide_out * h(s)
        y_k = f(y_c @ w_k + b_k)
        e_k = y_k * (1 - y_k) * (t_t - y_k)  # (19)
        back = w_k @ e_k
        e_out = y_out * (1 - y_out) * (h(s) * back).reshape(blocks, size).sum(1)  # (21)
        e_s = wide_out * 2 * f(s) * (1 - f(s)) * back  # (23)
        change["k"] += np.outer(y_c, e_k)  # (22)
        change["b_k"] += e_k
        change["o"] += np.outer(src, e_out)  # (22)
        change["i"] += (e_s * ds_in).reshape(-1, blocks, size).sum(-1)  # (26)
        change["g"] += e_s * ds_c  # (28)
        y = np.concatenate([y_c, y_in, y_out])
        outputs.append(y_k)
    return change, np.array(outputs)


@pytest.mark.parametrize(
    "blocks, size, time",
    exhaustive_but([(3, 2, 12), (2, 2, 40), (4, 1, 20)], [(3, 2, 12), (4, 1, 20)]),
)
def test_truncated_gradient_equals_the_online_algorithm_of_the_paper(
    blocks, size, time, rng, float64
):
    net = Net(rnncells.LSTM1997Cell(blocks, size, param_dtype=float), 3, True)
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
        tree[name], output["kernel"], output["bias"], x, targets, size
    )
    np.testing.assert_allclose(y, expected, rtol=1e-12)
    close = {"rtol": 1e-12, "atol": 1e-12}
    for gate in "igo":
        recurrent = gradient[name][f"h{gate}"]
        actual = np.vstack(
            [
                gradient[name][f"i{gate}"]["kernel"],
                recurrent["kernel"],
                recurrent["bias"],
            ]
        )
        np.testing.assert_allclose(-actual, change[gate], **close)
    np.testing.assert_allclose(-gradient["Dense_0"]["kernel"], change["k"], **close)
    np.testing.assert_allclose(-gradient["Dense_0"]["bias"], change["b_k"], **close)


def test_full_gradient_has_equal_values_and_differs_from_the_truncated_one(
    rng, float64
):
    x = rng.standard_normal((2, 9, 5))
    cut = rnncells.RNN(rnncells.LSTM1997Cell(2, 2, param_dtype=float))
    full = rnncells.RNN(cut.cell.clone(truncate_gradient=False))
    params = random_params(rng, cut, x)

    def run(rnn):
        loss = lambda p: (jnp.sum(rnn.apply(p, x) ** 2), rnn.apply(p, x))  # noqa: E731
        return jax.device_get(jax.jit(jax.value_and_grad(loss, has_aux=True))(params))

    ((_, y), cut_gradient), ((_, y_full), gradient) = run(cut), run(full)
    np.testing.assert_array_equal(y, y_full)
    flat, flat_full = (
        np.concatenate([leaf.ravel() for leaf in jax.tree.leaves(tree)])
        for tree in (cut_gradient, gradient)
    )
    assert np.linalg.norm(flat - flat_full) > 0.05 * np.linalg.norm(flat_full)


def test_error_flows_back_in_time_only_through_the_state(rng):
    cell = rnncells.LSTM1997Cell(2, 2)
    x, carry = jnp.ones((3, 5)), cell.initialize_carry(jax.random.key(0), (3, 5))
    params = random_params(rng, cell, carry, x)

    def step(carry):
        (s, y), y_c = cell.apply(params, carry, x)
        return jnp.sum(s) + jnp.sum(y) + jnp.sum(y_c)

    ds, dy = jax.grad(step)(carry)
    assert (ds != 0).all() and (dy == 0).all()


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


@pytest.mark.parametrize(
    "options, message",
    [
        ({"blocks": 0}, "`blocks` of LSTM.* must be at least 1, got 0"),
        ({"block_size": 1.5}, "`block_size` of LSTM.* must be an int, got 1.5"),
        ({"input_gate_bias": (-1.0,)}, "one value for each of 2 blocks"),
        ({"biases": ("forget",)}, "`biases` must contain only .* got 'forget'"),
        ({"biases": ("in",), "output_gate_bias": (0, 0)}, "add 'out' to `biases`"),
    ],
)
def test_wrong_options_raise(options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        rnncells.LSTM1997Cell(**{"blocks": 2, **options})


def test_squashing_functions_can_be_replaced(rng):
    cell = rnncells.LSTM1997Cell(2, g=nn.sigmoid, h=lambda s: s)
    x, carry = jnp.ones((1, 3)), (jnp.zeros((1, 2)), jnp.zeros((1, 6)))
    params = random_params(rng, cell, carry, x)
    (s, _), _ = cell.apply(params, carry, x)
    assert (s > 0).all()
