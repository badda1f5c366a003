"""Residual blocks and their convolution, against loops, papers and published code."""

import itertools
from functools import cache, partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import (
    BATCH,
    TIME,
    assert_close,
    random_like,
    random_params,
    values_and_gradients,
)
from equations.parts import affine, arrays, sigmoid
from levels import by_level
from libraries import array, peer, tensor
from sequences import LENGTHS, MASK, RESETS, ROWS, STEPS

import rnncells

FEATURES = 6
BLOCKS = {
    "mlstm": rnncells.XLSTMBlock(
        FEATURES, num_heads=2, block_size=3, kernel_size=3, param_dtype=float
    ),
    "slstm": rnncells.XLSTMBlock(
        FEATURES, "slstm", num_heads=2, kernel_size=3, param_dtype=float
    ),
    "griffin": rnncells.GriffinBlock(
        FEATURES, recurrent_features=4, num_heads=2, kernel_size=3, param_dtype=float
    ),
}


def test_convolution_equals_flax(rng, float64):
    cell = rnncells.CausalConvCell(FEATURES, 3, param_dtype=float)
    conv = nn.Conv(
        *(FEATURES, (3,)),
        padding="CAUSAL",
        feature_group_count=FEATURES,
        param_dtype=float,
    )
    x = jnp.asarray(rng.standard_normal((BATCH, TIME, FEATURES)))
    params = random_params(rng, conv, x)

    def run(params, x):
        return rnncells.RNN(cell).apply({"params": {"cell": params["params"]}}, x)

    found, expected = (values_and_gradients(f, params, x) for f in (run, conv.apply))
    assert_close(found, expected, rtol=1e-12, atol=1e-12)


def select(rows, where_true, where_false):
    """Returns one of two carries for each row."""

    def of_leaf(a, b):
        return jnp.where(jnp.expand_dims(rows, range(1, a.ndim)), a, b)

    return jax.tree.map(of_leaf, where_true, where_false)


@pytest.mark.parametrize(
    "name, has_gradient",
    by_level(
        [*itertools.product(BLOCKS, [False, True])],
        # The loops of their cells are differentiated in other tests as well.
        [("mlstm", False), ("griffin", False)],
    ),
)
def test_block_equals_its_steps(name, has_gradient, rng, float64):
    """With lengths, masks, resets and an initial carry; values and gradients."""
    block = BLOCKS[name]
    x = jnp.asarray(rng.standard_normal((ROWS, STEPS, FEATURES)))
    params = random_params(rng, block, x)
    carry = block.initialize_carry(None, x[:, 0])
    carry, fresh = random_like(rng, carry), random_like(rng, carry)
    valid = MASK & (np.arange(STEPS) < LENGTHS[:, None])
    # A reset past the end of a row has no effect.
    resets = RESETS & (np.arange(STEPS) < LENGTHS[:, None])

    def at_once(params, x, carry, fresh):
        return block.apply(
            *(params, x),
            initial_carry=carry,
            seq_lengths=LENGTHS,
            mask=MASK,
            resets=RESETS,
            reset_carry=fresh,
            return_carry=True,
        )

    def by_step(params, x, carry, fresh):
        def step(carry, now):
            x, valid, reset = now
            carry = select(reset, fresh, carry)
            return block.apply(params, carry, x, mask=valid, method="step")

        by_time = x.swapaxes(0, 1), valid.T, resets.T
        carry, outputs = jax.lax.scan(step, carry, by_time)
        return carry, outputs.swapaxes(0, 1)

    def outcome(run, *at):
        carry, outputs = run(*at)
        shown = jnp.where(valid[..., None], outputs, 0)
        leaves = [shown, *jax.tree.leaves(carry)]
        return sum(jnp.sum(jnp.sin((k + 1) * y)) for k, y in enumerate(leaves)), leaves

    gradient = jax.value_and_grad(outcome, (1, 2, 3, 4), has_aux=True)
    run = jax.jit(gradient if has_gradient else outcome, static_argnums=0)
    spoiled = jnp.where(valid[..., None], x, jnp.nan)
    found = run(at_once, params, spoiled, carry, fresh)
    expected = run(by_step, params, x, carry, fresh)
    assert_close(found, expected, rtol=1e-11, atol=1e-11)


def rms_norm(x, p):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * p["scale"]


def gelu(x):
    return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def test_griffin_block_follows_the_equations(rng, float64):
    block = BLOCKS["griffin"]
    x = jnp.asarray(rng.standard_normal((BATCH, TIME, FEATURES)))
    params = random_params(rng, block, x)
    found = jax.jit(block.apply)(params, x)
    p, x = arrays(params), np.asarray(x)
    n = rms_norm(x, p["norm"])
    u, conv, cell = affine(n, p["input"]), p["conv"]["cell"], p["rnn"]["cell"]
    past = np.concatenate([np.zeros((BATCH, 2, 4)), u], 1)
    w = conv["kernel"][:, 0]
    u = sum(w[j] * past[:, j : j + TIME] for j in range(3)) + conv["bias"]
    h, states = np.zeros((BATCH, 4)), []
    for t in range(TIME):
        r, i = (sigmoid(affine(u[:, t], cell[k])) for k in "ax")
        a = sigmoid(-cell["Lambda"]) ** (8 * r)
        h = a * h + np.sqrt(1 - a**2) * (i * u[:, t])
        states.append(h)
    gate = gelu(affine(n, p["gate"]))
    r = x + affine(np.stack(states, 1) * gate, p["output"])
    m = rms_norm(r, p["network_norm"])
    hidden = gelu(affine(m, p["network_gate"])) * affine(m, p["up"])
    assert_close(found, r + affine(hidden, p["down"]), rtol=1e-11, atol=1e-12)


def block_setting(torch, rng, module, features=8):
    """Gives a block of xlstm random parameters; returns inputs, and its outputs."""
    for parameter in module.parameters():
        size = tuple(parameter.shape)
        parameter.data = tensor(torch, 0.3 * rng.standard_normal(size)).to(parameter)
    x = rng.standard_normal((BATCH, TIME, features))
    return jnp.asarray(x), array(module(tensor(torch, x).to(parameter)))


def kernel(layer):
    return {"kernel": array(layer.weight).T}


def blocks_of(layer):
    return {"kernel": array(layer.weight).swapaxes(1, 2)}


def scale(norm):
    return {"scale": 1 + array(norm.weight)}


def conv_of(layer):
    conv = layer.conv1d.conv
    weight = array(conv.weight).transpose(2, 1, 0)
    return {"cell": {"kernel": weight, "bias": array(conv.bias)}}


def test_mlstm_block_equals_xlstm(torch, rng, float64):
    block = peer("xlstm.blocks.mlstm.block")
    layer = peer("xlstm.blocks.mlstm.layer")
    backends = peer("xlstm.blocks.mlstm.backends")
    config = layer.mLSTMLayerConfig(embedding_dim=8, context_length=TIME, num_heads=2)
    theirs = block.mLSTMBlock(
        block.mLSTMBlockConfig(mlstm=config, _num_blocks=1, _block_idx=0)
    ).double()
    inner = theirs.xlstm
    inner.mlstm_cell.backend_fn = partial(backends.parallel_stabilized_simple, eps=0.0)
    x, expected = block_setting(torch, rng, theirs)
    gates = {"i": inner.mlstm_cell.igate, "f": inner.mlstm_cell.fgate}
    cell = {n: {**kernel(g), "bias": array(g.bias)} for n, g in gates.items()}
    cell |= {name: blocks_of(getattr(inner, f"{name}_proj")) for name in "qkv"}
    params = {
        "norm": scale(theirs.xlstm_norm),
        "up": kernel(inner.proj_up),
        "conv": conv_of(inner),
        "rnn": {"cell": cell},
        "group_norm": scale(inner.mlstm_cell.outnorm),
        "skip": {"kernel": array(inner.learnable_skip)},
        "down": kernel(inner.proj_down),
    }
    # They round the width up to a multiple of 64.
    ours = rnncells.XLSTMBlock(8, num_heads=2, inner_features=64, param_dtype=float)
    assert_close(ours.apply({"params": params}, x), expected, 1e-10, 1e-11)


def test_slstm_block_equals_xlstm(torch, rng):
    """In float32, as their cell casts its states to it."""
    block = peer("xlstm.blocks.slstm.block")
    layer = peer("xlstm.blocks.slstm.layer")
    feedforward = peer("xlstm.components.feedforward").FeedForwardConfig()
    config = layer.sLSTMLayerConfig(
        embedding_dim=8, num_heads=2, backend="vanilla", dtype="float32"
    )
    theirs = block.sLSTMBlock(
        block.sLSTMBlockConfig(
            slstm=config, feedforward=feedforward, _num_blocks=1, _block_idx=0
        )
    )
    x, expected = block_setting(torch, rng, theirs)
    inner, own = theirs.xlstm, theirs.xlstm.slstm_cell
    # Their names of the gates i and f are swapped in the layer, not in the cell.
    names = {"ii": "fgate", "if": "igate", "iz": "zgate", "io": "ogate"}
    cell = {name: blocks_of(getattr(inner, theirs_)) for name, theirs_ in names.items()}
    recurrent = array(own._recurrent_kernel_int2ext(own._recurrent_kernel_))
    bias = array(own._bias_int2ext(own._bias_))
    for k, name in enumerate(("hi", "hf", "hz", "ho")):
        cell[name] = {"kernel": recurrent[:, :, k], "bias": bias[:, k].ravel()}
    params = {
        "norm": scale(theirs.xlstm_norm),
        "conv": conv_of(inner),
        "rnn": {"cell": cell},
        "group_norm": scale(inner.group_norm),
        "feedforward_norm": scale(theirs.ffn_norm),
        "up": kernel(theirs.ffn.proj_up),
        "down": kernel(theirs.ffn.proj_down),
    }
    ours = rnncells.XLSTMBlock(8, "slstm", num_heads=2, inner_features=64)
    x = x.astype(jnp.float32)
    assert_close(ours.apply({"params": params}, x), expected, 1e-4, 1e-4)


@cache
def compiled(kind):
    return jax.jit(kind(8).apply)


@pytest.mark.exhaustive
def test_time_major_and_stack(rng):
    stack = rnncells.Stack([rnncells.XLSTMBlock(8), rnncells.GriffinBlock(8)])
    x = jnp.asarray(rng.standard_normal((BATCH, TIME, 8)), jnp.float32)
    params = random_params(rng, stack, x)
    first, second = ({"params": p} for _, p in sorted(params["params"].items()))
    y = compiled(rnncells.XLSTMBlock)(first, x)
    y = compiled(rnncells.GriffinBlock)(second, y)
    by_time = partial(stack.apply, time_major=True)
    by_time = jax.jit(by_time)(params, x.swapaxes(0, 1))
    assert_close(by_time.swapaxes(0, 1), y)
    carry = stack.initialize_carry(None, x[:, 0])
    window, _ = rnncells.XLSTMBlock(8).initialize_carry(batch_shape=(BATCH,))
    assert window.shape == carry[0][0].shape
    assert jax.tree.map(jnp.shape, carry) == (
        ((BATCH, 3, 16), ((BATCH, 4, 4, 4), (BATCH, 4, 4), (BATCH, 4))),
        ((BATCH, 3, 8), (BATCH, 8)),
    )


@pytest.mark.exhaustive
def test_half_precision(rng):
    x = jnp.asarray(rng.standard_normal((BATCH, TIME, 8)), jnp.float32)
    for kind in (rnncells.XLSTMBlock, rnncells.GriffinBlock):
        params = random_params(rng, kind(8), x, scale=0.3)
        y = jax.jit(kind(8, dtype=jnp.bfloat16).apply)(params, x)
        expected = compiled(kind)(params, x)
        np.testing.assert_allclose(y, expected, atol=0.1)
        assert (y != expected).any()
