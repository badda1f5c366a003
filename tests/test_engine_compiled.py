"""What XLA makes of the engine's gradient: counted, as times are not the same twice."""

import functools
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from cases import CELLS, assert_close, random_params
from compiled import Program
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import rnncells
from rnncells.recurrence.chunks import Chunk

# A prime, which divides the size of every array of states, and of no array of weights.
BATCH = 11
TIME, CHUNK, FEATURES_IN = 24, 6, 7
SIZES = {"features": 13, "blocks": 5, "block_size": 3}
# Beyond some size of the weights the engine forms their products in another way.
WIDE = 197
DEVICES = 4


class MultiplicativeCell(rnncells.RNNCellBase):
    """A cell as a user may write it: two products in series, and a peephole."""

    features: int
    num_feature_dims = 1

    def carry_shape(self, input_shape):
        return (self.features,), (self.features,)

    def setup(self):
        self.gates("xm", "hm", features=self.features + 4)
        self.gates("xg", "xn", "mg", "mn")
        self.peephole = self.param("peephole", nn.initializers.ones, (self.features,))

    def project(self, inputs):
        return self.affine(inputs, "xm", "xg", "xn")

    def recur(self, carry, projected):
        c, h = carry
        xm, xa = jnp.split(projected, [self.features + 4], axis=-1)
        m = xm * self.affine(h, "hm")
        g, n = jnp.split(self.affine(m, "mg", "mn", onto=xa), 2, axis=-1)
        g = nn.sigmoid(g + self.peephole * c)
        c = g * c + (1 - g) * nn.tanh(n)
        h = g * nn.tanh(c)
        return (c, h), h


OWN = "MultiplicativeCell"
WAYS = {
    "chunks": {"projection": Chunk(CHUNK)},
    "whole": {"projection": "whole"},
    "recompute": {"memory": "recompute", "projection": Chunk(CHUNK)},
    "starts": {"memory": Chunk(CHUNK)},
    "plain": {"implementation": "scan"},
}
PROGRAMS = [
    *((name, "chunks") for name in [*CELLS, OWN, "LSTMCell-wide", f"{OWN}-wide"]),
    *((name, way) for name in ("LSTMCell", OWN) for way in list(WAYS)[1:4]),
]
# Of one step, where it is not 1: forward, and back.
PRODUCTS = {"GRUCell-reset-before": (2, 2), OWN: (2, 2), "LSTM1997Cell": (1, 0)}
# Of one step, where it is not 15.
MOST_OPERATIONS = {"SimpleCell": 8, "GRUCell": 12, "MGUCell": 12, OWN: 20}

each_program = pytest.mark.parametrize("name, way", PROGRAMS)


@pytest.fixture(autouse=True)
def optimized():
    """Compiles with the optimizations that other tests do without."""
    name = "jax_disable_most_optimizations"
    before = jax.config.read(name)
    jax.config.update(name, False)
    yield
    jax.config.update(name, before)


def make(name, **options):
    """Returns a layer, and the features of its inputs."""
    if name.removesuffix("-wide") == OWN:
        make_cell, sizes, features_in = MultiplicativeCell, {"features": 13}, ()
    else:
        case = CELLS[name.removesuffix("-wide")]
        sizes = {k: size for k, size in SIZES.items() if k in case.options}
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
            return jnp.sum(h)
        return jnp.sum(outputs**2)

    return jax.jit(jax.grad(loss, by))


def read(compiled):
    program = Program(compiled.as_text())
    # Without optimizations nothing is fused.
    assert any(i.opcode == "fusion" for i in program.instructions)
    return program


@functools.cache
def compile_one(name, way):
    rnn, features_in = make(name, **WAYS[way])
    params, inputs = shapes_of(rnn, BATCH, TIME, *features_in)
    assert all(leaf.size % BATCH for leaf in jax.tree.leaves(params))
    return read(gradient(rnn).lower(params, inputs).compile())


def is_of_weights(instruction):
    return any(size > 1 and size % BATCH for size in instruction.sizes)


def loops_over_steps(name, way):
    loops = compile_one(name, way).innermost
    assert len(loops) == (3 if way == "starts" else 2)
    whole = way in ("whole", "plain")
    assert {loop.trips for loop in loops} == {TIME if whole else CHUNK}
    return loops


def formed_of_weights(loop):
    return [i.text for i in loop.inside if is_of_weights(i) and not i.is_trivial]


def count_products(loops):
    return sorted(len(loop.products) for loop in loops)


@each_program
def test_no_step_forms_an_array_of_weights(name, way):
    """Nor of biases, and whether transposed, flipped, of one gate or of several."""
    for loop in loops_over_steps(name, way):
        assert formed_of_weights(loop) == []


@each_program
def test_a_step_has_few_operations(name, way):
    most = MOST_OPERATIONS.get(name.removesuffix("-wide"), 15)
    for loop in loops_over_steps(name, way):
        lines = [operation.text for operation in loop.operations]
        assert len(lines) <= most, "\n".join(lines)


@each_program
def test_a_step_takes_the_products_of_the_recurrence(name, way):
    """And the truncated gradient of 1997 takes none."""
    forward, back = PRODUCTS.get(name.removesuffix("-wide"), (1, 1))
    again = [forward] if way == "starts" else []
    expected = sorted([forward, back, *again])
    assert count_products(loops_over_steps(name, way)) == expected


@pytest.mark.parametrize("name", [*CELLS, OWN])
def test_a_chunk_forms_the_gradient_of_each_kernel_once(name):
    recurrent, _ = PRODUCTS.get(name, (1, 1))
    loops = compile_one(name, "chunks").outer
    assert [loop.trips for loop in loops] == [TIME // CHUNK] * 2
    formed = [[p for p in loop.products if is_of_weights(p)] for loop in loops]
    assert sorted(map(len, formed)) == [0, 1 + recurrent]


@pytest.mark.parametrize("name", ["LSTMCell", "ConvLSTMCell-2d"])
def test_the_plain_scan_is_seen_to_form_weights_in_each_step(name):
    """What the tests above do not find is there to be found."""
    loops = loops_over_steps(name, "plain")
    assert any(formed_of_weights(loop) for loop in loops)
    assert count_products(loops) == [2, 4]
    assert max(len(loop.operations) for loop in loops) > 15


@functools.cache
def compile_parallel(name, projection):
    """Returns the gradient by params for several devices, and where arguments go."""
    mesh = jax.make_mesh((DEVICES,), ("rows",), axis_types=(AxisType.Auto,))
    places = (
        NamedSharding(mesh, PartitionSpec()),
        NamedSharding(mesh, PartitionSpec("rows")),
    )
    rnn, features_in = make(name, projection=projection)
    shapes = shapes_of(rnn, DEVICES * BATCH, TIME, *features_in)
    function = jax.jit(gradient(rnn, 0), in_shardings=places)
    return function.lower(*shapes).compile(), places


each_parallel = pytest.mark.parametrize("name", ["LSTMCell", "GRUCell", OWN])
each_projection = pytest.mark.parametrize("projection", ["whole", "auto"])


def opcodes(instructions):
    return [i.opcode.removesuffix("-start") for i in instructions]


@each_parallel
def test_devices_add_up_gradients_once_after_the_loop(name):
    """And each weight once, if all are in one operation."""
    program = read(compile_parallel(name, "whole")[0])
    assert [opcodes(loop.collectives) for loop in program.loops] == [[], []]
    assert opcodes(program.collectives) == ["all-reduce"]
    rnn, features_in = make(name)
    params, _ = shapes_of(rnn, BATCH, TIME, *features_in)
    kernels = [leaf.size for leaf in jax.tree.leaves(params) if leaf.ndim > 1]
    (added,) = program.collectives
    sizes = [math.prod(shape) for shape in added.shapes if len(shape) > 1]
    assert sum(sizes) == sum(kernels)


@each_parallel
def test_devices_add_up_gradients_once_a_chunk(name):
    """By default; nothing is sent from device to device in the loop over steps."""
    program = read(compile_parallel(name, "auto")[0])
    assert [opcodes(loop.collectives) for loop in program.innermost] == [[], []]
    in_outer = [opcodes(loop.collectives) for loop in program.outer]
    assert sorted(in_outer) == [[], ["all-reduce"]]
    assert opcodes(program.collectives) == ["all-reduce"]


@each_projection
@each_parallel
def test_a_device_runs_its_own_rows_alone(name, projection):
    program = read(compile_parallel(name, projection)[0])
    of_all = [
        i.text for i in program.instructions if DEVICES * BATCH in sum(i.shapes, ())
    ]
    assert of_all == []


@each_projection
@each_parallel
def test_devices_agree_with_one(rng, name, projection):
    compiled, places = compile_parallel(name, projection)
    rnn, features_in = make(name, projection=projection)
    shape = (DEVICES * BATCH, TIME, *features_in)
    inputs = jnp.asarray(rng.standard_normal(shape), jnp.float32)
    params = random_params(rng, rnn, inputs)
    of_one = gradient(rnn, 0)(params, inputs)
    of_many = compiled(*jax.device_put((params, inputs), places))
    assert_close(jax.device_get(of_many), jax.device_get(of_one), 1e-4, 1e-4)


def temporaries(rnn, *shape):
    """Returns the bytes that the gradient by params needs while it is formed."""
    compiled = gradient(rnn, 0).lower(*shapes_of(rnn, *shape)).compile()
    return compiled.memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize("time", [100, 512])
def test_memory_grows_in_order_of_the_choices_and_is_at_most_that_of_flax(time):
    def of(layer):
        return temporaries(layer, 32, time, 64)

    cell = rnncells.OptimizedLSTMCell(128)
    full = of(rnncells.RNN(cell))
    recompute = of(rnncells.RNN(cell, memory="recompute"))
    sqrt = of(rnncells.RNN(cell, memory="sqrt"))
    assert sqrt < recompute < full <= of(nn.RNN(nn.OptimizedLSTMCell(128)))


BATCH_LONG, FEATURES_LONG = 4, 16


def of_last_carry(memory, time, time_major=True):
    options = {"return_carry": True, "time_major": time_major, "memory": memory}
    rnn = rnncells.RNN(rnncells.LSTMCell(FEATURES_LONG), **options)
    rows = (time, BATCH_LONG) if time_major else (BATCH_LONG, time)
    return temporaries(rnn, *rows, 8)


def test_square_root_memory_grows_with_the_square_root_of_time():
    """A chunk's arrays, and as many carries: nothing of a size that time multiplies."""
    times = (256, 1024, 4096)
    sizes = [of_last_carry("sqrt", time) for time in times]
    state = 4 * BATCH_LONG * FEATURES_LONG
    for time, size in zip(times, sizes, strict=True):
        assert size <= 24 * math.isqrt(time) * state + 2**15
    for shorter, longer in zip(sizes, sizes[1:], strict=False):
        assert longer <= 2.1 * shorter
    full = [of_last_carry("full", time) for time in times]
    assert full[-1] > 3.8 * full[-2]


def test_square_root_memory_holds_inputs_of_batches_first_in_the_order_of_time():
    """That copy of the inputs is all that grows with time; jax 0.12 makes it twice."""
    time = 4096
    inputs = 4 * BATCH_LONG * time * 8
    extra = of_last_carry("sqrt", time, time_major=False) - of_last_carry("sqrt", time)
    assert extra <= 2 * inputs
