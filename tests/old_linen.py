"""A model of the recurrent API of Flax <= 0.6.11: its signatures and equations.

It is written with layers of current Flax; all other names come from `flax.linen`.
"""

import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.core import FrozenDict

ZEROS = nn.initializers.zeros_init()


class RNNCellBase(nn.Module):
    @staticmethod
    def initialize_carry(rng, batch_dims, size, init_fn=ZEROS):
        raise NotImplementedError


def two_parts(rng, batch_dims, size, init_fn=ZEROS):
    shape = tuple(batch_dims) + (size if isinstance(size, tuple) else (size,))
    return tuple(init_fn(key, shape) for key in jax.random.split(rng))


class GatedCell(RNNCellBase):
    gate_fn: Callable = nn.sigmoid
    activation_fn: Callable = nn.tanh
    kernel_init: Callable = nn.initializers.lecun_normal()
    recurrent_kernel_init: Callable = nn.initializers.orthogonal()
    bias_init: Callable = ZEROS
    dtype: Any = None
    param_dtype: Any = jnp.float32

    def dense(self, name: str, use_bias: bool, features: int) -> nn.Dense:
        is_input = name.startswith("i")
        options = {
            "kernel_init": self.kernel_init if is_input else self.recurrent_kernel_init,
            "bias_init": self.bias_init,
        }
        dtypes = self.dtype, self.param_dtype
        return nn.Dense(features, use_bias, *dtypes, **options, name=name)


class LSTMCell(GatedCell):
    @nn.compact
    def __call__(self, carry, inputs):
        c, h = carry
        a = {
            gate: self.dense(f"i{gate}", False, h.shape[-1])(inputs)
            + self.dense(f"h{gate}", True, h.shape[-1])(h)
            for gate in "ifgo"
        }
        i, f, o = (self.gate_fn(a[gate]) for gate in "ifo")
        c = f * c + i * self.activation_fn(a["g"])
        h = o * self.activation_fn(c)
        return (c, h), h

    initialize_carry = staticmethod(two_parts)


class OptimizedLSTMCell(LSTMCell):
    pass


class GRUCell(GatedCell):
    @nn.compact
    def __call__(self, carry, inputs):
        h = carry
        dense = partial(self.dense, features=h.shape[-1])
        r = self.gate_fn(dense("ir", True)(inputs) + dense("hr", False)(h))
        z = self.gate_fn(dense("iz", True)(inputs) + dense("hz", False)(h))
        n = self.activation_fn(dense("in", True)(inputs) + r * dense("hn", True)(h))
        h = (1 - z) * n + z * h
        return h, h

    @staticmethod
    def initialize_carry(rng, batch_dims, size, init_fn=ZEROS):
        return init_fn(rng, (*batch_dims, size))


class ConvLSTMCell(RNNCellBase):
    features: int
    kernel_size: Any
    strides: Any = None
    padding: Any = "SAME"
    use_bias: bool = True
    dtype: Any = None
    param_dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, carry, inputs):
        c, h = carry

        def conv(name):
            return nn.Conv(
                4 * self.features,
                self.kernel_size,
                strides=self.strides,
                padding=self.padding,
                use_bias=self.use_bias,
                dtype=self.dtype,
                param_dtype=self.param_dtype,
                name=name,
            )

        i, g, f, o = jnp.split(conv("ih")(inputs) + conv("hh")(h), 4, axis=-1)
        c = nn.sigmoid(f + 1) * c + nn.sigmoid(i) * jnp.tanh(g)
        h = nn.sigmoid(o) * jnp.tanh(c)
        return (c, h), h

    initialize_carry = staticmethod(two_parts)


class ConvLSTM(ConvLSTMCell):
    pass


def flipped(x, lengths, axis):
    """Flips the valid part of each row along the time axis."""
    if lengths is None:
        return jnp.flip(x, axis)
    x = jnp.moveaxis(x, axis, 0)
    at = (jnp.arange(len(x) - 1, -1, -1).reshape(-1, *[1] * lengths.ndim) + lengths) % (
        len(x)
    )
    at = at.reshape(*at.shape, *[1] * (x.ndim - at.ndim))
    return jnp.moveaxis(jnp.take_along_axis(x, at, axis=0), 0, axis)


class RNN(nn.Module):
    cell: nn.Module
    cell_size: Any
    time_major: bool = False
    return_carry: bool = False
    reverse: bool = False
    keep_order: bool = False
    unroll: int = 1
    variable_axes: Mapping = FrozenDict()
    variable_broadcast: Any = "params"
    variable_carry: Any = False
    split_rngs: Mapping = FrozenDict({"params": False})

    def __call__(
        self,
        inputs,
        *,
        initial_carry=None,
        init_key=None,
        seq_lengths=None,
        segmentation_mask=None,
        **overrides,
    ):
        options = {name: overrides.get(name) for name in ("time_major", "return_carry")}
        options |= {name: overrides.get(name) for name in ("reverse", "keep_order")}
        time_major, return_carry, reverse, keep_order = (
            getattr(self, name) if value is None else value
            for name, value in options.items()
        )
        if segmentation_mask is not None:
            seq_lengths = jnp.sum(segmentation_mask, -1)
        dims = len(self.cell_size) if isinstance(self.cell_size, tuple) else 1
        axis = 0 if time_major else inputs.ndim - dims - 1
        batch = inputs.shape[: inputs.ndim - dims]
        batch = batch[:axis] + batch[axis + 1 :]
        if reverse:
            inputs = flipped(inputs, seq_lengths, axis)
        if initial_carry is None:
            key = jax.random.PRNGKey(0) if init_key is None else init_key
            initial_carry = self.cell.initialize_carry(
                key, batch_dims=batch, size=self.cell_size
            )

        def body(cell, carry, x):
            carry, y = cell(carry, x)
            return carry, (carry, y)

        scan = nn.scan(
            body,
            in_axes=axis,
            out_axes=(0, axis),
            unroll=self.unroll,
            variable_axes=self.variable_axes,
            variable_broadcast=self.variable_broadcast,
            variable_carry=self.variable_carry,
            split_rngs=self.split_rngs,
        )
        carry, (carries, outputs) = scan(self.cell, initial_carry, inputs)
        if seq_lengths is not None:
            rows = jnp.arange(len(seq_lengths))
            carry = jax.tree.map(lambda c: c[seq_lengths - 1, rows], carries)
        if reverse and keep_order:
            outputs = flipped(outputs, seq_lengths, axis)
        return (carry, outputs) if return_carry else outputs


class Bidirectional(nn.Module):
    forward_rnn: nn.Module
    backward_rnn: nn.Module
    merge_fn: Callable = lambda a, b: jnp.concatenate([a, b], -1)
    time_major: bool = False
    return_carry: bool = False

    def __call__(self, inputs, *, init_key=None, initial_carry=None, **options):
        keys = (None, None) if init_key is None else jax.random.split(init_key)
        carries = (None, None) if initial_carry is None else initial_carry
        options = {"time_major": self.time_major, **options}
        return_carry = options.pop("return_carry", self.return_carry)
        ways = (self.forward_rnn, False), (self.backward_rnn, True)
        ended = [
            rnn(
                inputs,
                **options,
                initial_carry=carry,
                init_key=key,
                return_carry=True,
                reverse=reverse,
                keep_order=True,
            )
            for (rnn, reverse), carry, key in zip(ways, carries, keys, strict=True)
        ]
        carry, outputs = zip(*ended, strict=True)
        outputs = self.merge_fn(*outputs)
        return (carry, outputs) if return_carry else outputs


recurrent = sys.modules[f"{__name__}.recurrent"] = sys.modules[__name__]
sys.modules[f"{__name__}.initializers"] = nn.initializers


def __getattr__(name):
    return getattr(nn, name)
