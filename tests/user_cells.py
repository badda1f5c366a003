"""Cells as users write them, to be run by the engine."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.typing import Dtype

import rnncells


class FlaxCell(nn.Module):
    """The base of cells as Flax asks for them; the state is `(*batch, features)`."""

    features: int = 4
    num_feature_axes = 1

    @nn.nowrap
    def initialize_carry(self, rng, input_shape):
        return jnp.zeros((*input_shape[:-1], self.features))


class OwnCell(rnncells.RNNCellBase):
    """A cell that others replace members of."""

    features: int
    num_feature_dims = 1

    def carry_shape(self, input_shape):
        return (self.features,)

    def setup(self):
        self.gates("i", "h")

    def project(self, inputs):
        return self.affine(inputs, "i")

    def recur(self, carry, projected):
        h = jnp.tanh(self.affine(carry, "h") + projected)
        return h, h


class MultiplicativePeepholeCell(rnncells.RNNCellBase):
    """Two products in series, and weights that are used element by element."""

    features: int
    param_dtype: Dtype = jnp.float32
    num_feature_dims = 1

    def carry_shape(self, input_shape):
        return (self.features,), (self.features,)

    def setup(self):
        self.gates("im", "ii", "ig")
        self.gates("hm", use_bias=False)
        self.gates("mi", "mg", kernel_init=rnncells.initializers.orthogonal())
        init, shape = nn.initializers.normal(), (self.features,)
        self.peephole = self.param("peephole", init, shape, self.param_dtype)

    def project(self, inputs):
        return self.affine(inputs, "im"), self.affine(inputs, "ii", "ig")

    def recur(self, carry, projected):
        c, h = carry
        x_m, x_gates = projected
        m = x_m * self.affine(h, "hm")
        i, g = jnp.split(self.affine(m, "mi", "mg") + x_gates, 2, axis=-1)
        i = nn.sigmoid(i + self.peephole * c)
        c = (1 - i) * c + i * nn.tanh(g)
        h = nn.tanh(c)
        return (c, h), h


class NormalizedCell(OwnCell):
    """A Dense layer as recurrent product, and a norm before it."""

    param_dtype: Dtype = jnp.float32

    def setup(self):
        self.gates("i")
        self.norm = nn.LayerNorm(param_dtype=self.param_dtype)
        self.recurrent = nn.Dense(self.features, param_dtype=self.param_dtype)

    def recur(self, carry, projected):
        h = nn.tanh(self.recurrent(self.norm(carry)) + projected)
        return h, {"state": h, "double": 2 * h}


class PlainWeightCell(OwnCell):
    """A recurrent weight outside of `affine` and `product`: right, but slower.

    Both `project` and `recur` use its gain.
    """

    param_dtype: Dtype = jnp.float32

    def setup(self):
        self.gates("i")
        init, shape = nn.initializers.orthogonal(), (self.features, self.features)
        self.weight = self.param("weight", init, shape, self.param_dtype)
        ones = nn.initializers.ones_init()
        self.gain = self.param("gain", ones, shape[:1], self.param_dtype)

    def project(self, inputs):
        return self.gain * self.affine(inputs, "i")

    def recur(self, carry, projected):
        h = nn.tanh(projected + self.gain * (carry @ self.weight))
        return h, h


class CountingCell(OwnCell):
    """A carry with integers in it, and one among the outputs."""

    param_dtype: Dtype = jnp.float32
    carry_init: nn.initializers.Initializer = nn.initializers.normal()

    def carry_shape(self, input_shape):
        return {"h": (self.features,), "n": jax.ShapeDtypeStruct((), jnp.int32)}

    def setup(self):
        self.gates("i")
        self.gates("h", use_bias=False)

    def recur(self, carry, projected):
        n = carry["n"] + 1
        h = nn.tanh(self.affine(carry["h"], "h") + projected / n[..., None])
        return {"h": h, "n": n}, (h, n)


USER_CELLS = {
    "MultiplicativePeepholeCell": MultiplicativePeepholeCell,
    "NormalizedCell": NormalizedCell,
    "PlainWeightCell": PlainWeightCell,
    "CountingCell": CountingCell,
}
