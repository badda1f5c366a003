"""The fast loop equals the plain loop for cells of random operations, run randomly."""

from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import random_like
from jax import lax

import rnncells
from rnncells import Chunk

ROWS, FEATURES_IN, FEATURES = 2, 3, 4
GATES = ("h0", "h1", "h2")
SINGLE = jnp.float32


@jax.custom_vjp
def rounded(a):
    """Numbers of one decimal, with a derivative of its own."""
    return jnp.round(a, 1)


# That the forward rule calls the function again gives it second derivatives.
rounded.defvjp(lambda a: (rounded(a), a), lambda a, ct: (jnp.cos(a) * ct,))

UNARY = {
    "tanh": jnp.tanh,
    "sigmoid": nn.sigmoid,
    "relu": nn.relu,
    "softplus": nn.softplus,
    "square": lambda a: 0.3 * a**2,
    "stop": lax.stop_gradient,
    "rounded": rounded,
    "complex": lambda a: jnp.real(lax.complex(a, 0.5 * a) ** 2),
    "single": lambda a: a.astype(SINGLE).astype(a.dtype),
    "turned": lambda a: jnp.roll(a, 1, -1),
    "summed": lambda a: a + jnp.cumsum(a, -1) / a.shape[-1],
}
BINARY = {
    "times": jnp.multiply,
    "plus": jnp.add,
    "minus": jnp.subtract,
    "larger": jnp.maximum,
    "chosen": lambda a, b: jnp.where(a > b, a, 0.5 * b),
    "mixed": lambda a, b: nn.sigmoid(a) * b + (1 - nn.sigmoid(a)) * a,
    "branched": lambda a, b: lax.cond(
        jnp.sum(a) > 0, lambda a, b: a * b, lambda a, b: a - b, a, b
    ),
}
# Ways to take a product of the carry with weights within a transformation.
INSIDE = {
    "checkpoint": lambda f, a: jax.checkpoint(f)(a),
    "jit": lambda f, a: jax.jit(f)(a),
    "vmap": lambda f, a: jax.vmap(f)(a),
    "loop": lambda f, a: lax.fori_loop(
        0, 2, lambda _, a: jnp.tanh(f(a)).astype(a.dtype), a
    ),
}
# What a kernel is before it is multiplied.
KERNELS = {
    "matrix": lambda w: w,
    "transposed": lambda w: w.T,
    "normalized": lambda w: w / jnp.linalg.norm(w, axis=0),
    "single": lambda w: w.astype(SINGLE),
}


def pair(cell, name, a, b, c):
    both = cell.affine(a, name, "h0") + jnp.concatenate([b, c], -1)
    first, second = jnp.split(both, 2, -1)
    return first * nn.sigmoid(second)


def dense(cell, name, a, b, c):
    return (cell.dense_single if name == "single" else cell.dense)(a) + b


def weight(cell, name, a, b, c):
    if name == "peephole":
        return a * cell.peephole
    return a @ KERNELS[name](cell.plain)


# Each kind of operation: names, and a function of a cell, a name and three operands.
KINDS = {
    "affine": (GATES, lambda cell, name, a, b, c: cell.affine(a, name)),
    "added": (GATES, lambda cell, name, a, b, c: cell.affine(a, name) + b),
    "pair": (GATES, pair),
    "dense": (("dense", "single"), dense),
    "conv": (
        ("conv",),
        lambda cell, _, a, b, c: cell.conv(jnp.stack([a, b], -1))[..., 0],
    ),
    "norm": (("norm",), lambda cell, name, a, b, c: cell.norm(a)),
    "weight": ((*KERNELS, "peephole"), weight),
    "inside": (
        (*INSIDE,),
        lambda cell, name, a, b, c: INSIDE[name](lambda a: cell.affine(a, "h1"), a),
    ),
    "unary": ((*UNARY,), lambda cell, name, a, b, c: UNARY[name](a)),
    "binary": ((*BINARY,), lambda cell, name, a, b, c: BINARY[name](a, b)),
}


class GeneratedCell(rnncells.RNNCellBase):
    """A step is a list of operations on the results of earlier ones."""

    features: int = FEATURES
    dtypes: tuple[str, ...] = ("float64",)  # of the floating parts of the carry
    counts: bool = False  # whether the carry has an integer, too
    operations: tuple[tuple, ...] = ()  # each a kind, a name, numbers of operands
    carried: tuple[int, ...] = ()  # numbers of the results that become the carry
    returned: tuple[int, ...] = ()  # numbers of the results that become the output
    param_dtype: Any = jnp.float64
    num_feature_dims = 1

    def carry_shape(self, input_shape):
        floats = tuple(
            jax.ShapeDtypeStruct((self.features,), dtype) for dtype in self.dtypes
        )
        if not self.counts:
            return floats
        return {"state": floats, "steps": jax.ShapeDtypeStruct((), jnp.int32)}

    def setup(self):
        self.gates("i0", "i1")
        self.gates(*GATES, kernel_init=nn.initializers.normal(0.5))
        options = {"param_dtype": self.param_dtype}
        self.dense = nn.Dense(self.features, **options)
        self.dense_single = nn.Dense(self.features, dtype=SINGLE, **options)
        self.conv = nn.Conv(1, (3,), **options)
        self.norm = nn.LayerNorm(param_dtype=self.param_dtype)
        normal, shape = nn.initializers.normal(0.5), (self.features, self.features)
        self.plain = self.param("plain", normal, shape, self.param_dtype)
        self.peephole = self.param("peephole", normal, shape[:1], self.param_dtype)

    def project(self, inputs):
        return self.affine(inputs, "i0", "i1"), jnp.sin(inputs[..., :1])

    def recur(self, carry, projected):
        state = carry["state"] if self.counts else carry
        z, scale = projected
        results = [*state, *jnp.split(z, 2, -1), scale * jnp.ones_like(state[0])]
        if self.counts:
            results.append(results[0] / (1 + carry["steps"][..., None] ** 2))
        for kind, name, operands in self.operations:
            operands = [results[k % len(results)] for k in operands]
            results.append(KINDS[kind][1](self, name, *operands))
        # A state that grows would hide what is small.
        new = tuple(jnp.tanh(results[k % len(results)]) for k in self.carried)
        # A step that ignores its inputs would take the plain loop.
        outputs = [scale * results[k % len(results)] for k in self.returned]
        if self.counts:
            new = {"state": new, "steps": carry["steps"] + 1}
        return new, outputs[0] if len(outputs) == 1 else {"some": outputs}


def some_cell(rng: np.random.Generator) -> GeneratedCell:
    """Returns a random cell; equal generators give equal cells."""

    def numbers(count):
        return tuple(int(k) for k in rng.integers(0, 100, count))

    operations = []
    for _ in range(rng.integers(2, 8)):
        kind = str(rng.choice([*KINDS, "added", "unary", "binary", "binary"]))
        name = str(rng.choice(KINDS[kind][0]))
        operations.append((kind, name, numbers(3)))
    parts = int(rng.integers(1, 4))
    dtypes = ["float64" if rng.random() < 0.9 else "float32" for _ in range(parts)]
    return GeneratedCell(
        dtypes=tuple(dtypes),
        counts=bool(rng.random() < 0.25),
        operations=tuple(operations),
        carried=numbers(parts),
        returned=numbers(int(rng.integers(1, 3))),
    )


def some_options(rng: np.random.Generator, steps: int) -> tuple[dict, dict]:
    """Returns random fields of an `RNN`, and arguments of its call."""

    def one_of(*values):
        return values[rng.integers(len(values))]

    fields = {
        "memory": one_of("full", "recompute", "sqrt", Chunk(2)),
        "projection": one_of("auto", "whole", Chunk(2), Chunk(3)),
        "unroll": one_of(1, 1, 2),
        "reverse": one_of(False, True),
        "padded_outputs": one_of("run", "hold", "zero"),
    }
    ways = {
        "seq_lengths": rng.integers(0, steps + 1, ROWS),
        "mask": rng.random((ROWS, steps)) < 0.7,
        "resets": rng.random((ROWS, steps)) < 0.3,
    }
    arguments = {
        name: jnp.asarray(way) for name, way in ways.items() if rng.random() < 0.4
    }
    wanted = one_of(None, "return_carry", "return_all_carries")
    return fields, arguments | ({} if wanted is None else {wanted: True})


def has_single(cell: GeneratedCell) -> bool:
    """Says whether numbers are rounded to float32: their sums depend on the order."""
    names = {name for _, name, _ in cell.operations}
    return "single" in names or "float32" in cell.dtypes


# Two of `vmap`, of which one on several devices, and one of second derivatives.
IN_EVERY_RUN, IN_ALL, GROUPS = (0, 2, 5), 3000, 60
DERIVATIVES = ("first", "first", "second", "vmap params", "vmap inputs", "vmap carry")


def total(tree):
    leaves = [leaf for leaf in jax.tree.leaves(tree) if leaf.dtype.kind == "f"]
    return sum(jnp.sum(jnp.sin(leaf + 1)) for leaf in leaves)


def derivative(kind, of, at):
    """Returns the value and the gradients of `of(*at)`, or of what is made of it."""
    if kind == "first":
        return jax.value_and_grad(of, (0, 1, 2), allow_int=True)(*at)
    if kind == "second":

        def norm(*at):
            return sum(
                jnp.sum(leaf**2) for leaf in jax.tree.leaves(jax.grad(of, (0, 1))(*at))
            )

        return jax.value_and_grad(norm, (0, 1))(*at)
    which = ("params", "inputs", "carry").index(kind.removeprefix("vmap "))
    axes = [0 if k == which else None for k in range(3)]
    at = list(at)
    at[which] = jax.tree.map(lambda leaf: jnp.stack([leaf, 2 * leaf]), at[which])

    def of_both(*at):
        return jax.vmap(of, axes)(*at).sum()

    return jax.value_and_grad(of_both, (0, 1, 2), allow_int=True)(*at)


def assert_near(actual, expected, tolerance, seed):
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for a, b in zip(*map(jax.tree.leaves, (actual, expected)), strict=True):
        if a.dtype == jax.dtypes.float0:
            continue
        assert a.dtype == b.dtype and np.isfinite(b).all()
        np.testing.assert_allclose(
            *(a, b),
            rtol=0,
            atol=tolerance * max(1, np.abs(b).max(initial=0)),
            err_msg=f"seed {seed}",
        )


def groups():
    """Yields groups of seeds; every other cell runs on several devices."""
    for seed in IN_EVERY_RUN:
        marks = [pytest.mark.several_devices] * (seed % 2)
        yield pytest.param([seed], marks=marks, id=f"{seed}")
    for first in range(GROUPS):
        marks = [pytest.mark.several_devices] * (first % 2) + [pytest.mark.exhaustive]
        yield pytest.param(
            range(first, IN_ALL, GROUPS), marks=marks, id=f"from-{first}"
        )


@pytest.mark.parametrize("seeds", [*groups()])
def test_random_cell_equals_the_plain_loop(seeds, float64):
    for seed in seeds:
        assert_equals_the_plain_loop(seed)


def assert_equals_the_plain_loop(seed):
    rng = np.random.default_rng(seed)
    cell, steps = some_cell(rng), int(rng.integers(1, 6))
    fields, arguments = some_options(rng, steps)
    kind = DERIVATIVES[rng.integers(len(DERIVATIVES))]
    inputs = jnp.asarray(rng.standard_normal((ROWS, steps, FEATURES_IN)))
    fast = rnncells.RNN(cell, **fields)
    options = {"implementation": "scan", "memory": "full", "projection": "auto"}
    plain = fast.clone(**options)
    params = random_like(rng, jax.eval_shape(plain.init, jax.random.key(0), inputs))
    carry = cell.initialize_carry(jax.random.key(0), inputs[:, 0])
    carry = random_like(rng, carry)

    def of(rnn, params, inputs, carry):
        return total(rnn.apply(params, inputs, initial_carry=carry, **arguments))

    actual, expected = (
        jax.jit(partial(derivative, kind, partial(of, rnn)))((params, inputs, carry))
        for rnn in (fast, plain)
    )

    assert_near(actual, expected, 1e-5 if has_single(cell) else 1e-10, seed)
