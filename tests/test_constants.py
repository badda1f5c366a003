"""Cells with collections of their own, and with side effects, in every loop."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import assert_close, values_and_gradients
from flax import nnx
from levels import by_level
from user_cells import FlaxCell

import rnncells
import rnncells.nnx as rnx
from rnncells import diagnostics

ROWS, STEPS, INPUTS, FEATURES = 2, 5, 3, 4
KEY = jax.random.key(0)
X = jax.random.normal(KEY, (ROWS, STEPS, INPUTS))
MASK = np.random.default_rng(0).random((FEATURES, FEATURES)) > 0.4
RATE = 0.7


class UserCell(FlaxCell):
    """The base of the cells below."""

    @nn.compact
    def __call__(self, h, x):
        h = nn.tanh(nn.Dense(self.features)(x) + self.recurrence(h))
        return h, h

    def recurrence(self, h):
        return nn.Dense(self.features)(h)


class ClosesOver(UserCell):
    """A cell with a fixed mask and a fixed rate."""

    def recurrence(self, h):
        weight = self.param("weight", nn.initializers.normal(1), MASK.shape)
        return RATE * h @ (weight * MASK)


class HasConstants(UserCell):
    """The same, as variables."""

    def recurrence(self, h):
        rate = self.variable("rates", "rate", jnp.full, h.shape[-1:], RATE)
        weight = self.param("weight", nn.initializers.normal(1), MASK.shape)
        mask = self.variable("masks", "mask", jnp.asarray, MASK)
        return (rate.value * h) @ (weight * mask.value)


def outcome(layer, variables):
    """Returns the values of a layer, and the gradients of its parameters."""
    constants = {name: tree for name, tree in variables.items() if name != "params"}

    def run(params):
        return layer.apply({"params": params, **constants}, X)

    return values_and_gradients(run, variables["params"])


class Model(nn.Module):
    """Creates the cells in `nn.compact`, and calls the layer twice."""

    cell: type

    @nn.compact
    def __call__(self, x):
        parts = [self.cell(name="first"), nn.Dense(FEATURES)]
        layer = rnncells.RNN(rnncells.StackedCell(parts))
        return layer(x) + layer(nn.Dense(INPUTS)(x))


def rnn_of(cell, **options):
    return rnncells.RNN(cell(), **options)


def bidirectional(cell):
    return rnncells.Bidirectional(rnn_of(cell), rnn_of(cell))


def stacked(cell):
    return rnncells.RNN(rnncells.StackedCell([cell(), cell()]), memory="recompute")


# `memory` raises unless the fast loop runs.
LAYERS = {
    "memory": partial(rnn_of, memory="sqrt"),
    "scan": partial(rnn_of, implementation="scan"),
    "newton": partial(rnn_of, implementation="newton"),
    "rtrl": partial(rnn_of, gradient=rnncells.Rtrl()),
    "broadcast": partial(rnn_of, memory="sqrt", variable_broadcast=True),
    "bidirectional": bidirectional,
    "stacked": stacked,
    "model": Model,
}


@pytest.mark.parametrize("name", by_level(LAYERS, ["model"]))
def test_collections_that_a_cell_reads_are_constants(name):
    layer, plain = LAYERS[name](HasConstants), LAYERS[name](ClosesOver)
    variables, expected = layer.init(KEY, X), plain.init(KEY, X)
    assert variables.keys() == {"params", "rates", "masks"}
    assert_close(variables["params"], expected["params"])
    assert_close(outcome(layer, variables), outcome(plain, expected), rtol=1e-4)
    y = jax.jit(plain.apply)(expected, X)
    for mutable in (["masks"], True):
        again, written = layer.apply(variables, X, mutable=mutable)
        assert_close(again, y, rtol=1e-4)
        assert_close(written, {c: variables[c] for c in written})


@pytest.mark.default
def test_derivatives_by_constants_equal_those_of_the_plain_loop():
    layers = [rnn_of(HasConstants, **o) for o in ({}, {"implementation": "scan"})]
    variables = layers[0].init(KEY, X)

    def gradient(layer, rates):
        return layer.apply(variables | {"rates": rates}, X).sum()

    found = [
        jax.jit(jax.grad(partial(gradient, f)))(variables["rates"]) for f in layers
    ]
    assert abs(found[0]["cell"]["rate"]).min() > 0
    assert_close(*found, rtol=1e-4)


@pytest.mark.exhaustive
def test_step_decode_and_online_read_constants():
    layer = rnn_of(HasConstants)
    variables, carry = layer.init(KEY, X), None
    y = layer.apply(variables, X)
    for t in range(STEPS):
        carry, last = layer.apply(variables, carry, X[:, t], method="step")
    assert_close(last, y[:, -1])
    layer = rnncells.RNN(rnncells.StackedCell([HasConstants(), nn.Dense(INPUTS)]))
    decoding = {"steps": 2, "method": "decode"}
    first, variables = layer.init_with_output(KEY, X[:, 0], **decoding)
    assert_close(layer.apply(variables, X[:, 0], **decoding), first)
    online = rnncells.Online(rnn_of(HasConstants, gradient=rnncells.Rtrl()))
    variables = online.rnn.init(KEY, X)
    state = online.init(variables, X[:, 0])
    grads = jax.eval_shape(online.step, variables, state, X[:, 0], jnp.ones((2, 4)))[2]
    assert jax.tree.map(jnp.shape, grads) == jax.tree.map(jnp.shape, variables)


class DecayCell(rnncells.LinearRNNCellBase):
    """A linear cell whose decay is fixed."""

    features: int = FEATURES
    num_feature_dims = 1

    def carry_shape(self, input_shape):
        return (self.features,)

    def setup(self):
        self.gates("i")
        self.decay = self.variable("rates", "decay", jnp.full, (self.features,), RATE)

    def project(self, inputs):
        return self.affine(inputs, "i")

    def coefficients(self, projected):
        return jnp.broadcast_to(self.decay.value, projected.shape), projected


@pytest.mark.default
def test_linear_cells_read_constants():
    rnn = rnncells.RNN(DecayCell(), implementation="associative")
    variables = rnn.init(KEY, X)
    plain = rnn.clone(implementation="scan")
    assert_close(rnn.apply(variables, X), plain.apply(variables, X))


class MaskedNNXCell(nnx.Module):
    num_feature_axes = 1

    def __init__(self, rngs):
        self.dense = nnx.Linear(INPUTS, FEATURES, rngs=rngs)
        self.weight = nnx.Param(jax.random.normal(rngs.params(), MASK.shape))
        self.mask = nnx.Variable(jnp.asarray(MASK))

    def initialize_carry(self, input_shape, rngs=None):
        return jnp.zeros((*input_shape[:-1], FEATURES))

    def __call__(self, h, x):
        h = nnx.tanh(self.dense(x) + h @ (self.weight[...] * self.mask[...]))
        return h, h


@pytest.mark.default
def test_nnx_cells_with_constants_run_in_the_fast_loop():
    rnn = rnx.RNN(MaskedNNXCell(nnx.Rngs(0)), memory="sqrt")
    plain = rnn.linen.clone(memory="full", implementation="scan")
    assert_close(rnn(X), plain.apply(rnn.variables, X))

    class FromLinen(rnx.FromLinen, linen=HasConstants):
        pass

    rnn = rnx.RNN(FromLinen(INPUTS, FEATURES, rngs=nnx.Rngs(0)), memory="sqrt")
    plain = rnn.linen.clone(memory="full", implementation="scan")
    assert_close(rnn(X), plain.apply(rnn.variables, X))


# Collections that a cell writes to.


class Statistics(UserCell):
    in_training: bool = True

    def recurrence(self, h):
        return nn.BatchNorm(not self.in_training)(nn.Dense(FEATURES)(h))


class Counter(UserCell):
    """Its new values depend on no input, so `flax.linen.scan` does not see them."""

    def recurrence(self, h):
        count = self.variable("counts", "n", jnp.zeros, ())
        if not self.is_initializing():
            count.value += 1
        return h * count.value


class FirstInput(UserCell):
    """Makes a variable of its carry."""

    def recurrence(self, h):
        return h - self.variable("firsts", "h", lambda: h).value


@pytest.mark.default
def test_carried_statistics_equal_steps_by_hand():
    rnn = rnn_of(Statistics, variable_carry="batch_stats")
    variables = rnn.init(KEY, X)
    y, updated = rnn.apply(variables, X, mutable=["batch_stats"])
    cell, h = Statistics(), jnp.zeros((ROWS, FEATURES))
    own, expected = {c: tree["cell"] for c, tree in variables.items()}, []
    for t in range(STEPS):
        (h, _), new = cell.apply(own, h, X[:, t], mutable=["batch_stats"])
        own, expected = own | new, [*expected, h]
    assert_close(y, jnp.stack(expected, 1), rtol=1e-5)
    assert_close(updated["batch_stats"]["cell"], own["batch_stats"], rtol=1e-5)
    rnn = rnn.clone(cell=Statistics(in_training=False))
    plain = rnn.clone(implementation="scan")
    assert_close(plain.apply(variables, X), rnn.apply(variables, X), rtol=1e-5)


@pytest.mark.default
@pytest.mark.parametrize(
    "cell, options, message",
    [
        (Statistics, {}, "writes to the collections .'batch_stats'.*variable_carry="),
        (Counter, {}, "writes to the collections .'counts'.*variable_axes="),
        (Counter, {"variable_broadcast": ["params", "counts"]}, "writes to the"),
        (FirstInput, {}, "writes to the collections .'firsts'"),
        (FirstInput, {"variable_carry": "firsts"}, "'firsts' from its inputs or its"),
    ],
)
def test_collections_that_a_cell_writes_to_need_an_option(cell, options, message):
    def run():
        rnn = rnncells.RNN(cell(), **options)
        return rnn.apply(rnn.init(KEY, X), X, mutable=True)

    with pytest.raises(ValueError, match=message):
        jax.eval_shape(run)


# Side effects.

SEEN: list = []


def seen(value, is_ordered=False):
    jax.debug.callback(lambda v: SEEN.append(np.asarray(v)), value, ordered=is_ordered)


class Seen(UserCell):
    @nn.compact
    def __call__(self, h, x):
        h, _ = super().__call__(h, x)
        seen(h)
        return h, h


class SeenConstants(HasConstants):
    """With a random stream, which must draw the same numbers as without callbacks."""

    is_seen: bool = True
    rng_streams = {"dropout": True}

    @nn.compact
    def __call__(self, h, x):
        h, _ = super().__call__(nn.Dropout(0.5, deterministic=False)(h), x)
        if self.is_seen:
            seen(h, is_ordered=True)
        return h, h


class SeenLinear(DecayCell):
    def coefficients(self, projected):
        seen(projected)
        return super().coefficients(projected)


QUIET = {
    Seen: UserCell,
    SeenConstants: partial(SeenConstants, is_seen=False),
    SeenLinear: DecayCell,
}


@pytest.mark.parametrize(
    "cell, options",
    by_level(
        [
            (Seen, {}),
            (Seen, {"time_major": True, "implementation": "scan"}),
            (SeenConstants, {}),
            (SeenLinear, {}),
        ],
        1,
    ),
)
def test_callbacks_in_a_cell_run_once_for_each_step(cell, options):
    rnn, quiet = rnn_of(cell, **options), rnn_of(QUIET[cell], **options)
    x, keys = X, {"params": KEY, "dropout": KEY}
    steps = ROWS if options else STEPS

    def called(function, *args):
        SEEN.clear()
        result = function(*args)
        jax.effects_barrier()
        assert len(SEEN) == steps
        return result

    variables = called(rnn.init, keys, x)
    assert_close(variables, quiet.init(keys, x))
    apply = partial(rnn.apply, rngs={"dropout": KEY})
    expected = quiet.apply(variables, x, rngs={"dropout": KEY})
    assert_close(called(apply, variables, x), expected)
    assert_close(called(jax.jit(apply), variables, x), expected)
    if cell is not SeenLinear:
        assert_close(np.stack(SEEN), jnp.moveaxis(expected, 0 if options else 1, 0))
    d_params = called(
        jax.jit(jax.grad(lambda p: apply(p, x).sum(), allow_int=True)), variables
    )
    assert abs(jax.tree.leaves(d_params["params"])[0]).max() > 0


@pytest.mark.default
def test_callbacks_in_modules_elsewhere_do_not_change_initial_values():
    variables = Model(Seen).init(KEY, X)
    assert_close(variables, Model(UserCell).init(KEY, X))


class Empty(UserCell):
    features: int = 0

    @nn.compact
    def __call__(self, h, x):
        # The default initializer of JAX 0.10 divides by the width.
        dense = partial(nn.Dense, 0, kernel_init=nn.initializers.normal())
        h = nn.tanh(dense()(x) + dense()(h))
        return h, h


@pytest.mark.parametrize(
    "options",
    by_level(
        [
            *({}, {"implementation": "scan"}, {"memory": "sqrt"}),
            *({"implementation": "newton"}, {"gradient": rnncells.Rtrl()}),
            *(
                {"gradient": rnncells.BlockRtrl(2)},
                {"gradient": rnncells.TruncatedBptt(2)},
            ),
        ],
        1,
    ),
)
def test_a_cell_of_width_zero_runs_in_every_loop(options):
    rnn = rnncells.RNN(Empty(), **options)
    variables = rnn.init(KEY, X)
    y, vjp = jax.vjp(rnn.apply, variables, X)
    assert y.shape == (ROWS, STEPS, 0)
    d_variables, d_x = vjp(y)
    assert_close(d_x, jnp.zeros_like(X))
    assert_close(d_variables, jax.tree.map(jnp.zeros_like, variables))


# Diagnostics.


@pytest.mark.default
def test_record_reads_constants():
    layer, plain = rnn_of(HasConstants), rnn_of(ClosesOver)
    found, expected = (
        diagnostics.record(f, f.init(KEY, X), X, jacobians=True)[""]
        for f in (layer, plain)
    )
    assert_close(found.jacobians, expected.jacobians, rtol=1e-5)
    rnn = rnn_of(Counter)
    with pytest.raises(ValueError, match="Counter changes .'counts'. at each step"):
        diagnostics.record(rnn, rnn.init(KEY, X), X, mutable=["counts"])


def ensemble(*collections):
    axes = {"params": 0} | dict.fromkeys(collections, 0)
    options = {"variable_axes": axes, "split_rngs": {"params": True}}
    lifted = nn.vmap(rnncells.RNN, in_axes=None, axis_size=2, **options)
    return lifted(UserCell())


def squares(y):
    return jnp.sum(y**2)


@pytest.mark.exhaustive
def test_record_inside_of_vmap_equals_records_of_each():
    layer = ensemble("rnncells_records", "rnncells_taps")
    variables = layer.init(KEY, X)
    found = [
        diagnostics.record(layer, variables, X)[""],
        diagnostics.cotangents(squares, layer, variables, X)[""],
    ]
    own = jax.tree.map(lambda leaf: leaf[1], variables)
    expected = [
        diagnostics.record(rnn_of(UserCell), own, X)[""],
        diagnostics.cotangents(squares, rnn_of(UserCell), own, X)[""],
    ]
    found = jax.tree.map(lambda leaf: leaf[1], found)
    assert_close(found, expected, rtol=1e-5)


class Deep(nn.Module):
    """Layers over depth, by `nn.scan`."""

    @nn.compact
    def __call__(self, x):
        layers = nn.scan(
            lambda layer, x, _: (layer(x), None),
            variable_axes={"params": 0},
            split_rngs={"params": True},
            length=2,
        )
        return layers(rnncells.RNN(rnncells.GRUCell(INPUTS), name="deep"), X, None)[0]


@pytest.mark.parametrize(
    "layer, message",
    by_level(
        [
            (ensemble(), 'inside of nn.vmap, .*"rnncells_records": 0} to nn.vmap'),
            (Deep(), "RNN '/scan.deep.' runs inside of nn.scan"),
            (ensemble("rnncells_records"), '\\.\\.\\., "rnncells_taps": 0}'),
        ],
        1,
    ),
)
def test_hidden_records_name_the_transformation(layer, message):
    variables = layer.init(KEY, X)
    with pytest.raises(ValueError, match=message):
        diagnostics.cotangents(squares, layer, variables, X)


@pytest.mark.default
def test_diagnostics_name_the_linen_module_of_nnx_modules():
    layer = rnx.GRUCell(INPUTS, FEATURES, rngs=nnx.Rngs(0))
    advice = "must be a flax.linen module, got GRUCell.*"
    with pytest.raises(TypeError, match=advice + r"record\(layer.linen, layer.variab"):
        diagnostics.record(layer, {}, X)
    with pytest.raises(TypeError, match=advice + r"cotangents\(layer.linen"):
        diagnostics.cotangents(squares, layer, {}, X)
    h, x = layer.initialize_carry((ROWS, INPUTS)), X[:, 0]
    with pytest.raises(TypeError, match=advice + r"step_values\(cell.linen"):
        diagnostics.step_values(layer, {}, h, x)
    assert "r" in diagnostics.step_values(layer.linen, layer.variables, h, x)
    with pytest.raises(TypeError, match="the class GRU"):
        diagnostics.record(rnncells.GRU, {}, X)
