"""Mistakes, old spellings among them, each with its error."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rnncells

X = jnp.ones((2, 7, 3))
KEY = jax.random.key(0)


class Counting(nn.Module):
    """A cell of a user: counts the steps, for all rows together."""

    num_feature_dims: int = 1

    def __call__(self, carry, x):
        return carry + 1, x


class Summing(Counting):
    """A cell of a user: its output is a sum over the rows."""

    def __call__(self, carry, x):
        return carry, x.sum()


def gru(**options):
    return rnncells.RNN(rnncells.GRUCell(4), **options)


def run(x=X, **arguments):
    return gru().init(KEY, x, **arguments)


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
        r"with \(key, batch_dims, size\).*`import rnncells.legacy`.*`rnncells migrate`",
    ),
    "batch dims alone": (
        lambda: rnncells.LSTMCell(4).init(
            KEY, rnncells.LSTMCell(4).initialize_carry(KEY, (2,)), X[:, 0]
        ),
        ValueError,
        r"`carry` of LSTMCell\(features=4\) must have shapes \(\(2, 4\), \(2, 4\)\) "
        r"for inputs of shape \(2, 3\), got \(\(4,\), \(4,\)\)",
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
MISTAKES = {
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
ERRORS = OLD_SPELLINGS | MISTAKES


@pytest.mark.parametrize("call, kind, message", ERRORS.values(), ids=ERRORS)
def test_mistake_has_its_error(call, kind, message):
    with pytest.raises(kind, match=message):
        call()


def test_one_object_in_both_directions_warns():
    rnn = gru()
    layer = rnncells.Bidirectional(rnn, rnn)
    with pytest.warns(UserWarning, match="share their parameters"):
        params = layer.init(KEY, X)
    assert set(params["params"]) == {"forward_rnn"}
