"""Every class equals flax.linen's of the same name, over all options.

Equal means: the parameter tree, initial values to the bit, one step, a sequence, and
the gradients of parameters, inputs and carry, with the same random parameters.
"""

import itertools
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import (
    ALL_CELLS,
    BATCH,
    CELLS,
    TIME,
    assert_close,
    assert_equal,
    each_cell,
    random_like,
    values_and_gradients,
)
from levels import by_level

import rnncells

FLAX_CELLS = {name: case for name, case in ALL_CELLS.items() if case.in_flax}
normal = nn.initializers.normal
INITIALIZERS = {
    "LSTMCell": ("kernel_init", "recurrent_kernel_init", "bias_init", "carry_init"),
    "MGUCell": ("forget_bias_init", "activation_bias_init", "recurrent_kernel_init"),
    "ConvLSTMCell": ("carry_init",),
}
# Each option of the layers alone, and what acts together.
RNN_OPTIONS = {
    "plain": {},
    "time_major": {"time_major": True},
    "reverse": {"reverse": True},
    "keep_order": {"reverse": True, "keep_order": True},
    "time_major-keep_order": {"time_major": True, "reverse": True, "keep_order": True},
    "unroll": {"unroll": 3},
    "lengths": {"seq_lengths": jnp.array([3, 5])},
    "lengths-reverse": {"seq_lengths": jnp.array([3, 5]), "reverse": True},
    "all": {
        "seq_lengths": jnp.array([1, 4]),
        "time_major": True,
        "reverse": True,
        "keep_order": True,
    },
}
FIELDS = ("unroll",)


def assert_same(ours, theirs):
    """Asserts equality to float32 rounding of each array's largest value."""
    largest = max(1, *(float(np.abs(leaf).max()) for leaf in jax.tree.leaves(theirs)))
    assert_close(ours, theirs, rtol=2e-5, atol=2e-6 * largest)


# Other variants have the parameters and carries of one of these.
@each_cell(FLAX_CELLS, default=["ConvLSTMCell-1d"])
def test_initial_values_and_carries_are_equal_to_the_bit(name, rng, key):
    case = FLAX_CELLS[name]
    inits = INITIALIZERS.get(case.name, ("kernel_init", "bias_init", "carry_init"))
    inits = [name for name in inits if hasattr(case.make(), name)]
    x = case.inputs(rng, BATCH)
    for options in ({}, {name: normal() for name in inits}):
        ours, theirs = case.make(**options), case.make_flax(**options)
        carry = theirs.initialize_carry(key, x.shape)
        assert_equal(ours.initialize_carry(key, x), carry)
        assert_equal(ours.initialize_carry(key, x.shape), carry)
        assert_equal(ours.init(key, carry, x), theirs.init(key, carry, x))


HALF = [name for name in FLAX_CELLS if name in CELLS]


@pytest.mark.parametrize("name", by_level(HALF, ["SimpleCell"]))
def test_steps_and_gradients_in_half_precision_are_close(name, rng):
    """Products are rounded where they are formed, which differs."""
    case, options = FLAX_CELLS[name], {"dtype": "bfloat16"}
    ours, theirs = case.make(**options), case.make_flax(**options)
    x = case.inputs(rng, BATCH, 3)
    carry = theirs.initialize_carry(jax.random.key(0), x.shape)
    params = random_like(rng, jax.eval_shape(theirs.init, jax.random.key(0), carry, x))
    carry = random_like(rng, carry)
    (found, _), (expected, _) = (
        values_and_gradients(cell.apply, params, carry, x) for cell in (ours, theirs)
    )
    assert found[1].dtype == expected[1].dtype
    found, expected = jax.tree.map(lambda y: y.astype(float), (found, expected))
    assert_close(found, expected, rtol=0, atol=0.05)


def sequence(case, options, module, cell, carry, inputs):
    fields = {k: v for k, v in options.items() if k in FIELDS}
    arguments = {k: v for k, v in options.items() if k not in FIELDS}
    rnn = module.RNN(cell, return_carry=True, **fields)

    def apply(params, inputs, carry):
        return rnn.apply(params, inputs, initial_carry=carry, **arguments)

    return rnn, apply


@pytest.mark.parametrize(
    "name, options",
    by_level(
        [*itertools.product(FLAX_CELLS, RNN_OPTIONS)],
        [
            *(("LSTMCell", "all"), ("SimpleCell", "lengths-reverse")),
            *(("GRUCell", "plain"), ("ConvLSTMCell-circular", "plain")),
        ],
    ),
)
def test_sequence_and_gradients_are_equal(name, options, rng):
    case, options = FLAX_CELLS[name], RNN_OPTIONS[options]
    order = (TIME, BATCH) if options.get("time_major") else (BATCH, TIME)
    inputs = case.inputs(rng, *order)
    x = inputs[0] if options.get("time_major") else inputs[:, 0]
    carry = random_like(rng, case.make().initialize_carry(jax.random.key(0), x))
    ours = sequence(case, options, rnncells, case.make(), carry, inputs)
    theirs = sequence(case, options, nn, case.make_flax(), carry, inputs)
    init = partial(theirs[0].init, initial_carry=carry)
    if options.get("time_major"):
        init = partial(init, time_major=True)
    params = random_like(rng, jax.eval_shape(init, jax.random.key(0), inputs))

    results = [
        values_and_gradients(apply, params, inputs, carry)
        for _, apply in (ours, theirs)
    ]
    assert_same(*results)


def test_rnn_has_the_initial_values_of_flax(key):
    x = jnp.ones((BATCH, TIME, 3))
    for module in (rnncells, nn):
        rnn = module.RNN(module.GRUCell(4))
        expected = nn.RNN(nn.GRUCell(4)).init(key, x)
        assert_equal(rnn.init(key, x), expected)


class Model(nn.Module):
    """Uses the layers as users do: compact, names given and not."""

    module: object

    @nn.compact
    def __call__(self, x):
        lib = self.module
        x = lib.RNN(lib.LSTMCell(4), name="encoder")(x)
        x = lib.Bidirectional(lib.RNN(lib.SimpleCell(3)), lib.RNN(lib.SimpleCell(3)))(x)
        x = nn.RNN(lib.OptimizedLSTMCell(5, name="named"))(x)
        x = lib.RNN(nn.remat(lib.SimpleCell)(2))(x)
        carry = lib.GRUCell(3, parent=None).initialize_carry(
            jax.random.key(0), x[:, 0].shape
        )
        return lib.RNN(lib.GRUCell(3))(x, initial_carry=carry)


def test_models_have_the_tree_and_the_values_of_flax(rng, key):
    x = jax.random.normal(key, (BATCH, TIME, 3))
    ours, theirs = Model(rnncells), Model(nn)
    tree = jax.eval_shape(theirs.init, key, x)
    assert jax.eval_shape(ours.init, key, x) == tree
    params = random_like(rng, tree)
    assert_same(jax.jit(ours.apply)(params, x), jax.jit(theirs.apply)(params, x))


@pytest.mark.parametrize(
    "lengths, time_major, merge",
    by_level(
        [*itertools.product([None, (2, 5)], [False, True], ["default", "subtract"])],
        [((2, 5), False, "default")],
    ),
)
def test_bidirectional_is_equal(lengths, time_major, merge, rng, key):
    lengths = None if lengths is None else jnp.array(lengths)
    inputs = jnp.asarray(rng.standard_normal((BATCH, TIME, 3)), jnp.float32)
    if time_major:
        inputs = jnp.swapaxes(inputs, 0, 1)

    def both(module):
        options = {} if merge == "default" else {"merge_fn": jnp.subtract}
        options |= {"return_carry": True, "time_major": time_major}
        rnns = module.RNN(module.SimpleCell(4)), module.RNN(module.SimpleCell(4))
        return module.Bidirectional(*rnns, **options)

    ours, theirs = both(rnncells), both(nn)
    params = random_like(rng, jax.eval_shape(theirs.init, key, inputs))
    carry = random_like(rng, jax.eval_shape(ours.apply, params, inputs)[0])
    results = [
        values_and_gradients(
            lambda p, x, c, layer=layer: layer.apply(
                p, x, initial_carry=c, seq_lengths=lengths
            ),
            params,
            inputs,
            carry,
        )
        for layer in (ours, theirs)
    ]
    assert_same(*results)


def test_init_key_reaches_both_directions_as_in_flax(key):
    inputs = jnp.ones((BATCH, TIME, 3))

    def layer(module):
        cells = [module.GRUCell(4, carry_init=normal()) for _ in range(2)]
        return module.Bidirectional(module.RNN(cells[0]), module.RNN(cells[1]))

    params = layer(nn).init(key, inputs)
    expected = layer(nn).apply(params, inputs, init_key=jax.random.key(3))
    actual = layer(rnncells).apply(params, inputs, init_key=jax.random.key(3))
    assert_same(actual, expected)
