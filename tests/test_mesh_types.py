"""Layers in `jax.shard_map` and on meshes with explicit sharding, with two devices."""

import jax
import jax.numpy as jnp
import pytest
from cases import assert_close, random_params
from flax import linen as nn
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from levels import by_level

import rnncells

pytestmark = pytest.mark.several_devices

LAYERS = {
    "LSTM": (rnncells.LSTM(4, num_layers=2, bidirectional=True), 3),
    "GRU": (rnncells.GRU(4, learn_states=True), 3),
    "plain": (rnncells.RNN(nn.GRUCell(4), implementation="scan"), 3),
    "fast": (rnncells.RNN(rnncells.GRUCell(4), learn_initial_carry=True), 3),
    "linear": (rnncells.RNN(rnncells.MinGRUCell(4), return_all_carries=True), 3),
    "matrix": (rnncells.RNN(rnncells.MLSTMCell(4, num_heads=2)), 3),
    "window": (rnncells.RNN(rnncells.CausalConvCell(4)), 4),
    "truncated": (
        rnncells.RNN(rnncells.GRUCell(4), gradient=rnncells.TruncatedBptt(2)),
        3,
    ),
    "Bidirectional": (
        rnncells.Bidirectional(
            rnncells.RNN(rnncells.GRUCell(4)), rnncells.RNN(rnncells.MinGRUCell(4))
        ),
        3,
    ),
    "Stack": (
        rnncells.Stack([rnncells.LSTMCell(4), nn.Dense(4), rnncells.GRUCell(3)]),
        3,
    ),
}
KINDS = ["shard_map", "gradient in shard_map", "explicit"]
CHOSEN = [
    ("shard_map", "LSTM"),
    ("gradient in shard_map", "fast"),
    ("explicit", "Stack"),
]


def on_mesh(kind, loss, mesh):
    """Returns the value and gradient of a loss with rows sharded over a mesh."""
    gradient = jax.value_and_grad(loss, (0, 1))
    if kind == "explicit":
        return gradient
    rows = P("data")
    specs = P(), rows, (rows, rows)
    if kind == "shard_map":

        def summed(*args):
            return jax.lax.psum(loss(*args), "data")

        mapped = jax.shard_map(summed, mesh=mesh, in_specs=specs, out_specs=P())
        return jax.value_and_grad(mapped, (0, 1))

    def each(*args):
        value, gradients = gradient(*args)
        return jax.lax.psum(value, "data"), gradients

    out = P(), (P(), rows)
    return jax.shard_map(each, mesh=mesh, in_specs=specs, out_specs=out)


@pytest.mark.parametrize(
    "kind, name", by_level([(kind, name) for kind in KINDS for name in LAYERS], CHOSEN)
)
def test_layers_make_their_initial_carries_for_the_mesh(kind, name, rng):
    layer, width = LAYERS[name]
    inputs = jnp.asarray(rng.standard_normal((4, 5, width)), jnp.float32)
    params = random_params(rng, layer, inputs)
    options = jnp.array([5, 0, 3, 2]), jnp.asarray(rng.random((4, 5)) < 0.4)

    def loss(params, inputs, options):
        lengths, resets = options
        found = layer.apply(params, inputs, seq_lengths=lengths, resets=resets)
        return sum(jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves(found))

    expected = jax.jit(jax.value_and_grad(loss, (0, 1)))(params, inputs, options)
    # The default of `jax.make_mesh` in new versions of JAX.
    mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Explicit,))
    everywhere, rows = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))
    placed = (
        jax.device_put(params, everywhere),
        *jax.device_put((inputs, options), rows),
    )
    with jax.set_mesh(mesh):
        found = jax.jit(on_mesh(kind, loss, mesh))(*placed)
    assert_close(jax.device_get(found), jax.device_get(expected))
