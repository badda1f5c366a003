"""Layers on meshes: features over a model axis, rows over a data axis, shard_map."""

from functools import cache, partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from cases import (
    assert_close,
    assert_equals_the_plain_loop,
    each_cell,
    random_params,
)
from collectives import (
    BATCH,
    FEATURES_IN,
    IN_TABLE,
    MESH,
    TIME,
    build,
    count,
    in_loops,
    layer_of,
    mesh,
    row,
    rows_of_page,
    value_and_grad,
)
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from levels import by_level
from user_cells import FlaxCell

import rnncells

pytestmark = pytest.mark.several_devices

# The cells that communicate least: `h` is gathered once a step.
ONE_GATHER = ["SimpleCell", "LSTMCell", "GRUCell", "MGUCell", "PeepholeLSTMCell"]
# XLA in jax 0.10 communicates more in a step of these cells than the page says.
MORE_IN_JAX_0_10 = ["LSTM1997Cell", "LSTM2000Cell", "VariationalGRUCell"]
SHAPE = (BATCH, TIME, FEATURES_IN)


def assert_equals_one_device(sharded, layer, rng, shape, **options):
    """Compares values and gradients with those of one device, in float64."""
    inputs = jnp.asarray(rng.standard_normal(shape))
    params = random_params(rng, layer, inputs)
    placed = jax.device_put((params, inputs), sharded.places)
    actual = sharded.compiled(*placed)
    expected = jax.jit(value_and_grad(plain(layer), **options))(params, inputs)
    assert_close(jax.device_get(actual), jax.device_get(expected), 1e-12, 1e-12)


def plain(layer):
    """Returns an RNN that takes the plain loop; other layers as they are."""
    if not isinstance(layer, rnncells.RNN):
        return layer
    return layer.clone(implementation="scan", projection="auto", memory="full")


@cache
def built(name):
    """Returns an RNN in float64, the shape of its inputs, and what `build` returns."""
    rnn, shape = layer_of(name)
    return rnn, shape, build(rnn, shape, MESH)


@each_cell(IN_TABLE, default=["GRUCell-reset-before"])
def test_sharded_cell_equals_one_device_and_communicates_as_documented(
    name, rng, float64
):
    rnn, shape, sharded = built(name)
    is_more = jax.__version_info__ < (0, 11) and name in MORE_IN_JAX_0_10
    assert (row(name, sharded.program) != rows_of_page()[name]) == is_more
    if name in ONE_GATHER:
        forward, backward = in_loops(sharded.program)
        assert forward == {"all-gather": 1} and backward == {"all-reduce": 1}
    assert_equals_one_device(sharded, plain(rnn), rng, shape)


def test_page_lists_every_cell():
    assert list(rows_of_page()) == IN_TABLE


def sizes_of(instruction):
    """Returns the sizes of the arrays that it sums; the loss is a number."""
    return [size for size in instruction.sizes if size > 1]


def total_size(layer, shape):
    params = jax.eval_shape(layer.init, jax.random.key(0), jnp.ones(shape))
    return sum(leaf.size for leaf in jax.tree.leaves(params))


def test_gradients_are_all_reduced_once_over_the_data_axis(float64):
    """Each device sums its own features; only inputs are summed over the model axis."""
    rnn, shape, (*_, program) = built("LSTMCell")
    inside = [i for loop in program.loops for i in loop.collectives]
    once = [i for i in program.collectives if i not in inside]
    assert count(once) == {"all-gather": 1, "all-reduce": 2}
    sizes = [sum(sizes_of(i)) for i in once if i.opcode == "all-reduce"]
    d_inputs = BATCH * TIME * FEATURES_IN // MESH["data"]
    assert sorted(sizes) == sorted([total_size(rnn, shape) // MESH["model"], d_inputs])


@pytest.mark.default
def test_gradients_of_a_whole_model_are_one_all_reduce():
    """It is all the communication of data parallelism, with a data axis alone."""
    layer, shape = rnncells.ElmanRNN(16, num_layers=2, bidirectional=True), (8, 5, 3)
    program = build(layer, shape, {"data": 8}).program
    assert [i.text for loop in program.loops for i in loop.collectives] == []
    (added,) = program.collectives
    assert added.opcode == "all-reduce"
    assert sum(sizes_of(added)) == total_size(layer, shape)


WIDE = {"param_dtype": jnp.float64}
OPTIONS = {"reverse": True, "return_carry": True, "memory": "sqrt"}


LAYERS = [
    rnncells.ElmanRNN(16, bidirectional=True, **WIDE),
    rnncells.LSTM(16, num_layers=2, bidirectional=True, **WIDE),
    rnncells.RNN(nn.OptimizedLSTMCell(16, **WIDE)),
    rnncells.RNN(rnncells.LSTMCell(16, **WIDE), memory="recompute"),
    rnncells.RNN(rnncells.GRUCell(16, **WIDE), **OPTIONS),
]


@pytest.mark.parametrize(
    "layer",
    by_level(LAYERS, [LAYERS[0]], 0),
    ids=["directions", "LSTM", "flax", "recompute", "sqrt"],
)
def test_loops_of_layers_communicate_once_a_step(layer, rng, float64):
    """With lengths, masks and resets; of two layers with two directions, each loop."""
    options = {"seq_lengths": jnp.array([5, 2, 0, 4, 3, 5])}
    for name in ("mask", "resets"):
        options[name] = jnp.asarray(rng.random((BATCH, TIME)) < 0.5)
    sharded = build(layer, SHAPE, MESH, **options)
    kinds = [count(loop.collectives) for loop in sharded.program.innermost]
    assert {"all-gather": 1} in kinds and {"all-reduce": 1} in kinds
    assert all(kind in ({"all-gather": 1}, {"all-reduce": 1}) for kind in kinds)
    assert_equals_one_device(sharded, layer, rng, SHAPE, **options)


class FusedCell(FlaxCell):
    """Gates from one kernel, which are split, and are also read side by side."""

    @nn.compact
    def __call__(self, h, x):
        width, dense = 3 * self.features, partial(nn.Dense, **WIDE)
        a = dense(width, name="x")(x) + dense(width, name="h", use_bias=False)(h)
        first, one, rest = jnp.split(a, [self.features, self.features + 1], -1)
        scale = self.param("scale", nn.initializers.ones, (width,), jnp.float64)
        a = nn.relu(a * scale / (1 + a.mean(-1, keepdims=True) ** 2)) + a
        f, n, o = jnp.split(nn.tanh(a), 3, -1)
        h = f * h + n * o + first + one * rest.sum(-1, keepdims=True)
        return h, h


@pytest.mark.default
def test_gates_of_any_cell_can_be_computed_apart(rng, float64):
    rnn = rnncells.RNN(FusedCell(4))
    inputs = jnp.asarray(rng.standard_normal(SHAPE))
    params = random_params(rng, rnn, inputs, scale=0.2)
    assert_equals_the_plain_loop(rnn, params, inputs)


def test_shardings_are_by_the_last_axis():
    layer = rnncells.LSTM(8, num_layers=2, learn_states=True)
    params = jax.eval_shape(layer.init, jax.random.key(0), jnp.ones(SHAPE))
    state = {"params": params, "count": jnp.zeros((), int), "schedule": None}
    on = mesh(data=2, model=4)
    found = rnncells.feature_shardings(state, on)
    assert jax.tree.structure(found) == jax.tree.structure(state)
    for leaf, sharding in zip(
        jax.tree.leaves(state), jax.tree.leaves(found), strict=True
    ):
        axes = (*[None] * (leaf.ndim - 1), "model") if leaf.ndim else ()
        assert (sharding.mesh, sharding.spec) == (on, PartitionSpec(*axes))
    by_data = rnncells.feature_shardings(params, on, axis="data")
    assert {s.spec[-1] for s in jax.tree.leaves(by_data)} == {"data"}


def test_wrong_meshes_and_sizes_raise_errors():
    params = {"a": {"kernel": jnp.ones((3, 8))}, "b": jnp.ones(6)}
    with pytest.raises(TypeError, match="must be a jax.sharding.Mesh, got 'model'"):
        rnncells.feature_shardings(params, "model")
    with pytest.raises(ValueError, match=r"one of the axes.*'data'.*got 'features'"):
        rnncells.feature_shardings(params, mesh(data=2), "features")
    explicit = jax.make_mesh((2,), ("model",), axis_types=(AxisType.Explicit,))
    with pytest.raises(ValueError, match="of the type AxisType.Auto, got"):
        rnncells.feature_shardings(params, explicit)
    with pytest.raises(
        ValueError, match=r"divisible by 4.*'model', got \['b'\] \(6,\)"
    ):
        rnncells.feature_shardings(params, mesh(model=4))


ON_MESHES = {
    "LSTM": (rnncells.LSTM(4, num_layers=2, bidirectional=True), 3),
    "GRU": (rnncells.GRU(4, learn_states=True), 3),
    "plain": (rnncells.RNN(nn.GRUCell(4), implementation="scan"), 3),
    "fast": (rnncells.RNN(rnncells.GRUCell(4), learn_initial_carry=True), 3),
    "linear": (rnncells.RNN(rnncells.MinGRUCell(4), return_all_carries=True), 3),
    "matrix": (rnncells.RNN(rnncells.MLSTMCell(4, num_heads=2)), 3),
    "window": (rnncells.RNN(rnncells.CausalConvCell(4)), 4),
    "truncated": (
        rnncells.RNN(rnncells.GRUCell(4), gradient=rnncells.TruncatedBptt(2)),
        3,
    ),
    "Bidirectional": (
        rnncells.Bidirectional(
            rnncells.RNN(rnncells.GRUCell(4)), rnncells.RNN(rnncells.MinGRUCell(4))
        ),
        3,
    ),
    "Stack": (
        rnncells.Stack([rnncells.LSTMCell(4), nn.Dense(4), rnncells.GRUCell(3)]),
        3,
    ),
}
KINDS = ["shard_map", "gradient in shard_map", "explicit"]
CHOSEN = [("gradient in shard_map", "fast"), ("shard_map", "GRU"), ("explicit", "fast")]


def on_mesh(kind, loss, mesh):
    """Returns the value and gradient of a loss with rows sharded over a mesh."""
    gradient = jax.value_and_grad(loss, (0, 1))
    if kind == "explicit":
        return gradient
    rows = PartitionSpec("data")
    specs = PartitionSpec(), rows, (rows, rows)
    if kind == "shard_map":

        def summed(*args):
            return jax.lax.psum(loss(*args), "data")

        mapped = jax.shard_map(
            summed, mesh=mesh, in_specs=specs, out_specs=PartitionSpec()
        )
        return jax.value_and_grad(mapped, (0, 1))

    def each(*args):
        value, gradients = gradient(*args)
        return jax.lax.psum(value, "data"), gradients

    out = PartitionSpec(), (PartitionSpec(), rows)
    return jax.shard_map(each, mesh=mesh, in_specs=specs, out_specs=out)


@pytest.mark.parametrize(
    "kind, name",
    by_level([(kind, name) for kind in KINDS for name in ON_MESHES], CHOSEN),
)
def test_layers_make_their_initial_carries_for_the_mesh(kind, name, rng):
    layer, width = ON_MESHES[name]
    inputs = jnp.asarray(rng.standard_normal((4, 5, width)), jnp.float32)
    params = random_params(rng, layer, inputs)
    options = jnp.array([5, 0, 3, 2]), jnp.asarray(rng.random((4, 5)) < 0.4)

    def loss(params, inputs, options):
        lengths, resets = options
        found = layer.apply(params, inputs, seq_lengths=lengths, resets=resets)
        return sum(jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves(found))

    expected = jax.jit(jax.value_and_grad(loss, (0, 1)))(params, inputs, options)
    # The default of `jax.make_mesh` in new versions of JAX.
    mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Explicit,))
    everywhere, rows = (
        NamedSharding(mesh, PartitionSpec()),
        NamedSharding(mesh, PartitionSpec("data")),
    )
    placed = (
        jax.device_put(params, everywhere),
        *jax.device_put((inputs, options), rows),
    )
    with jax.set_mesh(mesh):
        found = jax.jit(on_mesh(kind, loss, mesh))(*placed)
    assert_close(jax.device_get(found), jax.device_get(expected))
