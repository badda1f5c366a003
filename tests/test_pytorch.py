"""Layers against PyTorch's: outputs, states, and the gradients of everything."""

import functools
import itertools
from functools import partial

import jax
import numpy as np
import pytest
from cases import assert_close, assert_equal
from levels import by_level, pairwise
from libraries import peer

import rnncells
from rnncells import reference
from rnncells.interop import pytorch

torch = peer("torch")

LAYERS = {
    "LSTM": (rnncells.LSTM, {}, "LSTM", {}),
    "LSTM-projected": (rnncells.LSTM, {"proj_features": 3}, "LSTM", {"proj_size": 3}),
    "GRU": (rnncells.GRU, {}, "GRU", {}),
    "RNN-tanh": (rnncells.ElmanRNN, {}, "RNN", {}),
    "RNN-relu": (
        rnncells.ElmanRNN,
        {"nonlinearity": "relu"},
        "RNN",
        {"nonlinearity": "relu"},
    ),
}
FEATURES_IN, FEATURES, BATCH, TIME = 2, 4, 3, 5
LENGTHS = np.array([3, 5, 1])
TOLERANCE = {"float32": 1e-5, "float64": 1e-10}

# oneDNN has no projection, which PyTorch says once.
pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections:UserWarning")
# Without a batch there is nothing for time to come before, or after.
WAYS = {
    "batched": (False, False),
    "batched-time-major": (True, False),
    "packed": (False, True),
    "packed-time-major": (True, True),
    "unbatched": (False, False),
    "unbatched-time-major": (True, False),
}
GRID = [
    *itertools.product(LAYERS, (1, 3), (False, True), (True, False), TOLERANCE, WAYS)
]


@functools.cache
def make_pair(name, num_layers, bidirectional, use_bias, dtype):
    """Returns our layer, PyTorch's with random weights, those weights as variables."""
    ours, options, theirs, their_options = LAYERS[name]
    layer = ours(
        FEATURES,
        num_layers=num_layers,
        bidirectional=bidirectional,
        use_bias=use_bias,
        param_dtype=dtype,
        **options,
    )
    torch.manual_seed(0)
    peer = getattr(torch.nn, theirs)(
        FEATURES_IN,
        FEATURES,
        num_layers=num_layers,
        bidirectional=bidirectional,
        bias=use_bias,
        dtype=getattr(torch, dtype),
        **their_options,
    )
    weights = {
        name: weight.detach().numpy() for name, weight in peer.named_parameters()
    }
    variables, pull = jax.vjp(partial(pytorch.from_state_dict, layer), weights)
    return layer, peer, variables, jax.jit(lambda gradient: pull(gradient)[0])


def run_torch(peer, x, states, cotangents, time_major, is_packed):
    """Returns outputs and states; gradients by inputs, by states, by weights."""
    peer.batch_first = not time_major
    x, *states = (torch.tensor(a, requires_grad=True) for a in (x, *states))
    inputs = x
    if is_packed:
        inputs = torch.nn.utils.rnn.pack_padded_sequence(
            x, LENGTHS, batch_first=not time_major, enforce_sorted=False
        )
    y, last = peer(inputs, *_states(states))
    if is_packed:
        y, _ = torch.nn.utils.rnn.pad_packed_sequence(y, batch_first=not time_major)
    values = (y, *last) if isinstance(last, tuple) else (y, last)
    pairs = zip(values, cotangents, strict=True)
    loss = sum((value * torch.tensor(weight)).sum() for value, weight in pairs)
    weights = dict(peer.named_parameters())
    d_x, *others = torch.autograd.grad(loss, [x, *states, *weights.values()])
    d_states, d_weights = others[: len(states)], others[len(states) :]
    gradients = d_x, d_states, dict(zip(weights, d_weights, strict=True))
    return jax.tree.map(
        lambda tensor: tensor.detach().numpy(), (list(values), gradients)
    )


def applied(layer, variables, x, states, time_major, is_packed):
    """Returns outputs and states of our layer."""
    lengths = LENGTHS if is_packed else None
    y, last = layer.apply(
        variables, x, *_states(states), seq_lengths=lengths, time_major=time_major
    )
    return [y, *last] if isinstance(last, tuple) else [y, last]


@functools.cache
def compiled(config, *way):
    """Returns outputs and states, and the gradients by all, as one program."""
    layer, _, _, _ = make_pair(*config)

    @jax.jit
    def run(variables, x, states, cotangents):
        def apply(variables, x, states):
            return applied(layer, variables, x, states, *way)

        values, pull = jax.vjp(apply, variables, x, states)
        return values, pull(cotangents)

    return run


def _states(states):
    """Returns the argument for states, if there are any."""
    if not states:
        return ()
    return (tuple(states),) if len(states) > 1 else (states[0],)


# Only the oldest Python has PyTorch, so they are quick.
PAIRS = pairwise(GRID)


@pytest.mark.parametrize(
    "name, num_layers, bidirectional, use_bias, dtype, way",
    by_level(GRID, PAIRS, quick=len(PAIRS)),
)
def test_layer_equals_that_of_pytorch(
    name, num_layers, bidirectional, use_bias, dtype, way, rng
):
    """Outputs, states and all gradients, with given states and with initial ones.

    Equal programs are compiled once: inputs without a batch are time major in any case,
    and a call without states is a call with the initial states (test_calls.py).
    """
    config = name, num_layers, bidirectional, use_bias, dtype
    time_major, is_packed = WAYS[way]
    batch = () if "unbatched" in way else (BATCH,)
    leading = (TIME, *batch) if time_major else (*batch, TIME)
    directions = 2 if bidirectional else 1
    # h comes first, and is what is projected.
    widths = (3, FEATURES) if "projected" in name else (FEATURES, FEATURES)
    widths = widths[: 2 if "LSTM" in name else 1]
    shapes = [(num_layers * directions, *batch, width) for width in widths]

    def draw(*shape):
        return rng.standard_normal(shape).astype(dtype)

    x = draw(*leading, FEATURES_IN)
    states = [draw(*shape) for shape in shapes]
    cotangents = [draw(*leading, directions * widths[0])]
    cotangents += [draw(*shape) for shape in shapes]
    with jax.enable_x64(dtype == "float64"):
        layer, peer, variables, pull = make_pair(*config)

        def traced(time_major):
            def apply(variables, x):
                return applied(layer, variables, x, [], time_major, is_packed)

            return str(jax.make_jaxpr(apply)(variables, x))

        initial = jax.tree.leaves(layer.initialize_carry(None, batch_shape=batch))
        assert_equal(initial, [np.zeros(shape, dtype) for shape in shapes])
        # In float64 the programs differ by their dtypes alone.
        assert batch or dtype == "float64" or traced(False) == traced(True)
        is_first = time_major and batch
        run = compiled(config, bool(is_first), is_packed)
        for given in (states, []):
            at = given or [np.zeros_like(state) for state in states]
            values, (d_variables, d_x, d_states) = run(variables, x, at, cotangents)
            actual = values, (d_x, d_states if given else [], pull(d_variables))
            expected = run_torch(peer, x, given, cotangents, time_major, is_packed)
            tolerance = TOLERANCE[dtype]
            assert_close(actual, expected, rtol=tolerance, atol=tolerance)


CLOSED_FORMS = {
    "LSTM": (reference.lstm_step, reference.lstm_step_vjp),
    "GRU": (reference.gru_step, reference.gru_step_vjp),
    "RNN-tanh": (reference.elman_step, reference.elman_step_vjp),
}


@pytest.mark.parametrize("name", CLOSED_FORMS)
def test_closed_forms_equal_autograd_of_pytorch(name, rng, float64):
    _, theirs, variables, pull = make_pair(name, 1, False, True, "float64")
    params = variables["params"]["layers_0"]["cell"]
    x, d_y = (rng.standard_normal((BATCH, TIME, n)) for n in (FEATURES_IN, FEATURES))
    # States and their cotangents: h, and then c.
    shape = (1 + (name == "LSTM"), 1, BATCH, FEATURES)
    states, d_last = rng.standard_normal((2, *shape))
    cotangents = [d_y, *d_last]
    (y, *_), expected = run_torch(theirs, x, [*states], cotangents, False, False)

    def as_carry(states):
        parts = tuple(state[0] for state in states[::-1])
        return parts if name == "LSTM" else parts[0]

    step, step_vjp = CLOSED_FORMS[name]
    at = params, as_carry(states), x
    assert_close(reference.sequence(step, *at)[1], y, 1e-10, 1e-10)
    d_params, d_carry, d_x = reference.sequence_vjp(
        step, step_vjp, *at, as_carry(d_last), d_y
    )
    d_weights = pull({"params": {"layers_0": {"cell": d_params}}})
    d_states = [d[None] for d in jax.tree.leaves(d_carry)[::-1]]
    assert_close((d_x, d_states, d_weights), expected, 1e-10, 1e-10)


def test_weights_with_weight_norm_load(rng):
    theirs = torch.nn.GRU(FEATURES_IN, FEATURES, batch_first=True)
    for name in ("weight_hh_l0", "weight_ih_l0"):
        torch.nn.utils.parametrizations.weight_norm(theirs, name)
        theirs.parametrizations[name].original0.data.mul_(1.7)
    layer = rnncells.GRU(FEATURES)
    x = rng.standard_normal((BATCH, TIME, FEATURES_IN)).astype(np.float32)
    y, _ = jax.jit(layer.apply)(pytorch.from_state_dict(layer, theirs.state_dict()), x)
    assert_close(y, theirs(torch.tensor(x))[0].detach().numpy())
