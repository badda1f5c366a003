"""Other libraries on JAX, imported only when used, because they can be missing."""

import os
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.contenders import Contender, compile_contender, in_mode, make_inputs
from benchmarks.sizes import KERNEL, Size


def make_haiku(cell: str, size: Size, mode: str) -> Contender:
    """Returns a core of Haiku in its `dynamic_unroll` as a contender."""
    import haiku as hk

    def outputs(inputs):
        if cell == "ConvLSTM":
            core = hk.Conv2DLSTM(size.image, size.features, KERNEL)
        else:
            core = getattr(hk, cell)(size.features)
        state = core.initial_state(size.batch)
        state = jax.tree.map(lambda leaf: leaf.astype(inputs.dtype), state)
        return hk.dynamic_unroll(core, inputs, state)[0]

    network = hk.without_apply_rng(hk.transform(outputs))
    inputs = jnp.asarray(make_inputs(size), size.dtype)
    params = jax.jit(network.init)(jax.random.key(0), inputs[:1])
    params = jax.tree.map(lambda leaf: leaf.astype(size.dtype), params)
    return compile_contender("haiku", in_mode(network.apply, mode), params, inputs)


def make_equinox(cell: str, size: Size, mode: str) -> Contender:
    """Returns a cell of Equinox, mapped over rows inside a scan, as a contender."""
    import equinox as eqx

    params = getattr(eqx.nn, f"{cell}Cell")(
        size.features_in,
        size.features,
        dtype=jnp.dtype(size.dtype),
        key=jax.random.key(0),
    )
    inputs = jnp.asarray(make_inputs(size), size.dtype)

    def outputs(cell_with_params, inputs):
        def step(carry, x):
            carry = jax.vmap(cell_with_params)(x, carry)
            return carry, carry[0] if cell == "LSTM" else carry

        zeros = jnp.zeros((size.batch, size.features), inputs.dtype)
        carry = (zeros, zeros) if cell == "LSTM" else zeros
        return jax.lax.scan(step, carry, inputs)[1]

    return compile_contender("equinox", in_mode(outputs, mode), params, inputs)


def make_keras(cell: str, size: Size, mode: str) -> Contender:
    """Returns a layer of Keras on JAX as a contender; its inputs are batch first."""
    # Keras reads this variable when it is imported.
    os.environ["KERAS_BACKEND"] = "jax"
    import keras

    if keras.backend.backend() != "jax":
        raise RuntimeError(f"Keras already runs on {keras.backend.backend()}")
    layer = _keras_layer(keras.layers, cell, size)
    inputs = jnp.asarray(make_inputs(size).swapaxes(0, 1), size.dtype)
    layer.build(inputs.shape)
    params = [variable.value for variable in layer.trainable_variables]
    others = [variable.value for variable in layer.non_trainable_variables]

    def outputs(params, inputs):
        return layer.stateless_call(params, others, inputs)[0]

    return compile_contender("keras", in_mode(outputs, mode), params, inputs)


def _keras_layer(layers: Any, cell: str, size: Size) -> Any:
    options = {
        "return_sequences": True,
        "dtype": size.dtype,
        # The default, orthogonal, fails in half precision; values do not affect times.
        "recurrent_initializer": "glorot_uniform",
    }
    if cell == "ConvLSTM":
        return layers.ConvLSTM2D(size.features, KERNEL, padding="same", **options)
    return getattr(layers, cell)(size.features, **options)
