"""Cells of Flax and of users, with carries and inputs of any kind, in our RNN."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import CELLS, assert_close, assert_equal, each_cell, jit_apply, random_params
from levels import by_level
from sequences import LENGTHS, MASK, ROWS, STEPS, WAYS, run

import rnncells

each_direction = pytest.mark.parametrize("reverse", [False, True])


class SumCell(nn.Module):
    """A user's cell: pytrees everywhere, no base class, no initialize_carry."""

    num_feature_dims: int = 1

    @nn.compact
    def __call__(self, carry, inputs):
        gain = self.param("gain", nn.initializers.ones_init(), (3,))
        total = carry["total"] + gain * inputs["x"] + inputs["image"].sum((-1, -2))
        return {"total": total}, {"total": total, "twice": 2 * total}


@each_direction
def test_inputs_may_be_pytrees_of_different_rank(reverse, rng):
    inputs = {
        "x": jnp.asarray(rng.standard_normal((ROWS, STEPS, 3)), jnp.float32),
        "image": jnp.ones((ROWS, STEPS, 3, 5, 7)),
    }
    # The first leaf is the image: it has three feature axes.
    rnn = rnncells.RNN(SumCell(num_feature_dims=3), return_carry=True, reverse=reverse)
    carry = {"total": jnp.zeros((ROWS, 3))}
    params = {"params": {"cell": {"gain": np.ones(3, np.float32)}}}

    last, y = jit_apply(
        rnn, params, inputs, initial_carry=carry, mask=MASK, seq_lengths=LENGTHS
    )

    counts = MASK & (np.arange(STEPS) < LENGTHS[:, None])
    steps = np.asarray(inputs["x"] + 35) * counts[:, :, None]
    np.testing.assert_allclose(last["total"], steps.sum(1), rtol=1e-5)
    np.testing.assert_allclose(y["twice"], 2 * y["total"])


@each_cell(
    [name for name, case in CELLS.items() if case.in_flax], default=["ConvLSTMCell-2d"]
)
def test_rnn_runs_flax_cells(name, rng):
    case, ways = CELLS[name], WAYS["all"]
    inputs = case.inputs(rng, ROWS, STEPS)
    theirs = rnncells.RNN(case.make_flax(), return_carry=True)
    ours = rnncells.RNN(case.make(), return_carry=True)
    params = random_params(rng, theirs, inputs)
    assert_close(run(theirs, params, inputs, **ways), run(ours, params, inputs, **ways))


@pytest.mark.parametrize(
    "dtype", by_level(["bfloat16", "float16", "complex64"], ["bfloat16", "complex64"])
)
def test_rnn_runs_flax_cells_in_other_dtypes(dtype, rng):
    # In flax.linen.RNN these do not scan: the type of the carry changes.
    inputs = jnp.asarray(rng.standard_normal((ROWS, STEPS, 3)), jnp.float32)
    if dtype == "complex64":
        layer = rnncells.RNN(nn.SimpleCell(4))
        inputs = inputs.astype(dtype)
    else:
        layer = rnncells.RNN(nn.SimpleCell(4, dtype=dtype))
    params = random_params(rng, layer, inputs)
    assert layer.apply(params, inputs).dtype == dtype


@jax.tree_util.register_pytree_node_class
class State:
    """A carry of a user's class, which cannot be compared."""

    def __init__(self, h, key, steps):
        self.parts = h, key, steps

    def tree_flatten(self):
        return self.parts, None

    @classmethod
    def tree_unflatten(cls, _, parts):
        return cls(*parts)


class Noisy(nn.Module):
    """A user's cell, its carry with a random key and a counter."""

    num_feature_axes: int = 1

    @nn.compact
    def __call__(self, carry, x):
        h, key, steps = carry.parts
        key, used = jax.random.split(key)
        h = 0.5 * h + x + jax.random.normal(used, x.shape)
        return State(h, key, steps + 1), h


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_carries_may_hold_keys_and_counters(dtype):
    rnn = rnncells.RNN(Noisy(), return_carry=True)
    start = State(jnp.zeros((2, 3), dtype), jax.random.key(0), 0)
    carry, _ = rnn.apply({}, jnp.ones((2, 5, 3), dtype), initial_carry=start)
    h, key, steps = carry.parts
    assert steps == 5 and h.dtype == dtype
    assert jnp.issubdtype(key.dtype, jax.dtypes.prng_key)


def test_either_name_of_the_number_of_feature_dims_is_accepted():
    class Echo(nn.RNNCellBase):
        num_feature_dims = 1

        def __call__(self, carry, x):
            return carry, x

    x = jnp.ones((2, 5, 3))
    assert_equal(rnncells.RNN(Echo()).apply({}, x, initial_carry=()), x)

    class Nameless(rnncells.RNNCellBase):
        def __call__(self, carry, x):
            return carry, x

    with pytest.raises(NotImplementedError, match="must define `num_feature_dims`"):
        rnncells.RNN(Nameless()).apply({}, x, initial_carry=())
