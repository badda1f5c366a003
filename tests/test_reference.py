"""The closed forms against automatic differentiation, of JAX and of PyTorch."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import (
    ALL_CELLS,
    BATCH,
    CELLS,
    FEATURES,
    FEATURES_IN,
    TIME,
    assert_close,
    assert_equal,
    dense,
    random_like,
    random_params,
    random_setting,
)
from peers import peer

import rnncells
from rnncells.reference import (
    elman_step,
    elman_step_vjp,
    gru_step,
    gru_step_vjp,
    lstm1997_step,
    lstm1997_step_vjp,
    lstm_step,
    lstm_step_vjp,
    sequence,
    sequence_vjp,
)

CASE = CELLS["LSTMCell"]
WIDE = np.ones((BATCH, FEATURES + 1))


def exactly(actual, expected):
    assert_close(actual, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("batch", [(), (BATCH,), (2, 6)], ids=str)
@pytest.mark.parametrize("use_bias", [True, False])
def test_step_and_derivatives_equal_those_of_the_cell(batch, use_bias, rng, float64):
    case = dense("LSTMCell", use_bias=use_bias)
    cell, variables, carry, x = random_setting(case, rng, *batch)
    params = variables["params"]
    d_carry, d_h = random_like(rng, (carry, carry[1]))

    @jax.jit
    def by_jax(params, carry, x):
        def step(params, carry, x):
            return cell.apply({"params": params}, carry, x)

        stepped, vjp = jax.vjp(step, params, carry, x)
        return stepped, vjp((d_carry, d_h))

    @jax.jit
    def by_hand(params, carry, x):
        stepped = lstm_step(params, carry, x)
        return stepped, lstm_step_vjp(params, carry, x, d_carry, d_h)

    exactly(by_hand(params, carry, x), by_jax(params, carry, x))


def test_derivatives_equal_those_of_pytorch(rng, float64):
    torch = peer("torch")
    cell = torch.nn.LSTMCell(FEATURES_IN, FEATURES, dtype=torch.float64)

    def leaf(*shape):
        return torch.tensor(rng.standard_normal(shape), requires_grad=True)

    x, c, h = leaf(BATCH, FEATURES_IN), leaf(BATCH, FEATURES), leaf(BATCH, FEATURES)
    d_c, d_h = rng.standard_normal((2, BATCH, FEATURES))
    h_after, c_after = cell(x, (h, c))
    torch.autograd.backward((c_after, h_after), (torch.tensor(d_c), torch.tensor(d_h)))

    def tree(of):
        """Returns PyTorch's arrays as the tree of an LSTMCell, with both biases."""
        sides = (
            ("i", cell.weight_ih, cell.bias_ih),
            ("h", cell.weight_hh, cell.bias_hh),
        )
        return {
            side + gate: {"kernel": kernel.T, "bias": bias}
            for side, kernels, biases in sides
            for gate, kernel, bias in zip(
                "ifgo", np.split(of(kernels), 4), np.split(of(biases), 4), strict=True
            )
        }

    def value(tensor):
        return tensor.detach().numpy()

    def gradient(tensor):
        return tensor.grad.numpy()

    carry, d_carry = (value(c), value(h)), (d_c, np.zeros_like(d_h))
    ((c_, h_), _) = lstm_step(tree(value), carry, value(x))
    got = lstm_step_vjp(tree(value), carry, value(x), d_carry, d_h)

    exactly((c_, h_), (value(c_after), value(h_after)))
    exactly(got, (tree(gradient), (gradient(c), gradient(h)), gradient(x)))


def test_output_and_carry_add_up(rng, float64):
    """What comes by the output comes as well by `h` of the carry."""
    _, variables, carry, x = random_setting(CASE, rng, BATCH)
    params, (d_c, d_h) = variables["params"], random_like(rng, carry)
    zeros = jnp.zeros_like(d_h)
    vjp = jax.jit(lstm_step_vjp)
    by_output = vjp(params, carry, x, (d_c, zeros), d_h)
    assert_equal(by_output, vjp(params, carry, x, (d_c, d_h), zeros))
    # None stands for zeros.
    assert_equal(by_output, vjp(params, carry, x, (d_c, None), d_h))
    assert_equal(
        vjp(params, carry, x, None, d_h), vjp(params, carry, x, (zeros,) * 2, d_h)
    )
    assert_equal(vjp(params, carry, x, (d_c, d_h)), by_output)


# Name of the case, step, its derivatives, and the names of its gates.
FORMS = {
    "SimpleCell": (elman_step, elman_step_vjp, ["a"]),
    "LSTMCell": (lstm_step, lstm_step_vjp, ["f", "g", "i", "o"]),
    "GRUCell": (gru_step, gru_step_vjp, ["n", "r", "z"]),
    "GRUCell-reset-before": (
        partial(gru_step, reset_after=False),
        partial(gru_step_vjp, reset_after=False),
        ["n", "r", "z"],
    ),
    "LSTM1997Cell": (lstm1997_step, lstm1997_step_vjp, ["c", "in", "out"]),
    "LSTM1997Cell-full-gradient": (
        lstm1997_step,
        partial(lstm1997_step_vjp, truncate_gradient=False),
        ["c", "in", "out"],
    ),
    "LSTM1997Cell-cells-feed-back": (
        lstm1997_step,
        lstm1997_step_vjp,
        ["c", "in", "out"],
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_sequence_and_its_derivatives_equal_those_of_the_layer(name, rng, float64):
    """So do the gates' gradients, which are those of the biases of every step."""
    step, step_vjp, gates = FORMS[name]
    case = ALL_CELLS[name]
    inputs = case.inputs(rng, BATCH, TIME)
    rnn = rnncells.RNN(case.make(param_dtype=float), return_carry=True)
    params = random_params(rng, rnn, inputs)["params"]["cell"]
    start = random_like(rng, rnn.initialize_carry(None, inputs[:, 0]))
    d_end, d_outputs = random_like(
        rng, (start, jnp.zeros((BATCH, TIME, rnn.cell.features)))
    )

    @jax.jit
    def by_jax(params, carry, inputs):
        def run(params, carry, inputs):
            variables = {"params": {"cell": params}}
            return rnn.apply(variables, inputs, initial_carry=carry)

        found, vjp = jax.vjp(run, params, carry, inputs)
        return found, vjp((d_end, d_outputs))

    @jax.jit
    def by_hand(params, carry, inputs):
        found = sequence(step, params, carry, inputs)
        back = sequence_vjp(
            step, step_vjp, params, carry, inputs, d_end, d_outputs, return_gates=True
        )
        return found, back[:3], back[3:]

    *found, (d_gates, d_carries) = by_hand(params, start, inputs)
    exactly(tuple(found), by_jax(params, start, inputs))
    assert sorted(d_gates) == gates
    d_params = found[1][0]
    bias = {"SimpleCell": "i"}.get(name, "ii" if "reset-before" in name else "hi")
    bias = {"GRUCell": "ir", "GRUCell-reset-before": "ir"}.get(name, bias)
    gate = {"ir": "r", "i": "a"}.get(bias, "in" if "1997" in name else "i")
    exactly(d_gates[gate].sum((0, 1)), d_params[bias]["bias"])
    last = jax.tree.map(lambda leaf: leaf[:, -1], d_carries)
    assert_equal(last, d_end)


@pytest.mark.parametrize("name", ["SimpleCell", "LSTMCell", "GRUCell"])
def test_sequence_equals_that_of_pytorch(name, rng, float64):
    torch = peer("torch")
    from rnncells.interop import pytorch

    kinds = {"SimpleCell": "RNN", "LSTMCell": "LSTM", "GRUCell": "GRU"}
    layers = {"SimpleCell": "ElmanRNN", "LSTMCell": "LSTM", "GRUCell": "GRU"}
    theirs = getattr(torch.nn, kinds[name])(
        FEATURES_IN, FEATURES, batch_first=True, dtype=torch.float64
    )
    x = torch.tensor(
        rng.standard_normal((BATCH, TIME, FEATURES_IN)), requires_grad=True
    )
    d_y = rng.standard_normal((BATCH, TIME, FEATURES))
    y, _ = theirs(x)
    y.backward(torch.tensor(d_y))
    layer = getattr(rnncells, layers[name])(FEATURES, param_dtype=float)
    state = {key: value.detach().numpy() for key, value in theirs.state_dict().items()}
    params = pytorch.from_state_dict(layer, state)["params"]["layers_0"]["cell"]
    step, step_vjp, _ = FORMS[name]
    zeros = jnp.zeros((BATCH, FEATURES))
    start = (zeros, zeros) if name == "LSTMCell" else zeros
    _, found = sequence(step, params, start, x.detach().numpy())
    exactly(found, y.detach().numpy())
    d_params, _, d_x = sequence_vjp(
        step, step_vjp, params, start, jnp.asarray(x.detach().numpy()), d_outputs=d_y
    )
    exactly(d_x, x.grad.numpy())
    grads = {key: value.grad.numpy() for key, value in theirs.named_parameters()}
    # Two biases of PyTorch are one here, except those of a GRU's candidate.
    for key, grad in grads.items():
        if key.startswith("bias"):
            grad[: 2 * FEATURES if name == "GRUCell" else None] /= 2
    expected = pytorch.from_state_dict(layer, grads)["params"]["layers_0"]["cell"]
    exactly(d_params, expected)


def test_no_derivative_at_all_is_an_error():
    given = arguments() | {"d_carry": None, "d_h": None}
    with pytest.raises(
        ValueError, match=r"Pass `d_carry\[0\]` or .* all gradients are 0"
    ):
        lstm_step_vjp(**given)
    with pytest.raises(ValueError, match="Pass `d_carry` or `d_outputs`"):
        sequence_vjp(lstm_step, lstm_step_vjp, given["params"], given["carry"], WIDE)


def arguments():
    state = np.ones((BATCH, FEATURES))
    params = {}
    for gate in "ifgo":
        params[f"i{gate}"] = {"kernel": np.ones((FEATURES_IN, FEATURES))}
        kernel, bias = np.ones((FEATURES, FEATURES)), np.ones(FEATURES)
        params[f"h{gate}"] = {"kernel": kernel, "bias": bias}
    return {
        "params": params,
        "carry": [state, state],
        "x": np.ones((BATCH, FEATURES_IN)),
        "d_carry": [state, state],
        "d_h": state,
    }


@pytest.mark.parametrize(
    "path, value, message",
    [
        (["x"], np.ones((3, 3)), r"`x` must have the shape \(2, 3\), got \(3, 3\)"),
        (["x"], np.ones(()), "`x` and `carry` must have a feature axis"),
        (["carry"], WIDE, "`carry` must be a pair"),
        (["carry", 1], WIDE, r"`carry\[1\]` must have the shape \(2, 4\)"),
        (["d_carry"], WIDE, "`d_carry` must be a pair"),
        (["d_carry", 0], WIDE, r"`d_carry\[0\]` must have the shape \(2, 4\)"),
        (["d_carry", 1], WIDE, r"`d_carry\[1\]` must have the shape \(2, 4\)"),
        (["d_h"], np.ones(4), r"`d_h` must have the shape \(2, 4\), got \(4,\)"),
        (["params"], {"params": {}}, r"`params` must have .*, got \['params'\]"),
        (["params", "more"], {}, "`params` must have .*'more'"),
        (["params", "hf"], {}, r"`params\['hf'\]` must have a kernel"),
        (["params", "hf", "kernel"], WIDE, r"'hf'.*'kernel'.* shape \(4, 4\)"),
        (["params", "io", "kernel"], WIDE, r"'io'.*'kernel'.* shape \(3, 4\)"),
        (["params", "ho", "bias"], WIDE, r"'ho'.*'bias'.* shape \(4,\)"),
    ],
)
def test_wrong_shapes_are_named(path, value, message):
    given = arguments()
    *parents, last = path
    changed = given
    for name in parents:
        changed = changed[name]
    changed[last] = value
    with pytest.raises(ValueError, match=message):
        lstm_step_vjp(**given)


def test_valid_arguments_do_not_raise():
    lstm_step_vjp(**arguments())
