"""Initial values: by gate, for long memory, and as PyTorch's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import assert_equal

import rnncells
from rnncells import initializers
from rnncells.cells.delta_net import _initial_decay_bias
from rnncells.cells.lru import _initial_nu

FEATURES_IN, FEATURES = 3, 400


def initial(cell, key):
    """Returns the initial parameters of a cell."""
    carry = cell.initialize_carry(None, (FEATURES_IN,))
    return jax.jit(cell.init)(key, carry, jnp.ones(FEATURES_IN))["params"]


def biases(params):
    return {name: gate["bias"] for name, gate in params.items() if "bias" in gate}


def uniform_cdf(low, high):
    return lambda x: np.clip((x - low) / (high - low), 0, 1)


def sum_of_two_cdf(limit):
    """The distribution of the sum of two that are uniform in [-limit, limit]."""

    def cdf(x):
        u = np.clip(x / (2 * limit), -1, 1)
        return np.where(u < 0, (1 + u) ** 2 / 2, 1 - (1 - u) ** 2 / 2)

    return cdf


def assert_distributed(values, cdf):
    """Kolmogorov and Smirnov's test, at a level of 0.001."""
    values = np.sort(np.ravel(values))
    count = len(values)
    steps = np.arange(count + 1) / count
    expected = cdf(values)
    distance = max(np.max(steps[1:] - expected), np.max(expected - steps[:-1]))
    assert distance < 1.95 / np.sqrt(count)


def test_forget_gate_starts_at_one(key):
    cell = rnncells.LSTMCell(4, bias_init=initializers.forget_gate())
    found = biases(initial(cell, key))

    for name, bias in found.items():
        np.testing.assert_array_equal(bias, np.full(4, name == "hf", np.float32))


@pytest.mark.parametrize("longest", [3, 200])
def test_chrono_draws_times_up_to_the_maximum(longest, key):
    cell = rnncells.LSTMCell(FEATURES, bias_init=initializers.chrono(longest))
    found = biases(initial(cell, key))

    assert_distributed(np.exp(found["hf"]), uniform_cdf(1, longest - 1))
    np.testing.assert_array_equal(found["hi"], -found["hf"])
    assert not found["hg"].any() and not found["ho"].any()


def test_chrono_of_a_gru_sets_the_update_gate(key):
    cell = rnncells.GRUCell(FEATURES, bias_init=initializers.chrono(50))
    found = biases(initial(cell, key))

    assert_distributed(np.exp(found["iz"]), uniform_cdf(1, 49))
    assert not any(found[name].any() for name in ("ir", "in", "hn"))


CELLS = {
    "LSTMCell": lambda **options: rnncells.LSTMCell(FEATURES, **options),
    "GRUCell": lambda **options: rnncells.GRUCell(FEATURES, **options),
    "SimpleCell": lambda **options: rnncells.SimpleCell(FEATURES, **options),
}


@pytest.mark.parametrize("name", CELLS)
def test_pytorch_initializer_has_the_distribution_of_pytorch(name, key):
    params = initial(CELLS[name](**initializers.pytorch(FEATURES)), key)

    limit = FEATURES**-0.5
    for gate, own in params.items():
        assert_distributed(own["kernel"], uniform_cdf(-limit, limit))
        if "bias" in own:
            is_one = gate in ("in", "hn")
            cdf = uniform_cdf(-limit, limit) if is_one else sum_of_two_cdf(limit)
            assert_distributed(own["bias"], cdf)
    drawn = [np.asarray(bias).tobytes() for bias in biases(params).values()]
    assert len(set(drawn)) == len(drawn)


def test_layers_pass_initializers_to_their_cells(key):
    layer = rnncells.LSTM(
        4, num_layers=2, bidirectional=True, bias_init=initializers.forget_gate(2)
    )
    params = layer.init(key, jnp.ones((5, 3)))["params"]

    for k in range(2):
        for side in ("forward_rnn", "backward_rnn"):
            cell = params[f"layers_{k}"][side]["cell"]
            assert (cell["hf"]["bias"] == 2).all() and (cell["hi"]["bias"] == 0).all()


@pytest.mark.parametrize(
    "cell",
    [
        rnncells.GRUCell(4, bias_init=initializers.forget_gate()),
        rnncells.LayerNormLSTMCell(4, bias_init=initializers.forget_gate()),
        rnncells.ZoneoutCell(
            rnncells.GRUCell(4, bias_init=initializers.forget_gate()),
            deterministic=True,
        ),
        rnncells.LSTMCell(4, bias_init=initializers.PerGateInit({"if": jnp.ones})),
    ],
    ids=lambda cell: type(cell).__name__,
)
def test_names_that_are_no_bias_raise(cell, key):
    with pytest.raises(ValueError, match="must name gates with biases, .* got"):
        initial(cell, key)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_computed_in_float32_and_rounded(dtype, key):
    inits = {
        "log_of_uniform": initializers.log_of_uniform(0, 6.28),
        "linspace": initializers.linspace(0, 1000),
        "chrono": initializers.chrono(100_000).gates["hf"],
        "radius": _initial_nu(0.9, 0.9999),
        "decay": _initial_decay_bias,
    }
    for name, init in inits.items():
        wide = init(key, (3, 50))
        assert_equal(init(key, (3, 50), dtype), wide.astype(dtype))
        assert np.isfinite(wide.astype(dtype)).all(), name
