"""Arguments of calls and steps: `deterministic`, masks, initial carries, states."""

import dataclasses
import re
from collections import namedtuple
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import assert_close, assert_equal, jit_apply, random_like
from levels import by_level

import rnncells

ROWS, TIME, FEATURES_IN = 2, 5, 3
KEYS = {
    name: jax.random.key(k) for k, name in enumerate(["params", "dropout", "zoneout"])
}
DROPOUT = {"dropout": KEYS["dropout"]}
STREAMS = {"params": False, "dropout": False}
MASK = np.array([[1, 0, 1, 1, 0], [0, 1, 1, 0, 1]], bool)
# One reset is at a masked step. (A sequence cannot return a reset of its last step.)
RESETS = np.array([[0, 1, 0, 1, 0], [0, 1, 0, 0, 0]], bool)


@pytest.fixture
def x(rng):
    return jnp.asarray(rng.standard_normal((ROWS, TIME, FEATURES_IN)), jnp.float32)


def params_of(layer, x, **options):
    """Returns random parameters, without compiling `init`."""
    shapes = jax.eval_shape(partial(layer.init, **options), KEYS, x)
    return random_like(np.random.default_rng(0), shapes)


def zoneout(deterministic=None):
    return rnncells.ZoneoutCell(rnncells.SimpleCell(4), 0.4, deterministic)


def variational(deterministic=None):
    rates = {"input_rate": 0.3, "recurrent_rate": 0.3}
    return rnncells.VariationalGRUCell(4, **rates, deterministic=deterministic)


class NoisyRNN(rnncells.MultiLayerRNN):
    """A layer of a user, whose cells have zoneout."""

    @nn.nowrap
    def cell(self):
        return rnncells.ZoneoutCell(rnncells.SimpleCell(self.features), 0.4)


class DropoutCell(nn.Module):
    """A cell of a user that takes `deterministic` in its call."""

    num_feature_dims = 1

    def initialize_carry(self, key, sample_input):
        return jnp.zeros(sample_input.shape, sample_input.dtype)

    @nn.compact
    def __call__(self, carry, x, deterministic=None):
        carry = carry + nn.Dropout(0.5)(x, deterministic=deterministic)
        return carry, carry


class OwnCallCell(rnncells.RNNCellBase):
    """The same on the base of rnncells, without the field."""

    num_feature_dims = 1
    initialize_carry = DropoutCell.initialize_carry
    __call__ = DropoutCell.__call__


def bidirectional(cell, deterministic):
    sides = [rnncells.RNN(cell(deterministic)) for _ in range(2)]
    return rnncells.Bidirectional(*sides)


LAYERS = {
    "RNN": lambda value: rnncells.RNN(zoneout(value)),
    "RNN-variational": lambda value: rnncells.RNN(variational(value)),
    "Bidirectional": lambda value: bidirectional(zoneout, value),
    "Stack": lambda value: rnncells.Stack([zoneout(value), variational(value)]),
    "StackedCell": lambda value: rnncells.RNN(
        # The field of the outer cell overrides that of the inner one.
        rnncells.StackedCell([nn.Dropout(0.5), zoneout(False)], value)
    ),
    "zoneout around variational": lambda value: rnncells.RNN(
        rnncells.ZoneoutCell(variational(value), 0.4, value, "zoneout")
    ),
}


@pytest.mark.parametrize("name", by_level(LAYERS, ["Stack", "StackedCell"]))
def test_deterministic_of_the_call_equals_the_field(name, x):
    undecided = LAYERS[name](None)
    params = params_of(undecided, x, deterministic=True)

    def program(layer, **options):
        apply = jax.jit(partial(layer.apply, rngs=KEYS, **options))
        return apply.lower(params, x).as_text()

    fields = []
    for value in (True, False):
        fields.append(program(LAYERS[name](value)))
        # Equal programs compute equal numbers.
        assert program(undecided, deterministic=value) == fields[-1]
        assert program(LAYERS[name](not value), deterministic=value) == fields[-1]
    assert fields[0] != fields[1]


@pytest.mark.parametrize(
    "layer",
    by_level(
        [
            *(make(None) for make in LAYERS.values()),
            rnncells.LSTM(4, num_layers=2, dropout=0.5),
            NoisyRNN(4),
            rnncells.RNN(rnncells.DropConnectCell(rnncells.LSTMCell(4), 0.5)),
            rnncells.Stack([nn.Dropout(0.5), rnncells.GRUCell(4)]),
            rnncells.RNN(rnncells.StackedCell([nn.Dropout(0.5), rnncells.GRUCell(4)])),
        ],
        4,
    ),
    ids=lambda layer: type(layer).__name__,
)
def test_one_key_initializes_a_model_in_training(layer, x):
    """Flax draws from the stream `params` in place of one that is not given."""

    def init(value):
        return partial(layer.init, deterministic=value)

    found, expected = (
        jax.eval_shape(init(value), KEYS["params"], x) for value in (False, True)
    )
    assert found == expected
    if isinstance(layer, rnncells.LSTM):
        key = KEYS["params"]
        both = jax.jit(lambda x: [init(value)(key, x) for value in (False, True)])
        assert_equal(*both(x))


def test_a_layer_passes_deterministic_to_its_cells(x):
    layer = NoisyRNN(4, num_layers=2)
    params = params_of(layer, x, deterministic=True)
    y, _ = jit_apply(layer, params, x, deterministic=True)
    noisy, _ = jit_apply(layer, params, x, deterministic=False, rngs=DROPOUT)
    assert not np.allclose(y, noisy)
    _, first = jit_apply(
        layer, params, None, x[:, 0], deterministic=True, method="step"
    )
    assert_close(first, y[:, 0])


@pytest.mark.parametrize("make", [DropoutCell, OwnCallCell])
def test_a_cell_with_its_own_call_gets_deterministic(make, x):
    rnn = rnncells.RNN(make(), split_rngs={"params": False, "dropout": True})
    y = jit_apply(rnn, {}, x, deterministic=True)
    assert_close(y, jnp.cumsum(x, axis=1))
    noisy = jit_apply(rnn, {}, x, deterministic=False, rngs=DROPOUT)
    assert not np.allclose(y, noisy)


def test_stack_passes_deterministic_to_dropout_of_flax(x):
    stack = rnncells.Stack([nn.Dropout(0.5)])
    assert_equal(jit_apply(stack, {}, x, deterministic=True), x)
    dropped = jit_apply(stack, {}, x, deterministic=False, rngs=DROPOUT)
    dropped, x = jax.device_get((dropped, x))
    assert (dropped == 0).any()
    assert_close(dropped[dropped != 0], 2 * x[dropped != 0])
    # Functions and modules that do not take the argument do not get it.
    others = [nn.relu, jax.jit(jnp.tanh), nn.Sequential([nn.relu]), lambda x: -x]
    y = jit_apply(rnncells.Stack(others), {}, x, deterministic=True)
    assert_close(y, -np.tanh(np.maximum(x, 0)))
    decided = rnncells.Stack([nn.Dropout(0.5, deterministic=False)])
    with pytest.raises(ValueError, match="passed to the constructor and at call time"):
        decided.apply({}, x, deterministic=True, rngs=DROPOUT)


class GainCell(rnncells.SimpleCell):
    """A cell of a user whose `setup` replaces an attribute of the class."""

    gain = 1.0

    def setup(self):
        super().setup()
        self.gain = 2.0

    def project(self, inputs):
        return super().project(self.gain * inputs)


def test_setup_runs_before_project(x):
    plain, cell = rnncells.SimpleCell(4), GainCell(4)
    params = {"params": params_of(rnncells.RNN(cell), x)["params"]["cell"]}
    expected = jit_apply(plain, params, 2 * x, method="project")
    assert_equal(jit_apply(cell, params, x, method="project"), expected)
    wrapped = rnncells.RNN(rnncells.ZoneoutCell(cell, 0.0))
    inner = {"params": {"cell": {"cell": params["params"]}}}
    outer = {"params": {"cell": params["params"]}}
    expected = jit_apply(rnncells.RNN(plain), outer, 2 * x)
    assert_close(jit_apply(wrapped, inner, x), expected)


class WrappingCell(rnncells.RNNCellBase):
    """A cell of a user that contains one of ours."""

    cell: rnncells.RNNCellBase
    num_feature_dims = 1

    def carry_shape(self, input_shape):
        return self.cell.carry_shape(input_shape)

    def project(self, inputs):
        return self.cell.project(inputs)

    def recur(self, carry, projected):
        return self.cell.recur(carry, projected)


@pytest.mark.parametrize("lift", [WrappingCell, nn.remat, nn.jit])
def test_deterministic_reaches_cells_inside_and_lifted_cells(lift, x):
    if lift is WrappingCell:
        rnn = rnncells.RNN(WrappingCell(variational(False)), split_rngs=STREAMS)
    else:
        options = {"recurrent_rate": 0.5, "deterministic": False}
        rnn = rnncells.RNN(lift(rnncells.VariationalGRUCell)(4, **options))
    params = params_of(rnn, x)
    y, again = (
        jit_apply(rnn, params, x, deterministic=True, rngs={"dropout": key})
        for key in jax.random.split(KEYS["dropout"])
    )
    assert_equal(y, again)


def test_two_calls_draw_different_masks(x):
    rnn = rnncells.RNN(zoneout())
    params = params_of(rnn, x, deterministic=True)

    def calls(rnn, x):
        return [rnn(x, deterministic=value) for value in (False, False, True)]

    first, second, later = jit_apply(rnn, params, x, method=calls, rngs=DROPOUT)
    assert not np.allclose(first, second)
    # A call with an argument leaves the cell of later calls unchanged.
    assert_equal(later, jit_apply(rnn, params, x, deterministic=True))


STEPPED = {
    "RNN": rnncells.RNN(rnncells.LSTMCell(4), padded_outputs="zero"),
    "learned": rnncells.RNN(
        rnncells.GRUCell(4), learn_initial_carry=True, padded_outputs="zero"
    ),
    "LSTM": rnncells.LSTM(4, num_layers=2, learn_states=True),
    "LSTM-projected": rnncells.LSTM(4, num_layers=2, proj_features=2),
    "GRU": rnncells.GRU(4, reset_after=False),
    "Stack": rnncells.Stack(
        [rnncells.LSTM(4), nn.Dense(6), rnncells.RNN(rnncells.GRUCell(5))]
    ),
}


@pytest.mark.parametrize(
    "name", by_level(STEPPED, ["LSTM-projected", "RNN", "learned", "Stack"])
)
def test_steps_with_masks_and_resets_equal_the_sequence(name, x, rng):
    """Masked inputs that are NaN are ignored."""
    layer = STEPPED[name]
    params = params_of(layer, x)
    x = jnp.where(MASK[..., None], x, jnp.nan)
    carry, y = jit_apply(layer, params, x, mask=MASK, resets=RESETS, method="run")
    x, y = jax.device_get((x, y))

    @jax.jit
    def step(carry, x_t, mask, resets):
        options = {"mask": mask, "resets": resets, "method": "step"}
        return layer.apply(params, carry, x_t, **options)

    start = {"batch_shape": (ROWS,), "method": "initialize_carry"}
    now = layer.apply(params, None, **start)
    for t in range(TIME):
        now, y_t = step(now, x[:, t], MASK[:, t], RESETS[:, t])
        y_t = np.asarray(y_t)
        assert_close(y_t[MASK[:, t]], y[:, t][MASK[:, t]])
        if name != "Stack":
            assert (y_t[~MASK[:, t]] == 0).all()
    assert_close(now, carry)


@pytest.mark.parametrize(
    "layer",
    by_level(
        [
            rnncells.Stack([nn.Dense(5), nn.LayerNorm(), rnncells.GRU(4), nn.Dense(2)]),
            rnncells.Stack([rnncells.Stack([nn.Dense(3)]), rnncells.SimpleCell(2)]),
            rnncells.GriffinBlock(FEATURES_IN),
            rnncells.XLSTMBlock(FEATURES_IN, "slstm", num_heads=3),
            rnncells.RNN(rnncells.StackedCell([nn.RMSNorm(), rnncells.MGUCell(4)])),
        ],
        1,
    ),
    ids=["Stack", "nested", "GriffinBlock", "XLSTMBlock", "StackedCell"],
)
def test_a_masked_row_of_a_step_reaches_no_gradient(layer, x):
    params, mask = params_of(layer, x), jnp.array([True, False])
    carry = layer.initialize_carry(None, x[:, 0])

    @jax.jit
    def gradient(x_t):
        def loss(params, carry):
            _, y = layer.apply(params, carry, x_t, mask=mask, method="step")
            return jnp.sum(y[0] ** 2)

        return jax.grad(loss, (0, 1))(params, carry)

    expected = gradient(x[:, 0].at[1].set(0))
    for value in (jnp.nan, jnp.inf):
        assert_close(gradient(x[:, 0].at[1].set(value)), expected)


def test_padded_outputs_of_the_call_equal_the_field(x):
    cells = rnncells.SimpleCell(4), rnncells.SimpleCell(6)
    lengths = {"seq_lengths": jnp.array([5, 2])}

    def layers(**options):
        sides = [rnncells.RNN(cell, **options) for cell in cells]
        return sides[0], rnncells.Bidirectional(*sides), rnncells.Stack(sides)

    @jax.jit
    def both(x):
        return [
            (
                padded.apply(params_of(layer, x), x, **lengths),
                layer.apply(params_of(layer, x), x, padded_outputs="zero", **lengths),
            )
            for layer, padded in zip(layers(), layers(padded_outputs="zero"))
        ]

    for expected, y in both(x):
        assert (y[1, 2:] == 0).all()
        assert_equal(y, expected)


def test_a_learned_carry_starts_every_sequence(x, rng):
    rnn = rnncells.RNN(rnncells.LSTMCell(4), learn_initial_carry=True)
    params = params_of(rnn, x)
    c, h = params["params"]["initial_carry"].values()
    carry = tuple(jnp.broadcast_to(part, (ROWS, 4)) for part in (c, h))
    plain = {"params": {"cell": params["params"]["cell"]}}
    given = {"initial_carry": carry, "reset_carry": carry}

    y = jit_apply(rnn, params, x, resets=RESETS)

    fixed = rnncells.RNN(rnn.cell)
    assert_equal(y, jit_apply(fixed, plain, x, resets=RESETS, **given))
    gradient = jax.jit(jax.grad(lambda p: rnn.apply(p, x).sum()))(params)
    assert all(
        np.any(leaf) for leaf in jax.tree.leaves(gradient["params"]["initial_carry"])
    )


def test_a_learned_carry_has_the_initial_values_of_the_cell(x):
    """Whether or not the call has a carry, and in a step."""
    cell = rnncells.SimpleCell(4, carry_init=nn.initializers.normal())
    rnn = rnncells.RNN(cell, learn_initial_carry=True)
    carry = jnp.zeros((ROWS, 4))
    expected = cell.initialize_carry(jax.random.key(0), (FEATURES_IN,))
    step = partial(rnn.init, method="step")
    for init, inputs in ((rnn.init, (x,)), (step, (carry, x[:, 0]))):
        params = jax.jit(init)(KEYS, *inputs)["params"]
        np.testing.assert_array_equal(params["initial_carry"]["carry_0"], expected)
    given = jax.eval_shape(partial(rnn.init, initial_carry=carry), KEYS, x)
    assert jax.tree.map(jnp.shape, given["params"]) == jax.tree.map(jnp.shape, params)


BIDIRECTIONAL = bidirectional(lambda _: rnncells.SimpleCell(4), None)
INITIAL = {
    "RNN": rnncells.RNN(rnncells.LSTMCell(4)),
    "cell of Flax": rnncells.RNN(nn.SimpleCell(4)),
    "LSTM": rnncells.LSTM(4, num_layers=2, bidirectional=True),
    "Bidirectional": BIDIRECTIONAL,
    "Stack": rnncells.Stack(
        [rnncells.GRUCell(4), nn.relu, nn.Dense(7), BIDIRECTIONAL, rnncells.LSTM(5)]
    ),
}


@pytest.mark.parametrize("name", by_level(INITIAL, 2))
def test_initial_carry_is_that_of_the_call(name, x):
    layer = INITIAL[name]
    params = params_of(layer, x)
    carry = layer.initialize_carry(None, batch_shape=(ROWS,))
    assert_equal(layer.initialize_carry(None, x[:, 0]), carry)
    run = jax.jit(partial(layer.apply, method="run"))
    last, _ = run(params, x[:, :0])
    assert_equal(last, carry)
    assert_equal(run(params, x, carry), run(params, x))


def test_stack_initializes_carries_after_dropout(x):
    dropout = [nn.Dropout(0.5), nn.Dropout(0.5, deterministic=False)]
    stack = rnncells.Stack([*dropout, rnncells.GRUCell(4)])
    (carry,) = stack.initialize_carry(None, x[:, 0])
    assert carry.shape == (ROWS, 4)


def test_stack_initializes_carries_of_images():
    cells = rnncells.ConvLSTMCell(2, (3, 3), strides=2), rnncells.ConvGRUCell(3, (3, 3))
    carry = rnncells.Stack(cells).initialize_carry(None, (ROWS, 8, 6, 1))
    assert jax.tree.map(jnp.shape, carry) == (((ROWS, 4, 3, 2),) * 2, (ROWS, 4, 3, 3))


class OtherCells(rnncells.MultiLayerRNN):
    """A layer of a user that takes any cell."""

    make: type = rnncells.LSTM1997Cell
    arguments: tuple = ()

    @nn.nowrap
    def cell(self):
        return self.make(features=self.features, **dict(self.arguments))


@pytest.mark.parametrize(
    "make, arguments, shape, expected",
    [
        (rnncells.LSTM1997Cell, (("block_size", 2),), (3,), ((8,), (4,))),
        (rnncells.LSTM2000Cell, (("block_size", 2),), (3,), ((10,), (4,))),
        (rnncells.ConvLSTMCell, (("kernel_size", (3,)),), (6, 3), ((6, 4), (6, 4))),
    ],
)
def test_multi_layer_rnn_asks_its_cell_for_the_carry(make, arguments, shape, expected):
    layer = OtherCells(features=4, num_layers=2, make=make, arguments=arguments)
    x = jnp.ones((ROWS, TIME, *shape))
    (y, states), params = jax.eval_shape(layer.init_with_output, KEYS, x)
    assert y.shape == (ROWS, TIME, *shape[:-1], 4)
    assert [part.shape for part in states] == [(2, ROWS, *part) for part in expected]
    start = layer.initialize_carry(None, x[:, 0])
    assert jax.tree.map(jnp.shape, start) == jax.tree.map(jnp.shape, states)
    jax.eval_shape(layer.apply, params, x, start)


def test_states_of_a_layer_are_named(x):
    layer = rnncells.LSTM(4)
    params = params_of(layer, x)
    _, states = jit_apply(layer, params, x)
    assert isinstance(states, rnncells.LSTMStates)
    given = jit_apply(layer, params, x, states)
    assert_equal(jit_apply(layer, params, x, (states.h, states.c)), given)
    run = partial(layer.apply, return_all_states=True)
    _, _, everywhere = jax.eval_shape(run, params, x)
    step = partial(layer.apply, method="step")
    first, _ = jax.eval_shape(step, params, None, x[:, 0])
    assert isinstance(everywhere, rnncells.LSTMStates)
    assert isinstance(first, rnncells.LSTMStates)
    # As from a file, or of another library, in another order.
    by_name = {"c": states.c, "h": states.h}
    swapped = namedtuple("State", "c, h")(**by_name)
    fields = dataclasses.make_dataclass("State", ["c", "h"])(**by_name)
    for others in (by_name, swapped, fields):
        assert_equal(layer.apply(params, x, others), layer.apply(params, x, states))
        stepped = step(params, others, x[:, 0])
        assert_equal(stepped, step(params, states, x[:, 0]))


class Select(nn.Module):
    """A layer of a user for `nn.Sequential`."""

    def __call__(self, outputs, states):
        return outputs


class OutputsOnly(rnncells.GRU):
    """A layer of a user that returns one array."""

    def __call__(self, x):
        return super().__call__(x)[0]


def test_sequential_of_flax_may_pass_states_to_who_expects_them(x):
    chains = [
        [nn.Dense(3), rnncells.GRU(4)],
        [rnncells.LSTM(4), Select(), nn.Dense(5)],
        [nn.Sequential([rnncells.LSTM(4), lambda y, states: y]), nn.Dense(5)],
        [OutputsOnly(4), nn.Dense(5)],
        [rnncells.Stack([rnncells.GRU(4), rnncells.GRU(2)]), nn.Dense(5)],
    ]
    for chain in chains:
        jax.eval_shape(nn.Sequential(chain).init, KEYS["params"], x)
    # A Sequential that ends in a layer returns its tuple to the one around it.
    inner = nn.Sequential([nn.Dense(3), rnncells.GRU(4)])
    with pytest.raises(TypeError, match="passes both to the next layer, Sequential"):
        nn.Sequential([inner, nn.Sequential([rnncells.GRU(4)])]).init(KEYS, x)


class Shift(nn.Module):
    """A layer of a user: the inputs of the step before."""

    def run(self, inputs, initial_carry=None, **arguments):
        first = jnp.zeros_like(inputs[:, :1])
        return inputs[:, -1], jnp.concatenate([first, inputs[:, :-1]], axis=1)


def test_every_layer_is_a_sequence_layer(x):
    for layer in (*INITIAL.values(), *STEPPED.values(), rnncells.GRU(4), Shift()):
        assert isinstance(layer, rnncells.SequenceLayer)
    for other in (rnncells.LSTMCell(4), nn.RNN(nn.GRUCell(4)), nn.Dense(4)):
        assert not isinstance(other, rnncells.SequenceLayer)


def test_stack_runs_a_sequence_layer_of_a_user(x):
    stack = rnncells.Stack([rnncells.SimpleCell(4), Shift()], return_carry=True)
    params = params_of(stack, x)
    carry, y = jit_apply(stack, params, x)
    expected = jit_apply(rnncells.Stack([rnncells.SimpleCell(4)]), params, x)
    assert_close(y[:, 1:], expected[:, :-1])
    assert_close(carry[1], expected[:, -1])


class ProposalCell(nn.Module):
    """A cell as Flax's proposal has it: its sample has shape, dtype and ndim."""

    features: int
    num_feature_dims = 1

    @nn.nowrap
    def initialize_carry(self, key, sample_input):
        assert sample_input.ndim == len(sample_input.shape) == len(sample_input)
        shape = (*sample_input.shape[:-1], self.features)
        assert shape == (*sample_input[:-1], self.features)
        return jnp.zeros(shape, sample_input.dtype)

    @nn.compact
    def __call__(self, carry, x):
        gate = nn.Dense(self.features, dtype=x.dtype, param_dtype=x.dtype)
        carry = nn.tanh(gate(jnp.concatenate([carry, x], axis=-1)))
        return carry, carry


class ProposalOnOurBase(rnncells.RNNCellBase):
    """The same on the base of rnncells."""

    features: int
    num_feature_dims = 1
    initialize_carry = ProposalCell.initialize_carry
    __call__ = ProposalCell.__call__


@pytest.mark.parametrize("make", by_level([ProposalCell, ProposalOnOurBase], 1))
def test_cells_of_the_proposal_run_everywhere(make, x):
    rnn = rnncells.RNN(make(4))
    params = params_of(rnn, x)
    y = jit_apply(rnn, params, x)
    _, first = jit_apply(rnn, params, None, x[:, 0], method="step")
    assert_close(first, y[:, 0])
    both = rnncells.Bidirectional(rnncells.RNN(make(4)), rnncells.RNN(make(4)))
    outputs, _ = jax.eval_shape(both.init_with_output, KEYS, x)
    assert outputs.shape == (ROWS, TIME, 8)
    stack = rnncells.Stack([make(4)])
    assert jax.eval_shape(stack.init_with_output, KEYS, x)[0].shape == y.shape
    report = rnncells.check_cell(make(4), (ROWS, FEATURES_IN))
    assert report.ok, report


@pytest.mark.parametrize("name", ["LSTMCell", "GRUCell"])
def test_tabulate_shows_a_cell_as_flax_does(name, x):
    """With a row for each gate."""

    def rows(module):
        class Model(nn.Module):
            @nn.compact
            def __call__(self, x):
                cell = getattr(module, name)(4)
                return cell(cell.initialize_carry(KEYS["params"], x.shape), x)

        options = {"console_kwargs": {"width": 200, "force_terminal": False}}
        text = Model().tabulate(KEYS["params"], x[:, 0], **options)
        paths = re.findall(r"^│ (\w+(?:/\w+)*) ", text, re.MULTILINE)
        return sorted(paths), re.findall(r"Total Parameters: \d+", text)

    assert rows(rnncells) == rows(nn)


@pytest.mark.parametrize("name", ["LSTMCell", "GRUCell"])
def test_flax_sees_the_calls_of_a_cell(name, x):
    """With `capture_intermediates` and `intercept_methods`, as for Flax's cells."""

    def seen(module):
        cell, methods = getattr(module, name)(4), []
        carry = cell.initialize_carry(KEYS["params"], x[:, 0].shape)
        params = jax.eval_shape(cell.init, KEYS["params"], carry, x[:, 0])
        apply = partial(cell.apply, capture_intermediates=True)

        def interceptor(call, args, kwargs, context):
            if context.module.name is None:
                methods.append(context.method_name)
            return call(*args, **kwargs)

        with nn.intercept_methods(interceptor):
            _, captured = jax.eval_shape(apply, params, carry, x[:, 0])
        call = captured["intermediates"]["__call__"]
        return [m for m in methods if m != "setup"], jax.tree.map(jnp.shape, call)

    assert seen(rnncells) == seen(nn)


def test_a_cell_can_sow(x):
    class SowingCell(rnncells.GRUCell):
        def recur(self, carry, projected):
            carry, output = super().recur(carry, projected)
            self.sow("intermediates", "h", output)
            return carry, output

    rnn = rnncells.RNN(SowingCell(4), variable_axes={"intermediates": 1})
    params = {"params": params_of(rnn, x)["params"]}
    y, sown = jit_apply(rnn, params, x, mutable="intermediates")
    (h,) = sown["intermediates"]["cell"]["h"]
    np.testing.assert_array_equal(h, y)
