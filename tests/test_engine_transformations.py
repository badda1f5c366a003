"""The fast loop within `vmap`, on meshes, and with functions that JAX cannot vmap."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import assert_close, random_like
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from levels import by_level
from test_engine_corners import EXACT, FEATURES, ROWS, STEPS, OwnCell

import rnncells

MAPPED = 3
ARGUMENTS = ["params", "inputs", "carry"]


class OpenCell(OwnCell):
    """Its state does not depend on its inputs; its output does."""

    def recur(self, carry, projected):
        h = jnp.tanh(self.affine(carry, "h"))
        return h, h + projected


class CentredCell(OwnCell):
    """Subtracts the mean over a named axis."""

    def recur(self, carry, projected):
        h = jnp.tanh(self.affine(carry, "h") + projected)
        h = h - jax.lax.pmean(h, "rows")
        return h, h


def made(rng, cell, *leading):
    """Returns params, inputs and a carry, with leading axes, in float64."""
    rnn = rnncells.RNN(cell(FEATURES), return_carry=True)
    inputs = jnp.asarray(rng.standard_normal((*leading, STEPS, 3)))
    params = random_like(rng, jax.eval_shape(rnn.init, jax.random.key(0), inputs))
    carry = jnp.asarray(rng.standard_normal((*leading, FEATURES)))
    return rnn, params, inputs, carry


def loss(rnn, params, inputs, carry, **options):
    result = rnn.apply(params, inputs, initial_carry=carry, **options)
    return sum(jnp.sum(jnp.sin(leaf + 1)) for leaf in jax.tree.leaves(result))


def in_both_loops(rnn, program):
    """Returns the results of `program(rnn)`, in the fast and in the plain loop."""
    return [
        jax.jit(program(rnn.clone(implementation=implementation)))()
        for implementation in ("auto", "scan")
    ]


@pytest.mark.parametrize(
    "mapped, result",
    by_level(
        [*itertools.product(ARGUMENTS, ["return_carry", "return_all_carries"])],
        [("params", "return_carry"), ("inputs", "return_all_carries")],
    ),
)
def test_gradient_of_vmap_equals_the_plain_loop(mapped, result, rng, float64):
    rnn, *at = made(rng, OpenCell, 2)
    k = ARGUMENTS.index(mapped)
    times = 1 + jnp.arange(MAPPED)
    at[k] = jax.tree.map(lambda leaf: jnp.multiply.outer(times, leaf), at[k])
    axes = [0 if name == mapped else None for name in ARGUMENTS]

    def program(rnn):
        def total(*at):
            return jax.vmap(partial(loss, rnn, **{result: True}), axes)(*at).sum()

        return partial(jax.value_and_grad(total, (0, 1, 2)), *at)

    fast, plain = in_both_loops(rnn, program)
    assert_close(fast, plain, **EXACT)


def test_named_axes_equal_the_plain_loop(rng, float64):
    # Without the axis, CentredCell cannot be initialized.
    _, params, inputs, carry = made(rng, OwnCell, ROWS)
    rnn = rnncells.RNN(CentredCell(FEATURES))

    def program(rnn):
        of = jax.vmap(partial(loss, rnn), (None, 0, 0), axis_name="rows")
        return partial(
            jax.value_and_grad(lambda *at: of(*at).sum(), (0, 1, 2)),
            *(params, inputs, carry),
        )

    fast, plain = in_both_loops(rnn, program)
    assert_close(fast, plain, **EXACT)


@pytest.mark.exhaustive
@pytest.mark.several_devices
def test_arrays_on_an_explicit_mesh_need_no_set_mesh(rng, float64):
    mesh = jax.make_mesh((4,), ("rows",), axis_types=(AxisType.Explicit,))
    rnn, params, inputs, carry = made(rng, OwnCell, ROWS)
    expected = rnn.apply(params, inputs, initial_carry=carry)
    rows = NamedSharding(mesh, PartitionSpec("rows"))
    inputs, carry = (jax.device_put(leaf, rows) for leaf in (inputs, carry))
    params = jax.device_put(params, NamedSharding(mesh, PartitionSpec()))

    for apply in (rnn.apply, jax.jit(rnn.apply)):
        actual = apply(params, inputs, initial_carry=carry)
        assert_close(jax.tree.map(np.asarray, actual), expected, **EXACT)
