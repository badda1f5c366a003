"""LSTM2000Cell: its equations, its truncated gradient, and the cells of 1997 in it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from by_hand import assert_sequence_follows, assert_step_follows
from cases import (
    ALL_CELLS,
    CELLS,
    assert_close,
    each_cell,
    random_params,
    random_setting,
)
from covering import exhaustive_but
from equations import affine, arrays, sigmoid
from test_lstm1997 import Net, g, h

import rnncells

CASES = [name for name in ALL_CELLS if name.startswith("LSTM2000Cell")]
SIZE = 2  # cells of a block


def equations_of(case, truncate=False):
    feedback = case.options.get("gate_feedback", True)

    def equations(np, p, carry, x):
        s, y = carry
        y = jax.lax.stop_gradient(y) if truncate else y
        f = lambda a: 1 / (1 + np.exp(-a))  # noqa: E731
        wide = lambda gate: np.repeat(gate, SIZE, axis=-1)  # noqa: E731
        y_in = f(affine(x, p["ii"]) + affine(y, p["hi"]))
        y_forget = f(affine(x, p["if"]) + affine(y, p["hf"]))
        y_out = f(affine(x, p["io"]) + affine(y, p["ho"]))
        net_c = affine(x, p["ig"]) + affine(y, p["hg"])
        s = wide(y_forget) * s + wide(y_in) * (4 * f(net_c) - 2)
        y_c = wide(y_out) * (2 * f(s) - 1)
        fed_back = [y_c, y_in, y_forget, y_out] if feedback else [y_c]
        return (s, np.concatenate(fed_back, axis=-1)), y_c

    return equations


@pytest.mark.parametrize("name", CASES)
def test_step_follows_the_equations(name, rng, float64):
    assert_step_follows(ALL_CELLS[name], equations_of(ALL_CELLS[name]), rng)


@each_cell(CASES, always=CELLS)
def test_sequence_follows_the_equations(name, rng, float64):
    case = ALL_CELLS[name]
    truncate = not case.exact_gradient
    assert_sequence_follows(case, equations_of(case, truncate), rng)


def on_line_changes(p, w_k, b_k, x, targets, size, gate_feedback):
    """The paper's algorithm, forward in time: partial derivatives of states, rate 1.

    Returns the changes of all weights, `(inputs or hidden units or 1, units)` each, and
    the outputs.
    """
    blocks, cells = p["hi"]["kernel"].shape[1], p["hg"]["kernel"].shape[1]
    f = sigmoid
    columns = {}
    for name in "ifgo":
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
        net_in, net_forget, net_c, net_out = (src @ columns[name] for name in "ifgo")
        y_in, y_forget, y_out = f(net_in), f(net_forget), f(net_out)
        wide_in, wide_forget, wide_out, d_in, d_forget = (
            np.repeat(gate, size)
            for gate in (
                *(y_in, y_forget, y_out),
                *(y_in * (1 - y_in), y_forget * (1 - y_forget)),
            )
        )
        d_g = 4 * f(net_c) * (1 - f(net_c))
        ds_c = wide_forget * ds_c + np.outer(src, d_g * wide_in)
        ds_in = wide_forget * ds_in + np.outer(src, g(net_c) * d_in)
        ds_forget = wide_forget * ds_forget + np.outer(src, s * d_forget)
        s = wide_forget * s + wide_in * g(net_c)
        y_c = wide_out * h(s)
        y_k = f(y_c @ w_k + b_k)
        e_k = y_k * (1 - y_k) * (t_t - y_k)
        back = w_k @ e_k
        e_out = y_out * (1 - y_out) * (h(s) * back).reshape(blocks, size).sum(1)
        e_s = wide_out * 2 * f(s) * (1 - f(s)) * back
        change["k"] += np.outer(y_c, e_k)
        change["b_k"] += e_k
        change["o"] += np.outer(src, e_out)
        change["g"] += e_s * ds_c
        change["i"] += (e_s * ds_in).reshape(-1, blocks, size).sum(-1)
        change["f"] += (e_s * ds_forget).reshape(-1, blocks, size).sum(-1)
        y = np.concatenate([y_c, y_in, y_forget, y_out]) if gate_feedback else y_c
        outputs.append(y_k)
    return change, np.array(outputs)


@pytest.mark.parametrize(
    "blocks, size, time, gate_feedback",
    exhaustive_but(
        [(3, 2, 12, True), (3, 2, 12, False), (4, 1, 20, True), (4, 1, 20, False)],
        [(3, 2, 12, True), (4, 1, 20, False)],
    ),
)
def test_truncated_gradient_equals_the_online_algorithm_of_the_paper(
    blocks, size, time, gate_feedback, rng, float64
):
    cell = rnncells.LSTM2000Cell(
        blocks, size, param_dtype=float, gate_feedback=gate_feedback
    )
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
    for gate in "ifgo":
        recurrent = gradient[name][f"h{gate}"]
        parts = gradient[name][f"i{gate}"]["kernel"], recurrent["kernel"]
        actual = np.vstack([*parts, recurrent["bias"]])
        np.testing.assert_allclose(-actual, change[gate], **close)
    np.testing.assert_allclose(-gradient["Dense_0"]["kernel"], change["k"], **close)
    np.testing.assert_allclose(-gradient["Dense_0"]["bias"], change["b_k"], **close)


def test_error_flows_back_in_time_only_through_the_state(rng, float64):
    cell, params, carry, x = random_setting(ALL_CELLS["LSTM2000Cell"], rng, 3)

    def step(carry):
        (s, _), _ = cell.apply(params, carry, x)
        return jnp.sum(s)

    ds, dy = jax.grad(step)(carry)
    net = affine(x, params["params"]["if"]) + affine(carry[1], params["params"]["hf"])
    assert_close(ds, jnp.repeat(jax.nn.sigmoid(net), SIZE, -1), rtol=1e-12)
    assert (dy == 0).all()


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


def test_initial_biases_follow_the_options(key):
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


@pytest.mark.parametrize(
    "options, message",
    [
        ({"blocks": 0}, "`blocks` of LSTM.* must be at least 1, got 0"),
        ({"forget_gate_bias": (1.0,)}, "`forget_gate_bias` must have one value for"),
        (
            {"biases": ("forgets",)},
            "must contain only .*'forget'.* got 'forgets'",
        ),
        ({"biases": ("in",), "forget_gate_bias": (1, 1)}, "add 'forget' to `biases`"),
    ],
)
def test_wrong_options_raise(options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        rnncells.LSTM2000Cell(**{"blocks": 2, **options})
