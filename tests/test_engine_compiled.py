"""What XLA makes of gradients: counted, as times are not the same twice."""

import math
import re
from functools import cache, partial
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from cases import CELLS, WITH_PRODUCTS, level_of
from compiled import Program
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from levels import by_level
from user_cells import FlaxCell, MultiplicativePeepholeCell

import rnncells
from rnncells.recurrence.chunks import Chunk

# A prime, which divides the size of every array of states, and of no array of weights.
BATCH = 11
TIME, CHUNK, FEATURES_IN = 24, 6, 7
SIZES = {"features": 13, "blocks": 5, "block_size": 3}
# Beyond some size of the weights the engine forms their products in another way.
WIDE = 263
DEVICES = 4


class CompactCell(FlaxCell):
    """A cell as Flax's guide would have it: Dense layers in one compact method."""

    @nn.compact
    def __call__(self, h, x):
        dense = partial(nn.Dense, self.features)
        f = nn.sigmoid(dense(name="xf")(x) + dense(name="hf")(h))
        n = nn.tanh(dense(name="xn")(x) + f * dense(name="hn")(h))
        h = f * h + (1 - f) * n
        return h, h


# Cells without `project` and `recur`.
WHOLE = {
    "flax.LSTMCell": nn.LSTMCell,
    "flax.OptimizedLSTMCell": nn.OptimizedLSTMCell,
    "flax.GRUCell": nn.GRUCell,
    "CompactCell": CompactCell,
}
OWN = "MultiplicativePeepholeCell"
WAYS = {
    "chunks": {"projection": Chunk(CHUNK)},
    "whole": {"projection": "whole"},
    "recompute": {"memory": "recompute", "projection": Chunk(CHUNK)},
    "starts": {"memory": Chunk(CHUNK)},
    "plain": {"implementation": "scan"},
}
PROGRAMS = [
    *(
        (name, "chunks")
        for name in [*WITH_PRODUCTS, OWN, "LSTMCell-wide", f"{OWN}-wide"]
    ),
    *((name, "chunks") for name in WHOLE),
    *((name, way) for name in ("LSTMCell", OWN) for way in list(WAYS)[1:4]),
]
# Where each is not 1: of the projection, and of one step, forward and back.
PRODUCTS = {
    "GRUCell": (1, 2, 2),
    "GRUCell-reset-before": (1, 2, 2),
    "MGUCell": (1, 2, 2),
    "flax.GRUCell": (1, 2, 2),
    "CompactCell": (1, 2, 2),
    "ProjectedLSTMCell": (1, 2, 2),
    "ConvGRUCell": (1, 2, 2),
    "LSTM1997Cell": (1, 1, 0),
    "LSTM2000Cell": (1, 1, 0),
    OWN: (1, 2, 2),
}
# Programs that every run tests, with one way.
CHOSEN = ["LSTMCell", "GRUCell-reset-before", "ConvLSTMCell-peepholes"]


# Of one step, where it is not 15.
MOST_OPERATIONS = {
    "SimpleCell": 8,
    # The values of three peepholes are written down too.
    "ConvLSTMCell-peepholes": 16,
    # Each norm takes two sums over features, one after the other, forward and back.
    "LayerNormLSTMCell": 23,
    "LayerNormGRUCell": 21,
    # One gate more than in 1997 is repeated for the cells of its block.
    "LSTM2000Cell": 16,
    # Gates are computed by head, and taken apart; the carry has four parts.
    "SLSTMCell": 23,
    OWN: 20,
}


def make(name, **options):
    """Returns a layer, and the features of its inputs."""
    if name.removesuffix("-wide") in (OWN, *WHOLE):
        make_cell = WHOLE.get(name, MultiplicativePeepholeCell)
        sizes, features_in = {"features": 13}, ()
    else:
        case = CELLS[name.removesuffix("-wide")]
        sizes = {k: size for k, size in SIZES.items() if k in case.options}
        if "num_heads" in case.options:
            sizes["features"] += 1  # an even number
        make_cell, features_in = case.make, case.input_shape[:-1]
    if name.endswith("-wide"):
        sizes = {"features": WIDE}
    return rnncells.RNN(make_cell(**sizes), **options), (*features_in, FEATURES_IN)


def shapes_of(rnn, *shape):
    """Returns parameters and inputs as shapes."""
    inputs = jax.ShapeDtypeStruct(shape, jnp.float32)
    return jax.eval_shape(rnn.init, jax.random.key(0), inputs), inputs


def gradient(rnn, by=(0, 1)):
    def loss(params, inputs):
        outputs = rnn.apply(params, inputs)
        if rnn.return_carry:
            (_, h), _ = outputs
            return jnp.mean(h)
        return jnp.mean(outputs**2)

    return jax.jit(jax.grad(loss, by))


class Built(NamedTuple):
    """A gradient by parameters and inputs, compiled in one of `WAYS`."""

    name: str
    way: str
    program: Program

    @property
    def products(self):
        return PRODUCTS.get(self.name.removesuffix("-wide"), (1, 1, 1))

    @property
    def steps(self):
        """The loops over steps."""
        loops = self.program.innermost
        assert len(loops) == (3 if self.way == "starts" else 2)
        whole = self.way in ("whole", "plain")
        assert {loop.trips for loop in loops} == {TIME if whole else CHUNK}
        return loops


@cache
def build(name, way):
    rnn, features_in = make(name, **WAYS[way])
    params, inputs = shapes_of(rnn, BATCH, TIME, *features_in)
    assert all(leaf.size % BATCH for leaf in jax.tree.leaves(params))
    compiled = gradient(rnn).lower(params, inputs).compile()
    return Built(name, way, Program(compiled.as_text()))


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(
            (name, way),
            marks=level_of(name, CHOSEN) if way == "chunks" else pytest.mark.exhaustive,
            id=f"{name}-{way}",
        )
        for name, way in PROGRAMS
    ],
)
def built(request):
    return build(*request.param)


def test_no_step_computes_an_array_of_the_size_of_weights(built):
    """Nor of biases, and whether transposed, flipped, of one gate or of several."""
    for loop in built.steps:
        assert [i.text for i in loop.of_weights(BATCH)] == []


def test_a_step_has_few_operations(built):
    most = MOST_OPERATIONS.get(built.name.removesuffix("-wide"), 15)
    for loop in built.steps:
        lines = [operation.text for operation in loop.operations]
        assert len(lines) <= most, "\n".join(lines)


def test_each_step_has_only_the_products_of_the_recurrence(built):
    """The truncated gradient of 1997 takes none."""
    _, forward, back = built.products
    again = [forward] if built.way == "starts" else []
    counts = [len(loop.products) for loop in built.steps]
    assert sorted(counts) == sorted([forward, back, *again])


def test_one_product_computes_the_gradient_of_a_kernel(built):
    """It is outside the loops over steps, as the first test finds."""
    projections, forward, _ = built.products
    products = [i for i in built.program.instructions if i.is_product]
    of_weights = [i for i in products if i.is_of_weights(BATCH)]
    assert len(of_weights) == projections + forward


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["LSTMCell", "ConvLSTMCell-2d"])
def test_programs_of_tests_equal_those_of_users(name):
    """The optimizations that tests turn off come after HLO."""
    setting = "jax_disable_most_optimizations"
    of_tests = build(name, "chunks").program
    before = jax.config.read(setting)
    try:
        jax.config.update(setting, False)
        of_users = build.__wrapped__(name, "chunks").program
    finally:
        jax.config.update(setting, before)
    assert before
    assert of_tests.computations == of_users.computations
    assert any(i.opcode == "fusion" for i in of_tests.instructions)


@pytest.mark.parametrize(
    "name", by_level(["LSTMCell", "ConvLSTMCell-2d"], ["LSTMCell"])
)
def test_plain_loop_forms_weight_gradients_in_each_step(name):
    """The tests above can fail: they find such products where there are some."""
    loops = build(name, "plain").steps
    assert any(loop.of_weights(BATCH) for loop in loops)
    assert sorted(len(loop.products) for loop in loops) == [2, 4]
    assert max(len(loop.operations) for loop in loops) > 15


# Sharded programs that every run compiles.
FEW = [("LSTMCell", "chunks"), ("ConvLSTMCell-2d", "whole")]


class Parallel(NamedTuple):
    """A gradient by parameters, compiled for several devices."""

    rnn: nn.Module
    params: dict  # as shapes
    program: Program


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((name, projection), marks=marks, id=f"{name}-{projection}")
        for name in ("LSTMCell", "GRUCell", "ConvLSTMCell-2d", OWN)
        for projection in ("whole", "chunks")
        for marks in ([] if (name, projection) in FEW else [pytest.mark.exhaustive],)
    ],
)
def parallel(request):
    name, projection = request.param
    mesh = jax.make_mesh((DEVICES,), ("rows",), axis_types=(AxisType.Auto,))
    specs = PartitionSpec(), PartitionSpec("rows")
    places = tuple(NamedSharding(mesh, spec) for spec in specs)
    rnn, features_in = make(name, **WAYS[projection])
    shapes = shapes_of(rnn, DEVICES * BATCH, TIME, *features_in)
    function = jax.jit(gradient(rnn, 0), in_shardings=places)
    compiled = function.lower(*shapes).compile()
    return Parallel(rnn, shapes[0], Program(compiled.as_text()))


@pytest.mark.several_devices
def test_loops_over_steps_have_no_collectives(parallel):
    """Nor in any loop, where the whole sequence is projected at once."""
    is_whole = parallel.rnn.projection == "whole"
    assert bool(parallel.program.outer) != is_whole
    for loop in parallel.program.loops if is_whole else parallel.program.innermost:
        assert [i.text for i in loop.collectives] == []


@pytest.mark.several_devices
def test_gradients_are_all_reduced_once(parallel):
    """In one operation, which is all that goes from device to device; or a chunk's."""
    texts = [i.text for i in parallel.program.collectives]
    opcodes = {i.opcode.removesuffix("-start") for i in parallel.program.collectives}
    assert len(texts) == 1 and opcodes == {"all-reduce"}, "\n".join(texts)
    (added,) = parallel.program.collectives
    leaves = jax.tree.leaves(parallel.params)
    assert sum(added.sizes) == sum(leaf.size for leaf in leaves)


@pytest.mark.several_devices
def test_each_device_computes_only_its_own_rows(parallel):
    rows_of_all = DEVICES * BATCH
    instructions = parallel.program.instructions
    found = [i.text for i in instructions if rows_of_all in sum(i.shapes, ())]
    assert found == []


def temporaries(rnn, *shape):
    """Returns the bytes that the gradient by params needs while it is formed."""
    compiled = gradient(rnn, 0).lower(*shapes_of(rnn, *shape)).compile()
    return compiled.memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize("time", by_level([100, 512], [100], 0))
def test_memory_policies_are_ordered_and_use_at_most_the_memory_of_flax(time):
    def of(layer):
        return temporaries(layer, 32, time, 64)

    cell = rnncells.OptimizedLSTMCell(128)
    full = of(rnncells.RNN(cell))
    recompute = of(rnncells.RNN(cell, memory="recompute"))
    sqrt = of(rnncells.RNN(cell, memory="sqrt"))
    assert sqrt < recompute < full <= of(nn.RNN(nn.OptimizedLSTMCell(128)))


@pytest.mark.exhaustive
def test_square_root_memory_grows_with_the_square_root_of_time():
    """A chunk's arrays, as many carries, and inputs in the order of time.

    Those are as long as time where batch axes come first; jax 0.12 has two of them.
    """
    rows, features_in, features = 4, 8, 16

    def of(time, time_major=True):
        cell, options = rnncells.LSTMCell(features), {"time_major": time_major}
        rnn = rnncells.RNN(cell, memory="sqrt", return_carry=True, **options)
        leading = (time, rows) if time_major else (rows, time)
        return temporaries(rnn, *leading, features_in)

    times = 256, 4096
    sizes = shorter, longer = [of(time) for time in times]
    assert longer <= 2.1**2 * shorter
    for time, size in zip(times, sizes, strict=True):
        assert size <= 2**15 + 24 * math.isqrt(time) * 4 * rows * features
    inputs = 4 * rows * times[-1] * features_in
    assert of(times[-1], time_major=False) <= sizes[-1] + 2 * inputs


WHOLE_LAYERS = {
    "LSTM": (rnncells.LSTM(13, num_layers=2, bidirectional=True), 4),
    "LSTM-projected": (rnncells.LSTM(13, num_layers=2, proj_features=5), 2),
    "GRU": (rnncells.GRU(13, num_layers=2), 2),
    "ElmanRNN": (rnncells.ElmanRNN(13, num_layers=2), 2),
    "Stack": (rnncells.Stack([rnncells.LSTMCell(13), rnncells.GRUCell(5)]), 2),
}


@pytest.mark.parametrize("name", by_level(WHOLE_LAYERS, ["GRU", "LSTM-projected"]))
def test_loops_of_whole_layers_are_those_of_the_engine(name):
    """One forward and one backward for each RNN, with few operations in a step."""
    layer, rnns = WHOLE_LAYERS[name]
    inputs = jax.ShapeDtypeStruct((BATCH, TIME, FEATURES_IN), jnp.float32)
    params = jax.eval_shape(layer.init, jax.random.key(0), inputs)
    assert all(leaf.size % BATCH for leaf in jax.tree.leaves(params))

    def loss(params, inputs):
        outputs = layer.apply(params, inputs)
        return jnp.mean(jax.tree.leaves(outputs)[0] ** 2)

    compiled = jax.jit(jax.grad(loss, (0, 1))).lower(params, inputs).compile()
    loops = Program(compiled.as_text()).innermost
    assert len(loops) == 2 * rnns
    assert {loop.trips for loop in loops} == {TIME}
    for loop in loops:
        assert [i.text for i in loop.of_weights(BATCH)] == []
        # The projection is one more product, and masks select by row.
        lines = [operation.text for operation in loop.operations]
        assert len(lines) <= 15, "\n".join(lines)


def test_named_scopes_of_cells_are_in_the_program_of_the_fast_loop():
    class Scoped(FlaxCell):
        @nn.compact
        def __call__(self, h, x):
            with jax.named_scope("outer"):
                a = nn.Dense(4, name="i")(x) + nn.Dense(4, name="h")(h)
                # Of a function that is traced on its own.
                h = jax.jit(jax.named_scope("inner")(nn.tanh))(a)
            return h, h

    rnn, inputs = rnncells.RNN(Scoped()), jnp.ones((2, 5, 3))
    params = jax.eval_shape(rnn.init, jax.random.key(0), inputs)
    gradient = jax.jit(jax.grad(lambda p: rnn.apply(p, inputs).sum()))
    text = gradient.lower(params).as_text(debug_info=True)
    assert re.search(r"outer/\S*inner\S*/tanh", text)
