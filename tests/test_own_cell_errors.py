"""Mistakes of those who write cells or choose loops, each with its error."""

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from user_cells import USER_CELLS

import rnncells
from rnncells import Chunk

X = jnp.ones((2, 7, 3))
KEY = jax.random.key(0)


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
    """Returns what a layer gives, its parameters made by the plain loop."""
    rnn = rnncells.RNN(cell, **options)
    return rnn.apply(rnn.init(KEY, X), X)


def recur(of_carry):
    """Returns a `recur` that multiplies the state by `of_carry(cell, h)`."""

    def recur(cell, carry, projected):
        c, h = carry
        h = nn.tanh(of_carry(cell, h) + projected)
        return (c, h), h

    return recur


def called_back(cell, h):
    return cell.affine(jax.pure_callback(abs, h, h), "h")


MISTAKES = {
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
    "gate in place of a layer": (
        lambda: outputs(own(recur=recur(lambda cell, h: cell.product(cell.h, h)))),
        TypeError,
        "`product` of MyCell takes a layer.*For gates use `affine`",
    ),
    "name in place of a layer": (
        lambda: outputs(own(recur=recur(lambda cell, h: cell.product("dense", h)))),
        TypeError,
        "takes a layer.*got 'dense'",
    ),
    "memory without the fast loop": (
        lambda: outputs(own(recur=recur(called_back)), memory="sqrt"),
        ValueError,
        r"memory='sqrt' of RNN needs the fast loop, which needs a step that `jax.vmap` "
        "can map; MyCell calls `jax.pure_callback` .* `memory` must be 'full'",
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
    "memory unknown": (
        lambda: rnncells.RNN(OwnCell(4), memory="half"),
        ValueError,
        r"`memory` of RNN must be one of .*, a Chunk\(steps\) or a policy of "
        "jax.checkpoint, got 'half'",
    ),
    "implementation unknown": (
        lambda: rnncells.RNN(OwnCell(4), implementation="cuda"),
        ValueError,
        "`implementation` of RNN must be 'auto' or 'scan', got 'cuda'",
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
    "class in place of a cell": (
        lambda: rnncells.RNN(rnncells.LSTMCell),
        TypeError,
        r"`cell` of RNN must be an instance such as LSTMCell\(features\), got",
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


@pytest.mark.parametrize("call, kind, message", MISTAKES.values(), ids=MISTAKES)
def test_mistake_has_its_error(call, kind, message):
    with pytest.raises(kind, match=message):
        call()


def test_gates_need_a_width():
    class NarrowCell(rnncells.RNNCellBase):
        hidden: int
        num_feature_dims = 1

        def carry_shape(self, input_shape):
            return (self.hidden,)

        def setup(self):
            self.gates("i")

        def project(self, inputs):
            return self.affine(inputs, "i")

    with pytest.raises(ValueError, match="`gates` of NarrowCell needs the width"):
        NarrowCell(4).init(KEY, X, method="project")


@pytest.mark.parametrize("cell", USER_CELLS.values(), ids=USER_CELLS)
def test_valid_cells_do_not_raise(cell):
    for memory in ("full", "sqrt"):
        outputs(cell(4), memory=memory)
