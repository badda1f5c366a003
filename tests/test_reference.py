"""The closed forms against automatic differentiation."""

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
    assert_equal,
    exactly,
    random_like,
    random_params,
    random_setting,
)
from levels import by_level

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
    "LSTMCell-no-bias": ((), (lstm_step, lstm_step_vjp), {a: f"i{a}" for a in "ifgo"}),
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


@pytest.mark.parametrize("name", by_level(FORMS, 6))
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
        names = [n for n in (kernel, f"h{kernel[1:]}") if "bias" in params[n]]
        if names:
            summed = d_gates[gate].sum(tuple(range(len(batch) + 1)))
            exactly(summed, d_params[names[0]]["bias"])


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
        (["x"], np.ones((3, 3)), r"`carry\[0\]` .* shape \(3, 4\), got \(2, 4\)"),
        (["carry", 0], 1.0, r"`carry` must be \(\*batch, features\), got .* \(\)"),
        (["carry"], WIDE, "`carry` must be a pair"),
        (["d_carry", 0], WIDE, r"`d_carry\[0\]` must have the shape \(2, 4\)"),
        (["params"], {"params": {}}, r"`params` must have .*, got \['params'\]"),
        (["params", "hf"], {}, r"`params\['hf'\]` must have kernel, bias \(opt"),
        (["params", "hf", "kernel"], WIDE, r"'hf'.*'kernel'.* shape \(4, 4\)"),
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


@pytest.mark.parametrize(
    "kernel, y, message",
    [
        ((), 8, r"`params\['ii'\]\['kernel'\]` must .* 4 cells, got the shape \(\)"),
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
        ({"d_outputs": WIDE}, r"`d_outputs` must have the shape \(2, 6, 4\)"),
    ],
)
def test_wrong_arguments_of_a_sequence_are_named(given, message):
    """Before any derivative is computed."""
    valid = {name: arguments()[name] for name in ("params", "carry")}
    valid["inputs"] = np.ones((BATCH, 6, FEATURES_IN))
    with pytest.raises(ValueError, match=message):
        sequence_vjp(lstm_step, pytest.fail, **valid | given)
