"""The closed forms against automatic differentiation, of JAX and of PyTorch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import (
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
from rnncells.reference import lstm_step, lstm_step_vjp

CASE = CELLS["LSTMCell"]


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


def test_chained_steps_equal_the_gradient_of_a_sequence(rng, float64):
    """Backpropagation through time, as a loop."""
    inputs = CASE.inputs(rng, BATCH, TIME)
    rnn = rnncells.RNN(CASE.make(param_dtype=float), return_carry=True)
    variables = random_params(rng, rnn, inputs)
    start, d_end = random_like(rng, (jnp.zeros((2, BATCH, FEATURES)),) * 2)
    start, d_end = tuple(start), tuple(d_end)
    d_outputs = random_like(rng, jnp.zeros((BATCH, TIME, FEATURES)))

    @jax.jit
    def by_jax(params, carry, inputs):
        def sequence(params, carry, inputs):
            variables = {"params": {"cell": params}}
            return rnn.apply(variables, inputs, initial_carry=carry)

        _, vjp = jax.vjp(sequence, params, carry, inputs)
        return vjp((d_end, d_outputs))

    @jax.jit
    def by_hand(params, carry, inputs):
        carries = [carry]
        for t in range(TIME):
            carries.append(lstm_step(params, carries[t], inputs[:, t])[0])
        d_params, d_carry = jax.tree.map(jnp.zeros_like, params), d_end
        d_inputs = jnp.zeros_like(inputs)
        for t in reversed(range(TIME)):
            d_step, d_carry, d_x = lstm_step_vjp(
                params, carries[t], inputs[:, t], d_carry, d_outputs[:, t]
            )
            d_params = jax.tree.map(jnp.add, d_params, d_step)
            d_inputs = d_inputs.at[:, t].set(d_x)
        return d_params, d_carry, d_inputs

    params = variables["params"]["cell"]
    exactly(by_hand(params, start, inputs), by_jax(params, start, inputs))


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


WIDE = np.ones((BATCH, FEATURES + 1))


@pytest.mark.parametrize(
    "path, value, message",
    [
        (["x"], np.ones((3, 3)), r"`x` must have the shape \(2, 3\), got \(3, 3\)"),
        (["x"], np.ones(()), "`x` and `carry` must have a feature axis"),
        (["carry"], WIDE, "`carry` must be a pair"),
        (["carry", 1], WIDE, r"`carry\[1\]` must have the shape \(2, 4\)"),
        (["d_carry"], None, "`d_carry` must be a pair"),
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
