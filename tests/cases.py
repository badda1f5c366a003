"""The cells that the shared tests walk, and what those tests have in common.

A new cell is tested by a line in `CELLS`, a new option by one in `VARIANTS`. All sizes
differ, so that a swapped axis fails.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from covering import exhaustive_but

import rnncells

BATCH, TIME, FEATURES_IN, FEATURES = 2, 5, 3, 4


@dataclass(frozen=True)
class Case:
    """A cell, small.

    Attributes:
      name: of the class, in rnncells and, where it has it, in flax.linen.
      options: arguments of the class.
      input_shape: feature axes of one step's input.
      in_flax: whether flax.linen runs the cell with these options.
      exact_gradient: whether the gradient is the derivative of the values.
    """

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    input_shape: tuple[int, ...] = (FEATURES_IN,)
    in_flax: bool = True
    exact_gradient: bool = True

    @property
    def make(self) -> Callable[..., nn.Module]:
        return partial(getattr(rnncells, self.name), **self.options)

    @property
    def make_flax(self) -> Callable[..., nn.Module]:
        return partial(getattr(nn, self.name), **self.options)

    def inputs(self, rng, *leading):
        values = rng.standard_normal((*leading, *self.input_shape))
        return jnp.asarray(values, jnp.result_type(float))


class AroundLSTM(Case):
    """A cell around an LSTMCell, which gets the options of all cells."""

    @property
    def make(self):
        around = getattr(rnncells, self.name)
        return lambda **options: around(
            rnncells.LSTMCell(FEATURES, **options), **self.options
        )


class OfSeveral(Case):
    """A stack of an LSTMCell, a Dense layer and a GRUCell, with the same options."""

    @property
    def make(self):
        def cell(carry_init=nn.initializers.zeros_init(), **options):
            return rnncells.StackedCell(
                [
                    rnncells.LSTMCell(FEATURES, carry_init=carry_init, **options),
                    nn.Dense(5, **options),
                    nn.relu,
                    rnncells.GRUCell(2, carry_init=carry_init, **options),
                ]
            )

        return cell


def soft_gate(x):
    """A gate in (0, 1) that is not logistic."""
    return (1 + nn.soft_sign(x)) / 2


def dense(name, in_flax=True, **options):
    return Case(name, {"features": FEATURES, **options}, in_flax=in_flax)


def heads(name, **options):
    return dense(name, in_flax=False, num_heads=2, **options)


def conv(spatial, in_flax=True, name="ConvLSTMCell", **options):
    options = {"features": FEATURES, "kernel_size": (3, 2, 3)[: len(spatial)]} | options
    return Case(name, options, (*spatial, FEATURES_IN), in_flax)


def conv_gru(spatial, **options):
    return conv(spatial, in_flax=False, name="ConvGRUCell", **options)


def memory_cells(exact_gradient=False, name="LSTM1997Cell", **options):
    options = {"blocks": 3, "block_size": 2, "weight_range": 0.9} | options
    return Case(name, options, (5,), False, exact_gradient)


# Every property is tested with these.
CELLS = {
    "SimpleCell": dense("SimpleCell"),
    "LSTMCell": dense("LSTMCell"),
    "OptimizedLSTMCell": dense("OptimizedLSTMCell"),
    "GRUCell": dense("GRUCell"),
    "GRUCell-reset-before": dense("GRUCell", in_flax=False, reset_after=False),
    "MGUCell": dense("MGUCell"),
    "ProjectedLSTMCell": dense("ProjectedLSTMCell", in_flax=False, proj_features=2),
    "PeepholeLSTMCell": dense("PeepholeLSTMCell", in_flax=False),
    "CoupledLSTMCell": dense("CoupledLSTMCell", in_flax=False),
    "LayerNormLSTMCell": dense("LayerNormLSTMCell", in_flax=False),
    "LayerNormGRUCell": dense("LayerNormGRUCell", in_flax=False),
    "ConvLSTMCell-2d": conv((6, 7)),
    "ConvLSTMCell-strides": conv((6, 7), in_flax=False, strides=(2, 3)),
    "ConvLSTMCell-peepholes": conv((6, 7), in_flax=False, peepholes=True),
    "ConvGRUCell": conv_gru((6, 7)),
    "LSTM1997Cell": memory_cells(),
    "LSTM1997Cell-full-gradient": memory_cells(True, truncate_gradient=False),
    "LSTM2000Cell": memory_cells(name="LSTM2000Cell"),
    "SLSTMCell": heads("SLSTMCell"),
    "MLSTMCell": heads("MLSTMCell"),
    "MinGRUCell": dense("MinGRUCell", in_flax=False),
    "LRUCell": dense("LRUCell", in_flax=False, state_features=6),
    "GatedDeltaNetCell": heads("GatedDeltaNetCell"),
    "SRUCell": dense("SRUCell", in_flax=False),
    "CausalConvCell": Case(
        "CausalConvCell", {"features": FEATURES}, (FEATURES,), in_flax=False
    ),
    "LTCCell": dense("LTCCell", in_flax=False, unfolds=2),
}
# Options that change a step and nothing else: tested are the step, its sequence and
# gradients, and equality with Flax.
VARIANTS = {
    "SimpleCell-relu": dense("SimpleCell", activation_fn=nn.relu),
    "SimpleCell-residual": dense("SimpleCell", residual=True),
    "LSTMCell-activations": dense(
        "LSTMCell", gate_fn=soft_gate, activation_fn=nn.soft_sign
    ),
    "GRUCell-activations": dense(
        "GRUCell", gate_fn=soft_gate, activation_fn=nn.soft_sign
    ),
    "MGUCell-no-reset-gate": dense("MGUCell", reset_gate=False),
    "PeepholeLSTMCell-activations": dense(
        "PeepholeLSTMCell", False, gate_fn=soft_gate, activation_fn=nn.soft_sign
    ),
    "PeepholeLSTMCell-no-bias": dense("PeepholeLSTMCell", False, use_bias=False),
    "CoupledLSTMCell-activations": dense(
        "CoupledLSTMCell", False, gate_fn=soft_gate, activation_fn=nn.soft_sign
    ),
    "CoupledLSTMCell-no-bias": dense("CoupledLSTMCell", False, use_bias=False),
    "LayerNormLSTMCell-activations": dense(
        "LayerNormLSTMCell", False, gate_fn=soft_gate, activation_fn=nn.soft_sign
    ),
    "LayerNormLSTMCell-no-bias": dense("LayerNormLSTMCell", False, use_bias=False),
    "LayerNormGRUCell-activations": dense(
        "LayerNormGRUCell", False, gate_fn=soft_gate, activation_fn=nn.soft_sign
    ),
    "LayerNormGRUCell-epsilon": dense("LayerNormGRUCell", False, epsilon=0.1),
    "LayerNormGRUCell-no-bias": dense("LayerNormGRUCell", False, use_bias=False),
    "ConvLSTMCell-1d": conv((6,)),
    "ConvLSTMCell-3d": conv((3, 4, 5)),
    "ConvLSTMCell-no-bias": conv((6, 7), use_bias=False),
    "ConvLSTMCell-valid": conv((6, 7), in_flax=False, padding="VALID"),
    "ConvLSTMCell-pairs": conv((6, 7), in_flax=False, padding=((1, 0), (2, 2))),
    # These keep the size of images, so that Flax runs them, for the state as well.
    "ConvLSTMCell-circular": conv((6, 7), padding="CIRCULAR"),
    "ConvLSTMCell-causal": conv((6,), padding="CAUSAL"),
    "ConvLSTMCell-one-sided": conv((6, 7), padding=((2, 0), (0, 1))),
    "ConvLSTMCell-peepholes-strides": conv(
        (6, 7), in_flax=False, peepholes=True, strides=(2, 3)
    ),
    "ConvGRUCell-activations": conv_gru(
        (6,), gate_fn=soft_gate, activation_fn=nn.soft_sign
    ),
    "ConvGRUCell-no-bias": conv_gru((6, 7), use_bias=False, reset_after=True),
    "ConvGRUCell-reset-after": conv_gru((6, 7), reset_after=True),
    "ConvGRUCell-strides": conv_gru((6, 7), strides=(2, 3), padding="VALID"),
    "LSTM1997Cell-cells-feed-back": memory_cells(gate_feedback=False),
    "LSTM1997Cell-gate-biases": memory_cells(
        biases=("in", "out"),
        input_gate_bias=(-1.0, -2.0, -3.0),
        output_gate_bias=(0.5, 0.0, -0.5),
    ),
    "LSTM2000Cell-cells-feed-back": memory_cells(
        name="LSTM2000Cell", gate_feedback=False
    ),
    "LSTM2000Cell-full-gradient": memory_cells(
        True, name="LSTM2000Cell", truncate_gradient=False
    ),
    "LSTM2000Cell-gate-biases": memory_cells(
        name="LSTM2000Cell",
        biases=("in", "forget", "out"),
        forget_gate_bias=(1.0, 2.0, 3.0),
    ),
    # The same loops as for cells above.
    "MinLSTMCell": dense("MinLSTMCell", False),
    "QRNNCell": dense("QRNNCell", False),
    "QRNNCell-ifo": dense("QRNNCell", False, pooling="ifo"),
    "RGLRUCell": Case(
        "RGLRUCell", {"features": FEATURES, "num_heads": 2}, (FEATURES,), False
    ),
    "DeltaNetCell": heads("DeltaNetCell"),
    "MLSTMCell-exp": heads("MLSTMCell", forget_gate="exp", output_gate=False),
    "SLSTMCell-exp": heads("SLSTMCell", forget_gate="exp"),
    "IndRNNCell": dense("IndRNNCell", False),
    "CfCCell": dense("CfCCell", False, backbone_features=5),
    "CfCCell-pure": dense("CfCCell", False, mode="pure", backbone_features=5),
    "LSTMCell-heads": heads("LSTMCell"),
    "GRUCell-heads": heads("GRUCell"),
    "SimpleCell-heads": heads("SimpleCell"),
    "LSTMCell-no-bias": dense("LSTMCell", False, use_bias=False),
    "GRUCell-no-bias": dense("GRUCell", False, use_bias=False),
    "SimpleCell-no-bias": dense("SimpleCell", False, use_bias=False),
    "ProjectedLSTMCell-no-bias": dense(
        "ProjectedLSTMCell", False, proj_features=2, use_bias=False
    ),
    # With random numbers: tests/test_random_cells.py.
    "VariationalLSTMCell": dense("VariationalLSTMCell", False, deterministic=True),
    "VariationalGRUCell": dense("VariationalGRUCell", False, deterministic=True),
    "ZoneoutCell": AroundLSTM(
        "ZoneoutCell", {"rate": (0.4, 0.1), "deterministic": True}, in_flax=False
    ),
    "DropConnectCell": AroundLSTM(
        "DropConnectCell", {"deterministic": True}, in_flax=False
    ),
    "StackedCell": OfSeveral("StackedCell", in_flax=False),
}
ALL_CELLS = CELLS | VARIANTS
# Cells of `CELLS` whose carry is multiplied by no weights, so that the fast loop has
# nothing to take out of its steps.
LINEAR = ["MLSTMCell", "MinGRUCell", "LRUCell", "GatedDeltaNetCell"]
WITH_PRODUCTS = [
    name
    for name in CELLS
    if name not in (*LINEAR, "SRUCell", "LTCCell", "CausalConvCell")
]
# All of `CELLS` but those that share nearly all code with another one.
DISTINCT = [
    name
    for name in CELLS
    if name
    not in ("OptimizedLSTMCell", "LSTM1997Cell-full-gradient", "ConvLSTMCell-strides")
]
# One cell of each form: Flax's LSTM; two products in series; convolutions and
# peepholes; blocks of memory cells with a truncated gradient.
FORMS = ["LSTMCell", "GRUCell-reset-before", "ConvLSTMCell-peepholes", "LSTM1997Cell"]


def each_cell(cells=CELLS, always=DISTINCT):
    """Parametrizes a test by the names of cells.

    Args:
      cells: names of the cells.
      always: those that every run tests; `-m exhaustive` tests the others.
    """
    names = [(name,) for name in cells]
    unknown = set(always) - set(ALL_CELLS)
    if unknown:
        raise ValueError(f"`always` must be names of cells, got {sorted(unknown)}.")
    chosen = [(name,) for name in cells if name in always]
    rows = exhaustive_but(names, chosen)
    return pytest.mark.parametrize("name", rows)


def random_like(rng, tree, scale=0.7):
    """Returns normal values in place of every leaf: zeros hide a misplaced bias."""
    return jax.tree.map(
        lambda leaf: jnp.asarray(scale * rng.standard_normal(leaf.shape), leaf.dtype),
        tree,
    )


def random_setting(case, rng, *batch):
    """Returns a cell, random parameters, a random carry and the inputs of one step."""
    cell = case.make(param_dtype=jnp.result_type(float))
    x = case.inputs(rng, *batch)
    carry = jax.eval_shape(cell.initialize_carry, jax.random.key(0), x)
    params = jax.eval_shape(cell.init, jax.random.key(0), carry, x)
    return cell, random_like(rng, params), random_like(rng, carry), x


def random_params(rng, layer, *inputs, scale=0.7, **kwargs):
    """Returns random parameters of a layer, in the tree and dtypes of its own."""
    return random_like(
        rng, jax.eval_shape(layer.init, jax.random.key(0), *inputs, **kwargs), scale
    )


def jit_apply(layer, variables, *inputs, **options):
    """Compiles `layer.apply` and calls it.

    Options that are Python numbers, strings or functions are static.
    """
    static = {
        name: value
        for name, value in options.items()
        if isinstance(value, int | float | str) or callable(value)
    }
    arrays = {name: value for name, value in options.items() if name not in static}
    return jax.jit(partial(layer.apply, **static))(variables, *inputs, **arrays)


def under_cell(params):
    """Returns a cell's parameters as those of an RNN around it."""
    return {"params": {"cell": params["params"]}}


def assert_close(actual, expected, rtol=1e-5, atol=1e-6):
    """Asserts equal structures, shapes and dtypes, and close values."""
    # Numbers of Python have no shape.
    actual, expected = (
        jax.tree.map(lambda x: x if hasattr(x, "shape") else np.asarray(x), tree)
        for tree in (actual, expected)
    )
    chex.assert_trees_all_equal_shapes_and_dtypes(actual, expected)
    chex.assert_trees_all_close(actual, expected, rtol=rtol, atol=atol)


def assert_equal(actual, expected):
    """Asserts equal structures, shapes and dtypes, and bit-identical values."""
    assert_close(actual, expected, rtol=0, atol=0)
