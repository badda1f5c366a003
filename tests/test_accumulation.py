"""Gradients summed over micro-batches and windows equal those of one large batch."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import CELLS, exactly, random_params

import rnncells
from rnncells import accumulate, packing

ROWS, TIME, MICRO = 6, 5, 3
LENGTHS = np.array([5, 1, 0, 0, 3, 4])
jitted = partial(jax.jit, static_argnums=0)


@pytest.fixture
def layer(rng, float64):
    """Returns a layer, its parameters, and inputs `(rows, time, features)`."""
    case = CELLS["SimpleCell"]
    rnn = rnncells.RNN(case.make(param_dtype=float), padded_outputs="zero")
    x = case.inputs(rng, ROWS, TIME)
    return rnn, random_params(rng, rnn, x), np.asarray(x)


def by_micro_batch(tree):
    return jax.tree.map(lambda leaf: leaf.reshape(MICRO, -1, *leaf.shape[1:]), tree)


def sum_of(y, mask):
    return jnp.sum(jnp.sin(y + 0.3) ** 2, where=mask[..., None])


def test_micro_batches_are_weighted_by_valid_steps(layer):
    """One of them has no valid step."""
    rnn, params, x = layer

    def losses(params, batch):
        x, lengths = batch
        y = rnn.apply(params, x, seq_lengths=lengths)
        return sum_of(y, jnp.arange(TIME) < lengths[:, None]), lengths.sum()

    def mean(params, batch):
        total, count = losses(params, batch)
        return total / jnp.maximum(count, 1)

    batch = x, LENGTHS
    found = jitted(accumulate)(losses, params, by_micro_batch(batch))
    loss, gradient = jax.jit(jax.value_and_grad(mean))(params, batch)
    exactly((found.loss, found.gradient), (loss, gradient))
    assert found.count == LENGTHS.sum() and found.carry is None
    # The mean of the means of micro-batches is another number.
    means = jax.jit(jax.vmap(partial(mean, params)))(by_micro_batch(batch))
    assert abs(means.mean() - loss) > 1e-2


@pytest.mark.default
def test_windows_whose_gradients_flow_on_equal_the_padded_batch(layer):
    """Sequences are packed into rows, which are cut into windows."""
    rnn, params, x = layer
    plan = packing.plan(LENGTHS, row_length=8, rows=2)
    windows = jax.tree.map(
        lambda leaf: np.moveaxis(np.reshape(leaf, (2, 4, 2, *leaf.shape[2:])), 1, 0),
        (plan.pack(x), plan.resets, plan.mask),
    )

    def losses(params, batch, carry):
        x, resets, mask = batch
        carry, y = rnn.apply(
            params, x, resets=resets, mask=mask, initial_carry=carry, return_carry=True
        )
        return sum_of(y, mask), mask.sum(), carry

    def mean(params):
        y = rnn.apply(params, x, seq_lengths=jnp.asarray(LENGTHS))
        return sum_of(y, np.arange(TIME) < LENGTHS[:, None]) / LENGTHS.sum()

    start = rnn.initialize_carry(None, x[:2, 0])
    run = jax.jit(partial(accumulate, losses), static_argnames="truncate_gradient")
    found = run(params, windows, carry=start, truncate_gradient=False)
    loss, gradient = jax.jit(jax.value_and_grad(mean))(params)
    exactly((found.loss, found.gradient), (loss, gradient))
    # The truncated gradient has equal values, and is another one.
    cut = run(params, windows, carry=start)
    exactly((cut.loss, cut.count, cut.carry), (loss, found.count, found.carry))
    differences = jax.tree.map(lambda a, b: abs(a - b).max(), cut.gradient, gradient)
    assert max(jax.tree.leaves(differences)) > 1e-2


@pytest.mark.exhaustive
def test_windows_equal_truncated_backpropagation(layer):
    """With the carry, and with lengths that end in one of the windows."""
    rnn, params, x = layer
    x, lengths, window = x[:, :4], np.minimum(LENGTHS, 4), 2
    mask = np.arange(4) < lengths[:, None]
    windows = jax.tree.map(
        lambda leaf: np.moveaxis(leaf.reshape(ROWS, 2, window, *leaf.shape[2:]), 1, 0),
        (x, mask),
    )

    def losses(params, batch, carry):
        x, mask = batch
        carry, y = rnn.apply(
            params, x, mask=mask, initial_carry=carry, return_carry=True
        )
        return sum_of(y, mask), mask.sum(), carry

    def mean(params):
        whole = rnn.clone(gradient=rnncells.TruncatedBptt(window))
        carry, y = whole.apply(params, x, mask=mask, return_carry=True)
        return sum_of(y, mask) / mask.sum(), carry

    start = rnn.initialize_carry(None, x[:, 0])
    found = jitted(accumulate)(losses, params, windows, carry=start)
    (loss, carry), gradient = jax.jit(jax.value_and_grad(mean, has_aux=True))(params)
    exactly((found.loss, found.gradient, found.carry), (loss, gradient, carry))


def test_cotangent_weighs_losses_that_are_no_scalar(layer):
    rnn, params, x = layer
    weights = jnp.arange(1.0, TIME + 1)

    def of_steps(params, batch):
        y = rnn.apply(params, batch)
        return jnp.sum(y**2, (0, 2)), batch.shape[0] * TIME

    def weighted(params):
        total, count = of_steps(params, x)
        return weights @ total / count

    run = jitted(accumulate)
    found = run(of_steps, params, by_micro_batch(x), cotangent=weights)
    loss, gradient = jax.jit(jax.value_and_grad(weighted))(params)
    exactly((found.loss, found.gradient), (loss, gradient))
    with pytest.raises(ValueError, match=r"must be a scalar .* \(5,\).* `cotangent`"):
        accumulate(of_steps, params, by_micro_batch(x))
    with pytest.raises(ValueError, match=r"`cotangent` must .* \(5,\), got \(4,\)"):
        accumulate(of_steps, params, by_micro_batch(x), cotangent=weights[1:])


def linear(params, batch):
    """Has the gradient `batch`, and one term."""
    return jnp.sum(params * batch), 1


@pytest.mark.parametrize("count", [0.25, True, np.int8(60)], ids=str)
def test_counts_are_weights_booleans_or_small_integers(count, float64):
    batches = np.arange(6.0).reshape(3, 2)
    params = np.array([1.0, 2.0])
    found = accumulate(lambda *given: (linear(*given)[0], count), params, batches)
    exactly(found.gradient, jnp.asarray(batches.sum(0) / (3 * float(count))))
    assert found.count == 3 * float(count)


@pytest.mark.parametrize("truncate_gradient", [True, False])
def test_gradients_of_half_precision_are_added_up_in_float32(truncate_gradient):
    """In bfloat16, adding 1 to 256 or 260 leaves them as they are."""
    ones = [1.0] * 4
    params, batches = jnp.bfloat16([1]), np.float32([*ones, 256, *ones])[:, None]

    def losses(params, batch, carry):
        return *linear(params, batch), carry

    found = accumulate(
        losses, params, batches, carry=(), truncate_gradient=truncate_gradient
    )
    assert found.gradient.dtype == params.dtype
    assert found.gradient == jnp.bfloat16(264 / 9)
