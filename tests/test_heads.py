"""Cells in heads, against a cell for each head."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from cases import assert_close, random_params
from compiled import Program

import rnncells

FEATURES, HEADS = 6, 2
PARTS = {"LSTMCell": "ifgo", "GRUCell": "rzn", "SimpleCell": [""]}


def head_of(tree, k):
    """Returns the parameters of a cell that is one head, with all inputs."""
    width = FEATURES // HEADS
    own = slice(k * width, (k + 1) * width)

    def part(name, leaf):
        if name == "kernel" and leaf.ndim == 3:
            return leaf[k]
        return leaf[..., own]

    return {
        gate: {name: part(name, leaf) for name, leaf in p.items()}
        for gate, p in tree.items()
    }


@pytest.mark.parametrize("name", PARTS)
def test_heads_equal_cells_side_by_side(name, rng, float64):
    cell = getattr(rnncells, name)
    whole = rnncells.RNN(cell(FEATURES, num_heads=HEADS, param_dtype=float))
    small = rnncells.RNN(cell(FEATURES // HEADS, param_dtype=float))
    x = jnp.asarray(rng.standard_normal((2, 5, 3)))
    params = random_params(rng, whole, x)
    p = params["params"]["cell"]
    parts = [small.apply({"params": {"cell": head_of(p, k)}}, x) for k in range(HEADS)]
    y = whole.apply(params, x)
    assert_close(y, jnp.concatenate(parts, -1), rtol=1e-12, atol=1e-12)


def test_heads_are_multiplied_in_one_product_per_step(rng):
    """Forward one product in the loop, and backward one; weights after the loop."""
    rnn = rnncells.RNN(rnncells.LSTMCell(FEATURES, num_heads=HEADS))
    x = jnp.asarray(rng.standard_normal((2, 50, 3)), jnp.float32)
    params = random_params(rng, rnn, x)
    gradient = jax.jit(jax.grad(lambda params: jnp.sum(rnn.apply(params, x) ** 2)))
    program = Program(gradient.lower(params).compile().as_text())
    assert [len(body.products) for body in program.loops] == [1, 1]


def test_each_head_starts_orthogonal(key):
    cell = rnncells.LSTMCell(FEATURES, num_heads=HEADS)
    carry = cell.initialize_carry(None, (3,))
    kernel = cell.init(key, carry, jnp.ones(3))["params"]["hi"]["kernel"]
    assert kernel.shape == (HEADS, 3, 3)
    eye = jnp.broadcast_to(jnp.eye(3), kernel.shape)
    assert_close(kernel @ kernel.mT, eye, atol=1e-5)
    assert abs(kernel[0] - kernel[1]).max() > 0.1


def test_wrong_numbers_of_heads_raise():
    with pytest.raises(ValueError, match="must divide `features` 6, got 4"):
        rnncells.GRUCell(6, num_heads=4)
    with pytest.raises(TypeError, match="`num_heads` of GRUCell must be an int"):
        rnncells.GRUCell(6, num_heads=2.0)
    with pytest.raises(ValueError, match="`num_heads` of GRUCell must be at least 1"):
        rnncells.GRUCell(6, num_heads=0)


class TwoKindsCell(rnncells.RNNCellBase):
    features: int
    num_feature_dims = 1

    def carry_shape(self, input_shape):
        return (self.features,)

    def setup(self):
        self.gates("i")
        self.gates("h", num_heads=2)

    def project(self, inputs):
        return self.affine(inputs, "i", "h")

    def recur(self, carry, projected):
        return carry, carry


def test_gates_with_different_heads_cannot_be_joined():
    cell = TwoKindsCell(4)
    with pytest.raises(ValueError, match=r"one number of heads, got \[1, 2\]"):
        cell.init(jax.random.key(0), jnp.zeros(4), jnp.ones(4))
    message = "must divide the widths that gate `h` connects, 3 and 4, got 2"
    with pytest.raises(ValueError, match=message):
        cell.init(jax.random.key(0), jnp.zeros(4), jnp.ones(3))


@pytest.mark.parametrize(
    "named",
    [nn.with_partitioning, nn.with_logical_partitioning],
    ids=["mesh", "logical"],
)
def test_axis_of_blocks_gets_no_name(named, key):
    init = named(nn.initializers.lecun_normal(), ("rows", "columns"))
    cell = rnncells.GRUCell(FEATURES, num_heads=HEADS, recurrent_kernel_init=init)
    carry = cell.initialize_carry(None, (3,))
    params = jax.eval_shape(cell.init, key, carry, jnp.ones(3))["params"]
    assert params["hn"]["kernel"].names == (None, "rows", "columns")
