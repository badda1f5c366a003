"""The cells that the shared tests walk, and what those tests have in common.

A new cell is tested by a line in `CELLS`, a new option by one in `VARIANTS`. All sizes
differ, so that a swapped axis fails.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

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


def soft_gate(x):
    """A gate in (0, 1) that is not logistic."""
    return (1 + nn.soft_sign(x)) / 2


def dense(name, in_flax=True, **options):
    return Case(name, {"features": FEATURES, **options}, in_flax=in_flax)


def conv(spatial, in_flax=True, **options):
    options = {"features": FEATURES, "kernel_size": (3, 2, 3)[: len(spatial)]} | options
    return Case("ConvLSTMCell", options, (*spatial, FEATURES_IN), in_flax)


def memory_cells(exact_gradient=False, **options):
    options = {"blocks": 3, "block_size": 2, "weight_range": 0.9} | options
    return Case("LSTM1997Cell", options, (5,), False, exact_gradient)


# Every property is tested with these.
CELLS = {
    "SimpleCell": dense("SimpleCell"),
    "LSTMCell": dense("LSTMCell"),
    "OptimizedLSTMCell": dense("OptimizedLSTMCell"),
    "GRUCell": dense("GRUCell"),
    "GRUCell-reset-before": dense("GRUCell", in_flax=False, reset_after=False),
    "MGUCell": dense("MGUCell"),
    "ConvLSTMCell-2d": conv((6, 7)),
    "ConvLSTMCell-strides": conv((6, 7), in_flax=False, strides=(2, 3)),
    "LSTM1997Cell": memory_cells(),
    "LSTM1997Cell-full-gradient": memory_cells(True, truncate_gradient=False),
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
    "ConvLSTMCell-1d": conv((6,)),
    "ConvLSTMCell-3d": conv((3, 4, 5)),
    "ConvLSTMCell-no-bias": conv((6, 7), use_bias=False),
    "ConvLSTMCell-valid": conv((6, 7), in_flax=False, padding="VALID"),
    "ConvLSTMCell-pairs": conv((6, 7), in_flax=False, padding=((1, 0), (2, 2))),
    # These keep the size of images, so that Flax runs them, for the state as well.
    "ConvLSTMCell-circular": conv((6, 7), padding="CIRCULAR"),
    "ConvLSTMCell-causal": conv((6,), padding="CAUSAL"),
    "ConvLSTMCell-one-sided": conv((6, 7), padding=((2, 0), (0, 1))),
    "LSTM1997Cell-cells-feed-back": memory_cells(gate_feedback=False),
    "LSTM1997Cell-gate-biases": memory_cells(
        biases=("in", "out"),
        input_gate_bias=(-1.0, -2.0, -3.0),
        output_gate_bias=(0.5, 0.0, -0.5),
    ),
}
ALL_CELLS = CELLS | VARIANTS


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


def under_cell(params):
    """Returns a cell's parameters as those of an RNN around it."""
    return {"params": {"cell": params["params"]}}


def assert_close(actual, expected, rtol=1e-5, atol=1e-6):
    """Asserts equal structures, shapes and dtypes, and close values."""
    assert jax.tree.structure(actual) == jax.tree.structure(expected)

    def compare(a, b):
        assert jnp.shape(a) == jnp.shape(b)
        assert jnp.result_type(a) == jnp.result_type(b)
        np.testing.assert_allclose(a, b, rtol=rtol, atol=atol)

    jax.tree.map(compare, actual, expected)


def assert_equal(actual, expected):
    """Asserts equal structures, shapes and dtypes, and values equal to the bit."""
    assert_close(actual, expected, rtol=0, atol=0)
