"""`rnncells.nnx`: the values of linen, with the transformations and modes of NNX."""

import inspect
from collections.abc import Sequence
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from cases import (
    ALL_CELLS,
    FEATURES,
    FEATURES_IN,
    TIME,
    assert_close,
    assert_equal,
    each_cell,
    random_params,
)
from flax import nnx
from flax.core import FrozenDict
from flax.errors import InvalidRngError
from levels import by_level
from libraries import LIBRARIES
from user_cells import FlaxCell

import rnncells
import rnncells.nnx as rnx
from rnncells.interop import files, flax_nnx, renaming

KEY = jax.random.key(3)
LENGTHS = jnp.array([5, 0])


@partial(nnx.jit, static_argnames=("deterministic", "padded_outputs"))
def call(model, x, **options):
    """Calls a model, compiled; equal models share it."""
    return model(x, **options)


@pytest.fixture
def x(rng):
    return jnp.asarray(rng.standard_normal((2, TIME, FEATURES_IN)), jnp.float32)


def lstm(seed=0, **options):
    return rnx.LSTMCell(FEATURES_IN, FEATURES, rngs=nnx.Rngs(seed), **options)


def gru(seed=0, **options):
    return rnx.GRUCell(FEATURES_IN, FEATURES, rngs=nnx.Rngs(seed), **options)


def simple(seed=0):
    return rnx.SimpleCell(FEATURES_IN, FEATURES, rngs=nnx.Rngs(seed))


class Model(nnx.Module):
    """Two recurrent layers with all kinds of dropout, and a dense layer."""

    def __init__(self, rngs):
        zoneout = rnx.ZoneoutCell(simple(1), 0.4, rngs=rngs)
        dropout = rnx.VariationalGRUCell(3, 4, recurrent_rate=0.5, rngs=rngs)
        self.both = rnx.Bidirectional(rnx.RNN(zoneout), rnx.RNN(dropout))
        self.deep = rnx.ElmanRNN(8, 6, num_layers=2, dropout=0.5, rngs=rngs)
        self.out = nnx.Linear(6, 2, rngs=rngs)

    def __call__(self, x):
        return self.out(self.deep(self.both(x))[0])


# Every class.


def test_every_cell_and_layer_has_an_nnx_class():
    linen = {
        name
        for name in rnncells.__all__
        if inspect.isclass(getattr(rnncells, name))
        and issubclass(getattr(rnncells, name), nn.Module)
    }
    bases = {"ElementwiseAffine", "RNNCellBase", "VariationalDropout"}
    bases |= {"LinearRNNCellBase", "MatrixRNNCellBase"}
    classes = {name: kind for name, kind in vars(rnx).items() if isinstance(kind, type)}
    assert classes.keys() - {"FromLinen"} == linen - bases
    for name in linen - bases:
        assert classes[name].linen_class is getattr(rnncells, name)


# With cells in fields, with tuples in fields, and with a random stream.
@each_cell(ALL_CELLS, default=["ConvLSTMCell-peepholes", "StackedCell"])
def test_cell_computes_what_the_linen_cell_computes(name, rng, float64):
    case = ALL_CELLS[name]
    linen = rnncells.RNN(case.make(param_dtype=jnp.float64), return_carry=True)
    x = case.inputs(rng, 2, TIME)
    variables = random_params(rng, linen, x)
    model = rnx.convert(linen, variables)
    assert type(model.cell) is getattr(rnx, case.name)
    expected = jax.jit(linen.apply)(variables, x, seq_lengths=LENGTHS)
    assert_equal(call(model, x, seq_lengths=LENGTHS), expected)
    assert_equal(model.variables, variables)


# The arguments of the others are cells, which have the values.
OF_SIZES = set(ALL_CELLS) - {"DropConnectCell", "StackedCell", "ZoneoutCell"}


@each_cell(sorted(OF_SIZES), default=["ConvLSTMCell-peepholes"])
def test_initial_values_are_those_of_linen(name):
    case = ALL_CELLS[name]
    kind, linen = getattr(rnx, case.name), case.make()
    rngs = nnx.Rngs(params=0, dropout=1)
    cell = kind(case.input_shape, **case.options, rngs=rngs)
    x, key = jnp.zeros(case.input_shape), nnx.Rngs(params=0).params()
    expected = linen.init(key, linen.initialize_carry(None, x), x)
    assert_equal(cell.variables, expected)


LAYERS = {
    "RNN": lambda rngs: rnx.RNN(simple(), learn_initial_carry=True, rngs=rngs),
    "Stack": lambda rngs: rnx.Stack([simple(), nnx.Linear(4, 5, rngs=rngs), nnx.relu]),
    "LSTM": lambda rngs: rnx.LSTM(
        3, 4, bidirectional=True, learn_states=True, rngs=rngs
    ),
    "StackedCell": lambda rngs: rnx.RNN(
        rnx.StackedCell([simple(), nnx.GRUCell(4, 5, rngs=rngs)])
    ),
    "XLSTMBlock": lambda rngs: rnx.XLSTMBlock(
        3, 3, num_heads=2, block_size=3, rngs=rngs
    ),
}


@pytest.mark.parametrize("name", by_level(LAYERS, ["RNN", "Stack"]))
def test_layer_applies_its_linen_module_to_its_variables(name, x):
    layer = LAYERS[name](nnx.Rngs(0))
    expected = jax.jit(layer.linen.apply)(layer.variables, x, seq_lengths=LENGTHS)
    assert_equal(call(layer, x, seq_lengths=LENGTHS), expected)
    shapes = jax.eval_shape(layer.linen.init, KEY, x)
    assert jax.tree.structure(shapes) == jax.tree.structure(layer.variables)
    copy = rnx.convert(layer.linen, layer.variables)
    assert_equal(copy.variables, layer.variables)
    ours, theirs = (set(map(id, nodes(module))) for module in (layer, copy))
    assert ours.isdisjoint(theirs) and len(ours) == len(theirs)


def nodes(module):
    return [node for _, node in nnx.iter_graph(module) if isinstance(node, nnx.Module)]


def test_names_of_attributes_are_those_of_flax():
    ours, theirs = lstm(), nnx.LSTMCell(3, 4, rngs=nnx.Rngs(0))
    paths = [dict(nnx.to_flat_state(nnx.state(cell))) for cell in (ours, theirs)]
    assert paths[0].keys() == paths[1].keys() and ("if_", "kernel") in paths[0]
    assert (ours.in_features, ours.hidden_features, ours.num_feature_axes) == (3, 4, 1)


@pytest.mark.parametrize(
    "library", by_level([nn, nnx, "logical"], ["logical"]), ids=["nn", "nnx", "logical"]
)
@pytest.mark.several_devices
def test_initializers_may_name_the_axes_of_parameters(library):
    init = nn.initializers.lecun_normal()
    name = nn.with_logical_partitioning if library == "logical" else None
    named = (name or library.with_partitioning)(init, (None, "model"))

    def kernel(init, **options):
        options |= {"recurrent_kernel_init": init, "rngs": nnx.Rngs(0)}
        return rnx.GRU(3, 4, **options).layers_0.cell.hn.kernel

    with jax.set_mesh(jax.make_mesh((2,), ("model",), (jax.sharding.AxisType.Auto,))):
        kernels = kernel(init), kernel(named)
        blocks = rnx.LSTMCell(
            3, 4, num_heads=2, recurrent_kernel_init=named, rngs=nnx.Rngs(0)
        )
    assert_equal(kernels[0][...], kernels[1][...])
    specs = [
        nnx.get_partition_spec(v).get_value() for v in (kernels[1], blocks.hi.kernel)
    ]
    spec, of_blocks = (jax.sharding.PartitionSpec(*k * [None], "model") for k in (1, 2))
    assert specs == [spec, of_blocks]
    assert kernels[1][...].sharding.spec == spec


def test_own_cell_becomes_an_nnx_module(x):
    class Leaky(rnncells.SimpleCell):
        rate: float = 0.5

        def recur(self, carry, projected):
            new, _ = super().recur(carry, projected)
            carry = (1 - self.rate) * carry + self.rate * new
            return carry, carry

        def doubled(self, x):
            return 2 * self.project(x)

    cell = rnx.from_linen(Leaky)(3, 4, rate=0.1, rngs=nnx.Rngs(0, dropout=1))
    assert not jax.tree.leaves(nnx.state(cell, nnx.RngState))
    expected = rnncells.RNN(Leaky(4, rate=0.1)).apply(
        {"params": {"cell": cell.variables["params"]}}, x
    )
    assert_equal(rnx.RNN(cell)(x), expected)
    assert_equal(cell.doubled(x), 2 * cell.project(x))


@pytest.mark.default
def test_cell_that_is_listed_twice_shares_its_parameters(x):
    cell = rnx.SimpleCell(3, 3, rngs=nnx.Rngs(0))
    with pytest.warns(UserWarning, match="share their parameters"):
        stack = rnx.Stack([cell, cell])
        y = call(stack, x)
        gradient = nnx.jit(nnx.grad(lambda stack: jnp.sum(stack(x))))(stack)
    assert_close(y, call(rnx.RNN(cell), call(rnx.RNN(cell), x)))
    assert len(jax.tree.leaves(gradient)) == 3


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore:`layers` of Stack:UserWarning")
def test_converted_model_shares_the_parameters_that_linen_shares(x):
    cell, other = rnncells.GRUCell(3), rnncells.SimpleCell(3)
    both = rnncells.Bidirectional(
        rnncells.RNN(rnncells.ZoneoutCell(cell, 0.1)), rnncells.RNN(cell)
    )
    deep = rnncells.RNN(rnncells.StackedCell([other, cell, other]))
    linen = rnncells.Stack([both, nn.Dense(3), rnncells.RNN(other), deep, cell, other])
    variables = linen.init(KEY, x, deterministic=True)
    model = rnx.convert(linen, variables)
    assert_equal(model.variables, variables)
    count = len(jax.tree.leaves(variables))
    assert len(jax.tree.leaves(nnx.state(model, nnx.Param))) == count
    doubled = jax.tree.map(lambda leaf: 2 * leaf, variables)
    model.load(doubled)
    expected = jax.jit(partial(linen.apply, deterministic=True))(doubled, x)
    assert_equal(call(model, x, deterministic=True), expected)


class OwnLinen(FlaxCell):
    """A user's linen cell with a random stream, and names that NNX uses otherwise."""

    def setup(self):
        self.in_ = nn.Dense(self.features)
        self.if__ = nn.Dense(self.features, use_bias=False)
        self.train = rnncells.cells.contract.parameters.ElementwiseAffine()
        self.load_ = rnncells.cells.contract.parameters.ElementwiseAffine()

    def __call__(self, h, x):
        noise = jax.random.normal(self.make_rng("noise"), h.shape)
        h = nn.tanh(self.in_(x) + self.if__(self.train(self.load_(h))) + noise)
        return h, h


def test_names_of_linen_that_python_or_nnx_uses_become_attributes(x):
    rnn = rnncells.RNN(OwnLinen(4), split_rngs={"params": False, "noise": True})
    variables = jax.tree.map(
        lambda leaf: jnp.full(leaf.shape, 2.0), jax.eval_shape(rnn.init, KEY, x)
    )
    model = rnx.convert(rnn, variables, nnx.Rngs(noise=0))
    assert_equal(model.variables, variables)
    y = nnx.eval_shape(lambda model: model(x), model)
    assert y.shape == (2, TIME, 4)
    assert {"in__", "if___", "train_", "load__"} < vars(model.cell).keys()
    model.eval()


@pytest.mark.parametrize("place", by_level(["constructor", "call", "layer"], 1))
def test_own_linen_cell_gets_the_streams_that_it_draws_from(place, x):
    """Also without naming them in `rng_streams`."""
    streams = nnx.Rngs(0) if place == "call" else nnx.Rngs(0, noise=1)
    cell = rnx.from_linen(OwnLinen)(3, 4, rngs=streams)
    layer = rnx.Stack([cell])
    if place == "layer":
        layer = rnx.RNN(cell, split_rngs={"params": False, "noise": False})
    # With weights of 0, a step returns its noise.
    layer.load(jax.tree.map(jnp.zeros_like, layer.variables))
    keys = [{"rngs": nnx.Rngs(noise=2)} if place == "call" else {} for _ in range(2)]
    y, again = (call(layer, x, **options) for options in keys)
    assert (y != again).any() == (place != "call")
    assert (y[:, 0] == y[:, 1]).all() == (place == "layer")


def test_modules_of_flax_nnx_with_state_run_inside_a_cell(x):
    dropout = nnx.Dropout(0.5, rngs=nnx.Rngs(1))
    rnn = rnx.RNN(rnx.StackedCell([gru(), dropout, nnx.Linear(4, 2, rngs=nnx.Rngs(0))]))
    assert (call(rnn, x) != call(rnn, x)).any()
    rnn.eval()
    assert_equal(call(rnn, x), call(rnn, x))


def test_other_collections_of_a_linen_cell_are_variables(x):
    class Counting(FlaxCell):
        @nn.compact
        def __call__(self, h, x):
            count = self.variable("counts", "steps", lambda: jnp.array(0))
            count.value += 1
            h = nn.tanh(nn.Dense(self.features)(x) + h)
            return h, h

    cell = rnx.from_linen(Counting)(3, 4, rngs=nnx.Rngs(0))
    before, h = cell.steps[...], cell.initialize_carry(x[:, 0])
    for t in range(2):
        h, _ = cell(h, x[:, t])
    assert cell.steps[...] - before == 2 and isinstance(cell.Dense_0.bias, nnx.Param)


@pytest.mark.default
def test_own_linen_module_around_nnx_modules_has_its_own_parameters(x):
    class Scaled(nn.Module):
        layers: Sequence[nn.Module]

        @nn.compact
        def __call__(self, x):
            for layer in self.layers:
                x = layer(x)
            return self.param("scale", nn.initializers.ones, x.shape[-1:]) * x

    rnn = rnx.RNN(gru())
    scaled = rnx.from_linen(Scaled)([rnn], rngs=nnx.Rngs(1))
    assert scaled.variables["params"].keys() == {"scale", "layers_0"}
    inner, all_leaves = (jax.tree.leaves(nnx.state(m)) for m in (rnn, scaled))
    assert len(all_leaves) == len(inner) + 1
    scaled.scale[...] = jnp.full(4, 2.0)
    assert_close(scaled(x), 2 * rnn(x))
    of_flax = rnx.from_linen(Scaled)([nnx.Linear(3, 4, **RIGHT)], **RIGHT)
    copy = rnx.convert(of_flax.linen, of_flax.variables)
    assert_equal(copy.variables, of_flax.variables)


# Transformations.


@pytest.mark.default
@pytest.mark.parametrize(
    "graph", by_level([True, False], [True]), ids=["graph", "tree"]
)
def test_training_in_nnx_equals_training_in_linen(graph, x):
    """Without dropout: in tree mode Flax differentiates no model with random state."""
    with nnx.set_graph_mode(graph):
        model = rnx.Bidirectional(rnx.RNN(simple()), rnx.RNN(simple(1)))
        linen, params = model.linen, model.variables
        tx = optax.sgd(0.1, momentum=0.9)
        optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)

        @nnx.jit
        def train_step(model, optimizer, x):
            def loss(model):
                return jnp.mean(model(x, seq_lengths=LENGTHS) ** 2)

            value, gradient = nnx.value_and_grad(loss)(model)
            optimizer.update(model, gradient)
            return value

        losses = [train_step(model, optimizer, x) for _ in range(3)]

    def loss(params):
        return jnp.mean(linen.apply(params, x, seq_lengths=LENGTHS) ** 2)

    expected, state, step = [], tx.init(params), jax.jit(jax.value_and_grad(loss))
    for _ in range(3):
        value, gradient = step(params)
        updates, state = tx.update(gradient, state)
        params = optax.apply_updates(params, updates)
        expected.append(value)
    assert_close(losses, expected)
    assert_close(model.variables, params, atol=1e-5)


def test_train_and_eval_switch_dropout_and_zoneout(x):
    model = Model(nnx.Rngs(0))
    assert (call(model, x) != call(model, x)).any()
    assert (call(model.both, x) != call(model.both, x)).any()
    # Without compilation too.
    zoneout = model.both.forward_rnn.cell
    (h, _), (other, _) = (zoneout(jnp.ones((2, 4)), x[:, 0]) for _ in range(2))
    assert (h != other).any()
    model.eval()
    counts = jax.tree.leaves(nnx.state(model, nnx.RngCount))
    assert_equal(call(model, x), call(model, x))
    assert_equal(jax.tree.leaves(nnx.state(model, nnx.RngCount)), counts)
    expected = jax.jit(model.both.linen.apply)(model.both.variables, x)
    assert_equal(call(model.both, x), expected)
    model.train()
    assert (call(model, x) != call(model, x)).any()
    # The argument of one call overrides the mode.
    assert_close(call(model.both, x, deterministic=True), expected)


@pytest.mark.exhaustive
def test_cell_with_the_stream_of_the_cell_inside_it(x):
    inner = rnx.ZoneoutCell(simple(), 0.3, rngs=nnx.Rngs(0))
    rnn = rnx.RNN(rnx.ZoneoutCell(inner, 0.5, rngs=nnx.Rngs(1)))
    assert (call(rnn, x) != call(rnn, x)).any()
    rnn.eval()
    apply = jax.jit(partial(rnn.linen.apply, deterministic=True))
    assert_equal(call(rnn, x), apply(rnn.variables, x))


def test_streams_advance_as_those_of_nnx_dropout(x):
    """Equal seeds draw equal masks; the keys of a call override the kept streams."""
    one, other = Model(nnx.Rngs(0)), Model(nnx.Rngs(0))
    assert_equal(call(one, x), call(other, x))
    given = [call(one.both, x, rngs=nnx.Rngs(dropout=2)) for _ in range(2)]
    assert_equal(*given)


@pytest.mark.exhaustive
def test_vmap_over_models_equals_a_loop(x):
    @nnx.split_rngs(splits=3)
    @nnx.vmap
    def models(rngs):
        return rnx.ElmanRNN(3, 4, num_layers=2, dropout=0.5, rngs=rngs)

    several = models(nnx.Rngs(0))
    several.eval()
    ys = nnx.vmap(lambda model, x: call(model, x)[0], in_axes=(0, None))(several, x)
    graphdef, state = nnx.split(several)
    for k in range(3):
        one = nnx.merge(graphdef, jax.tree.map(lambda leaf: leaf[k], state))
        assert_close(ys[k], call(one, x)[0])


@pytest.mark.default
def test_checkpoint_restores_model_and_random_state(tmp_path, x):
    import orbax.checkpoint as ocp

    model, other = (
        rnx.RNN(rnx.ZoneoutCell(simple(seed), 0.4, rngs=nnx.Rngs(seed)))
        for seed in range(2)
    )
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "model", nnx.state(model))
        checkpointer.wait_until_finished()
        restored = checkpointer.restore(tmp_path / "model", nnx.state(other))
    nnx.update(other, restored)
    assert_equal(call(other, x), call(model, x))


# Cells of both libraries in the layers of both.


@pytest.mark.parametrize("layer", by_level(["RNN", "Bidirectional"], 1))
def test_layers_of_flax_nnx_run_our_cells(layer, x):
    cells = [lstm(0), lstm(1)]
    results = []
    for library in (nnx, rnx):
        rnns = [library.RNN(cell, return_carry=True) for cell in cells]
        of_both = library.Bidirectional(*rnns, return_carry=True)
        results.append(call(rnns[0] if layer == "RNN" else of_both, x))
    assert_close(*results)


@pytest.mark.parametrize(
    "name",
    by_level(["LSTMCell", "OptimizedLSTMCell", "GRUCell", "SimpleCell"], ["LSTMCell"]),
)
def test_our_layers_run_cells_of_flax_nnx(name, x):
    cell = getattr(nnx, name)(3, 4, rngs=nnx.Rngs(0))
    # Only the fast loop has `memory`.
    ours = rnx.RNN(cell, return_carry=True, memory="sqrt")
    lengths = jnp.array([5, 2])
    expected = call(nnx.RNN(cell, return_carry=True), x, seq_lengths=lengths)
    assert_close(call(ours, x, seq_lengths=lengths, padded_outputs="run"), expected)
    # A length of 0, and two batch axes.
    carry, _ = call(ours, x, seq_lengths=LENGTHS)
    assert all((leaf[1] == 0).all() for leaf in jax.tree.leaves(carry))
    both_lengths = np.stack([LENGTHS, lengths])
    two_axes = call(ours, np.stack([x, x]), seq_lengths=both_lengths)
    assert_close(two_axes[1][1], expected[1])
    # In linen.
    linen = rnncells.RNN(rnx.to_linen(getattr(nnx, name), 3, 4), return_carry=True)
    variables = {"params": {"cell": nnx.to_pure_dict(nnx.state(cell))}}
    apply = jax.jit(linen.apply)
    assert_close(apply(variables, x, seq_lengths=lengths), expected)
    shapes = jax.eval_shape(linen.init, KEY, x)
    assert jax.tree.structure(shapes) == jax.tree.structure(variables)


class Own(nnx.Module):
    """A user's NNX cell with dropout, a count of its steps, and a learned carry."""

    num_feature_axes = 1

    def __init__(self, in_features, features, *, rngs):
        self.linear = nnx.Linear(in_features + features, features, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.count = nnx.Variable(jnp.array(0))
        self.first = nnx.Param(jnp.full(features, 0.1))

    def initialize_carry(self, input_shape, rngs=None):
        return jnp.broadcast_to(self.first[...], (*input_shape[:-1], 4))

    def __call__(self, h, x):
        self.count[...] += 1
        h = jnp.tanh(self.linear(jnp.concatenate([self.dropout(h), x], axis=-1)))
        return h, h


def test_sequential_of_nnx_passes_no_states_on():
    rngs = nnx.Rngs(0)
    first, second = rnx.LSTM(3, 4, rngs=rngs), rnx.GRU(4, 5, rngs=rngs)
    dense, x = nnx.Linear(4, 2, rngs=rngs), jnp.ones((2, 6, 3))
    for chain in ([first, second], [nnx.Sequential(first), second], [first, dense]):
        with pytest.raises(TypeError, match="LSTM returns .* Use rnncells.Stack"):
            nnx.eval_shape(nnx.Sequential(*chain), x)
    select = nnx.Sequential(first, lambda y, states: y, dense)
    assert nnx.eval_shape(select, x).shape == (2, 6, 2)


@pytest.mark.default
def test_own_nnx_cell_keeps_its_state(x):
    cell = Own(3, 4, rngs=nnx.Rngs(0))
    rnn = rnx.RNN(cell)
    rnn.load({"params": rnn.variables["params"]})
    assert (call(rnn, x) != call(rnn, x)).any()
    assert cell.count[...] == 2 * TIME
    rnn.eval()
    h, expected = cell.initialize_carry((2, 3)), []
    for t in range(TIME):
        h, y = cell(h, x[:, t])
        expected.append(y)
    expected = jnp.stack(expected, axis=1)
    assert_close(call(rnn, x), expected)
    rnn.train()
    assert_close(call(rnn, x, deterministic=True), expected)
    gradient = nnx.jit(nnx.grad(lambda rnn: jnp.sum(rnn(x))))(rnn)
    assert all(abs(leaf).max() > 0 for leaf in jax.tree.leaves(gradient))


def test_state_of_an_nnx_cell_is_a_collection_in_linen(x):
    rnn = rnncells.RNN(rnx.to_linen(Own, 3, 4), variable_carry="nnx")
    variables = rnn.init(KEY, x, deterministic=True)
    y, updated = rnn.apply(variables, x, deterministic=True, mutable=["nnx"])
    assert y.shape == (2, TIME, 4)
    counts = [v["nnx"]["cell"]["count"] for v in (variables, updated)]
    assert counts[1] - counts[0] == TIME


# Reports.


class Unpaired(Own):
    """A user's NNX cell with a learned carry, without state, and with a mistake."""

    def __init__(self, rngs):
        self.linear = nnx.Linear(3, 4, rngs=rngs)
        self.first = nnx.Param(jnp.zeros(4))

    def __call__(self, h, x):
        return self.linear(x)


def test_check_cell_takes_nnx_cells():
    report = rnx.check_cell(Unpaired(nnx.Rngs(0)), (2, 3))
    assert not report.ok and "`__call__` of Unpaired must return" in str(report)
    with pytest.raises(TypeError, match="must be an NNX module.*rnncells.check_cell"):
        rnx.check_cell(rnncells.GRUCell(4), (2, 3))
    (finding,) = rnx.check_cell(Own(3, 4, rngs=nnx.Rngs(0)), (2, 3)).findings
    assert finding.kind == "skipped"


def test_tabulate_shows_a_layer_with_states(x):
    layer = rnx.LSTM(3, 4, rngs=nnx.Rngs(0))
    table = nnx.tabulate(layer, x, console_kwargs={"width": 200})
    assert "LSTM" in table and "[1,2,4]" in table
    states = jax.eval_shape(lambda: layer(x))[1]
    assert type(states) is rnncells.LSTMStates


# Weights.


@pytest.mark.default
@pytest.mark.parametrize(
    "theirs, ours, widths",
    by_level(
        [
            ("LSTMCell", "LSTM", (3, 8)),
            ("OptimizedLSTMCell", "LSTM", (3, 8)),
            ("GRUCell", "GRU", (3,)),
            ("SimpleCell", "ElmanRNN", (3, 8)),
        ],
        [("LSTMCell", "LSTM", (3, 8)), ("GRUCell", "GRU", (3,))],
    ),
)
def test_weights_of_flax_nnx_load(theirs, ours, widths, rng, x):
    def layer(width):
        cells = [getattr(nnx, theirs)(width, 4, rngs=nnx.Rngs(seed)) for seed in (0, 1)]
        for leaf in jax.tree.leaves(
            nnx.state(cells[0]), is_leaf=lambda v: isinstance(v, nnx.Param)
        ):
            leaf[...] = jnp.asarray(rng.standard_normal(leaf.shape), jnp.float32)
        return nnx.Bidirectional(*map(nnx.RNN, cells))

    layers, expected = [layer(width) for width in widths], x
    options = {"num_layers": len(layers), "bidirectional": True}
    model = getattr(rnx, ours)(3, 4, **options, rngs=nnx.Rngs(2))
    model.load(flax_nnx.from_module(model.linen, layers))
    for of_flax in layers:
        expected = call(of_flax, expected)
    assert_close(call(model, x)[0], expected)


def boxed(tree):
    """Returns a tree as Orbax restores variables of NNX."""
    return jax.tree.map(lambda leaf: {"value": leaf}, nnx.to_pure_dict(tree))


STATES = {
    "state": lambda model: nnx.state(model),
    "parameters": lambda model: {"params": nnx.state(model, nnx.Param)},
    "Orbax": lambda model: {"params": boxed(nnx.state(model, nnx.Param))},
    "FrozenDict": lambda model: FrozenDict(model.variables),
}


@pytest.mark.default
@pytest.mark.parametrize("form", by_level(STATES, ["Orbax"]))
def test_every_function_of_interop_takes_restored_variables(form, tmp_path):
    model = rnx.LSTM(3, 4, num_layers=2, dropout=0.5, rngs=nnx.Rngs(0))
    linen, variables, given = model.linen, model.variables, STATES[form](model)
    for library in ("pytorch", "keras", "haiku", "equinox", "jax_rnn"):
        _, write = LIBRARIES[library]
        assert_equal(write(linen, given), write(linen, variables))
    other = rnx.LSTM(3, 4, num_layers=2, dropout=0.5, rngs=nnx.Rngs(1))
    other.load(given)
    assert_equal(other.variables, variables)
    if form != "Orbax":
        files.save(tmp_path / "file", given)
        assert_equal(files.load(tmp_path / "file", like=given), variables)
        assert_equal(renaming.rename(variables, like=given), variables)


@pytest.mark.parametrize("form", [nnx.state, nnx.to_pure_dict, boxed, list])
def test_weights_of_flax_nnx_load_from_their_state(form):
    cells = [nnx.LSTMCell(3, 4, rngs=nnx.Rngs(seed)) for seed in range(2)]
    layer = rnncells.LSTM(4, bidirectional=True)
    modules = nnx.Bidirectional(*map(nnx.RNN, cells))
    state = nnx.state(modules)
    given = {nnx.state: state, list: [nnx.state(cell) for cell in cells]}.get(form)
    expected = flax_nnx.from_module(layer, modules)
    given = form(state) if given is None else given
    assert_equal(flax_nnx.from_module(layer, given), expected)


# Other methods.


@pytest.mark.default
def test_step_and_decode_are_those_of_linen(x):
    rnn = rnx.RNN(rnx.SimpleCell(3, 3, rngs=nnx.Rngs(0)))
    h = rnn.initialize_carry(x[:, 0])
    for t in range(2):
        h, y = rnn.step(h, x[:, t])
    assert_close(y, rnn(x)[:, 1])
    expected = rnn.linen.apply(rnn.variables, x[:, 0], steps=4, method="decode")
    assert_equal(rnn.decode(x[:, 0], steps=4), expected)


def test_random_initial_carry_uses_the_stream_carry(x):
    cell = gru(carry_init=nn.initializers.normal(1.0))
    expected = jax.random.normal(nnx.Rngs(carry=5).carry(), (2, 4))
    assert_close(cell.initialize_carry((2, 3), nnx.Rngs(carry=5)), expected)
    rnn = rnx.RNN(cell)
    y = rnn(x, initial_carry=expected)
    assert_close(rnn(x, rngs=nnx.Rngs(carry=5)), y)


RIGHT = {"rngs": nnx.Rngs(0)}
ONES = jnp.ones((2, 5, 3))
TWICE = {collection: {"a": jnp.ones(2)} for collection in ("params", "stats")}
BRIDGE = nnx.bridge.to_linen(nnx.GRUCell, 3, 4)
MISTAKES = {
    "missing a required .* 'features'": lambda: rnx.LSTMCell(3, **RIGHT),
    "arguments are in_features": lambda: rnx.LSTMCell(3, 4, unit=4, **RIGHT),
    "LSTMCell needs `rngs`": lambda: rnx.LSTMCell(3, 4),
    "must be NNX modules": lambda: rnx.RNN(rnncells.GRUCell(4)),
    "In NNX the order": lambda: gru().initialize_carry(KEY, (2, 3)),
    "tuple of sizes, such as": lambda: rnx.ConvLSTMCell(
        3, 4, (2, 2), peepholes=True, **RIGHT
    ),
    "`input_size` of LSTM is called `in_features`": lambda: rnx.LSTM(
        input_size=3, features=4, **RIGHT
    ),
    "`variables` of convert must": lambda: rnx.convert(rnncells.GRUCell(4), None),
    "Use rnncells.nnx.to_linen": lambda: rnx.convert(BRIDGE, {}),
    "'a' is in the collections": lambda: rnx.convert(rnncells.GRUCell(4), TWICE),
    r"'noise': pass `rngs` .* as in rngs=nnx.Rngs\(0, noise=1\)": lambda: (
        rnx.from_linen(OwnLinen)(3, 4, rngs=nnx.Rngs(params=0))(ONES[0], ONES[0])
    ),
    "pass `rngs` to the constructor": lambda: rnx.RNN(rnx.ZoneoutCell(gru(), 0.5))(
        ONES
    ),
    "missing: params/hn": lambda: gru().load(lstm().variables),
    "Use rnncells.nnx.RNN,": lambda: rnncells.RNN(gru()),
    "use rnncells.nnx.to_linen": lambda: rnncells.RNN(BRIDGE).init(KEY, ONES),
}


@pytest.mark.parametrize("message, call", MISTAKES.items(), ids=MISTAKES)
def test_mistake_has_its_error(message, call):
    with pytest.raises((TypeError, ValueError, InvalidRngError), match=message):
        call()
