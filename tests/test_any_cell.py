"""Cells of Flax and of users in our RNN, and in its fast loop."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import (
    CELLS,
    assert_close,
    assert_equal,
    assert_equals_the_plain_loop,
    each_cell,
    jit_apply,
    random_like,
    random_params,
)
from levels import by_level
from sequences import LENGTHS, MASK, ROWS, STEPS, WAYS, run
from user_cells import FlaxCell

import rnncells
from rnncells.loops.request import StepRequest
from rnncells.recurrence.schedule import StepInputs

FEATURES_IN, FEATURES, HEADS = 3, 4, 2
dense = partial(nn.Dense, FEATURES, param_dtype=jnp.float64)


class UserCell(FlaxCell):
    """The base of the cells below."""

    @nn.compact
    def __call__(self, h, x):
        h = nn.tanh(self.recurrence(h) + dense(name="x")(x))
        return h, h


class Dense(UserCell):
    def recurrence(self, h):
        return dense()(h)


class Concatenated(UserCell):
    """Its product is of inputs and state together."""

    @nn.compact
    def __call__(self, h, x):
        h = nn.tanh(dense()(jnp.concatenate([x, h], -1)) + dense(use_bias=False)(x))
        return h, h


class TwoLayers(UserCell):
    def recurrence(self, h):
        return dense()(nn.relu(dense()(h)))


class Tied(UserCell):
    def recurrence(self, h):
        layer = dense()
        return layer(nn.softplus(layer(h)))


class UsedTwice(UserCell):
    """What is added to a product is not all that uses it."""

    @nn.compact
    def __call__(self, h, x):
        a = dense()(h)
        h = nn.tanh(a + dense()(x)) * nn.sigmoid(a)
        return h, h


class SquareBias(UserCell):
    """What is added to a product is equal in each column; a bias, in each row."""

    def recurrence(self, h):
        rows = self.param("rows", nn.initializers.normal(), (ROWS,), jnp.float64)
        square = nn.Dense(ROWS, use_bias=False, param_dtype=jnp.float64)(h)
        square = square + jax.lax.broadcast_in_dim(rows, square.shape, (0,))
        return dense()(square)


class TruncatedBias(UserCell):
    """A bias that a cast changes before it is added."""

    def recurrence(self, h):
        bias = self.param("bias", nn.initializers.normal(), (FEATURES,), jnp.float64)
        return dense(use_bias=False)(h) + (3 * bias)[None].astype(int).astype(h.dtype)


class IntegerBias(UserCell):
    """A bias of integers, which have no gradient."""

    def recurrence(self, h):
        return dense(use_bias=False)(h) + jnp.arange(FEATURES)[None]


class Scaled(UserCell):
    """One parameter multiplies inputs and state."""

    @nn.compact
    def __call__(self, h, x):
        scale = self.param("scale", nn.initializers.ones, (), jnp.float64)
        h = nn.tanh(scale * dense()(x) + nn.softplus(scale * dense()(h)))
        return h, h


class Offset(UserCell):
    """A number is added to a product; another number is an output."""

    @nn.compact
    def __call__(self, h, x):
        h = nn.tanh((dense(use_bias=False)(h) + 1.0) * dense()(x))
        return h, (h, jnp.zeros(h.shape[:-1]))


class Remat(UserCell):
    def recurrence(self, h):
        return nn.remat(nn.Dense)(FEATURES, param_dtype=jnp.float64)(h)


class Jitted(UserCell):
    def recurrence(self, h):
        return nn.jit(nn.Dense)(FEATURES, param_dtype=jnp.float64)(h)


class Heads(UserCell):
    """A product for each head: one with a batch axis."""

    def recurrence(self, h):
        lifted = nn.vmap(
            *(nn.Dense,),
            **{"in_axes": -1, "out_axes": -1},
            **{"variable_axes": {"params": 0}, "split_rngs": {"params": True}},
        )
        h = h.reshape(*h.shape[:-1], FEATURES // HEADS, HEADS)
        h = lifted(FEATURES // HEADS, param_dtype=jnp.float64)(h)
        return h.reshape(*h.shape[:-2], FEATURES)


class Swapped(UserCell):
    """The weight is on the left."""

    def recurrence(self, h):
        weight = self.param("w", nn.initializers.normal(), (FEATURES,) * 2, jnp.float64)
        return jnp.einsum("oi,...i->...o", weight, h)


class Scanned(UserCell):
    def recurrence(self, h):
        weight = self.param("w", nn.initializers.normal(), (FEATURES,) * 2, jnp.float64)
        return jax.lax.fori_loop(0, 2, lambda _, h: nn.tanh(h @ weight), h)


class Branched(UserCell):
    def recurrence(self, h):
        weight = self.param("w", nn.initializers.normal(), (FEATURES,) * 2, jnp.float64)
        return jax.lax.cond(h.sum() > 0, lambda h: h @ weight, lambda h: h, h)


class Differentiated(UserCell):
    """A gradient in a step; JAX writes that of a loop in a checkpoint as a call."""

    def recurrence(self, h):
        weight = self.param("w", nn.initializers.normal(), (FEATURES,) * 2, jnp.float64)

        def loop(h):
            return jax.lax.fori_loop(0, 3, lambda _, h: nn.tanh(h @ weight), h).sum()

        return jax.grad(jax.checkpoint(loop))(h)


class Normalized(UserCell):
    """Weights that are made of parameters, once for all steps."""

    def recurrence(self, h):
        return nn.WeightNorm(dense(), param_dtype=jnp.float64)(h)


class Attention(UserCell):
    def recurrence(self, h):
        tokens = h.reshape(*h.shape[:-1], FEATURES // 2, 2)
        layer = nn.MultiHeadDotProductAttention(1, param_dtype=jnp.float64)
        return layer(tokens).reshape(h.shape)


class Partitioned(UserCell):
    def recurrence(self, h):
        init = nn.with_partitioning(nn.initializers.normal(), (None, "units"))
        return dense(kernel_init=init)(h)


CLOSED_OVER = jnp.linspace(-1, 1, FEATURES)


class ClosesOver(UserCell):
    def recurrence(self, h):
        return dense()(h) * CLOSED_OVER


def flax(cell, *args):
    return partial(cell, FEATURES, *args, param_dtype=jnp.float64)


# Each cell, and the products of its recurrence that are found, after joining.
ANY_CELLS = {
    "flax.LSTMCell": (flax(nn.LSTMCell), 1),
    "flax.OptimizedLSTMCell": (flax(nn.OptimizedLSTMCell), 1),
    "flax.GRUCell": (flax(nn.GRUCell), 2),
    "flax.MGUCell": (flax(nn.MGUCell), 2),
    "flax.SimpleCell": (flax(nn.SimpleCell), 1),
    "flax.ConvLSTMCell": (flax(nn.ConvLSTMCell, (3,)), 1),
}
ONE_PRODUCT = [Dense, Concatenated, UsedTwice, Offset, Remat, Jitted, TruncatedBias]
ONE_PRODUCT += [
    IntegerBias,
    Heads,
    Swapped,
    Normalized,
    Partitioned,
    ClosesOver,
    Scaled,
]
OTHERS = {TwoLayers: 2, Tied: 2, SquareBias: 2, Scanned: 0, Branched: 0, Attention: 4}
OTHERS |= {Differentiated: 0}
for cell, products in (dict.fromkeys(ONE_PRODUCT, 1) | OTHERS).items():
    ANY_CELLS[cell.__name__] = cell, products
each_any_cell = pytest.mark.parametrize(
    "name",
    by_level(
        ANY_CELLS,
        "flax.LSTMCell flax.ConvLSTMCell Scanned Scaled SquareBias UsedTwice".split(),
    ),
)


def setting(name, rng):
    cell = ANY_CELLS[name][0]()
    image = (5,) if "Conv" in name else ()
    x = jnp.asarray(rng.standard_normal((ROWS, STEPS, *image, FEATURES_IN)))
    rnn = rnncells.RNN(cell)
    params = random_like(rng, jax.eval_shape(rnn.init, jax.random.key(0), x))
    return rnn, params, x


@each_any_cell
def test_any_cell_equals_the_plain_loop(name, rng, float64):
    rnn, params, x = setting(name, rng)
    # `memory` raises unless the fast loop runs.
    fast = rnn.clone(memory="recompute", projection=rnncells.Chunk(3))
    ways = WAYS["lengths+resets"]
    assert_equals_the_plain_loop(fast, params, x, tolerance=1e-11, **ways)


@pytest.mark.parametrize("name", by_level(ANY_CELLS, len(ANY_CELLS), 2))
def test_products_with_weights_are_found(name, rng, float64):
    rnn, params, x = setting(name, rng)
    carry = rnn.initialize_carry(None, x[:, 0])
    steps = jnp.moveaxis(x, 1, 0)
    request = partial(StepRequest, carry=(carry, None), xs=StepInputs(steps))
    split = rnn.apply(params, method=lambda rnn: request(rnn).split_step)
    assert len(split.products) == ANY_CELLS[name][1]


def test_step_is_traced_once_forward_and_once_for_a_gradient(rng):
    traces = []

    class CountedCell(rnncells.GRUCell):
        def recur(self, carry, projected):
            traces.append(None)
            return super().recur(carry, projected)

    x = jnp.asarray(rng.standard_normal((ROWS, STEPS, FEATURES_IN)), jnp.float32)
    rnn = rnncells.RNN(CountedCell(FEATURES))
    params = random_like(rng, jax.eval_shape(rnn.init, jax.random.key(0), x))
    for function in (rnn.apply, jax.grad(lambda p, x: rnn.apply(p, x).sum())):
        traces.clear()
        jax.jit(function).lower(params, x)
        assert len(traces) == 1


class SumCell(nn.Module):
    """A user's cell: pytrees everywhere, no base class, no initialize_carry."""

    num_feature_dims: int = 1

    @nn.compact
    def __call__(self, carry, inputs):
        gain = self.param("gain", nn.initializers.ones_init(), (3,))
        total = carry["total"] + gain * inputs["x"] + inputs["image"].sum((-1, -2))
        return {"total": total}, {"total": total, "twice": 2 * total}


@pytest.mark.parametrize("reverse", [False, True])
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
    of_inputs, of_cell = ("f4", dtype) if "float" in dtype else (dtype, None)
    inputs = jnp.asarray(rng.standard_normal((ROWS, STEPS, 3)), of_inputs)
    layer = rnncells.RNN(nn.SimpleCell(4, dtype=of_cell))
    params = random_params(rng, layer, inputs)
    assert layer.apply(params, inputs).dtype == dtype


def test_split_rngs_draws_anew_at_each_step():
    class Dropped(nn.Module):
        num_feature_axes = 1

        @nn.compact
        def __call__(self, carry, x):
            return carry, nn.Dropout(0.5, deterministic=False)(x)

    streams = {"params": False, "dropout": True}
    rnn = rnncells.RNN(Dropped(), split_rngs=streams)
    rngs = {"dropout": jax.random.key(0)}
    y = rnn.apply({}, jnp.ones((1, 50, 3)), initial_carry=(), rngs=rngs)
    assert 0.2 < jnp.mean(y[0, 1:] != y[0, :-1]) < 0.8


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
