"""Mistakes that users make, each with the error or warning that explains it.

`test_errors.py` walks the table: name -> (call, class of the error or warning, pattern
of its message).
"""

from collections import namedtuple
from collections.abc import Callable
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.errors import (
    CallCompactUnboundModuleError,
    InvalidRngError,
    ScopeParamNotFoundError,
)
from jax.errors import JaxRuntimeError

import rnncells
from rnncells import Chunk, packing

X = jnp.ones((2, 7, 3))
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
    return rnncells.RNN(rnncells.GRUCell(4), **options)


def on_line_step(cotangent):
    rnn = gru(gradient=rnncells.Rtrl())
    online = rnncells.Online(rnn)
    params = jax.eval_shape(rnn.init, KEY, X)
    state = jax.eval_shape(online.init, params, X[:, 0])
    return jax.eval_shape(online.step, params, state, X[:, 0], cotangent)


def run(x=X, **arguments):
    return gru().init(KEY, x, **arguments)


class OwnCell(rnncells.RNNCellBase):
    """Right; those made by `own` break one rule."""

    features: int
    num_feature_dims = 1

    def carry_shape(self, input_shape):
        return (self.features,), (self.features,)

    def setup(self):
        self.gates("i", "h")
        self.dense = nn.Dense(self.features)

    def project(self, inputs):
        return self.affine(inputs, "i")

    def recur(self, carry, projected):
        c, h = carry
        h = nn.tanh(self.affine(h, "h") + projected)
        return (c + h, h), h


def own(**members):
    return type("MyCell", (OwnCell,), members)(4)


class ForeignCell(nn.Module):
    """A cell without a base class."""

    step: Callable
    num_feature_dims = 1

    @nn.nowrap
    def initialize_carry(self, key, input_shape):
        return jnp.zeros(input_shape)

    def __call__(self, carry, inputs):
        return self.step(carry, inputs)


def outputs(cell, **options):
    """Traces a layer, its parameters made by the plain loop."""
    rnn = rnncells.RNN(cell, **options)
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


class SowingCell(rnncells.GRUCell):
    def recur(self, carry, projected):
        self.sow("intermediates", "h", carry)
        return super().recur(carry, projected)


def sowing():
    return gru(memory="sqrt").clone(cell=SowingCell(4))


def called_back(cell, h):
    return cell.affine(jax.pure_callback(abs, h, h), "h")


def lstm(**options):
    return rnncells.LSTM(4, **options)


def apply(*arguments, layer=None, **options):
    layer = lstm() if layer is None else layer
    return layer.apply(params_of(layer), *arguments, **options)


def zoneout(rate=0.4, **options):
    return rnncells.ZoneoutCell(rnncells.LSTMCell(4), rate, **options)


def run_step(cell):
    x = X[:, 0]
    carry = cell.initialize_carry(None, x)
    return cell.init(KEYS, carry, x, deterministic=False)


STATES = tuple(jnp.zeros((1, 2, 4)) for _ in range(2))
HaikuState = namedtuple("HaikuState", ["hidden", "cell"])


def stacked(*layers, **options):
    return rnncells.StackedCell([*layers, rnncells.GRUCell(4)], **options)


def decode(rnn=None, x=X[:, 0], rngs=KEYS, **arguments):
    rnn = gru() if rnn is None else rnn
    return rnn.init(rngs, x, method="decode", **arguments)


def force(rate, rngs=None):
    rnn = rnncells.RNN(rnncells.GRUCell(3))
    arguments = {"targets": X, "teacher_forcing_rate": rate, "method": "decode"}
    return rnn.apply(params_of(rnn), X[:, 0], rngs=rngs, **arguments)


OLD_SPELLINGS = {
    "cell_size": (
        lambda: rnncells.RNN(rnncells.LSTMCell(4), 64),
        TypeError,
        "`time_major` of RNN must be a bool, got 64. .*`cell_size`",
    ),
    "gate_fn first": (
        lambda: rnncells.LSTMCell(jnp.tanh),
        TypeError,
        "`features` of LSTMCell must be an int.* of a cell was `gate_fn`",
    ),
    "no features": (lambda: rnncells.LSTMCell(), TypeError, "features"),
    "carry of the class": (
        lambda: rnncells.LSTMCell.initialize_carry(KEY, (2,), 4),
        TypeError,
        "`initialize_carry` must be called on an instance",
    ),
    "batch dims and size": (
        lambda: rnncells.LSTMCell(4).initialize_carry(KEY, (2,), 4),
        TypeError,
        r"with \(key, batch_dims, size\).*`import rnncells.legacy`.*`rnncells-migrate`",
    ),
    "batch dims alone": (
        lambda: rnncells.LSTMCell(4).init(
            KEY, rnncells.LSTMCell(4).initialize_carry(KEY, (2,)), X[:, 0]
        ),
        ValueError,
        r"`carry` of LSTMCell\(features=4\) must have shapes \(\(2, 4\), \(2, 4\)\) "
        r"for inputs of shape \(2, 3\), got \(\(4,\), \(4,\)\)\. This carry "
        r"lacks batch axes. .* one step of input with its features, such as \(2, 3\)",
    ),
    "carry as a list": (
        lambda: rnncells.LSTMCell(4).init(KEY, [jnp.ones((2, 4))] * 2, X[:, 0]),
        ValueError,
        r"got \[\(2, 4\), \(2, 4\)\]\. The carry of LSTMCell is a tuple, not a list",
    ),
    "carry as a named tuple": (
        lambda: rnncells.LSTMCell(4).init(
            KEY, HaikuState(*[jnp.ones((2, 4))] * 2), X[:, 0]
        ),
        ValueError,
        r"\. The carry of LSTMCell is a tuple, not a HaikuState",
    ),
    "carry of one array as a list": (
        lambda: rnncells.GRUCell(4).init(KEY, [jnp.ones((2, 4))], X[:, 0]),
        ValueError,
        r"must have shapes \(2, 4\) .* got \[\(2, 4\)\]\. A step takes the carry",
    ),
    "layer of the base class": (
        lambda: rnncells.MultiLayerRNN(4).init(KEY, X),
        NotImplementedError,
        "MultiLayerRNN must define `cell`. Use LSTM, GRU or ElmanRNN, or derive",
    ),
    "batch dims of a convolution": (
        lambda: rnncells.ConvLSTMCell(4, (3, 3)).initialize_carry(KEY, (2,)),
        ValueError,
        r"must have at least 3 axes.* got the shape \(2,\)",
    ),
    "segmentation_mask": (
        lambda: run(segmentation_mask=jnp.ones((2, 7))),
        TypeError,
        "segmentation_mask",
    ),
    "class in place of a cell": (
        lambda: rnncells.RNN(rnncells.GRUCell),
        TypeError,
        r"must be an instance such as GRUCell\(features\)",
    ),
}
CALLS = {
    "features not a number": (lambda: rnncells.GRUCell("4"), TypeError, "got '4'"),
    "features a bool": (lambda: rnncells.GRUCell(True), ValueError, "got True"),
    "features zero": (lambda: rnncells.GRUCell(0), ValueError, "at least 1, got 0"),
    "carry too wide": (
        lambda: rnncells.GRUCell(4).init(KEY, jnp.ones((2, 9)), X[:, 0]),
        ValueError,
        r"features=4\) must have shapes \(2, 4\) .* got \(2, 9\)",
    ),
    "carry too wide in a layer": (
        lambda: run(initial_carry=jnp.ones((2, 9))),
        ValueError,
        r"must have shapes \(2, 4\)",
    ),
    "carry of another batch": (
        lambda: run(initial_carry=jnp.ones((1, 4))),
        ValueError,
        r"must have shapes \(2, 4\)",
    ),
    "carry of another cell": (
        lambda: run(initial_carry=(jnp.ones((2, 4)),) * 2),
        ValueError,
        r"must have shapes \(2, 4\)",
    ),
    "carry of integers": (
        lambda: run(initial_carry=jnp.ones((2, 4), int)),
        TypeError,
        "must be floating or complex, got int32",
    ),
    "real carry, complex inputs": (
        lambda: run(X + 0j, initial_carry=jnp.ones((2, 4))),
        ValueError,
        r"GRUCell got the carry real\(2, 4\) and returned complex\(2, 4\)",
    ),
    "complex inputs of an LRU": (
        lambda: rnncells.RNN(rnncells.LRUCell(4)).init(KEY, X + 0j),
        TypeError,
        "must be real, got a projection in complex64. Pass real and imaginary parts",
    ),
    "complex dtype of an LRU": (
        lambda: rnncells.RNN(rnncells.LRUCell(4, dtype="complex64")).init(KEY, X),
        TypeError,
        "must be real, got a projection in complex64",
    ),
    "carry without batch in a cell of Flax": (
        lambda: rnncells.RNN(nn.GRUCell(4)).init(KEY, X, initial_carry=jnp.ones(4)),
        ValueError,
        r"GRUCell got the carry real\(4,\) and returned real\(2, 4\).* If you passed "
        "`initial_carry`, check that it fits the inputs",
    ),
    "no sample": (
        lambda: rnncells.GRUCell(4).initialize_carry(KEY),
        TypeError,
        "Pass exactly one of `sample_input` and `input_shape`",
    ),
    "sample twice": (
        lambda: rnncells.GRUCell(4).initialize_carry(KEY, (3,), input_shape=(3,)),
        TypeError,
        "Pass exactly one of `sample_input` and `input_shape`",
    ),
    "length beyond time": (
        lambda: run(seq_lengths=jnp.array([7, 9])),
        ValueError,
        r"`seq_lengths` must be in \[0, 7\] \(the time axis\), got 9 at index \(1,\)",
    ),
    "length negative": (
        lambda: run(seq_lengths=jnp.array([-1, 7])),
        ValueError,
        r"got -1 at index \(0,\)",
    ),
    "lengths of another batch": (
        lambda: run(seq_lengths=jnp.array([7])),
        ValueError,
        r"batch axes of the inputs, \(2,\), got the shape \(1,\)",
    ),
    "lengths not integers": (
        lambda: run(seq_lengths=jnp.array([7.0, 1.0])),
        TypeError,
        "must be integers, got float32",
    ),
    "mask not boolean": (
        lambda: run(mask=jnp.ones((2, 7))),
        TypeError,
        "`mask` must be boolean, got float32",
    ),
    "mask of another shape": (
        lambda: run(mask=jnp.ones((7, 2), bool)),
        ValueError,
        r"`mask` must have .* \(2, 7\), got the shape \(7, 2\)",
    ),
    "resets of another shape": (
        lambda: run(resets=jnp.ones(7, bool)),
        ValueError,
        r"`resets` must have .* \(2, 7\), got the shape \(7,\)",
    ),
    "inputs without time": (
        lambda: run(jnp.ones(3)),
        ValueError,
        r"must have a time axis and 1 feature axes, got the shape \(3,\)",
    ),
    "inputs of several batches": (
        lambda: run((jnp.ones((2, 7, 3)), jnp.ones((3, 7, 3)))),
        ValueError,
        r"the same batch and time axes \(2, 7\), got the shape \(3, 7, 3\)",
    ),
    "no inputs": (lambda: run(()), ValueError, "at least one array"),
    "flag not a bool": (lambda: gru(reverse=1), TypeError, "`reverse` of RNN .* got 1"),
    "flag of a call not a bool": (
        lambda: run(return_carry="yes"),
        TypeError,
        "`return_carry` of RNN must be a bool, got 'yes'",
    ),
    "padded_outputs unknown": (
        lambda: gru(padded_outputs="none"),
        ValueError,
        r"one of \['run', 'hold', 'zero'\], got 'none'",
    ),
    "bidirectional reversed": (
        lambda: rnncells.Bidirectional(gru(), gru()).init(KEY, X, reverse=True),
        ValueError,
        "`reverse` of Bidirectional needs `keep_order=True`",
    ),
    "bidirectional flag of a call": (
        lambda: rnncells.Bidirectional(gru(), gru()).init(KEY, X, reverse=1),
        TypeError,
        "`reverse` of Bidirectional must be a bool, got 1",
    ),
    "bidirectional carry not a pair": (
        lambda: rnncells.Bidirectional(gru(), gru()).init(
            KEY, X, initial_carry=(jnp.ones((2, 4)),) * 3
        ),
        ValueError,
        r"`initial_carry` of Bidirectional must be a pair .* got tuple",
    ),
    "reset_carry of another shape": (
        lambda: run(resets=jnp.ones((2, 7), bool), reset_carry=jnp.ones(4)),
        ValueError,
        r"`reset_carry` must have the .* carry, real\(2, 4\), got real\(4,\)",
    ),
    "reset_carry of another structure": (
        lambda: run(resets=jnp.ones((2, 7), bool), reset_carry=(jnp.ones((2, 4)),)),
        ValueError,
        "`reset_carry` must have the structure and shapes of the initial carry",
    ),
    "reset_carry without resets": (
        lambda: run(reset_carry=jnp.ones((2, 4))),
        ValueError,
        "`reset_carry` needs `resets`, got None",
    ),
    "lengths that wrap around in 32 bits": (
        lambda: run(seq_lengths=np.array([2**32 + 3, 1])),
        ValueError,
        r"got 4294967299 at index \(0,\)",
    ),
    "known lengths inside jit": (
        lambda: jax.jit(lambda x: run(x, seq_lengths=np.array([9, 1])))(X),
        ValueError,
        r"got 9 at index \(0,\)",
    ),
    "width of the inputs first": (
        lambda: rnncells.LSTMCell(3, 4),
        TypeError,
        "`gate_fn` of LSTMCell must be a function, got 4",
    ),
    "features a tuple": (
        lambda: rnncells.LSTMCell((3, 4)),
        TypeError,
        r"must be an int.* got \(3, 4\)\.$",
    ),
    "projection of unknown width": (
        lambda: rnncells.GRUCell(None).init(KEY, X, method="project"),
        ValueError,
        "the width of gate `ir` is unknown",
    ),
    "carry part without batch axes": (
        lambda: rnncells.RNN(Counting()).init(
            KEY, X, initial_carry=jnp.int32(0), mask=jnp.ones((2, 7), bool)
        ),
        ValueError,
        r"array of the carry .* the axes \(2,\) of the inputs, got the shape \(\)",
    ),
    "output without batch axes": (
        lambda: rnncells.RNN(Summing(), True, padded_outputs="zero").init(
            KEY, X, initial_carry=X[0], seq_lengths=jnp.ones(7, int)
        ),
        ValueError,
        r"array of the outputs .* the axes \(2, 7\) of the inputs, got .*\(2,\)",
    ),
    "bidirectional flag": (
        lambda: rnncells.Bidirectional(gru(), gru(), time_major=3),
        TypeError,
        "`time_major` of Bidirectional must be a bool, got 3",
    ),
}
OWN_CELLS = {
    "one value": (
        lambda: outputs(own(recur=lambda cell, carry, z: carry[1])),
        TypeError,
        r"`recur` of MyCell must return \(new_carry, output\), got .* \(2, 4\)",
    ),
    "a list": (
        lambda: outputs(own(recur=lambda cell, carry, z: [carry, z])),
        TypeError,
        r"must return \(new_carry, output\), got list",
    ),
    "one value of a foreign cell": (
        lambda: outputs(ForeignCell(lambda carry, x: x)),
        TypeError,
        r"`__call__` of ForeignCell must return \(new_carry, output\), got an array of "
        r"shape \(2, 3\)",
    ),
    "three values of a foreign cell": (
        lambda: outputs(ForeignCell(lambda carry, x: (carry, x, x))),
        TypeError,
        r"\(new_carry, output\), got tuple \(\(2, 3\), \(2, 3\), \(2, 3\)\)",
    ),
    "carry of another shape in a foreign cell": (
        lambda: outputs(ForeignCell(lambda carry, x: (x[:, :2], x))),
        ValueError,
        r"ForeignCell got the carry real\(2, 3\) and returned real\(2, 2\). A step "
        "must keep .* If you passed `initial_carry`, check that it fits the inputs",
    ),
    "carry of another structure": (
        lambda: outputs(own(recur=lambda cell, carry, z: (z, z))),
        ValueError,
        r"with the shapes of the old, \(\(2, 4\), \(2, 4\)\), got \(2, 4\)",
    ),
    "carry of another shape": (
        lambda: outputs(own(recur=lambda cell, carry, z: ((z, z[:1]), z))),
        ValueError,
        r"got \(\(2, 4\), \(1, 4\)\)",
    ),
    "typo in a gate": (
        lambda: outputs(own(recur=recur(lambda cell, h: cell.affine(h, "hh")))),
        ValueError,
        r"`affine` of MyCell takes names .*: \['i', 'h'\], got 'hh'",
    ),
    "layer in place of a gate": (
        lambda: outputs(own(recur=recur(lambda cell, h: cell.affine(h, "dense")))),
        ValueError,
        "got 'dense'",
    ),
    "no gates": (
        lambda: outputs(own(recur=recur(lambda cell, h: cell.affine(h)))),
        ValueError,
        "`affine` needs at least one name",
    ),
    "names as a list": (
        lambda: outputs(own(setup=lambda cell: cell.gates(["i", "h"]))),
        TypeError,
        "`gates` takes names as separate arguments",
    ),
    "memory without the fast loop": (
        lambda: outputs(own(recur=recur(called_back)), memory="sqrt"),
        ValueError,
        r"memory='sqrt' of RNN needs the fast loop, which needs a step that "
        "`jax.vmap` can map, because .*; MyCell calls `jax.pure_callback` .* Remove "
        "`memory`, or use",
    ),
    "projection without the fast loop": (
        lambda: outputs(own(recur=recur(called_back)), projection=Chunk(3)),
        ValueError,
        r"projection=Chunk\(steps=3\) of RNN needs the fast loop, .* MyCell calls",
    ),
    "memory of the plain loop": (
        lambda: rnncells.RNN(OwnCell(4), memory="sqrt", implementation="scan"),
        ValueError,
        "memory='sqrt' of RNN needs the fast loop, but implementation='scan'",
    ),
    "gradient method not called": (
        lambda: gru(gradient=rnncells.Rtrl),
        TypeError,
        r"`gradient` of RNN must be a method of rnncells.gradients, .* Call the class: "
        r"Rtrl\(\.\.\.\)",
    ),
    "gradient by name": (
        lambda: rnncells.GRU(4, gradient="rtrl"),
        TypeError,
        "`gradient` of GRU must be a method of rnncells.gradients, .* got 'rtrl'",
    ),
    "gradient forward in time with memory": (
        lambda: gru(gradient=rnncells.SnAp(1), memory="sqrt"),
        ValueError,
        r"gradient=SnAp\(steps=1\) of RNN saves nothing for the gradient, so `memory` "
        "must be 'full', got 'sqrt'",
    ),
    "gradient forward in time in several layers": (
        lambda: rnncells.LSTM(4, num_layers=2, gradient=rnncells.Rtrl()),
        ValueError,
        r"gradient=Rtrl\(\) needs LSTM to have one recurrent layer: .*StackedCell",
    ),
    "gradient forward in time above another layer": (
        lambda: rnncells.Stack([rnncells.GRUCell(4), gru(gradient=rnncells.Rflo())]),
        ValueError,
        r"gradient=Rflo\(\) needs Stack to have one recurrent layer",
    ),
    "gradient forward in time in both directions above another layer": (
        lambda: rnncells.Stack(
            [
                rnncells.GRUCell(4),
                rnncells.Bidirectional(gru(), gru(gradient=rnncells.Rflo())),
            ]
        ),
        ValueError,
        r"gradient=Rflo\(\) needs Stack to have one recurrent layer",
    ),
    "gradient forward in time with zoneout": (
        lambda: rnncells.RNN(
            rnncells.ZoneoutCell(rnncells.GRUCell(4), 0.1), gradient=rnncells.Rtrl()
        ).apply(
            params_of(
                rnncells.RNN(
                    rnncells.ZoneoutCell(rnncells.GRUCell(4), deterministic=True)
                )
            ),
            X,
            deterministic=False,
            rngs={"dropout": KEY},
        ),
        ValueError,
        r"gradient=Rtrl\(\) of RNN needs a step that draws no random numbers, got "
        "ZoneoutCell. Pass deterministic=True, or use gradient=Bptt",
    ),
    "forward method of a step that closes over a traced array": (
        lambda: jax.eval_shape(
            lambda scale: rnncells.RNN(
                rnncells.SimpleCell(4, activation_fn=lambda a: scale * a),
                gradient=rnncells.Rtrl(),
            ).apply({"params": {"cell": SIMPLE_PARAMS}}, X),
            1.0,
        ),
        ValueError,
        r"gradient=Rtrl\(\) of RNN needs a step that reads only .*, got SimpleCell, "
        r"which closes over a traced array of shape \(\), .* use gradient=Bptt\(\)",
    ),
    "gradient forward in time of a cell that prints": (
        lambda: rnncells.RNN(own(recur=recur(printed)), gradient=rnncells.Rtrl()).apply(
            rnncells.RNN(own()).init(KEY, X), X
        ),
        ValueError,
        r"gradient=Rtrl\(\) of RNN needs the step as a pure function, which needs a "
        "step that `jax.vmap` can map",
    ),
    "gradient of 1997 without a cell state": (
        lambda: gru(gradient=rnncells.Truncated1997()).init(KEY, X),
        ValueError,
        r"gradient=Truncated1997\(\) of RNN needs an LSTM, .* got GRUCell with",
    ),
    "gradient method in decode": (
        lambda: rnncells.RNN(
            rnncells.GRUCell(3), gradient=rnncells.TruncatedBptt(2)
        ).init(KEY, X[:, 0], steps=2, method="decode"),
        ValueError,
        r"`decode` of RNN needs gradient=Bptt\(\) .* got TruncatedBptt\(steps=2\)",
    ),
    "gradient window of no steps": (
        lambda: rnncells.TruncatedBptt(0),
        ValueError,
        "`steps` of TruncatedBptt must be at least 1, got 0",
    ),
    "hook is no function": (
        lambda: rnncells.Bptt(carry_hook=3),
        TypeError,
        "`carry_hook` of Bptt must be a function of the gradient of a carry, got 3",
    ),
    "hook returns another form": (
        lambda: jax.grad(
            lambda x: (
                gru(gradient=rnncells.Bptt(carry_hook=jnp.sum))
                .apply(gru().init(KEY, X), x)
                .sum()
            )
        )(X),
        ValueError,
        r"`carry_hook` must return a gradient in the form of its argument, .* got",
    ),
    "on line without a forward method": (
        lambda: rnncells.Online(gru()),
        ValueError,
        r"`rnn` of Online needs a gradient with an update at each step: .* got "
        r"gradient=Bptt\(\)",
    ),
    "on line with a cell": (
        lambda: rnncells.Online(rnncells.GRUCell(4)),
        TypeError,
        "`rnn` of Online must be an RNN, .* got GRUCell",
    ),
    "on line with a cotangent of another shape": (
        lambda: on_line_step(jnp.ones(4)),
        ValueError,
        r"`cotangent` of Online.step must have the form of the output, \(2, 4\), got "
        r"\(4,\)",
    ),
    "memory unknown": (
        lambda: rnncells.RNN(OwnCell(4), memory="half"),
        ValueError,
        r"`memory` of RNN must be one of .*, a Chunk\(steps\) or a policy of "
        "jax.checkpoint, got 'half'",
    ),
    "memory policy not called": (
        lambda: gru(memory=jax.checkpoint_policies.save_only_these_names),
        TypeError,
        "got the function save_only_these_names, which makes policies. Call it",
    ),
    "memory for a cell that sows": (
        lambda: sowing().apply(sowing().init(KEY, X), X, mutable="intermediates"),
        ValueError,
        r"writes to no collection; SowingCell writes to \['intermediates'\], for",
    ),
    "memory for a cell that prints": (
        lambda: rnncells.RNN(own(recur=recur(printed)), memory="sqrt").apply(
            rnncells.RNN(own()).init(KEY, X), X
        ),
        ValueError,
        "MyCell has side effects, such as `jax.debug.print`",
    ),
    "implementation unknown": (
        lambda: rnncells.RNN(OwnCell(4), implementation="cuda"),
        ValueError,
        r"\['auto', 'scan', 'associative', 'newton'\] or a Newton\(...\), got 'cuda'",
    ),
    "unroll zero": (
        lambda: rnncells.RNN(OwnCell(4), unroll=0),
        ValueError,
        "`unroll` of RNN must be at least 1, got 0",
    ),
    "unroll a bool": (
        lambda: rnncells.RNN(OwnCell(4), unroll=True),
        TypeError,
        "`unroll` of RNN must be an int, got True",
    ),
    "chunk of no steps": (lambda: Chunk(0), ValueError, "at least 1, got 0"),
    "chunk of half a step": (lambda: Chunk(1.5), TypeError, "an int, got 1.5"),
    "width in place of a cell": (
        lambda: rnncells.RNN(4),
        TypeError,
        "`cell` of RNN must be a flax.linen module .*, got 4",
    ),
    "layer in place of a cell": (
        lambda: outputs(nn.Dense(4)),
        TypeError,
        "Dense is not a cell",
    ),
    "cells in place of layers": (
        lambda: rnncells.Bidirectional(OwnCell(4), OwnCell(4)),
        TypeError,
        r"`forward_rnn` of Bidirectional must be .* RNN\(cell\), got the cell OwnCell",
    ),
    "class in place of a cell to check": (
        lambda: rnncells.check_cell(rnncells.LSTMCell, (2, 3)),
        TypeError,
        r"`cell` of check_cell must be an instance such as LSTMCell\(features\)",
    ),
    "width in place of a cell to check": (
        lambda: rnncells.check_cell(4, (2, 3)),
        TypeError,
        "`cell` of check_cell must be a flax.linen module .*, got 4",
    ),
    "cell without a width to check": (
        lambda: rnncells.check_cell(rnncells.GRUCell(None), (2, 3)),
        ValueError,
        "`check_cell` needs a cell with `features`",
    ),
}


LAYERS = {
    "rank": (
        lambda: apply(X[0, 0]),
        ValueError,
        r"`inputs` must have a time axis",
    ),
    "features": (
        lambda: apply(X[..., :2]),
        ValueError,
        r"`kernel` of `ii` must have the shape \(2, 4\).*got parameters.*\(3, 4\)",
    ),
    "lengths too long": (
        lambda: apply(X, seq_lengths=np.array([8, 1])),
        ValueError,
        r"`seq_lengths` must be in \[0, 7\] \(the time axis\), got 8 at index \(0,\)",
    ),
    "lengths of floats": (
        lambda: apply(X, seq_lengths=np.ones(2)),
        TypeError,
        "`seq_lengths` must be integers, got float64",
    ),
    "mask": (
        lambda: apply(X, mask=np.ones((2, 5), bool)),
        ValueError,
        r"`mask` must have the batch and time axes of the inputs, \(2, 7\), got",
    ),
    "one state": (
        lambda: apply(X, STATES[0]),
        ValueError,
        r"`states` of LSTM must have the shapes \(\(1, 2, 4\), \(1, 2, 4\)\)",
    ),
    "state of another shape": (
        lambda: apply(X, (STATES[0], STATES[1][..., :2])),
        ValueError,
        r"`states` of LSTM must have the shapes .* got \(\(1, 2, 4\), \(1, 2, 2\)\)",
    ),
    "two states": (
        lambda: apply(X, STATES, layer=rnncells.GRU(4)),
        ValueError,
        r"`states` of GRU must have the shapes \(1, 2, 4\) \(layers times directions",
    ),
    "states in a dictionary with other names": (
        lambda: apply(X, {"0": STATES[0], "1": STATES[1]}),
        TypeError,
        r"`states` of LSTM must be .* for an LSTM, got the names \['0', '1'\]",
    ),
    "states in a named tuple with other names": (
        lambda: apply(X, HaikuState(*STATES)),
        TypeError,
        r"`states` of LSTM must be .* got the names \['cell', 'hidden'\]",
    ),
    "states that are no arrays": (
        lambda: apply(X, (None, "zeros")),
        TypeError,
        "`states` of LSTM must be arrays, got NoneType, str",
    ),
    "states before inputs": (
        lambda: apply(rnncells.LSTMStates(*STATES), X),
        TypeError,
        r"`inputs` of LSTM must be one array, got LSTMStates.*are \(inputs, states\)",
    ),
    "states after the inputs of a step": (
        lambda: apply(X[:, 0], STATES, method="step"),
        TypeError,
        r"`inputs` of LSTM.step must be one array, got tuple.*are \(states, inputs\)",
    ),
    "state after the inputs of a step": (
        lambda: apply(X[:, 0], STATES[0], layer=rnncells.GRU(4), method="step"),
        ValueError,
        r"are \(states, inputs\), but GRU got them in the other order, with the shapes "
        r"\(2, 3\) and \(1, 2, 4\)",
    ),
    "sequence for a step with states": (
        lambda: apply(STATES, X, method="step"),
        ValueError,
        r"`inputs` of `step` of LSTM must be one time step, .* \(2, 7, 3\), with one",
    ),
    "carries after the inputs of a step": (
        lambda: rnncells.Stack([gru()]).init(KEY, X[:, 0], (X[:, 0],), method="step"),
        ValueError,
        r"each of the 1 recurrent .* The arguments of `step` are \(carries, inputs\)",
    ),
    "sequence for a step with a carry": (
        lambda: gru().init(KEY, jnp.zeros((2, 4)), X, method="step"),
        ValueError,
        "The inputs have one axis more than the carry: a step takes one time step",
    ),
    "carry after the inputs of a step": (
        lambda: gru().init(KEY, X[:, 0], jnp.zeros((2, 4)), method="step"),
        ValueError,
        "A step takes the carry, and then the inputs of one time step",
    ),
    "state of another dtype": (
        lambda: apply(X, jax.tree.map(lambda s: s.astype(jnp.bfloat16), STATES)),
        TypeError,
        "`states` of LSTM must have the dtype of its parameters, float32, got bfloat16",
    ),
    "integer states": (
        lambda: apply(X, jax.tree.map(lambda s: s.astype(int), STATES)),
        TypeError,
        "`states` of LSTM must have the dtype of its parameters, float32, got int32",
    ),
    "proj as many": (
        lambda: lstm(proj_features=4),
        ValueError,
        "`proj_features` of LSTM must be less than `features` 4, got 4",
    ),
    "proj of none": (
        lambda: lstm(proj_features=0),
        ValueError,
        "`proj_features` of LSTM must be at least 1, got 0",
    ),
    "proj of a cell": (
        lambda: rnncells.ProjectedLSTMCell(4, 5),
        ValueError,
        "`proj_features` of ProjectedLSTMCell must be less than `features` 4, got 5",
    ),
    "proj without features": (
        lambda: rnncells.ProjectedLSTMCell(None, 5),
        TypeError,
        "`features` of ProjectedLSTMCell must be an int, got None",
    ),
    "dropout 1": (
        lambda: lstm(dropout=1.0),
        ValueError,
        r"`dropout` of LSTM must be in \[0, 1\), got 1.0",
    ),
    "dropout negative": (
        lambda: rnncells.GRU(4, dropout=-0.1),
        ValueError,
        r"`dropout` of GRU must be in \[0, 1\), got -0.1",
    ),
    "dropout no number": (
        lambda: lstm(dropout=True),
        TypeError,
        "`dropout` of LSTM must be a number, got True",
    ),
    "deterministic no bool": (
        lambda: lstm(deterministic="no"),
        TypeError,
        "`deterministic` of LSTM must be a bool, got 'no'",
    ),
    "deterministic of a call no bool": (
        lambda: lstm(num_layers=2, dropout=0.5).init(
            KEY, jnp.ones((2, 5, 3)), deterministic="no"
        ),
        TypeError,
        "`deterministic` of LSTM must be a bool, got 'no'",
    ),
    "no features": (lambda: rnncells.GRU(None), TypeError, "must be an int, got None"),
    "features of 0": (lambda: rnncells.GRU(0), ValueError, "must be at least 1, got 0"),
    "no layers": (
        lambda: lstm(num_layers=0),
        ValueError,
        "`num_layers` of LSTM must be at least 1, got 0",
    ),
    "layers of floats": (
        lambda: lstm(num_layers=2.0),
        TypeError,
        "`num_layers` of LSTM must be an int, got 2.0",
    ),
    "nonlinearity": (
        lambda: rnncells.ElmanRNN(4, nonlinearity="gelu"),
        ValueError,
        r"`nonlinearity` of ElmanRNN must be one of \['tanh', 'relu'\], got 'gelu'",
    ),
    "flag": (
        lambda: lstm(bidirectional=2),
        TypeError,
        "`bidirectional` of LSTM must be a bool, got 2",
    ),
    "step of both directions": (
        lambda: apply(None, X[:, 0], layer=lstm(bidirectional=True), method="step"),
        ValueError,
        "`step` of LSTM needs `bidirectional=False`, got True",
    ),
    "step of a reversed RNN": (
        lambda: rnncells.RNN(rnncells.GRUCell(4), reverse=True).init(
            KEY, None, X[:, 0], method="step"
        ),
        ValueError,
        "`step` of RNN needs `reverse=False`, got True",
    ),
    "step of a stack": (
        lambda: rnncells.Stack([nn.RNN(nn.GRUCell(4))]).init(
            KEY, None, X[:, 0], method="step"
        ),
        ValueError,
        "`step` of Stack needs layers with a method `step`, got RNN",
    ),
    "learnt states without parameters": (
        lambda: lstm(learn_states=True).initialize_carry(KEY, X[:, 0]),
        ValueError,
        "`initialize_carry` of LSTM with `learn_states` needs parameters",
    ),
    "empty stack": (
        lambda: rnncells.Stack([]),
        ValueError,
        r"`layers` of Stack must be a list with at least one layer, got \[\]",
    ),
    "class in a stack": (
        lambda: rnncells.Stack([rnncells.GRUCell]),
        TypeError,
        "`layers` of Stack must be cells, layers and functions, got <class",
    ),
    "skip over a function": (
        lambda: rnncells.Stack([nn.relu], skip_connections=True),
        ValueError,
        "`skip_connections` of Stack needs all `layers` to be recurrent",
    ),
    "carries of a stack": (
        lambda: rnncells.Stack([rnncells.LSTMCell(4), rnncells.GRUCell(4)]).init(
            KEY, X, initial_carry=(STATES,)
        ),
        ValueError,
        "`initial_carry` of Stack must be a tuple with one carry for each of the 2",
    ),
}


DROPOUT = {
    "rate": (lambda: zoneout(1.0), ValueError, r"`rate` of .* in \[0, 1\), got 1.0"),
    "rates": (lambda: zoneout((0.1, -1)), ValueError, r"`rate` of .*got -1"),
    "no rate": (lambda: zoneout("0.1"), TypeError, "`rate` of .* a number, got '0'"),
    "one stream for both": (
        lambda: rnncells.ZoneoutCell(rnncells.VariationalGRUCell(4, input_rate=0.3)),
        ValueError,
        "`rng_collection` of ZoneoutCell must not be 'dropout': VariationalGRUCell",
    ),
    "no cell": (
        lambda: rnncells.ZoneoutCell(jnp.tanh),
        TypeError,
        "`cell` of ZoneoutCell must be a cell",
    ),
    "no width": (
        lambda: rnncells.ZoneoutCell(rnncells.GRUCell(None)),
        TypeError,
        "`features` of the cell of ZoneoutCell must be an int",
    ),
    "three rates": (
        lambda: run_step(zoneout((0.1, 0.2, 0.3))),
        ValueError,
        "one number for each of the 2 parts",
    ),
    "another output": (
        lambda: run_step(rnncells.ZoneoutCell(rnncells.LSTM1997Cell(2))),
        TypeError,
        "must be a part of its carry; the output of LSTM1997Cell is not",
    ),
    "variational": (
        lambda: rnncells.VariationalGRUCell(4, input_rate=2),
        ValueError,
        r"`input_rate` of VariationalGRUCell must be in \[0, 1\), got 2",
    ),
}


def checked_lengths(lengths):
    with jax.enable_checks(True):
        return jax.block_until_ready(jax.jit(lambda n: run(seq_lengths=n))(lengths))


def packed():
    return packing.pack([np.ones((n, 3), np.float32) for n in (3, 2)], row_length=5)


def dropout_layers(**options):
    """Returns an initialized layer with dropout between its layers."""
    layer = rnncells.LSTM(4, num_layers=2, dropout=0.3)
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


class DroppingCell(nn.Module):
    """A cell of a user with dropout."""

    num_feature_dims = 1

    def initialize_carry(self, key, input_shape):
        return jnp.zeros(input_shape)

    @nn.compact
    def __call__(self, carry, x):
        return carry, nn.Dropout(0.5, deterministic=False)(x)


class SetUpCell(rnncells.GRUCell):
    """A cell of a user that gives `deterministic` to its dropout in `setup`."""

    deterministic: bool | None = None

    def setup(self):
        super().setup()
        self.drop = nn.Dropout(0.5, deterministic=self.deterministic)

    def project(self, inputs):
        return super().project(self.drop(inputs))


class OwnLayer(rnncells.LSTM):
    """A layer of a user with a call of its own."""

    def __call__(self, x, seq_lengths=None):
        return super().__call__(x, seq_lengths=seq_lengths)[0]


class Echo(nn.Module):
    """A layer of a user that forgets its carry."""

    def run(self, inputs, initial_carry=None, **arguments):
        return inputs


OTHER_CALLS = {
    f"{name} of {method} of {type(layer).__name__}": (
        lambda layer=layer, method=method, name=name: jax.eval_shape(
            partial(layer.init, method=method, **{name: None}), KEY, X
        ),
        TypeError,
        f"`{name}` of {type(layer).__name__}{'.' + method if method[0] != '_' else ''} "
        f"{said}",
    )
    for layer, method, name, said in [
        (lstm(), "__call__", "training", "is called `deterministic` here, with"),
        (lstm(), "__call__", "lengths", "is called `seq_lengths` here"),
        (lstm(), "__call__", "initial_carry", "is called `states` here"),
        (rnncells.GRU(4), "__call__", "return_carry", "is not needed: the results"),
        (rnncells.ElmanRNN(4), "__call__", "initial_state", "is called `states` here"),
        (rnncells.ElmanRNN(4), "__call__", "return_all_carries", "is called `return_a"),
        (lstm(), "run", "hx", "is called `initial_carry` here"),
        (gru(), "__call__", "train", "is called `deterministic` here, with"),
        (gru(), "__call__", "states", "is called `initial_carry` here"),
        (gru(), "step", "hx", "is called `carry` here"),
        (gru(), "step", "return_carry", "is not needed"),
        (gru(), "decode", "training", "is called `deterministic` here, with"),
        (gru(), "decode", "h_0", "is called `initial_carry` here"),
        (gru(), "initialize_carry", "batch_size", "is called `batch_shape` here"),
        (rnncells.Stack([gru()]), "step", "state", "is called `carries` here"),
        (rnncells.Stack([gru()]), "__call__", "sequence_length", "is called `seq_le"),
        (rnncells.Bidirectional(gru(), gru()), "__call__", "hx", "is called `initial"),
        (rnncells.GriffinBlock(4), "__call__", "input_lengths", "is called `seq_len"),
        (rnncells.GRUCell(4), "__call__", "is_training", "is called `deterministic`"),
        (rnncells.ConvLSTMCell(4, (3,)), "__call__", "hx", "is called `carry` here"),
        (OwnCell(4), "__call__", "state", "is called `carry` here"),
        (OwnLayer(4), "__call__", "lengths", "is called `seq_lengths` here"),
    ]
}
OTHER_LIBRARIES = {
    f"{name} of {make.__name__}": (
        lambda make=make, name=name: make(**{name: 4}),
        TypeError,
        f"`{name}` of {make.__name__} {said}",
    )
    for make, name, said in [
        (rnncells.LSTM, "hidden_size", "is called `features` here"),
        (rnncells.GRUCell, "hidden_size", "is called `features` here"),
        (rnncells.LSTMCell, "units", "is called `features` here"),
        (rnncells.LSTMCell, "num_units", "is called `features` here"),
        (rnncells.GRUCell, "hidden_features", "is called `features` here"),
        (rnncells.LSTM, "input_size", "is not needed: the width is read from"),
        (rnncells.GRUCell, "in_features", "is not needed: the width is read from"),
        (
            rnncells.LSTM,
            "batch_first",
            "is not an option: time_major=False",
        ),
        (rnncells.LSTM, "proj_size", "is called `proj_features` here"),
        (rnncells.GRU, "bias", "is called `use_bias` here"),
        (
            rnncells.RNN,
            "return_sequences",
            "is not needed: a layer returns",
        ),
        (rnncells.RNN, "return_state", "is called `return_carry` here"),
        (rnncells.RNN, "go_backwards", "is called `reverse` here"),
        (rnncells.Bidirectional, "return_sequences", "is not needed"),
        (rnncells.SimpleCell, "activation", "is called `activation_fn` here"),
        (
            rnncells.LSTMCell,
            "recurrent_dropout",
            r"is an option of a cell: RNN\(V",
        ),
        (rnncells.LSTMCell, "kernel_initializer", "is called `kernel_init` here"),
        (rnncells.LSTMCell, "rngs", "is an argument of `init` and `apply`"),
        # Options of other classes.
        (rnncells.LSTM, "padded_outputs", "is an option of RNN."),
        (rnncells.LSTM, "learn_initial_carry", "is called `learn_states` here"),
        (rnncells.RNN, "learn_states", "is called `learn_initial_carry` here"),
        (rnncells.GRU, "return_carry", "is not needed: the results always include"),
        (rnncells.ElmanRNN, "activation_fn", "is called `nonlinearity` here"),
        (rnncells.ElmanRNN, "activation", "is called `nonlinearity` here"),
        (rnncells.GRU, "dropout_rate", "is called `dropout` here"),
        (rnncells.VariationalLSTMCell, "dropout_rate", "is an option of .*ElmanRNN"),
        (rnncells.ZoneoutCell, "dropout_rate", "is called `rate` here"),
        (rnncells.LSTMCell, "forget_bias", "is a choice of initial values: .*forget_"),
        (rnncells.LSTM, "unit_forget_bias", "is a choice of initial values"),
        (rnncells.RNN, "stateful", "is not an option, because modules keep no states"),
        (rnncells.GRUCell, "input_shape", "is not needed: the width is read"),
        (rnncells.Stack, "training", "is called `deterministic` here, with"),
        (rnncells.RNN, "hidden_size", "is an option of .*, called `features` here"),
        (rnncells.Stack, "deterministic", "is an option of .*ZoneoutCell"),
        (rnncells.GRUCell, "memory", "is an option of .*RNN"),
        (rnncells.LSTMCell, "proj_features", "is an option of ProjectedLSTMCell, LSTM"),
        (rnncells.GRU, "proj_size", "is an option of .*, called `proj_features` here"),
        (rnncells.ElmanRNN, "device", "is not an option: JAX computes where"),
        (rnncells.ConvGRUCell, "data_format", "is not an option: channels are the"),
        (rnncells.Bidirectional, "backward_layer", "is called `backward_rnn` here"),
        (rnncells.StackedCell, "cells", "is called `layers` here"),
        (rnncells.RNN, "cell_size", r"is an argument of the cell: RNN\(LSTMCell\("),
        (rnncells.SimpleCell, "w_i_init", "is called `kernel_init` here"),
        (rnncells.LSTMCell, "w_h_init", "is called `recurrent_kernel_init` here"),
    ]
} | {
    "unknown argument of a call": (
        lambda: lstm().init(KEY, X, attention=None),
        TypeError,
        "`attention` is not an argument of LSTM, which takes inputs, states, ",
    ),
    "argument of the constructor in a call": (
        lambda: rnncells.GRU(4).init(KEY, X, bidirectional=True),
        TypeError,
        "`bidirectional` is an argument of GRU, not of its call",
    ),
    "carry by position": (
        lambda: gru().init(KEY, X, jnp.zeros((2, 4))),
        TypeError,
        "RNN takes inputs by position, got 2 arguments. Pass the others by "
        "name: initial_carry, init_key",
    ),
    "no inputs of a step": (
        lambda: lstm().init(KEY, X[:, 0], method="step"),
        TypeError,
        "LSTM.step: missing a required argument: 'inputs'",
    ),
    "layer before another one in Sequential": (
        lambda: nn.Sequential([rnncells.GRU(4), rnncells.ElmanRNN(5)]).init(KEY, X),
        TypeError,
        r"GRU returns \(outputs, states\), and Sequential passes both to the next "
        r"layer, ElmanRNN, as separate arguments. Use rnncells.Stack",
    ),
    "layer before a layer of Flax in Sequential": (
        lambda: nn.Sequential([nn.Dense(3), lstm(), nn.Dropout(0.1)]).init(KEY, X),
        TypeError,
        "LSTM returns .* the next layer, Dropout, as separate arguments",
    ),
    "layer before a function in Sequential": (
        lambda: nn.Sequential([lstm(), nn.tanh]).init(KEY, X),
        TypeError,
        "LSTM returns .* the next layer, tanh, as separate arguments",
    ),
    "decode of a layer": (
        lambda: apply(X[:, 0], steps=3, method="decode"),
        AttributeError,
        r"`decode` of LSTM is a method of RNN, .*: RNN\(StackedCell\(",
    ),
    "decode of a stack": (
        lambda: rnncells.Stack([gru()]).decode,
        AttributeError,
        "`decode` of Stack is a method of RNN",
    ),
    **{
        f"{name} of a layer": (
            partial(getattr, rnncells.GRU(4), name),
            AttributeError,
            f"`{name}` of GRU {explained}",
        )
        for name, explained in (
            ("hidden_size", "is called `features` here"),
            ("load_state_dict", "does not exist, .* `rnncells.interop` makes them"),
            ("weights", r"does not exist, .*layer.init\(key, inputs\) returns them"),
            ("forward", r"does not exist: call layer.apply\(params, inputs\)"),
            ("train", "does not exist: pass deterministic=True or"),
            ("cuda", "does not exist: JAX computes where"),
            ("reset_states", "is not needed: modules .* keep neither"),
            ("zero_state", r"does not exist: .* cell.initialize_carry\(key, "),
        )
    },
    "cells in a list": (
        lambda: rnncells.RNN([rnncells.GRUCell(4), rnncells.GRUCell(5)]),
        TypeError,
        r"`cell` of RNN .* got a list. Make one cell of several: StackedCell\(\[",
    ),
    "words as inputs": (
        lambda: gru().init(KEY, np.array([[["a", "b"]]])),
        TypeError,
        "`inputs` must be an array of numbers, got an array of dtype <U1",
    ),
    "padding of Keras": (
        lambda: rnncells.ConvLSTMCell(4, (3, 3), padding="full"),
        ValueError,
        r"`padding` of ConvLSTMCell must be one of \['SAME', .*or numbers, got 'full'",
    ),
    "strides of 0": (
        lambda: rnncells.ConvGRUCell(4, (3,), strides=0),
        ValueError,
        "`strides` of ConvGRUCell must be at least 1, got 0",
    ),
    "kernel of 0": (
        lambda: rnncells.ConvLSTMCell(4, (3, 0)),
        ValueError,
        r"`kernel_size` of ConvLSTMCell must be at least 1, got \(3, 0\)",
    ),
    "kernel of floats": (
        lambda: rnncells.ConvLSTMCell(4, (3.0, 3)),
        TypeError,
        r"`kernel_size` of ConvLSTMCell must have ints, .* got \(3.0, 3\)",
    ),
    "kernel as text": (
        lambda: rnncells.ConvGRUCell(4, "3"),
        TypeError,
        "`kernel_size` of ConvGRUCell must have ints, .* got '3'",
    ),
    "strides of half a step": (
        lambda: rnncells.ConvLSTMCell(4, (3, 3), strides=1.5),
        TypeError,
        "`strides` of ConvLSTMCell must have ints, .* got 1.5",
    ),
    "no padding": (
        lambda: rnncells.ConvLSTMCell(4, (3, 3), padding=None),
        ValueError,
        "`padding` of ConvLSTMCell must be one of .* got None",
    ),
    "cell in place of a width": (
        lambda: rnncells.MultiLayerRNN(rnncells.GRUCell(4), num_layers=2),
        TypeError,
        r"MultiLayerRNN must be an int, .* got GRUCell\. To run a cell .*RNN\(cell\);",
    ),
    "function in place of the width of a layer": (
        lambda: rnncells.GRU(nn.tanh),
        TypeError,
        r"`features` of GRU must be an int.* got .*tanh.*>\.$",
    ),
    "positional widths of PyTorch": (
        lambda: rnncells.LSTM(3, 4, 2),
        TypeError,
        r"LSTM takes one positional argument, `features`, got \(3, 4, 2\)\. The width",
    ),
    "PackedSequence": (
        lambda: run(Batch()),
        TypeError,
        "got a PackedSequence of PyTorch. Convert it with `pad_packed_sequence`",
    ),
    "states as a cell's carry": (
        lambda: rnncells.RNN(rnncells.LSTMCell(4)).init(
            KEY, X, initial_carry=rnncells.LSTMStates(X[:, 0], X[:, 0])
        ),
        TypeError,
        r"`carry` of LSTMCell must be the carry of a cell, got LSTMStates\(h, c\)",
    ),
    "states as the carry of a cell's call": (
        lambda: rnncells.LSTMCell(4).init(
            KEY, rnncells.LSTMStates(X[:, 0], X[:, 0]), X[:, 0]
        ),
        TypeError,
        r"got LSTMStates\(h, c\), the states of a layer",
    ),
    "states of LSTM for a GRU": (
        lambda: apply(X, rnncells.LSTMStates(*STATES), layer=rnncells.GRU(4)),
        ValueError,
        "`states` of GRU must have the shapes",
    ),
}


class Batch:
    """Stands for `torch.nn.utils.rnn.PackedSequence`."""

    batch_sizes = data = X


CARRIES = {
    "batch_dims by name": (
        lambda: rnncells.GRUCell(4).initialize_carry(KEY, batch_dims=(2,), size=4),
        TypeError,
        "as up to Flax 0.6.11. `import rnncells.legacy` runs such code, and the "
        "command `rnncells-migrate` rewrites it",
    ),
    "key and rng": (
        lambda: rnncells.GRUCell(4).initialize_carry(KEY, (2, 3), rng=KEY),
        TypeError,
        "Pass only one of `key` and `rng`",
    ),
    "unknown argument": (
        lambda: rnncells.GRUCell(4).initialize_carry(KEY, shape=(2, 3)),
        TypeError,
        r"takes `key` and `sample_input`, got \['shape'\]",
    ),
    "batch size and width": (
        lambda: rnncells.GRUCell(4).initialize_carry(2, 4),
        TypeError,
        r"`key` of `initialize_carry` must be a random key .*, got 2",
    ),
    "width as a sample": (
        lambda: rnncells.GRUCell(4).initialize_carry(KEY, 4),
        TypeError,
        r"`sample_input` must be one step of input, .*, got 4",
    ),
    "key as a sample": (
        lambda: rnncells.GRUCell(4).initialize_carry(X[:, 0], KEY),
        TypeError,
        r"`key` of `initialize_carry` must be a random key",
    ),
    "key alone as a sample": (
        lambda: rnncells.GRUCell(4).initialize_carry(None, KEY),
        TypeError,
        r"got a random key. The key is the first argument",
    ),
    "no sample for RNN": (
        lambda: gru().initialize_carry(KEY),
        TypeError,
        "Pass exactly one of `sample_input` and `batch_shape`",
    ),
    "batch_shape of a convolution": (
        lambda: rnncells.RNN(rnncells.ConvLSTMCell(4, (3, 3))).initialize_carry(
            batch_shape=(2,)
        ),
        ValueError,
        "`batch_shape` is not enough for ConvLSTMCell: .* must have at least 3 axes",
    ),
    "batch_shape of a cell whose carry has the width of the input": (
        lambda: rnncells.RNN(
            own(carry_shape=lambda cell, shape: shape)
        ).initialize_carry(batch_shape=(2,)),
        ValueError,
        "`batch_shape` is not enough for MyCell: its carry depends on the width",
    ),
    "batch_shape of a stack of such a cell": (
        lambda: rnncells.Stack([DroppingCell()]).initialize_carry(batch_shape=(2,)),
        ValueError,
        "`batch_shape` is not enough for Stack: its carry depends on the width",
    ),
    "batch_shape an int": (
        lambda: gru().initialize_carry(batch_shape=2),
        TypeError,
        "`batch_shape` must be a tuple of sizes, got 2",
    ),
    "learned carry without parameters": (
        lambda: gru(learn_initial_carry=True).initialize_carry(batch_shape=(2,)),
        ValueError,
        "`initialize_carry` of RNN with `learn_initial_carry` needs parameters",
    ),
    "no sample for a stack": (
        lambda: rnncells.Stack([rnncells.GRUCell(4)]).initialize_carry(KEY),
        TypeError,
        "Pass exactly one of `sample_input` and `batch_shape`",
    ),
    "carry of another width, as in Flax's seq2seq example": (
        lambda: rnncells.LSTMCell(1).init(KEY, (jnp.ones((2, 4)),) * 2, X[:, 0]),
        ValueError,
        r"flax.linen ignores `features` and takes the width of the carry. For this "
        r"carry, write LSTMCell\(features=4\)",
    ),
    "carry_shape without its comma": (
        lambda: outputs(own(carry_shape=lambda cell, shape: cell.features)),
        TypeError,
        r"`carry_shape` of MyCell must return shapes, .* needs a comma: \(4,\)",
    ),
    "carry_shape of two sizes without commas": (
        lambda: outputs(own(carry_shape=lambda cell, shape: {"c": 4, "h": (4,)})),
        TypeError,
        r"must return shapes, which are tuples of sizes, got .*: \(4,\)",
    ),
}
FIELDS = {
    "integer dtype": (
        lambda: rnncells.GRUCell(4, dtype=jnp.int32),
        TypeError,
        "`dtype` of GRUCell must be floating or complex, got int32",
    ),
    "integer param_dtype": (
        lambda: rnncells.ConvGRUCell(4, (3,), param_dtype=int),
        TypeError,
        "`param_dtype` of ConvGRUCell must be floating or complex, got int",
    ),
    "integer dtype of a layer": (
        lambda: rnncells.LSTM(4, dtype=jnp.int8),
        TypeError,
        "`dtype` of LSTM must be floating or complex, got int8",
    ),
    "unknown dtype": (
        lambda: rnncells.GRU(4, dtype="bf16"),
        TypeError,
        "`dtype` of GRU must be floating or complex, got 'bf16'. Write jnp.bfl",
    ),
    "unknown param_dtype": (
        lambda: rnncells.ConvLSTMCell(4, (3,), param_dtype="fp32"),
        TypeError,
        "`param_dtype` of ConvLSTMCell must be floating .* got 'fp32'",
    ),
    "unknown dtype of a block": (
        lambda: rnncells.XLSTMBlock(4, dtype="fp16"),
        TypeError,
        "`dtype` of XLSTMBlock must be floating .* got 'fp16'",
    ),
    "unknown dtype of a gate": (
        lambda: rnncells.ElementwiseAffine(param_dtype=3),
        TypeError,
        "`param_dtype` of ElementwiseAffine must be floating .* got 3",
    ),
    "initializer as text": (
        lambda: rnncells.LSTMCell(4, kernel_init="glorot_uniform"),
        TypeError,
        "`kernel_init` of LSTMCell must be an initializer, .* got 'glorot_uniform'",
    ),
    "initializer of a layer as text": (
        lambda: rnncells.GRU(4, bias_init="zeros"),
        TypeError,
        "`bias_init` of GRU must be an initializer, .* got 'zeros'",
    ),
    "initializer of JAX not called": (
        lambda: rnncells.LSTMCell(4, recurrent_kernel_init=nn.initializers.orthogonal),
        TypeError,
        r"`recurrent_kernel_init` of LSTMCell must be .*, got orthogonal. Call it: "
        r"orthogonal\(\)",
    ),
    "initializer of Flax not called": (
        lambda: rnncells.GRUCell(4, bias_init=nn.initializers.zeros_init),
        TypeError,
        r"`bias_init` of GRUCell .* got zeros_init. Call it: zeros_init\(\)",
    ),
    "initializer of peepholes not called": (
        lambda: rnncells.PeepholeLSTMCell(4, peephole_init=nn.initializers.zeros_init),
        TypeError,
        r"`peephole_init` of PeepholeLSTMCell .* Call it: zeros_init\(\)",
    ),
    "initializer of rnncells not called": (
        lambda: rnncells.LSTMCell(4, bias_init=rnncells.initializers.forget_gate),
        TypeError,
        r"`bias_init` of LSTMCell .* got forget_gate. Call it",
    ),
    "initializer of matrices for biases": (
        lambda: rnncells.LSTMCell(4, bias_init=nn.initializers.lecun_normal()).init(
            KEY, (jnp.ones((2, 4)),) * 2, X[:, 0]
        ),
        ValueError,
        r"initializer of the bias of `hi` in LSTMCell failed for the shape \(4,\)",
    ),
    "neither blocks nor features": (
        lambda: rnncells.LSTM1997Cell(),
        TypeError,
        "LSTM1997Cell needs `blocks` or `features`",
    ),
    "features that blocks do not divide": (
        lambda: rnncells.LSTM2000Cell(features=5, block_size=2),
        ValueError,
        "`features` of LSTM2000Cell must be `blocks` times `block_size`, got",
    ),
    "class in a ZoneoutCell": (
        lambda: rnncells.ZoneoutCell(rnncells.LSTMCell),
        TypeError,
        r"`cell` of ZoneoutCell must be an instance such as LSTMCell\(features\)",
    ),
    "classes in a Bidirectional": (
        lambda: rnncells.Bidirectional(rnncells.RNN, rnncells.RNN),
        TypeError,
        r"`forward_rnn` of Bidirectional must be an instance such as RNN\(features\)",
    ),
    "layers of a stack one by one": (
        lambda: rnncells.Stack(rnncells.GRUCell(4), rnncells.GRUCell(4)),
        TypeError,
        r"`layers` of Stack must be a list, as in Stack\(\[a, b\]\), got 2 arguments",
    ),
    "one layer of a stack": (
        lambda: rnncells.Stack(rnncells.GRUCell(4)),
        ValueError,
        "`layers` of Stack must be a list with at least one layer, got GRUCell",
    ),
    "one instance three times": (
        lambda: rnncells.Stack([rnncells.GRUCell(3)] * 3).init(KEY, X),
        UserWarning,
        "one instance of GRUCell more than once, so these layers share their",
    ),
    "one instance in both directions": (
        lambda: rnncells.Bidirectional(*[gru()] * 2).init(KEY, X),
        UserWarning,
        "are the same object, so they share their parameters",
    ),
    "dropout of one layer": (
        lambda: lstm(dropout=0.5).init(KEY, X, deterministic=True),
        UserWarning,
        "`dropout` of LSTM is applied between layers, so it has no effect",
    ),
}
INPUTS = {
    "tokens": (
        lambda: run(jnp.ones((2, 7), int)),
        UserWarning,
        r"`inputs` are integers of shape \(2, 7\), read as \(time, features\). Tokens",
    ),
    "tokens for a layer": (
        lambda: lstm().init(KEY, jnp.ones((2, 7), int)),
        UserWarning,
        "Tokens of shape .* need an embedding such as nn.Embed",
    ),
    "images without channels": (
        lambda: rnncells.RNN(rnncells.ConvLSTMCell(2, (3, 3))).init(
            KEY, jnp.ones((2, 3, 6, 6))
        ),
        UserWarning,
        r"read as \(time, height, width, channels\), with 6 channels.* add the axis of",
    ),
    "channels first, of images that are not square": (
        lambda: rnncells.RNN(rnncells.ConvGRUCell(2, (3, 3))).init(
            KEY, jnp.ones((2, 3, 1, 9, 8))
        ),
        UserWarning,
        r"with 8 channels. If the channels are the axis of size 1, move it",
    ),
    "channels first": (
        lambda: rnncells.RNN(rnncells.ConvLSTMCell(2, (3, 3))).init(
            KEY, jnp.ones((2, 2, 3, 6, 6))
        ),
        UserWarning,
        r"with 6 channels. If the channels are the axis of size 3, move it",
    ),
    "sequence for step": (
        lambda: gru().init(KEY, None, X, method="step"),
        UserWarning,
        r"`inputs` of `step` are one time step, .* the batch axes \(2, 7\)",
    ),
    "sequence for step of a layer": (
        lambda: lstm().init(KEY, None, X, method="step"),
        UserWarning,
        r"`inputs` of `step` are one time step",
    ),
    "list of steps": (
        lambda: run([X[:, 0], X[:, 1]]),
        TypeError,
        r"`inputs` must be an array, .*, got a list of 2. Join steps with jnp.stack",
    ),
    "list of steps for a layer": (
        lambda: lstm().init(KEY, [X[:, 0], X[:, 1]]),
        TypeError,
        "got a list of 2. Join steps with jnp.stack",
    ),
    "list of steps for a stack": (
        lambda: rnncells.Stack([rnncells.GRUCell(4)]).init(KEY, [X[:, 0], X[:, 1]]),
        TypeError,
        "got a list of 2. Join steps with jnp.stack",
    ),
    "two inputs for a cell of one": (
        lambda: run((X, X)),
        TypeError,
        r"GRUCell multiplies one array by its weights, got tuple. Join",
    ),
    "initial carry in half precision": (
        lambda: run(initial_carry=jnp.zeros((2, 4), jnp.bfloat16)),
        UserWarning,
        "`initial_carry` of GRUCell is bfloat16, so the state is rounded to bfloat16 "
        "after each step, although a step computes in float32. Convert",
    ),
    "carry of a step of Flax's cell in half precision": (
        lambda: rnncells.RNN(nn.LSTMCell(4)).init(
            KEY, (jnp.zeros((2, 4), jnp.float16),) * 2, X[:, 0], method="step"
        ),
        UserWarning,
        "`initial_carry` of LSTMCell is float16",
    ),
    "packed batch as a whole": (
        lambda: run(packed()),
        TypeError,
        r"got a Packed batch. Pass packed.inputs with resets=packed.resets and mask=",
    ),
    "lengths out of range under jit, with jax.enable_checks": (
        lambda: checked_lengths(jnp.array([7, 9])),
        JaxRuntimeError,
        r"`seq_lengths` must be in \[0, 7\] \(the time axis\), got 9 at index \(1,\)",
    ),
    "mask of step": (
        lambda: gru().init(KEY, None, X[:, 0], mask=jnp.ones(3, bool), method="step"),
        ValueError,
        r"`mask` must have .* \(2,\), got the shape \(3,\)",
    ),
    "mask of step with hold": (
        lambda: gru(padded_outputs="hold").init(
            KEY, None, X[:, 0], mask=jnp.ones(2, bool), method="step"
        ),
        ValueError,
        "`mask` of `step` needs padded_outputs='run' or 'zero', got 'hold'",
    ),
    "resets of step not boolean": (
        lambda: gru().init(KEY, None, X[:, 0], resets=jnp.ones(2), method="step"),
        TypeError,
        "`resets` must be boolean, got float32",
    ),
    "padded_outputs of a call unknown": (
        lambda: run(padded_outputs="mean"),
        ValueError,
        r"one of \['run', 'hold', 'zero'\], got 'mean'",
    ),
    "lengths after a layer that shortens time": (
        lambda: jax.eval_shape(
            lambda n: rnncells.Stack(
                [nn.Conv(4, (2,), strides=2), rnncells.GRUCell(4)]
            ).init(KEY, X, seq_lengths=n),
            jnp.array([7, 2]),
        ),
        ValueError,
        r"Stack got lengths, .* for inputs with the batch and time axes \(2, 7\), "
        r"but the inputs of its layer GRUCell have the shape \(2, 4, 4\). A layer",
    ),
    "resets after a function that shortens time": (
        lambda: rnncells.Stack([lambda x: x[:, 1:], rnncells.GRU(4)]).init(
            KEY, X, resets=jnp.ones((2, 7), bool)
        ),
        ValueError,
        r"axes \(2, 7\), but the inputs of its layer GRU have the shape \(2, 6, 3\)",
    ),
    "step of a convolution over time": (
        lambda: rnncells.Stack([nn.Conv(4, (3,)), rnncells.GRUCell(4)]).init(
            KEY, None, X[:, 0], method="step"
        ),
        ValueError,
        "`step` of Stack needs layers that take one step, got Conv, whose outputs dep",
    ),
    "norm of batches after a layer that shortens time": (
        lambda: rnncells.Stack([lambda x: x[:, 1:], nn.GroupNorm(3)]).init(
            KEY, X, mask=jnp.ones((2, 7), bool)
        ),
        ValueError,
        r"axes \(2, 7\), but the inputs of its layer GroupNorm have .* \(2, 6, 3\)",
    ),
    "reset_carry of a layer": (
        lambda: rnncells.Stack([rnncells.LSTM(4)]).init(
            KEY, X, resets=jnp.ones((2, 7), bool), reset_carry=(STATES,)
        ),
        ValueError,
        "`reset_carry` must be None for LSTM",
    ),
}
MORE = {
    "PerGateInit for kernels": (
        lambda: rnncells.LSTMCell(4, kernel_init=rnncells.initializers.forget_gate()),
        TypeError,
        "`kernel_init` of LSTMCell must be an initializer of matrices, got a PerGate",
    ),
    "flag of a cell": (
        lambda: rnncells.GRUCell(4, use_bias="no"),
        TypeError,
        "`use_bias` of GRUCell must be a bool, got 'no'",
    ),
    "deterministic of a cell no bool": (
        lambda: zoneout(deterministic="no"),
        TypeError,
        "`deterministic` of ZoneoutCell must be a bool, got 'no'",
    ),
    "states of single layers": (
        lambda: lstm(num_layers=2).init(KEY, X, ((X[:, 0, :2],) * 2,) * 2),
        ValueError,
        "got one tuple for each layer. Stack them: LSTMStates",
    ),
    "LSTMStates for a stack of two": (
        lambda: rnncells.Stack([rnncells.GRU(4), rnncells.GRU(4)]).init(
            KEY, X, initial_carry=rnncells.LSTMStates(*STATES)
        ),
        ValueError,
        "`initial_carry` of Stack must be a tuple with one carry for each",
    ),
    "LSTMStates for both directions": (
        lambda: rnncells.Bidirectional(gru(), gru()).init(
            KEY, X, initial_carry=rnncells.LSTMStates(*STATES)
        ),
        ValueError,
        r"must be a pair \(forward, backward\), got LSTMStates",
    ),
    "run without a carry": (
        lambda: rnncells.Stack([Echo()]).init(KEY, X),
        TypeError,
        r"`run` of Echo must return \(carry, outputs\), got",
    ),
    "padded_outputs of a stack unknown": (
        lambda: rnncells.Stack([rnncells.LSTM(4)]).init(KEY, X, padded_outputs="no"),
        ValueError,
        r"`padded_outputs` of RNN must be one of .*, got 'no'",
    ),
    "padded_outputs of a layer in a stack": (
        lambda: rnncells.Stack([rnncells.LSTM(4)]).init(KEY, X, padded_outputs="run"),
        ValueError,
        "`padded_outputs` must be 'zero' for LSTM, got 'run'",
    ),
    "reversed layer with skip connections": (
        lambda: rnncells.Stack([gru(), gru(reverse=True)], skip_connections=True),
        ValueError,
        "`skip_connections` of Stack needs keep_order=True in reversed layers",
    ),
    "mask for a layer of Flax in a stack": (
        lambda: rnncells.Stack([nn.RNN(nn.GRUCell(4))]).init(
            KEY, X, mask=jnp.ones((2, 7), bool)
        ),
        ValueError,
        "`mask` of Stack cannot be passed to flax.linen.RNN. Use rnncells.RNN",
    ),
    "layers in a Bidirectional": (
        lambda: rnncells.Bidirectional(rnncells.LSTM(4), rnncells.LSTM(4)),
        TypeError,
        "a layer that is called with `reverse` .* the option bidirectional=True",
    ),
    "merge_fn as text": (
        lambda: rnncells.Bidirectional(gru(), gru(), merge_fn="sum"),
        TypeError,
        "`merge_fn` of Bidirectional must be a function of two arrays, got 'sum'",
    ),
    "sample in place of the key": (
        lambda: rnncells.GRUCell(4).initialize_carry(X[:, 0]),
        TypeError,
        r"must be a random key .* got an array float32\(2, 3\)",
    ),
    "sample in place of the key of a stack": (
        lambda: rnncells.Stack([rnncells.GRUCell(4)]).initialize_carry((2, 3)),
        TypeError,
        r"`key` of `initialize_carry` must be a random key",
    ),
    "batch_shape of a stack of convolutions": (
        lambda: rnncells.Stack([rnncells.ConvLSTMCell(4, (3, 3))]).initialize_carry(
            batch_shape=(2,)
        ),
        ValueError,
        "`batch_shape` is not enough for Stack",
    ),
    "learned carry with the parameters of another layer": (
        lambda: gru(learn_initial_carry=True).apply(params_of(gru()), X),
        ScopeParamNotFoundError,
        "needs the parameter 'params/initial_carry/carry_0'",
    ),
    "dropout of a user's cell without split_rngs": (
        lambda: rnncells.RNN(DroppingCell()).apply({}, X, rngs={"dropout": KEY}),
        InvalidRngError,
        r"Add the stream to `split_rngs` of RNN: {'params': False, 'dropout': True}",
    ),
    "deterministic that setup has read": (
        lambda: rnncells.RNN(SetUpCell(4, deterministic=False)).init(
            KEYS, X, deterministic=True
        ),
        TypeError,
        "`deterministic` of `drop` in SetUpCell is False, but the call has True",
    ),
    "no inputs for a layer": (
        lambda: lstm().init(KEY, None),
        TypeError,
        "`inputs` must be .*, got None",
    ),
    "list of steps for step": (
        lambda: lstm().init(KEY, None, [X[:, 0]], method="step"),
        TypeError,
        "got a list of 1. Join steps",
    ),
    "sample of check_cell": (
        lambda: rnncells.check_cell(rnncells.GRUCell(4), 3),
        TypeError,
        "`sample_input` must be one step of input, .* got 3",
    ),
    "arguments of unpack swapped": (
        lambda: packing.unpack(packed().plan, packed().inputs),
        TypeError,
        r"`plan` of unpack must be a Plan, got ndarray. The arguments are unpack\(rows",
    ),
    "sequences in place of lengths": (
        lambda: packing.plan([np.ones((3, 2)), np.ones((2, 2))], row_length=5),
        TypeError,
        r"`seq_lengths` must be a list of integers, .* packing.pack\(sequences",
    ),
}
STACKED = {
    "no layer": (
        lambda: rnncells.StackedCell([]),
        ValueError,
        r"`layers` of StackedCell must be a list with at least one layer, got \[\]",
    ),
    "no cell": (
        lambda: rnncells.StackedCell([nn.Dense(3)]),
        ValueError,
        "`layers` of StackedCell must have at least one cell, got only Dense. For",
    ),
    "class": (
        lambda: stacked(rnncells.LSTMCell),
        TypeError,
        "`layers` of StackedCell must be cells, modules and functions, got <class",
    ),
    "no function": (
        lambda: stacked(64),
        TypeError,
        "`layers` of StackedCell must be cells, modules and functions, got 64",
    ),
    "layer over sequences": (
        lambda: stacked(rnncells.GRU(4)),
        TypeError,
        "run one step at a time, got GRU, a layer over sequences. Pass its cell, or",
    ),
    "layer of Flax over sequences": (
        lambda: stacked(nn.RNN(nn.GRUCell(4))),
        TypeError,
        "run one step at a time, got RNN, a layer over sequences",
    ),
    "cell without initialize_carry": (
        lambda: stacked(Counting()),
        TypeError,
        "Counting has `num_feature_dims`, but it has no `initialize_carry`",
    ),
    "one by one": (
        lambda: rnncells.StackedCell(rnncells.GRUCell(4), rnncells.GRUCell(4)),
        TypeError,
        r"`layers` of StackedCell must be a list, as in StackedCell\(\[a, b\]\), got 2",
    ),
    "one instance twice": (
        lambda: rnncells.RNN(rnncells.StackedCell([rnncells.GRUCell(3)] * 2)).init(
            KEY, X
        ),
        UserWarning,
        "`layers` of StackedCell has one instance of GRUCell more than once, so",
    ),
    "masks of each step and of all steps": (
        lambda: stacked(nn.Dropout(0.1), rnncells.VariationalGRUCell(4)),
        ValueError,
        "VariationalGRUCell uses the random stream 'dropout' for masks that are the "
        "same at every step, and Dropout for new masks at every step",
    ),
    "carry": (
        lambda: rnncells.RNN(stacked(rnncells.LSTMCell(4))).init(
            KEY, X, initial_carry=jnp.zeros((2, 4))
        ),
        ValueError,
        r"`carry` of StackedCell must be a tuple with one carry for each of the 2 "
        r"cells, got .* \(2, 4\)",
    ),
    "states of a layer": (
        lambda: stacked(rnncells.GRUCell(4)).init(
            KEY, rnncells.LSTMStates(*STATES), X[:, 0]
        ),
        TypeError,
        r"`carry` of StackedCell must be the carry of a cell, got LSTMStates\(h, c\)",
    ),
    "a layer that joins axes": (
        lambda: rnncells.RNN(stacked(lambda x: x.reshape(-1))).init(KEY, X),
        ValueError,
        r"must keep the batch axes \(2,\), but GRUCell gets inputs of shape \(6,\)",
    ),
    "number of feature axes": (
        lambda: stacked(input_dims=-1),
        ValueError,
        "`input_dims` of StackedCell must be at least 0, got -1",
    ),
}
DECODING = {
    "no steps": (
        lambda: decode(steps=0),
        ValueError,
        "`steps` of decode must be at least 1, got 0",
    ),
    "steps unknown": (
        decode,
        TypeError,
        "`decode` needs `steps`, or `targets`, which has as many steps",
    ),
    "steps a float": (
        lambda: decode(steps=2.5),
        TypeError,
        "`steps` of decode must be an int, got 2.5",
    ),
    "outputs of another width": (
        lambda: decode(steps=3),
        ValueError,
        r"must have the form of `first_input`, float\(2, 3\), but the outputs of "
        r"GRUCell are float\(2, 4\). Pass `feed`, a function from outputs to inputs",
    ),
    "feed to another kind": (
        lambda: decode(steps=3, feed=lambda y: jnp.argmax(y, -1)),
        ValueError,
        r"form of `first_input`, float\(2, 3\), but `feed` returned int\(2,\)",
    ),
    "feed no function": (
        lambda: decode(steps=3, feed=nn.Dense(3)),
        TypeError,
        r"`feed` of `decode` must be a function of arrays, got Dense. Put modules",
    ),
    "feed of two arguments without a key": (
        lambda: decode(steps=3, feed=lambda y, key: y),
        TypeError,
        r"feed\(outputs, key\). `feed_key` is not given, and `feed`: missing",
    ),
    "feed of one argument with a key": (
        lambda: decode(steps=3, feed=lambda y: y, feed_key=KEY),
        TypeError,
        r"feed\(outputs, key\). `feed_key` is given, and `feed`: too many",
    ),
    "key without feed": (
        lambda: decode(steps=3, feed_key=KEY),
        ValueError,
        "`feed_key` of `decode` needs `feed`, got None",
    ),
    "feed key no key": (
        lambda: decode(steps=3, feed=jnp.sin, feed_key=7),
        TypeError,
        "`feed_key` of `decode` must be a random key such as jax.random.key",
    ),
    "rate without targets": (
        lambda: decode(steps=3, teacher_forcing_rate=0.5),
        ValueError,
        "`teacher_forcing_rate` of `decode` needs `targets`, got None",
    ),
    "rate out of range": (
        lambda: force(1.5),
        ValueError,
        r"`teacher_forcing_rate` of `decode` must be in \[0, 1\], got 1.5",
    ),
    "rate of each row": (
        lambda: force(jnp.ones(2)),
        TypeError,
        "`teacher_forcing_rate` of `decode` must be a number or a scalar array, got",
    ),
    "rate without a key": (
        lambda: force(0.5),
        InvalidRngError,
        r"needs a random key for `teacher_forcing`, unless it is 0 or 1. Pass rngs=\{",
    ),
    "targets of another width": (
        lambda: decode(targets=jnp.ones((2, 7, 4))),
        ValueError,
        r"`targets` of `decode` must be like `first_input` with a time axis of size 7 "
        r"at position 1, float\(2, 3\), got float\(2, 7, 4\)",
    ),
    "targets of another number of steps": (
        lambda: decode(targets=X, steps=5),
        ValueError,
        "`targets` of `decode` must be like .* with a time axis of size 5",
    ),
    "reverse": (
        lambda: decode(gru(reverse=True), steps=3),
        ValueError,
        "`decode` of RNN needs `reverse=False`, got True",
    ),
}
UNBOUND = {
    name: (call, CallCompactUnboundModuleError, "Can't call compact methods on unbound")
    for name, call in {
        "cell": lambda: rnncells.GRUCell(4)(jnp.ones((2, 4)), X[:, 0]),
        "RNN": lambda: gru()(X),
        "step": lambda: gru().step(None, X[:, 0]),
        "decode": lambda: gru().decode(X[:, 0], 3),
        "Bidirectional": lambda: rnncells.Bidirectional(gru(), gru())(X),
        "LSTM": lambda: lstm()(X),
        "Stack": lambda: rnncells.Stack([rnncells.GRUCell(4)])(X),
    }.items()
}
APPLY = {
    "parameters of another cell": (
        lambda: gru().apply(params_of(rnncells.RNN(rnncells.LSTMCell(4))), X),
        ScopeParamNotFoundError,
        r"GRUCell needs the parameter 'params/cell/ir/kernel', but the given "
        r"parameters of the cell are \['hf', .*\]. Are they the parameters of another",
    ),
    "no parameters": (
        lambda: gru().apply({}, X),
        ScopeParamNotFoundError,
        r"needs the parameter .* of the cell are \[\]",
    ),
    "parameters of another width": (
        lambda: gru().apply(params_of(rnncells.RNN(rnncells.GRUCell(5))), X),
        ValueError,
        r"`kernel` of `ir` must have the shape \(3, 4\) .* got parameters .* \(3, 5\)",
    ),
    "no key for dropout between layers": (
        lambda: dropout_layers(deterministic=False),
        InvalidRngError,
        r'LSTM needs a random key for `dropout`. Pass rngs={"dropout": key} to `apply`',
    ),
    "no word on dropout between layers": (
        dropout_layers,
        ValueError,
        "`deterministic` of LSTM must be True or False with dropout=0.3, got None",
    ),
    "no key for zoneout": (
        lambda: rnncells.RNN(zoneout()).apply(
            params_of(rnncells.RNN(zoneout(deterministic=True))), X, deterministic=False
        ),
        InvalidRngError,
        r'ZoneoutCell needs a random key for `dropout`. Pass rngs={"dropout": key}',
    ),
    "no word on zoneout, as after `model.eval()` of Flax NNX": (
        lambda: rnncells.RNN(zoneout()).init(KEYS, X),
        ValueError,
        "`deterministic` of ZoneoutCell must be True or False with rate=0.4, got None",
    ),
    "no word on variational dropout": (
        lambda: rnncells.RNN(rnncells.VariationalGRUCell(4, recurrent_rate=0.2)).init(
            KEYS, X
        ),
        ValueError,
        "`deterministic` of VariationalGRUCell .* with recurrent_rate=0.2, got None",
    ),
    "no streams in flax.linen.RNN": (
        lambda: nn.RNN(zoneout(deterministic=False)).apply(
            params_of(nn.RNN(zoneout(deterministic=True))), X, rngs={"dropout": KEY}
        ),
        InvalidRngError,
        "In flax.linen.RNN and flax.linen.scan, also add the stream to `split_rngs`",
    ),
    "deterministic of a call no bool": (
        lambda: run(deterministic=1),
        TypeError,
        "`deterministic` of RNN must be a bool, got 1",
    ),
    "deterministic for a cell that does not take it": (
        lambda: rnncells.RNN(ProposalCell()).init(KEY, X, deterministic=True),
        TypeError,
        r"a field `deterministic`, but does not take it in its call. Add the argument",
    ),
}
MISTAKES = {
    f"{group}: {name}": mistake
    for group, mistakes in {
        "old Flax": OLD_SPELLINGS,
        "call": CALLS,
        "own cell": OWN_CELLS,
        "layer": LAYERS,
        "dropout": DROPOUT,
        "other library": OTHER_LIBRARIES,
        "call of another library": OTHER_CALLS,
        "carry": CARRIES,
        "field": FIELDS,
        "inputs": INPUTS,
        "more": MORE,
        "stacked cell": STACKED,
        "decoding": DECODING,
        "unbound": UNBOUND,
        "apply": APPLY,
    }.items()
    for name, mistake in mistakes.items()
}
