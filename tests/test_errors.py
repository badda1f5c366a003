"""Errors and warnings: a call for each rule by its message, and what must not raise."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Literal, get_args, get_origin

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import user_cells
from cases import CELLS
from flax.errors import (
    CallCompactUnboundModuleError,
    InvalidRngError,
    ScopeParamNotFoundError,
)
from flax.typing import Initializer
from jax.errors import JaxRuntimeError

import rnncells
from rnncells import (
    GRU,
    LSTM,
    RNN,
    Bidirectional,
    Bptt,
    CausalConvCell,
    Chunk,
    ConvLSTMCell,
    DropConnectCell,
    ElmanRNN,
    GriffinBlock,
    GRUCell,
    LRUCell,
    LSTM1997Cell,
    LSTM2000Cell,
    LSTMCell,
    LSTMStates,
    MinGRUCell,
    MultiLayerRNN,
    Newton,
    Online,
    Rflo,
    RNNCellBase,
    Rtrl,
    SimpleCell,
    Stack,
    StackedCell,
    Truncated1997,
    TruncatedBptt,
    VariationalGRUCell,
    XLSTMBlock,
    ZoneoutCell,
    diagnostics,
    initializers,
    packing,
    plots,
)
from rnncells.gradients import Gradient
from rnncells.interop import jax_rnn, keras, pytorch

pytestmark = pytest.mark.default

X = jnp.ones((2, 7, 3))
STEP = X[:, 0]
KEY = jax.random.key(0)
KEYS = {"params": KEY, "dropout": KEY}


class Counting(nn.Module):
    """A cell of a user: counts the steps, for all rows together."""

    num_feature_dims: int = 1

    def __call__(self, carry, x):
        return carry + 1, x


class Summing(Counting):
    """A cell of a user: its output is a sum over the rows."""

    def __call__(self, carry, x):
        return carry, x.sum()


SIMPLE_PARAMS = {
    "i": {"kernel": jnp.ones((3, 4)), "bias": jnp.ones(4)},
    "h": {"kernel": jnp.ones((4, 4))},
}


def gru(**options):
    return RNN(GRUCell(4), **options)


def on_line_step(cotangent):
    rnn = gru(gradient=Rtrl())
    online = Online(rnn)
    params = jax.eval_shape(rnn.init, KEY, X)
    state = jax.eval_shape(online.init, params, X[:, 0])
    return jax.eval_shape(online.step, params, state, X[:, 0], cotangent)


def init(layer, *inputs, **arguments):
    return layer.init(KEY, X, *inputs, **arguments)


def run(x=X, **arguments):
    return gru().init(KEY, x, **arguments)


def step(layer, *inputs, **arguments):
    return layer.init(KEY, *inputs, method="step", **arguments)


carry = GRUCell(4).initialize_carry


class OwnCell(user_cells.OwnCell):
    """Right; those made by `own` break one rule."""

    def carry_shape(self, input_shape):
        return (self.features,), (self.features,)

    def setup(self):
        self.gates("i", "h")
        self.dense = nn.Dense(self.features)

    def recur(self, carry, projected):
        c, h = carry
        h = nn.tanh(self.affine(h, "h") + projected)
        return (c + h, h), h


def own(**members):
    return type("MyCell", (OwnCell,), members)(4)


class ForeignCell(nn.Module):
    """A cell without a base class."""

    step: Callable
    features: int = 3
    num_feature_dims = 1
    initialize_carry = user_cells.FlaxCell.initialize_carry

    def __call__(self, carry, inputs):
        return self.step(carry, inputs)


def outputs(cell, **options):
    """Traces a layer, its parameters made by the plain loop."""
    rnn = RNN(cell, **options)
    return jax.eval_shape(rnn.apply, jax.eval_shape(rnn.init, KEY, X), X)


def recur(of_carry):
    """Returns a `recur` that multiplies the state by `of_carry(cell, h)`."""

    def recur(cell, carry, projected):
        c, h = carry
        h = nn.tanh(of_carry(cell, h) + projected)
        return (c, h), h

    return recur


def printed(cell, h):
    jax.debug.print("{}", h)
    return cell.affine(h, "h")


class SowingCell(GRUCell):
    def recur(self, carry, projected):
        self.sow("intermediates", "h", carry)
        return super().recur(carry, projected)


def sowing():
    return gru(memory="sqrt").clone(cell=SowingCell(4))


def called_back(cell, h):
    return cell.affine(jax.pure_callback(abs, h, h), "h")


def lstm(**options):
    return LSTM(4, **options)


def apply(*arguments, layer=None, **options):
    layer = lstm() if layer is None else layer
    return layer.apply(params_of(layer), *arguments, **options)


def zoneout(rate=0.4, **options):
    return ZoneoutCell(LSTMCell(4), rate, **options)


def run_step(cell):
    x = X[:, 0]
    carry = cell.initialize_carry(None, x)
    return cell.init(KEYS, carry, x, deterministic=False)


STATES = tuple(jnp.zeros((1, 2, 4)) for _ in range(2))


def stacked(*layers, **options):
    return StackedCell([*layers, GRUCell(4)], **options)


def decode(rnn=None, x=X[:, 0], rngs=KEYS, **arguments):
    rnn = gru() if rnn is None else rnn
    return rnn.init(rngs, x, method="decode", **arguments)


def force(rate, rngs=None):
    rnn = RNN(GRUCell(3))
    arguments = {"targets": X, "teacher_forcing_rate": rate, "method": "decode"}
    return rnn.apply(params_of(rnn), X[:, 0], rngs=rngs, **arguments)


def checked_lengths(lengths):
    with jax.enable_checks(True):
        return jax.block_until_ready(jax.jit(lambda n: run(seq_lengths=n))(lengths))


ONE, TWO = np.ones((1, 3)), np.ones((2, 3))
PLAN = packing.plan([3, 0, 2], row_length=4)
PADDED, IN_ROWS = np.ones((3, 5, 3)), np.ones((2, 4, 3))


def summed(result, carry=None, batches=TWO, **options):
    """Accumulates losses that return a result for the sum of a batch."""

    def losses(params, batch, *carry):
        return result(jnp.sum(params * batch))

    return rnncells.accumulate(losses, jnp.ones(3), batches, carry=carry, **options)


def packed():
    return packing.pack([np.ones((n, 3), np.float32) for n in (3, 2)], row_length=5)


def dropout_layers(**options):
    """Returns an initialized layer with dropout between its layers."""
    layer = LSTM(4, num_layers=2, dropout=0.3)
    params = jax.eval_shape(partial(layer.init, deterministic=True), KEY, X)
    return jax.eval_shape(partial(layer.apply, **options), params, X)


def params_of(layer, x=X):
    shapes = jax.eval_shape(layer.init, KEY, x)
    return jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)


class ProposalCell(nn.Module):
    """A cell of a user with a field `deterministic` that its call does not take."""

    num_feature_dims = 1
    deterministic: bool = False

    def initialize_carry(self, key, sample_input):
        return jnp.zeros(sample_input.shape, sample_input.dtype)

    def __call__(self, carry, x):
        return carry + x, x


class DroppingCell(user_cells.FlaxCell):
    """A cell of a user with dropout."""

    @nn.compact
    def __call__(self, carry, x):
        return carry, nn.Dropout(0.5, deterministic=False)(x)


class SetUpCell(GRUCell):
    """A cell of a user that gives `deterministic` to its dropout in `setup`."""

    deterministic: bool | None = None

    def setup(self):
        super().setup()
        self.drop = nn.Dropout(0.5, deterministic=self.deterministic)

    def project(self, inputs):
        return super().project(self.drop(inputs))


class NarrowCell(RNNCellBase):
    """A cell of a user whose gates have no width."""

    num_feature_dims = 1

    def setup(self):
        self.gates("i")

    def project(self, inputs):
        return self.affine(inputs, "i")


class Echo(nn.Module):
    """A layer of a user that forgets its carry."""

    def run(self, inputs, initial_carry=None, **arguments):
        return inputs


class Batch:
    """Stands for `torch.nn.utils.rnn.PackedSequence`."""

    batch_sizes = data = X


TYPE_ERRORS = {
    "`time_major` of RNN must be a bool, got 64": lambda: RNN(LSTMCell(4), 64),
    "`features` of LSTMCell must be an int.* of a cell was": lambda: LSTMCell(jnp.tanh),
    "`initialize_carry` must be": lambda: LSTMCell.initialize_carry(KEY, (2,), 4),
    r"with \(key, batch_dims, size\).*`import": lambda: LSTMCell(4).initialize_carry(
        KEY, (2,), 4
    ),
    r"must be an instance such as GRUCell\(features\)": lambda: RNN(GRUCell),
    "got '4'": lambda: GRUCell("4"),
    "must be floating or complex": lambda: run(initial_carry=jnp.ones((2, 4), int)),
    "must be real, got a projection in": lambda: RNN(LRUCell(4)).init(KEY, X + 0j),
    "Pass exactly one of `sample_input`": lambda: carry(KEY, (3,), input_shape=(3,)),
    "must be integers, got float32": lambda: run(seq_lengths=jnp.array([7.0, 1.0])),
    "`mask` must be boolean, got float32": lambda: run(mask=jnp.ones((2, 7))),
    "`gate_fn` of LSTMCell must be a function, got 4": lambda: LSTMCell(3, 4),
    r"must return \(new_carry, output\), got list": lambda: outputs(
        own(recur=lambda cell, carry, z: [carry, z])
    ),
    r"\(new_carry, output\), got tuple \(\(2, 3\), \(2, 3\), \(2, 3\)\)": lambda: (
        outputs(ForeignCell(lambda carry, x: (carry, x, x)))
    ),
    "`gates` takes names as separate arguments": lambda: outputs(
        own(setup=lambda cell: cell.gates(["i", "h"]))
    ),
    "`gradient` of RNN must be a method of": lambda: gru(gradient=Rtrl),
    "`carry_hook` of Bptt must be a function of the": lambda: Bptt(carry_hook=3),
    "`num_heads` of MyCell must be an int, got True": lambda: own(num_heads=True),
    "`rnn` of Online must be an RNN, .* got GRUCell": lambda: Online(GRUCell(4)),
    "got the function save_only_these_names, which makes policies. Call": lambda: gru(
        memory=jax.checkpoint_policies.save_only_these_names
    ),
    "`cell` of RNN must be a flax.linen module .*, got 4": lambda: RNN(4),
    "Dense is not a cell": lambda: outputs(nn.Dense(4)),
    "`forward_rnn` of Bidirectional": lambda: Bidirectional(OwnCell(4), OwnCell(4)),
    "for an LSTM, got the": lambda: apply(X, {"0": STATES[0], "1": STATES[1]}),
    "`states` of LSTM must be arrays, got NoneType": lambda: apply(X, (None, "zeros")),
    "`inputs` of LSTM must be one array, got": lambda: apply(LSTMStates(*STATES), X),
    "`reverse` is an argument of RNN, not of its method `run`": lambda: apply(
        X, layer=gru(), reverse=True, method="run"
    ),
    "`hx` of RNN.run is called `initial_carry` here": lambda: apply(
        X, layer=gru(), hx=None, method="run"
    ),
    "`inputs` of LSTM.step must be one": lambda: apply(STEP, STATES, method="step"),
    "`states` of LSTM must have the dtype of its parameters, float32,": lambda: apply(
        X, jax.tree.map(lambda s: s.astype(jnp.bfloat16), STATES)
    ),
    "`dropout` of LSTM must be a number, got True": lambda: lstm(dropout=True),
    "`layers` of Stack must be cells, modules and functions": lambda: Stack([GRUCell]),
    "`cell` of ZoneoutCell must be a cell": lambda: ZoneoutCell(jnp.tanh),
    "`features` of the cell of ZoneoutCell must be": lambda: ZoneoutCell(GRUCell(None)),
    "must be a part of its carry; the": lambda: run_step(ZoneoutCell(LSTM1997Cell(2))),
    "`attention` is not an argument of LSTM": lambda: init(lstm(), attention=None),
    "`bidirectional` is an argument of GRU": lambda: init(GRU(4), bidirectional=True),
    "RNN takes inputs by position, got 2": lambda: init(gru(), jnp.zeros((2, 4))),
    "LSTM.step: missing a required argument: 'inputs'": lambda: step(lstm(), STEP),
    r"GRU returns \(outputs, states\), and Sequential passes both to the": lambda: init(
        nn.Sequential([GRU(4), ElmanRNN(5)])
    ),
    "LSTM returns .* the next layer": lambda: init(nn.Sequential([lstm(), nn.tanh])),
    "`cell` of RNN .* got a list. Make one cell": lambda: RNN([GRUCell(4), GRUCell(5)]),
    "`inputs` must be an array of": lambda: gru().init(KEY, np.array([[["a", "b"]]])),
    r"`kernel_size\[0\]` of ConvLSTMCell must be an": lambda: ConvLSTMCell(4, (3.0, 3)),
    "MultiLayerRNN must be an int": lambda: MultiLayerRNN(GRUCell(4), num_layers=2),
    "LSTM takes features by position, got 3 arguments": lambda: LSTM(3, 4, 2),
    "got a PackedSequence of PyTorch. Convert it with": lambda: run(Batch()),
    "`carry` of LSTMCell must be the carry of a cell, got": lambda: init(
        RNN(LSTMCell(4)), initial_carry=LSTMStates(STEP, STEP)
    ),
    "Pass only one of `key` and `rng`": lambda: carry(KEY, (2, 3), rng=KEY),
    "takes `key` and `sample_input`, got": lambda: carry(KEY, shape=(2, 3)),
    "`key` of `initialize_carry` must be a random key .*, got 2": lambda: carry(2, 4),
    "`sample_input` must be one step of input, .*, got 4": lambda: carry(KEY, 4),
    "got a random key. The key is the first argument": lambda: carry(None, KEY),
    "Pass exactly one of `sample_input` and": lambda: gru().initialize_carry(KEY),
    "`batch_shape` must be a tuple of": lambda: gru().initialize_carry(batch_shape=2),
    "`carry_shape` of MyCell must return shapes, .* needs a comma:": lambda: outputs(
        own(carry_shape=lambda cell, shape: cell.features)
    ),
    "`dtype` of GRUCell must be floating or": lambda: GRUCell(4, dtype=jnp.int32),
    "`dtype` of GRU must be floating or complex, got": lambda: GRU(4, dtype="bf16"),
    "`recurrent_kernel_init` of LSTMCell must be .*, got orthogonal.": lambda: LSTMCell(
        4, recurrent_kernel_init=nn.initializers.orthogonal
    ),
    "LSTM1997Cell needs `blocks` or `features`": lambda: LSTM1997Cell(),
    r"as torch_module.state_dict\(\), got": lambda: pytorch.from_state_dict(
        lstm(), ONE
    ),
    r"as keras_layer.get_weights\(\), got": lambda: keras.from_weights(lstm(), 3),
    "got the class LSTM": lambda: jax_rnn.from_weights(LSTM, ONE),
    r"got RNN of flax.linen.*\.GRUCell": lambda: pytorch.from_state_dict(
        RNN(nn.GRUCell(4)), {}
    ),
    r"got GRUCell\(features=4, gate_fn=hard_sigmoid\)": lambda: pytorch.from_state_dict(
        GRUCell(4, gate_fn=nn.hard_sigmoid), {}
    ),
    r"as layer.init returns them, got": lambda: pytorch.to_state_dict(lstm(), []),
    "`longest` of .* must be an int, got 7.5": lambda: initializers.chrono(7.5),
    "`gates` must map names of": lambda: initializers.PerGateInit({"hf": 1.0}),
    "one size for each spatial axis": lambda: ConvLSTMCell(4, 3),
    "must have gates whose names begin with 'h'": lambda: RNN(
        DropConnectCell(MinGRUCell(4), deterministic=False)
    ).init(KEYS, X),
    "`inputs` must be an array, .*, got a list of 2": lambda: run([STEP, X[:, 1]]),
    "GRUCell multiplies one array by its weights, got tuple. Join": lambda: run((X, X)),
    "got a Packed batch. Pass packed.inputs with": lambda: run(packed()),
    "`kernel_init` of LSTMCell must be an initializer of matrices, got": lambda: (
        LSTMCell(4, kernel_init=initializers.forget_gate())
    ),
    r"`run` of Echo must return \(carry, outputs\), got": lambda: init(Stack([Echo()])),
    "a layer that is called with `reverse`": lambda: Bidirectional(LSTM(4), LSTM(4)),
    "`deterministic` of `drop` in SetUpCell is False, but the call has": lambda: RNN(
        SetUpCell(4, deterministic=False)
    ).init(KEYS, X, deterministic=True),
    "`inputs` must be .*, got None": lambda: lstm().init(KEY, None),
    r"`plan` of unpack\(rows, plan\) must be a": lambda: packing.unpack(
        packed().plan, packed().inputs
    ),
    "`seq_lengths` must be a list of integers,": lambda: packing.plan(
        [np.ones((3, 2)), np.ones((2, 2))], row_length=5
    ),
    "must be integers, got float64": lambda: packing.plan([2.0], 4),
    "must be a list .* got ndarray": lambda: packing.pack(PADDED, 4),
    "`reverse` .* must be a bool": lambda: PLAN.last(IN_ROWS, 1),
    "`seq_lengths` must be known": lambda: jax.jit(lambda n: packing.plan(n, 4))(ONE),
    "`layers` of StackedCell must be cells, modules and": lambda: stacked(LSTMCell),
    "run one step at a time, got GRU, a layer over sequences": lambda: stacked(GRU(4)),
    "Counting has `num_feature_dims`, but it has no": lambda: stacked(Counting()),
    "`decode` needs `steps`, or `targets`, which has as many steps": decode,
    "`feed` of `decode` must be a function": lambda: decode(steps=3, feed=nn.Dense(3)),
    r"feed\(outputs, key\). `feed_key`": lambda: decode(steps=3, feed=lambda y, key: y),
    "`teacher_forcing_rate` of `decode` must be a number": lambda: force(jnp.ones(2)),
    "a field `deterministic`": lambda: init(RNN(ProposalCell()), deterministic=True),
}
VALUE_ERRORS = {
    r"`carry` of LSTMCell\(features=4\) must have shapes \(\(2, 4\),": lambda: LSTMCell(
        4
    ).init(KEY, LSTMCell(4).initialize_carry(KEY, (2,)), STEP),
    r"got \[\(2, 4\)": lambda: LSTMCell(4).init(KEY, [jnp.ones((2, 4))] * 2, STEP),
    "must have at least 3": lambda: ConvLSTMCell(4, (3, 3)).initialize_carry(KEY, (2,)),
    "got True": lambda: GRUCell(True),
    "at least 1, got 0": lambda: GRUCell(0),
    "GRUCell got the carry": lambda: run(X + 0j, initial_carry=jnp.ones((2, 4))),
    r"`seq_lengths` must be in \[0, 7\]": lambda: run(seq_lengths=jnp.array([7, 9])),
    r"batch axes of the inputs, \(2,\), got": lambda: run(seq_lengths=jnp.array([7])),
    r"`mask` must have .* \(2, 7\), got the": lambda: run(mask=jnp.ones((7, 2), bool)),
    "must have a time axis and 1 feature axes, got the shape": lambda: run(jnp.ones(3)),
    "the same batch and time": lambda: run((jnp.ones((2, 7, 3)), jnp.ones((3, 7, 3)))),
    "at least one array": lambda: run(()),
    r"one of \['run', 'hold', 'zero'\], got 'none'": lambda: gru(padded_outputs="none"),
    "`reverse` of Bidirectional needs `keep_order=True`": lambda: init(
        Bidirectional(gru(), gru()), reverse=True
    ),
    "`initial_carry` of Bidirectional must be .* each of the 2 .* got tuple": lambda: (
        init(Bidirectional(gru(), gru()), initial_carry=(jnp.ones((2, 4)),) * 3)
    ),
    r"`reset_carry` must have the .* carry, real\(2, 4\), got real\(4,\)": lambda: run(
        resets=jnp.ones((2, 7), bool), reset_carry=jnp.ones(4)
    ),
    "`reset_carry` needs `resets`, got None": lambda: run(reset_carry=jnp.ones((2, 4))),
    "got 4294967299 at index": lambda: run(seq_lengths=np.array([2**32 + 3, 1])),
    r"got 9 at index \(0,\)": lambda: jax.jit(
        lambda x: run(x, seq_lengths=np.array([9, 1]))
    )(X),
    "`gates` of NarrowCell needs the width": lambda: init(
        NarrowCell(), method="project"
    ),
    "the width of gate `ir` is unknown": lambda: init(GRUCell(None), method="project"),
    r"array of the carry .* the axes \(2,\) of the inputs, got the shape": lambda: init(
        RNN(Counting()), initial_carry=jnp.int32(0), mask=jnp.ones((2, 7), bool)
    ),
    r"array of the outputs .* the axes \(2, 7\) of the inputs, got": lambda: init(
        RNN(Summing(), True, padded_outputs="zero"),
        initial_carry=X[0],
        seq_lengths=jnp.ones(7, int),
    ),
    "and returned real": lambda: outputs(ForeignCell(lambda carry, x: (x[:, :2], x))),
    "with the shapes of the": lambda: outputs(own(recur=lambda cell, carry, z: (z, z))),
    r"`affine` of MyCell takes names .*: \['i', 'h'\], got 'hh'": lambda: outputs(
        own(recur=recur(lambda cell, h: cell.affine(h, "hh")))
    ),
    "`affine` needs at least one name": lambda: outputs(
        own(recur=recur(lambda cell, h: cell.affine(h)))
    ),
    "memory='sqrt' of RNN needs the fast loop, which needs a step that": lambda: (
        outputs(own(recur=recur(called_back)), memory="sqrt")
    ),
    "^implementation='newton' and memory='sqrt' of RNN exclude each other": lambda: RNN(
        OwnCell(4), implementation="newton", memory="sqrt", gradient=TruncatedBptt(5)
    ),
    "`carry_hook` and implementation='newton' of RNN exclude": lambda: RNN(
        MinGRUCell(4),
        implementation="newton",
        gradient=type("G", (Gradient,), {"carry_hook": abs})(),
    ),
    "needs the loop of linear cells, which .*, got LSTMCell. Or it": lambda: init(
        RNN(LSTMCell(4), implementation="associative")
    ),
    r"gradient=Rtrl\(\) needs LSTM to": lambda: LSTM(4, num_layers=2, gradient=Rtrl()),
    r"gradient=Rflo\(\) needs Stack to have one recurrent layer": lambda: Stack(
        [GRUCell(4), Bidirectional(gru(), gru(gradient=Rflo()))]
    ),
    r"gradient=Rtrl\(\) of RNN needs .* draws no random numbers, .*=True": lambda: RNN(
        ZoneoutCell(GRUCell(4), 0.1), gradient=Rtrl()
    ).apply(
        params_of(RNN(ZoneoutCell(GRUCell(4), deterministic=True))),
        X,
        deterministic=False,
        rngs={"dropout": KEY},
    ),
    r"gradient=Rtrl\(\) of RNN needs .* a step that reads only .*, got": lambda: (
        jax.eval_shape(
            lambda scale: RNN(
                SimpleCell(4, activation_fn=lambda a: scale * a), gradient=Rtrl()
            ).apply({"params": {"cell": SIMPLE_PARAMS}}, X),
            1.0,
        )
    ),
    r"gradient=Rtrl\(\) of RNN needs the loop of forward methods, which": lambda: RNN(
        own(recur=recur(printed)), gradient=Rtrl()
    ).apply(RNN(own()).init(KEY, X), X),
    r"gradient=Truncated1997\(\) of RNN": lambda: init(gru(gradient=Truncated1997())),
    r"`decode` of RNN needs gradient=Bptt\(\) .* got": lambda: RNN(
        GRUCell(3), gradient=TruncatedBptt(2)
    ).init(KEY, STEP, steps=2, method="decode"),
    "`carry_hook` must return a gradient in the form of its argument,": lambda: (
        jax.grad(
            lambda x: (
                gru(gradient=Bptt(carry_hook=jnp.sum))
                .apply(gru().init(KEY, X), x)
                .sum()
            )
        )(X)
    ),
    "`rnn` of Online needs a gradient with an update at each": lambda: Online(gru()),
    "`cotangent` of Online.step must have the form": lambda: on_line_step(jnp.ones(4)),
    "`memory` of RNN must be one of .*, a": lambda: RNN(OwnCell(4), memory="half"),
    r"writes to no collection; SowingCell writes to \['intermediates'\],": lambda: (
        sowing().apply(sowing().init(KEY, X), X, mutable="intermediates")
    ),
    "MyCell has side effects, such as `jax.debug.print`": lambda: RNN(
        own(recur=recur(printed)), memory="sqrt"
    ).apply(RNN(own()).init(KEY, X), X),
    r"\['auto', 'scan', 'associative', 'newton'\] or a Newton\(...\),": lambda: RNN(
        OwnCell(4), implementation="cuda"
    ),
    "`steps` of Chunk must be at least 1, got 0": lambda: Chunk(0),
    "`check_cell` needs a cell": lambda: rnncells.check_cell(GRUCell(None), (2, 3)),
    "`jacobian` of Newton must be one of": lambda: Newton("dense"),
    r"`damping` of Newton must be in \[0, 1\], got 2": lambda: Newton(damping=2),
    "`tolerance` of Newton must be positive": lambda: Newton(tolerance=0.0),
    "needs implementation='newton'": lambda: gru(return_certificate=True),
    r"gradient=Rtrl\(\) and implementation='newton'": lambda: gru(
        implementation="newton", gradient=Rtrl()
    ),
    "implementation='newton' of RNN needs .* draws no random": lambda: RNN(
        zoneout(deterministic=False), implementation="newton"
    ).apply(params_of(RNN(zoneout(deterministic=True))), X, rngs=KEYS),
    "`states` of LSTM must have the shapes": lambda: apply(X, STATES[0]),
    r"of GRU must .* inputs of .* in each step, .* \(states, inputs of": lambda: apply(
        STEP, STATES[0], layer=GRU(4), method="step"
    ),
    "each of the 1 recurrent .* The": lambda: step(Stack([gru()]), STEP, (STEP,)),
    "A step takes the carry, and then": lambda: step(gru(), STEP, jnp.zeros((2, 4))),
    "`proj_features` of LSTM must be less than": lambda: lstm(proj_features=4),
    r"`dropout` of LSTM must be in \[0, 1\), got 1.0": lambda: lstm(dropout=1.0),
    "`step` of LSTM needs `bidirectional=False`, got True": lambda: apply(
        None, STEP, layer=lstm(bidirectional=True), method="step"
    ),
    "`step` of RNN needs": lambda: step(RNN(GRUCell(4), reverse=True), None, STEP),
    "`step` of Stack needs": lambda: step(Stack([nn.RNN(nn.GRUCell(4))]), None, STEP),
    "`initialize_carry` of LSTM with `learn_states` needs parameters": lambda: lstm(
        learn_states=True
    ).initialize_carry(KEY, STEP),
    r"must be a list .* as in Stack\(\[a": lambda: Stack(GRUCell(4), GRUCell(4)),
    "`layers` of StackedCell must be a list with at least one": lambda: StackedCell([]),
    "`skip_connections` of Stack": lambda: Stack([nn.relu], skip_connections=True),
    "`initial_carry` of Stack must be a tuple with one carry for each": lambda: init(
        Stack([LSTMCell(4), GRUCell(4)]), initial_carry=(STATES,)
    ),
    "`rate` of .*got -1": lambda: zoneout((0.1, -1)),
    "`rng_collection` of ZoneoutCell must not be 'dropout':": lambda: ZoneoutCell(
        VariationalGRUCell(4, input_rate=0.3)
    ),
    "one number for each of the 2 parts": lambda: run_step(zoneout((0.1, 0.2, 0.3))),
    "`padding` of ConvLSTMCell must": lambda: ConvLSTMCell(4, (3, 3), padding="full"),
    "`batch_shape` is not enough for RNN: .*ConvLSTMCell must have at": lambda: RNN(
        ConvLSTMCell(4, (3, 3))
    ).initialize_carry(batch_shape=(2,)),
    "`batch_shape` is not enough for RNN: its carry depends on the": lambda: RNN(
        own(carry_shape=lambda cell, shape: shape)
    ).initialize_carry(batch_shape=(2,)),
    "`initialize_carry` of RNN with `learn_initial_carry` needs": lambda: gru(
        learn_initial_carry=True
    ).initialize_carry(batch_shape=(2,)),
    "flax.linen ignores `features` and takes the width of the carry.": lambda: LSTMCell(
        1
    ).init(KEY, (jnp.ones((2, 4)),) * 2, STEP),
    "initializer of the bias of `hi` in LSTMCell failed for the shape": lambda: (
        LSTMCell(4, bias_init=nn.initializers.lecun_normal()).init(
            KEY, (jnp.ones((2, 4)),) * 2, STEP
        )
    ),
    "`features` of LSTM2000Cell must": lambda: LSTM2000Cell(features=5, block_size=2),
    "`blocks` of LSTM1997Cell must be at least 1": lambda: LSTM1997Cell(0),
    "one value for each of 2 blocks": lambda: LSTM1997Cell(2, input_gate_bias=(-1.0,)),
    "`biases` must contain only": lambda: LSTM1997Cell(2, biases=("forget",)),
    "add 'out' to `biases`": lambda: LSTM1997Cell(
        2, biases=("in",), output_gate_bias=(0, 0)
    ),
    "`forget_gate_bias` must have": lambda: LSTM2000Cell(2, forget_gate_bias=(1.0,)),
    "add 'forget' to `biases`": lambda: LSTM2000Cell(
        2, biases=("in",), forget_gate_bias=(1, 1)
    ),
    "such as weight_ih_l0, got epoch, state": lambda: pytorch.from_state_dict(
        lstm(), {"epoch": 3, "state": {}}, "lstm."
    ),
    r"2 values, \(sum of losses, count\), got 1\.": lambda: summed(lambda s: s),
    r"got 3\. With `carry`, ": lambda: summed(lambda s: (s, 1, s)),
    r"count, carry\), got 2": lambda: summed(lambda s: (s, 1), 0.0),
    r"a scalar as its count, got .* \(2,\)": lambda: summed(lambda s: (s, np.ones(2))),
    r"carry .* argument, float32\[\], got int": lambda: summed(
        lambda s: (s, 1, 1), 0.0
    ),
    r"carry .*, \(float32\[\],\), got \[f": lambda: summed(
        lambda s: (s, 1, [s]), (0.0,)
    ),
    "`batches` must be arrays with equal": lambda: summed(
        lambda s: (s, 1), batches=1.0
    ),
    "truncate_gradient=False needs windows": lambda: summed(
        lambda s: (s, 1), truncate_gradient=False
    ),
    "`longest` of chrono must be at least 3": lambda: initializers.chrono(2),
    "`features` of pytorch must be at least": lambda: initializers.pytorch(0),
    "must divide `features` 6, got 4": lambda: GRUCell(6, num_heads=4),
    "`num_heads` of XLSTMBlock must divide": lambda: XLSTMBlock(8, num_heads=3),
    "`block_size` of XLSTMBlock must divide": lambda: XLSTMBlock(8, block_size=5),
    "inputs of GriffinBlock must have its width, 8": lambda: init(GriffinBlock(8)),
    "inputs of CausalConvCell must have as many": lambda: init(RNN(CausalConvCell(8))),
    "`strides` of ConvLSTMCell must have one": lambda: ConvLSTMCell(
        4, (3, 3), strides=(2,)
    ),
    "`rate` of DropConnectCell must be in": lambda: DropConnectCell(LSTMCell(4), 1.0),
    r"\[0, 4\] .* got 5 of sequence 1": lambda: packing.plan([2, 5], 4),
    r"one axis, got \(1, 1\)": lambda: packing.plan([[2]], 4),
    "2 rows of 4 steps, got 1": lambda: packing.plan([3, 3], 4, 1),
    "at least one sequence": lambda: packing.pack([], 4),
    r"got \(\) in sequence 1": lambda: packing.pack([ONE, 1.0], 4),
    "with the same length": lambda: packing.pack([(ONE, TWO)], 4),
    r"float64\(1,\) in sequ": lambda: packing.pack([ONE, ONE.T], 4),
    r"`rows` .* \(2, 4, '...'\)": lambda: packing.unpack(PADDED, PLAN),
    r"`batch` must be arrays \(3, 4, '...'": lambda: PLAN.pack(IN_ROWS),
    "the 3 steps of sequence 0, got 2": lambda: PLAN.pack(PADDED[:, :2]),
    r"`initial` .*\(3, 3\)": lambda: PLAN.last(IN_ROWS, False, ONE),
    "`layer` must call an rnncells.RNN, got Dense": lambda: diagnostics.record(
        nn.Dense(2), params_of(nn.Dense(2)), X
    ),
    "`jacobians` must be": lambda: diagnostics.carry_gradients(X),
    "`norm` must be 'spectral' or": lambda: diagnostics.carry_gradients(
        np.ones((3, 2, 2)), norm="l1"
    ),
    "`low` must be below": lambda: diagnostics.saturation(X, low=1, high=0),
    "must be .batch, time": lambda: diagnostics.drift(X[0, 0]),
    "`mask` must be booleans of the shape": lambda: diagnostics.by_lag(
        X[..., 0], np.ones((7, 2), bool)
    ),
    "`norms` must have at least one entry": lambda: plots.gradients_over_lag({}),
    r"got the shape \(\)": lambda: plots.gradients_over_lag({"a": 1.0}),
    r"got the shape \(3, 5, 3\)": lambda: plots.gate_over_text(PADDED),
    "each of 2 steps, got 3": lambda: plots.gate_over_text(TWO, "abc"),
    r"`shares\['f'\]` must be": lambda: plots.saturation({"f": (ONE[0], PADDED[0])}),
    "`mask` of `step` needs padded_outputs='run' or 'zero', got 'hold'": lambda: step(
        gru(padded_outputs="hold"), None, STEP, mask=jnp.ones(2, bool)
    ),
    r"Stack got lengths, .* for inputs with the batch and time axes \(2,": lambda: (
        jax.eval_shape(
            lambda n: Stack([nn.Conv(4, (2,), strides=2), GRUCell(4)]).init(
                KEY, X, seq_lengths=n
            ),
            jnp.array([7, 2]),
        )
    ),
    "got Conv, whose": lambda: step(Stack([nn.Conv(4, (3,)), GRUCell(4)]), None, STEP),
    "`reset_carry` must be None for LSTM": lambda: init(
        Stack([LSTM(4)]), resets=jnp.ones((2, 7), bool), reset_carry=(STATES,)
    ),
    "a layer such as RNN takes a sequence": lambda: step(gru(), jnp.zeros((2, 4)), X),
    "got one tuple for": lambda: init(lstm(num_layers=2), ((X[:, 0, :2],) * 2,) * 2),
    "`padded_outputs` must be": lambda: init(Stack([LSTM(4)]), padded_outputs="run"),
    "`skip_connections` of Stack needs keep_order=True in reversed": lambda: Stack(
        [gru(), gru(reverse=True)], skip_connections=True
    ),
    "`mask` of Stack cannot be passed to flax.linen.RNN. Use": lambda: init(
        Stack([nn.RNN(nn.GRUCell(4))]), mask=jnp.ones((2, 7), bool)
    ),
    "`layers` of StackedCell must have at least": lambda: StackedCell([nn.Dense(3)]),
    "VariationalGRUCell uses the random stream 'dropout' for masks that": lambda: (
        stacked(nn.Dropout(0.1), VariationalGRUCell(4))
    ),
    "`carry` of StackedCell must be a tuple with one carry for each of": lambda: init(
        RNN(stacked(LSTMCell(4))), initial_carry=jnp.zeros((2, 4))
    ),
    "must keep the batch axes": lambda: init(RNN(stacked(lambda x: x.reshape(-1)))),
    r"must have the form of `first_input`, float\(2, 3\), but": lambda: decode(steps=3),
    "but `feed` returned": lambda: decode(steps=3, feed=lambda y: jnp.argmax(y, -1)),
    "`feed_key` of `decode` needs `feed`, got": lambda: decode(steps=3, feed_key=KEY),
    "`teacher_forcing_rate` of `decode` needs `targets`, got None": lambda: decode(
        steps=3, teacher_forcing_rate=0.5
    ),
    r"`teacher_forcing_rate` of `decode` must be in \[0, 1\], got": lambda: force(1.5),
    "`targets` of `decode` must be like": lambda: decode(targets=jnp.ones((2, 7, 4))),
    "`decode` of RNN needs `reverse=False`": lambda: decode(gru(reverse=True), steps=3),
    "min_radius < max_radius <= 1, got 0.9 and 0.8": lambda: LRUCell(
        4, min_radius=0.9, max_radius=0.8
    ),
    "as many features as the cell, 4, got 3": lambda: RNN(rnncells.RGLRUCell(4)).init(
        KEY, X
    ),
    "`kernel` of `ir` must have": lambda: gru().apply(params_of(RNN(GRUCell(5))), X),
    "`deterministic` of LSTM must be True or False with dropout": dropout_layers,
}
WARNINGS = {
    "one instance of GRUCell more than once, so": lambda: init(Stack([GRUCell(3)] * 3)),
    "`dropout` of LSTM is applied": lambda: init(lstm(dropout=0.5), deterministic=True),
    r"`inputs` are integers of shape \(2, 7\)": lambda: run(jnp.ones((2, 7), int)),
    r"\(2, 3, 6, 6\) are read as .*, with 6 channels.* add": lambda: RNN(
        ConvLSTMCell(2, (3, 3))
    ).init(KEY, jnp.ones((2, 3, 6, 6))),
    r"\(2, 2, 3, 6, 6\) are read as .*, with 6 channels.* move it": lambda: RNN(
        ConvLSTMCell(2, (3, 3))
    ).init(KEY, jnp.ones((2, 2, 3, 6, 6))),
    "`inputs` of `step` are one time step, .* the batch": lambda: step(gru(), None, X),
    "`initial_carry` of GRUCell is bfloat16, so the state is rounded to": lambda: run(
        initial_carry=jnp.zeros((2, 4), jnp.bfloat16)
    ),
}
OTHER_ERRORS = {
    NotImplementedError: {
        "MultiLayerRNN must define `cell`. Use LSTM": lambda: init(MultiLayerRNN(4))
    },
    JaxRuntimeError: {
        r"`seq_lengths` must be in \[0": lambda: checked_lengths(jnp.array([7, 9]))
    },
    ScopeParamNotFoundError: {
        "needs the parameter 'params/initial_carry/carry_0'": lambda: gru(
            learn_initial_carry=True
        ).apply(params_of(gru()), X),
        "params/cell/ir": lambda: gru().apply(params_of(RNN(LSTMCell(4))), X),
    },
    InvalidRngError: {
        "Add the stream to `split_rngs` of RNN: {'params': False,": lambda: RNN(
            DroppingCell()
        ).apply({}, X, rngs={"dropout": KEY}),
        "needs a random key for `teacher_forcing`, unless it is 0": lambda: force(0.5),
        "LSTM needs a random key for": lambda: dropout_layers(deterministic=False),
        "In flax.linen.RNN and flax.linen.scan, also add the stream to": lambda: nn.RNN(
            zoneout(deterministic=False)
        ).apply(
            params_of(nn.RNN(zoneout(deterministic=True))), X, rngs={"dropout": KEY}
        ),
    },
}
# Arguments of other libraries or classes: the rules of `_argument_hints`.
ARGUMENTS = {
    "`hidden_size` of LSTM is called `features` here": lambda: LSTM(hidden_size=4),
    "`input_size` of LSTM is not needed: the width": lambda: LSTM(4, input_size=3),
    "`padded_outputs` is not an argument of LSTM, which": lambda: LSTM(
        4, padded_outputs=""
    ),
    "`lengths` of LSTM is called `seq_lengths`": lambda: init(lstm(), lengths=None),
    "`training` of RNN is called `deterministic` here": lambda: run(training=True),
    "`hx` of RNN.step is": lambda: gru().init(KEY, None, X, method="step", hx=None),
    "`batch_size` of RNN.initialize_carry is called `batch_shape`": lambda: (
        gru().initialize_carry(batch_size=2)
    ),
}
METHODS = {
    "`decode` of LSTM is a method of RNN, because": lambda: lstm().decode,
    "`hidden_size` of GRU is called `features` here": lambda: GRU(4).hidden_size,
    "`forward` of GRU does not exist: call": lambda: GRU(4).forward,
}
UNBOUND = {"Can't call compact methods on unbound": lambda: gru()(X)}

# (class of the error or warning, pattern of the message, call).
ERROR_CASES = [
    (kind, message, call)
    for kind, cases in [
        (TypeError, TYPE_ERRORS | ARGUMENTS),
        (ValueError, VALUE_ERRORS),
        (UserWarning, WARNINGS),
        *OTHER_ERRORS.items(),
        (AttributeError, METHODS),
        (CallCompactUnboundModuleError, UNBOUND),
    ]
    for message, call in cases.items()
]


@pytest.mark.parametrize("kind, message, call", ERROR_CASES)
def test_violated_rules_are_explained(kind, message, call):
    expect = pytest.warns if issubclass(kind, Warning) else pytest.raises
    with expect(kind, match=message):
        call()


def test_one_object_in_both_directions_has_one_set_of_parameters():
    rnn = gru()
    with pytest.warns(UserWarning, match="share their parameters"):
        params = rnncells.Bidirectional(rnn, rnn).init(KEY, X)
    assert set(params["params"]) == {"forward_rnn"}


@pytest.mark.parametrize("cell", user_cells.USER_CELLS.values())
def test_valid_cells_do_not_raise(cell):
    for memory in ("full", "sqrt"):
        outputs(cell(4), memory=memory)


class OwnArguments(rnncells.LSTM):
    """A layer of a user whose constructor has other arguments."""

    def __init__(self, hidden_size, depth, rate=0.0, bias=True, **options):
        options |= {"dropout": rate, "use_bias": bias}
        super().__init__(hidden_size, num_layers=depth, **options)


def test_constructors_of_users_keep_their_arguments():
    layer = OwnArguments(4, 2, time_major=True)
    assert (layer.features, layer.num_layers, layer.time_major) == (4, 2, True)
    assert OwnArguments(hidden_size=4, depth=3).num_layers == 3
    assert not OwnArguments(4, 2, 0.1, False).use_bias
    assert "num_layers" in inspect.signature(rnncells.MultiLayerRNN).parameters
    with pytest.raises(TypeError, match="batch_first"):
        OwnArguments(4, 2, batch_first=True)


MODULES = [case.make() for case in CELLS.values()]
MODULES += [gru(), lstm(), ElmanRNN(4), Bidirectional(gru(), gru()), Stack([gru()])]
MODULES += [XLSTMBlock(8), GriffinBlock(8)]
WRONG = {bool: 2, int: -1, Initializer: "zeros", Literal: "other", Callable: "tanh"}


@pytest.mark.parametrize("module", MODULES, ids=lambda module: type(module).__name__)
def test_fields_are_checked_by_their_annotations(module):
    for cls in type(module).__mro__:
        if not cls.__module__.startswith("rnncells"):
            continue
        for field, kind in inspect.get_annotations(cls).items():
            options = get_args(kind) if type(None) in get_args(kind) else ()
            kinds = kind, get_origin(kind), *options
            for wrong in (WRONG[kind] for kind in WRONG if kind in kinds):
                with pytest.raises((TypeError, ValueError), match=f"`{field}` of"):
                    module.clone(**{field: wrong})


def test_fields_of_a_users_class_are_not_checked():
    class Cell(rnncells.SimpleCell):
        is_fast: bool = 1
        head_init: Initializer = None

    assert Cell(4).is_fast == 1
    with pytest.raises(TypeError, match="`residual` of Cell must be a bool, got 1"):
        Cell(4, residual=1)
