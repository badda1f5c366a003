"""Cells against their equations, and against published code."""

from functools import partial

import equations
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import (
    ALL_CELLS,
    BATCH,
    CELLS,
    PUBLIC_CELLS,
    TIME,
    assert_close,
    each_cell,
    random_params,
    random_setting,
    under_cell,
    values_and_gradients,
)
from equations.parts import affine, arrays
from equations.table import EQUATIONS
from libraries import array, peer, tensor

import rnncells


def test_every_cell_has_equations():
    assert set(EQUATIONS) == set(PUBLIC_CELLS), equations.__doc__


@each_cell(ALL_CELLS, default=ALL_CELLS)
def test_step_follows_the_equations(name, rng, float64):
    case = ALL_CELLS[name]
    cell, params, carry, x = random_setting(case, rng, BATCH)
    actual = jax.jit(cell.apply)(params, carry, x)
    expected = case.equations(*map(arrays, (params, carry, x)))
    assert_close(actual, expected, rtol=1e-12, atol=1e-12)


# Cells of Flax are compared with those of Flax, too.
@each_cell(ALL_CELLS)
def test_sequence_and_gradients_follow_the_equations(name, rng, float64):
    """By parameters, carry and inputs; a truncated gradient as in the equations."""
    case = ALL_CELLS[name]
    cell, params, carry, _ = random_setting(case, rng, BATCH)
    inputs = case.inputs(rng, TIME, BATCH)
    rnn = rnncells.RNN(cell, return_carry=True, time_major=True)

    def run(params, carry, inputs):
        return rnn.apply(under_cell(params), inputs, initial_carry=carry)

    def loop(params, carry, inputs):
        return jax.lax.scan(partial(case.equations, params["params"]), carry, inputs)

    at = params, carry, inputs
    expected = values_and_gradients(loop, *at)
    assert_close(values_and_gradients(run, *at), expected, rtol=1e-12, atol=1e-12)


IMPLEMENTATIONS = pytest.mark.parametrize("implementation", ["scan", "associative"])


def setting(rng, cell, features_in, **options):
    """Returns a layer with random parameters, its inputs, and the cell's parameters."""
    rnn = rnncells.RNN(cell, **options)
    inputs = jnp.asarray(rng.standard_normal((BATCH, TIME, features_in)))
    params = random_params(rng, rnn, inputs)
    return partial(rnn.apply, params), inputs, params["params"]["cell"]


def test_slstm_equals_xlstm(torch, rng, float64):
    slstm = peer("xlstm.blocks.slstm.src.vanilla.slstm")
    cell, params, carry, x = random_setting(CELLS["SLSTMCell"], rng, BATCH)
    c, n, m, h = carry
    p = params["params"]
    Wx = np.concatenate([affine(x, p[f"i{a}"]) for a in "ifzo"], -1)
    Ry = np.concatenate([affine(h, p[f"h{a}"]) for a in "ifzo"], -1)
    states = torch.stack([tensor(torch, s) for s in (h, c, n, m)])
    operands = tensor(torch, Wx), tensor(torch, Ry), torch.zeros(1, Wx.shape[-1])
    found, _ = slstm.slstm_forward_pointwise(*operands, states, {})
    h, c, n, m = map(array, found)
    assert_close(cell.apply(params, carry, x), ((c, n, m, h), h), 1e-12, 1e-12)


@IMPLEMENTATIONS
def test_mlstm_equals_xlstm(implementation, torch, rng, float64):
    """Their code adds 1e-6 to the denominator, unless told otherwise."""
    mlstm = peer("xlstm.blocks.mlstm.backends")
    cell = rnncells.MLSTMCell(6, num_heads=2, output_gate=False, param_dtype=float)
    run, inputs, p = setting(rng, cell, 3, implementation=implementation)

    def heads(x):
        return tensor(torch, x).reshape(BATCH, TIME, 2, -1).swapaxes(1, 2)

    q, k, v, i, f = (heads(affine(inputs, p[name])) for name in "qkvif")
    h = mlstm.parallel_stabilized_simple(q, k, v, i, f, eps=0.0)
    expected = array(h.swapaxes(1, 2).reshape(BATCH, TIME, 6))
    assert_close(run(inputs), expected, 1e-11, 1e-12)


@IMPLEMENTATIONS
@pytest.mark.parametrize("name, gates", [("minGRU", "nz"), ("minLSTM", "nfi")])
def test_minimal_cell_equals_min_gru_pytorch(
    name, gates, implementation, torch, rng, float64
):
    module = peer(f"minGRU_pytorch.{name}")
    cell = getattr(rnncells, f"M{name[1:]}Cell")(4, use_bias=False, param_dtype=float)
    run, inputs, p = setting(rng, cell, 4, implementation=implementation)
    layer = getattr(module, name)(4).double()
    (weight,) = layer.parameters()
    kernels = np.concatenate([p[gate]["kernel"] for gate in gates], -1)
    weight.data = tensor(torch, kernels.T)
    expected = array(layer(tensor(torch, inputs)))
    assert_close(run(inputs), expected, 1e-11, 1e-12)


@pytest.mark.parametrize("mode", ["default", "no_gate", "pure"])
def test_cfc_equals_ncps(mode, torch, rng, float64):
    ncps = peer("ncps.torch.cfc_cell")
    options = {"mode": mode, "backbone_layers": 2, "backbone_units": 5}
    theirs = ncps.CfCCell(3, 4, **options).double()
    cell = rnncells.CfCCell(4, mode, 5, backbone_layers=2, param_dtype=float)
    first, second = (layer for layer in theirs.backbone if hasattr(layer, "weight"))
    # One kernel for inputs and state, inputs first.
    both, bias = array(first.weight.T), array(first.bias)
    p = {"i": {"kernel": both[:3], "bias": bias}, "h": {"kernel": both[3:]}}
    layers = {"s1": second, "g": theirs.ff1}
    if mode == "pure":
        p |= {"A": array(theirs.A[0]), "w_tau": array(theirs.w_tau[0])}
    else:
        layers |= {"u": theirs.ff2, "a": theirs.time_a, "b": theirs.time_b}
    for name, layer in layers.items():
        p[name] = {"kernel": array(layer.weight.T), "bias": array(layer.bias)}
    x, h = (rng.standard_normal((BATCH, n)) for n in (3, 4))
    elapsed = rng.uniform(0.5, 2, (BATCH, 1))
    expected, _ = theirs(*(tensor(torch, leaf) for leaf in (x, h, elapsed)))
    inputs = jnp.asarray(x), jnp.asarray(elapsed[:, 0])
    _, found = cell.apply({"params": p}, jnp.asarray(h), inputs)
    assert_close(found, array(expected), 1e-11, 1e-12)


def test_ltc_equals_ncps(torch, rng, float64):
    ltc, wirings = peer("ncps.torch.ltc_cell"), peer("ncps.wirings")
    theirs = ltc.LTCCell(
        wirings.FullyConnected(4), 3, implicit_param_constraints=True
    ).double()
    own = {"cm": "cm", "gleak": "gleak", "vleak": "vleak"}
    synapses = {"w": "w", "gamma": "sigma", "mu": "mu", "E": "erev"}
    values = {name: array(value) for name, value in theirs._params.items()}
    p = {name: values[theirs_] for name, theirs_ in own.items()}
    p["h"] = {name: values[theirs_] for name, theirs_ in synapses.items()}
    p["i"] = {name: values[f"sensory_{t}"] for name, t in synapses.items()}
    x, v = (rng.standard_normal((BATCH, n)) for n in (3, 4))
    expected, _ = theirs(tensor(torch, x), tensor(torch, v))
    cell = rnncells.LTCCell(4, param_dtype=float)
    _, found = cell.apply({"params": p}, jnp.asarray(v), jnp.asarray(x))
    assert_close(found, array(expected), 1e-11, 1e-12)
    assert jax.tree.map(jnp.shape, p) == jax.tree.map(
        jnp.shape, cell.init(jax.random.key(0), v, x)["params"]
    )
