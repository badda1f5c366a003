"""Other libraries: their layers with random weights, and ours of the same kinds."""

import importlib
import itertools
import os
from functools import partial
from types import ModuleType

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import BATCH, FEATURES, FEATURES_IN, TIME, random_like, random_params

import rnncells
from rnncells.interop import equinox, haiku, jax_rnn, keras, pytorch

# What CI installs must be there: nothing is skipped by mistake.
REQUIRED = os.environ.get("RNNCELLS_REQUIRED_PEERS", "").split()


def peer(name: str) -> ModuleType:
    """Returns another library, or a module of one.

    Without the library, the test is skipped, or fails in CI.
    """
    if name.partition(".")[0] in REQUIRED:
        return importlib.import_module(name)
    return pytest.importorskip(name, reason=f"{name} is not installed")


def tensor(torch, array):
    return torch.from_numpy(np.array(array))


def array(tensor):
    return jnp.asarray(tensor.detach().numpy())


# Our cells, and our layers of them.
KINDS = {
    "LSTM": (rnncells.LSTMCell, rnncells.LSTM),
    "LSTM-projected": (
        partial(rnncells.ProjectedLSTMCell, proj_features=2),
        partial(rnncells.LSTM, proj_features=2),
    ),
    "GRU": (rnncells.GRUCell, rnncells.GRU),
    "GRU-reset-before": (
        partial(rnncells.GRUCell, reset_after=False),
        partial(rnncells.GRU, reset_after=False),
    ),
    "tanh": (rnncells.SimpleCell, rnncells.ElmanRNN),
    "relu": (
        partial(rnncells.SimpleCell, activation_fn=nn.relu),
        partial(rnncells.ElmanRNN, nonlinearity="relu"),
    ),
}
# Functions that load and write the weights of a library, and the cells that it has.
LIBRARIES = {
    "pytorch": (pytorch.from_state_dict, pytorch.to_state_dict),
    "keras": (keras.from_weights, keras.to_weights),
    "haiku": (haiku.from_params, haiku.to_params),
    "equinox": (equinox.from_module, equinox.to_arrays),
    "jax_rnn": (jax_rnn.from_weights, jax_rnn.to_weights),
}
HAS = {
    "pytorch": ["LSTM", "LSTM-projected", "GRU", "tanh", "relu"],
    "keras": ["LSTM", "GRU", "GRU-reset-before", "tanh", "relu"],
    "haiku": ["LSTM", "GRU-reset-before", "relu"],
    "equinox": ["LSTM", "GRU"],
    "jax_rnn": ["LSTM"],
}
WITHOUT_BIAS = ["pytorch", "keras", "equinox"]
# Cells whose two biases are loaded as their sum.
MERGES = HAS | {"keras": ["GRU"], "haiku": ["relu"], "equinox": []}
# Number of layers and whether they are bidirectional, or the wrapper of a cell.
DEEP = [*itertools.product((1, 2), (False, True))]
SHAPES = {
    "pytorch": ["cell", "RNN", "Bidirectional", *DEEP],
    "keras": ["cell", "Bidirectional", (2, True)],
    "haiku": ["cell", "Bidirectional", (2, True)],
    "equinox": ["cell", "Bidirectional", (2, True)],
    "jax_rnn": DEEP,
}
TOLERANCE = {"float32": 1e-5, "float64": 1e-10}


def make_layer(kind, shape, **options):
    cell, deep = KINDS[kind]
    if shape == "cell":
        return cell(FEATURES, **options)
    if shape == "RNN":
        return rnncells.RNN(cell(FEATURES, **options))
    if shape == "Bidirectional":
        sides = [rnncells.RNN(cell(FEATURES + k, **options)) for k in (0, 2)]
        return rnncells.Bidirectional(*sides)
    num_layers, bidirectional = shape
    return deep(FEATURES, num_layers=num_layers, bidirectional=bidirectional, **options)


def draw_params(rng, layer):
    x = jnp.ones((TIME, FEATURES_IN))
    if isinstance(layer, rnncells.RNNCellBase):
        return random_params(rng, layer, layer.initialize_carry(None, x), x)
    return random_params(rng, layer, x)


def directions_of(shape):
    """Returns, for each layer, the widths of its directions."""
    if shape == "Bidirectional":
        return [[FEATURES, FEATURES + 2]]
    if shape in ("cell", "RNN"):
        return [[FEATURES]]
    num_layers, bidirectional = shape
    return [[FEATURES] * (1 + bidirectional)] * num_layers


def run_keras(rng, kind, shape, use_bias, dtype):
    os.environ.setdefault("KERAS_BACKEND", "jax")
    library = peer("keras")
    if library.backend.backend() != "jax":
        pytest.skip("Keras already runs on another backend")
    layers = library.layers
    name = {"tanh": "SimpleRNN", "relu": "SimpleRNN"}.get(kind, kind.split("-")[0])
    own = {"GRU-reset-before": {"reset_after": False}, "relu": {"activation": "relu"}}
    options = {"use_bias": use_bias, "dtype": dtype} | own.get(kind, {})

    def rnn(width, **more):
        more |= {"return_sequences": True}
        if shape == "cell":
            cell = getattr(layers, f"{name}Cell")(width, **options)
            return layers.RNN(cell, dtype=dtype, **more)
        return getattr(layers, name)(width, **options, **more)

    def both(forward, backward):
        backward = rnn(backward, go_backwards=True)
        return layers.Bidirectional(rnn(forward), backward_layer=backward, dtype=dtype)

    model = library.Sequential([library.Input((TIME, FEATURES_IN), dtype=dtype)])
    for widths in directions_of(shape):
        model.add(both(*widths) if len(widths) == 2 else rnn(*widths))
    others = [variable.value for variable in model.non_trainable_variables]

    def run(weights, x):
        return model.stateless_call(weights, others, x)[0]

    return random_like(rng, model.get_weights()), run


def run_haiku(rng, kind, shape, use_bias, dtype):
    library = peer("haiku")
    core = {"LSTM": "LSTM", "GRU-reset-before": "GRU", "relu": "VanillaRNN"}[kind]
    core = getattr(library, core)

    def unroll(core, x, reverse=False):
        start = core.initial_state(BATCH)
        return library.dynamic_unroll(core, x, start, False, reverse)[0]

    @library.without_apply_rng
    @library.transform
    def network(x):
        layers = directions_of(shape)
        if len(layers[0]) == 1:
            return unroll(library.DeepRNN([core(*widths) for widths in layers]), x)
        for forward, backward in layers:
            sides = unroll(core(forward), x), unroll(core(backward), x, reverse=True)
            x = jnp.concatenate(sides, axis=-1)
        return x

    x = jnp.ones((BATCH, TIME, FEATURES_IN), dtype)
    params = jax.eval_shape(network.init, jax.random.key(0), x)
    return random_like(rng, params), network.apply


def run_equinox(rng, kind, shape, use_bias, dtype):
    library = peer("equinox")
    make = partial(getattr(library.nn, f"{kind}Cell"), use_bias=use_bias, dtype=dtype)
    layers, cells, width = directions_of(shape), [], FEATURES_IN
    for widths in layers:
        cells += [make(width, own, key=jax.random.key(0)) for own in widths]
        width = sum(widths)

    def scan(cell, x, reverse):
        def step(carry, x):
            carry = jax.vmap(cell)(x, carry)
            return carry, carry[0] if kind == "LSTM" else carry

        zeros = jnp.zeros((BATCH, cell.hidden_size), dtype)
        carry = (zeros, zeros) if kind == "LSTM" else zeros
        return jax.lax.scan(step, carry, x, reverse=reverse)[1]

    def run(cells, x):
        cells, x = iter(cells), x.swapaxes(0, 1)
        for widths in layers:
            sides = [scan(next(cells), x, side == 1) for side in range(len(widths))]
            x = jnp.concatenate(sides, axis=-1)
        return x.swapaxes(0, 1)

    return random_like(rng, cells), run


def run_jax_rnn(rng, kind, shape, use_bias, dtype):
    from jax.experimental import rnn

    sizes = (FEATURES_IN, FEATURES, shape[0])
    directions = 1 + shape[1]
    count = rnn.get_num_params_in_lstm(*sizes, shape[1])
    lengths = jnp.full(BATCH, TIME, jnp.int32)

    def run(weights, x):
        zeros = jnp.zeros((shape[0] * directions, BATCH, FEATURES), dtype)
        arrays = rnn.unpack_lstm_weights(weights, *sizes, shape[1])
        return rnn.lstm_ref(x, zeros, zeros, *arrays, lengths, *sizes, 0.0, shape[1])[0]

    return random_like(rng, jnp.zeros(count, dtype)), run


RUN = {
    "keras": run_keras,
    "haiku": run_haiku,
    "equinox": run_equinox,
    "jax_rnn": run_jax_rnn,
}
# Keras' activations return float32, whatever its dtype.
