"""The closed forms against automatic differentiation, of JAX and of PyTorch."""

import itertools
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
    random_like,
    random_params,
    random_setting,
)
from levels import by_level
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


@pytest.mark.parametrize(
    "use_bias, batch",
    by_level(
        [*itertools.product([True, False], [(), (BATCH,), (2, 6)])],
        [(True, ()), (False, (BATCH,)), (True, (2, 6))],
    ),
    ids=str,
)
def test_step_and_derivatives_equal_those_of_the_cell(use_bias, batch, rng, float64):
    case = ALL_CELLS["LSTMCell" if use_bias else "LSTMCell-no-bias"]
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


def with_options(step, step_vjp, **options):
    return partial(step, **options), partial(step_vjp, **options)


# Name of the case: batch, step and derivatives, and each gate's input kernel.
LSTM_1997 = {"in": "ii", "c": "ig", "out": "io"}
FORMS = {
    "SimpleCell": ((BATCH,), (elman_step, elman_step_vjp), {"a": "i"}),
    "LSTMCell": ((2, 6), (lstm_step, lstm_step_vjp), {a: f"i{a}" for a in "ifgo"}),
    "GRUCell": ((BATCH,), (gru_step, gru_step_vjp), {a: f"i{a}" for a in "rzn"}),
    "GRUCell-reset-before": (
        (),
        with_options(gru_step, gru_step_vjp, reset_after=False),
        {a: f"i{a}" for a in "rzn"},
    ),
    "LSTM1997Cell": ((2, 6), (lstm1997_step, lstm1997_step_vjp), LSTM_1997),
    "LSTM1997Cell-full-gradient": (
        (BATCH,),
        (lstm1997_step, partial(lstm1997_step_vjp, truncate_gradient=False)),
        LSTM_1997,
    ),
    "LSTM1997Cell-cells-feed-back": ((), (lstm1997_step, lstm1997_step_vjp), LSTM_1997),
}


@pytest.mark.parametrize("name", by_level(FORMS, 5))
def test_sequence_and_its_derivatives_equal_those_of_the_layer(name, rng, float64):
    """The gates' gradients give those of the inputs, step by step, and of biases."""
    batch, (step, step_vjp), gates = FORMS[name]
    case = ALL_CELLS[name]
    inputs = case.inputs(rng, *batch, TIME)
    rnn = rnncells.RNN(case.make(param_dtype=float), return_carry=True)
    params = random_params(rng, rnn, inputs)["params"]["cell"]
    start = random_like(rng, rnn.initialize_carry(None, inputs[..., 0, :]))
    d_end, d_outputs = random_like(
        rng, (start, jnp.zeros((*batch, TIME, rnn.cell.features)))
    )

    @jax.jit
    def by_jax(params, carry, inputs):
        def run(params, carry, inputs):
            variables = {"params": {"cell": params}}
            return rnn.apply(variables, inputs, initial_carry=carry)

        found, vjp = jax.vjp(run, params, carry, inputs)
        return found, vjp((d_end, d_outputs))

    def by_hand(step, step_vjp, params, carry, inputs):
        found = sequence(step, params, carry, inputs)
        at = params, carry, inputs, d_end, d_outputs
        back = sequence_vjp(step, step_vjp, *at, return_gates=True)
        return found, back[:3], back[3]

    given = jax.device_get((params, start, inputs))
    d_end, d_outputs = jax.device_get((d_end, d_outputs))
    compiled = jax.jit(step), jax.jit(step_vjp, static_argnames="return_gates")
    found, derivatives, d_gates = by_hand(*compiled, *given)
    exactly((found, derivatives), by_jax(params, start, inputs))
    if name == "SimpleCell":
        whole = jax.jit(partial(by_hand, step, step_vjp))(params, start, inputs)
        exactly(whole, (found, derivatives, d_gates))

    params, (d_params, _, d_inputs), d_gates = jax.device_get(
        (params, derivatives, d_gates)
    )
    assert set(d_gates) == set(gates)
    exactly(sum(d_gates[a] @ params[gates[a]]["kernel"].T for a in gates), d_inputs)
    for gate, kernel in gates.items():
        has_bias = "bias" in params[kernel]
        bias = d_params[kernel if has_bias else f"h{kernel[1:]}"]["bias"]
        exactly(d_gates[gate].sum(tuple(range(len(batch) + 1))), bias)


def test_windows_whose_gradients_flow_on_add_up_to_the_sequence(rng, float64):
    """The derivative of the carry between them is that of `return_gates`."""
    inputs = CASE.inputs(rng, BATCH, TIME)
    cell, variables, start, _ = random_setting(CASE, rng, BATCH)
    vjp = partial(sequence_vjp, lstm_step, lstm_step_vjp, variables["params"])
    d_end, d_outputs = random_like(rng, (start, jnp.zeros((BATCH, TIME, FEATURES))))
    d_params, d_start, d_inputs, _, d_carries = vjp(
        start, inputs, d_end, d_outputs, return_gates=True
    )

    middle, _ = sequence(lstm_step, variables["params"], start, inputs[:, :2])
    late, d_middle, d_late = vjp(middle, inputs[:, 2:], d_end, d_outputs[:, 2:])
    early, d_first, d_early = vjp(start, inputs[:, :2], d_middle, d_outputs[:, :2])

    exactly((d_early, d_late), (d_inputs[:, :2], d_inputs[:, 2:]))
    exactly((jax.tree.map(jnp.add, early, late), d_first), (d_params, d_start))
    exactly(jax.tree.map(lambda d: d[:, 1], d_carries), d_middle)
    exactly(jax.tree.map(lambda d: d[:, -1], d_carries), d_end)


# Name of the case, PyTorch's cell and layer, and our layer of such cells.
IN_PYTORCH = {
    "SimpleCell": ("RNNCell", "RNN", "ElmanRNN"),
    "LSTMCell": ("LSTMCell", "LSTM", "LSTM"),
    "GRUCell": ("GRUCell", "GRU", "GRU"),
}


def params_of(name, arrays):
    """Returns PyTorch's arrays as the parameters of our cell."""
    from rnncells.interop import pytorch

    arrays = {key.removesuffix("_l0") + "_l0": array for key, array in arrays.items()}
    layer = getattr(rnncells, IN_PYTORCH[name][2])(FEATURES, param_dtype=float)
    return pytorch.from_state_dict(layer, arrays)["params"]["layers_0"]["cell"]


def values_and_gradients(name, module):
    """Returns the parameters of a module of PyTorch, and their gradients."""
    values, gradients = {}, {}
    for key, tensor in module.named_parameters():
        values[key], gradients[key] = tensor.detach().numpy(), tensor.grad.numpy()
        # The sum of two biases is one bias here, except for the candidate of a GRU.
        if key.startswith("bias"):
            gradients[key][: 2 * FEATURES if name == "GRUCell" else None] /= 2
    return params_of(name, values), params_of(name, gradients)


@pytest.mark.parametrize("is_sequence", [False, True], ids=["cell", "sequence"])
@pytest.mark.parametrize("name", IN_PYTORCH)
def test_values_and_derivatives_equal_those_of_pytorch(name, is_sequence, rng, float64):
    torch = peer("torch")
    kind, options = IN_PYTORCH[name][is_sequence], {"dtype": torch.float64}
    options |= {"batch_first": True} if is_sequence else {}
    module = getattr(torch.nn, kind)(FEATURES_IN, FEATURES, **options)

    def leaf(*shape):
        return torch.tensor(rng.standard_normal(shape), requires_grad=True)

    def value(tensor):
        return jnp.asarray(tensor.detach().numpy())

    def carry(arrays):
        """Returns [h] as h, and [h, c] as (c, h)."""
        return tuple(arrays[::-1]) if len(arrays) == 2 else arrays[0]

    x = leaf(BATCH, *[TIME][: int(is_sequence)], FEATURES_IN)
    start = [leaf(BATCH, FEATURES) for _ in range(1 + (name == "LSTMCell"))]
    # Layers have an axis of layers in their states.
    given = [state[None] for state in start] if is_sequence else start
    result = module(x, tuple(given) if len(given) == 2 else given[0])
    y, end = result if is_sequence else (None, result)
    end = list(end) if isinstance(end, tuple) else [end]
    end = [state[0] for state in end] if is_sequence else end
    results = [*end, y] if is_sequence else end
    back = [rng.standard_normal(tensor.shape) for tensor in results]
    torch.autograd.backward(results, [torch.tensor(d) for d in back])

    params, d_params = values_and_gradients(name, module)
    at = params, carry([value(state) for state in start]), value(x)
    d_end = carry(back[: len(end)])
    step, step_vjp = FORMS[name][1]
    if is_sequence:
        found, outputs = sequence(step, *at)
        exactly(outputs, value(y))
        derivatives = sequence_vjp(step, step_vjp, *at, d_end, back[-1])
    else:
        found, _ = step(*at)
        derivatives = step_vjp(*at, d_end)
    exactly(found, carry([value(state) for state in end]))
    d_start = carry([state.grad.numpy() for state in start])
    exactly(derivatives, (d_params, d_start, x.grad.numpy()))


@pytest.mark.parametrize("d_carry", [None, (None, None)])
def test_no_derivative_at_all_is_an_error(d_carry):
    given = arguments() | {"d_carry": d_carry, "d_h": None}
    message = r"`d_carry\[1\]` and `d_\w+` are all None, .* Pass at least one of them"
    with pytest.raises(ValueError, match=message):
        lstm_step_vjp(**given)
    with pytest.raises(ValueError, match=message):
        of_sequence = given["params"], given["carry"], np.ones((BATCH, 1, FEATURES_IN))
        sequence_vjp(lstm_step, lstm_step_vjp, *of_sequence, d_carry)


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
        (["x"], np.ones(()), r"`x` must be \(\*batch, features\), got the shape \(\)"),
        (["carry", 0], [1.0], r"`carry` must be \(\*batch, features\), got a list"),
        (["carry"], WIDE, "`carry` must be a pair"),
        (["carry", 1], WIDE, r"`carry\[1\]` must have the shape \(2, 4\)"),
        (["d_carry"], WIDE, "`d_carry` must be a pair"),
        (["d_carry", 0], WIDE, r"`d_carry\[0\]` must have the shape \(2, 4\)"),
        (["d_carry", 1], WIDE, r"`d_carry\[1\]` must have the shape \(2, 4\)"),
        (["d_h"], np.ones(4), r"`d_h` must have the shape \(2, 4\), got \(4,\)"),
        (["params"], {"params": {}}, r"`params` must have .*, got \['params'\]"),
        (["params", "more"], {}, "`params` must have .*'more'"),
        (["params", "hf"], {}, r"`params\['hf'\]` must have a kernel"),
        (["params", "hf"], WIDE, r"`params\['hf'\]` must .*, got ndarray"),
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


@pytest.mark.parametrize(
    "kernel, y, message",
    [
        ((), 8, r"`params\['ii'\]\['kernel'\]` must .* 4 cells, got the shape \(\)"),
        ((3, 3), 8, r"`params\['ii'\]\['kernel'\]` must .*, got the shape \(3, 3\)"),
        ((3, 2), 7, r"`carry\[1\]` must have the shape \(2, 8\), got \(2, 7\)"),
        ((3, 2), 4, r"`params\['hi'\]\['kernel'\]` must have the shape \(4, 2\)"),
    ],
)
def test_wrong_blocks_are_named(kernel, y, message):
    widths = {"i": 2, "g": 4, "o": 2}
    params = {f"h{a}": {"kernel": np.ones((8, n))} for a, n in widths.items()}
    params |= {f"i{a}": {"kernel": np.ones((3, n))} for a, n in widths.items()}
    params["ii"]["kernel"] = np.ones(kernel)
    carry = np.ones((BATCH, 4)), np.ones((BATCH, y))
    with pytest.raises(ValueError, match=message):
        lstm1997_step(params, carry, np.ones((BATCH, 3)))


@pytest.mark.parametrize(
    "given, message",
    [
        (
            {"inputs": WIDE[0]},
            r"`inputs` must be \(\*batch, time, features\) .* \(5,\)",
        ),
        ({"inputs": np.ones((BATCH, 0, 3))}, r"at least one step, got .* \(2, 0, 3\)"),
        ({"d_carry": WIDE}, "`d_carry` must be a pair like the carry"),
        ({"d_carry": (None, WIDE)}, r"`d_carry\[1\]` must have the shape \(2, 4\)"),
        ({"d_outputs": WIDE}, r"`d_outputs` must have the shape \(2, 6, 4\)"),
    ],
)
def test_wrong_arguments_of_a_sequence_are_named(given, message):
    """Before any derivative is computed."""
    valid = {name: arguments()[name] for name in ("params", "carry")}
    valid["inputs"] = np.ones((BATCH, 6, FEATURES_IN))
    with pytest.raises(ValueError, match=message):
        sequence_vjp(lstm_step, pytest.fail, **valid | given)
