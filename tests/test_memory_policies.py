"""Chunks of time, and policies of `jax.checkpoint` as a choice of `memory`."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import assert_close, random_params
from compiled import Program
from jax.ad_checkpoint import checkpoint_name
from levels import by_level
from user_cells import OwnCell

import rnncells
from rnncells.recurrence.chunks import split_time
from rnncells.recurrence.engine.split_step import SplitStep


@pytest.mark.parametrize("time", [1, 2, 7, 24, 97, 1020])
@pytest.mark.parametrize("steps", [1, 2, 3, 8, 50])
def test_chunks_cover_time_with_about_the_given_steps(time, steps):
    segments = split_time(time, steps)
    at = 0
    for start, chunks, length in segments:
        assert start == at and length <= max(steps * 5 / 4, 1)
        at += chunks * length
    assert at == time
    # A rest is one chunk, the last.
    assert segments[0].steps >= min(time, steps) * 3 / 4
    assert all(segment.chunks == 1 for segment in segments[1:])


POLICIES = jax.checkpoint_policies
ROWS, STEPS, FEATURES_IN, FEATURES = 2, 6, 3, 4


class NamedCell(OwnCell):
    """A cell that names its pre-activations, and is NaN where its carry is zero."""

    param_dtype: type = jnp.float64

    def setup(self):
        self.gates("i")
        self.gates("h", "u")

    def recur(self, carry, projected):
        a = checkpoint_name(self.affine(carry, "h") + projected, "a")
        carry = nn.tanh(a + checkpoint_name(self.affine(a, "u"), "b")) / carry
        return carry, carry


def setting(rng, **options):
    rnn = rnncells.RNN(NamedCell(FEATURES), **options)
    inputs = jnp.asarray(rng.standard_normal((ROWS, STEPS, FEATURES_IN)))
    carry = jnp.asarray(rng.uniform(1, 2, (ROWS, FEATURES)))
    params = random_params(rng, rnn, inputs)

    def loss(params, inputs, carry):
        return jnp.sum(jnp.sin(rnn.apply(params, inputs, initial_carry=carry)))

    gradient = jax.jit(jax.value_and_grad(loss, (0, 1, 2)))
    return gradient, (params, inputs, carry)


def products(rng, **options):
    """Returns how many products the program of a gradient has."""
    gradient, at = setting(rng, **options)
    program = Program(gradient.lower(*at).compile().as_text())
    return sum(instruction.is_product for instruction in program.instructions)


@pytest.mark.parametrize(
    "policy",
    by_level(
        [
            POLICIES.save_only_these_names("a"),
            POLICIES.save_only_these_names("a", "b"),
            POLICIES.dots_saveable,
            POLICIES.everything_saveable,
            POLICIES.nothing_saveable,
        ],
        2,
    ),
)
def test_every_policy_gives_the_gradient_of_the_plain_loop(policy, float64):
    """Under `jax.debug_nans`: no policy runs a step on zeros."""
    rng = partial(np.random.default_rng, 3)
    with jax.debug_nans(True):
        gradient, at = setting(rng(), memory=policy)
        actual = gradient(*at)
    plain, at = setting(rng(), implementation="scan")
    assert_close(actual, plain(*at), rtol=1e-12, atol=1e-12)


def test_values_that_a_policy_saves_are_not_formed_again(rng, float64):
    """The products of the rest are, and that of the inputs if `a` is not saved."""
    everything = products(rng, memory="full")
    names = POLICIES.save_only_these_names("a", "b")
    assert products(rng, memory=names) == everything
    a = POLICIES.save_only_these_names("a")
    assert products(rng, memory=a) == everything + 1
    assert products(rng, memory=POLICIES.dots_saveable) == everything
    for nothing in ("recompute", POLICIES.nothing_saveable):
        assert products(rng, memory=nothing) == everything + 3


def test_policies_that_move_arrays_to_other_memory_raise(rng, float64):
    policy = POLICIES.save_and_offload_only_these_names(
        names_which_can_be_saved=[],
        names_which_can_be_offloaded=["a"],
        offload_src="device",
        offload_dst="pinned_host",
    )
    gradient, at = setting(rng, memory=policy)
    with pytest.raises(ValueError, match=r"`memory` of RNN .* to 'pinned_host'"):
        gradient(*at)


@pytest.mark.parametrize("reads", [1, 2])
def test_a_sum_is_saved_in_place_of_a_projected_input_that_is_read_once(reads):
    def step(given, carry, inputs):
        z = 2 * inputs
        carry = jnp.sin(jnp.tanh(carry) + z)
        return (carry if reads == 1 else carry * z), ()

    of_step = jax.ShapeDtypeStruct((3, 4), jnp.float32)
    assert len(SplitStep(step, (), of_step, of_step).saveable) == (reads == 1)


def temporaries(cell, rows, steps, features_in, **options):
    """Returns the size of the temporaries of a compiled gradient, in bytes."""
    rnn = rnncells.RNN(cell, **options)
    x = jax.ShapeDtypeStruct((rows, steps, features_in), jnp.float32)
    params = jax.eval_shape(rnn.init, jax.random.key(0), x)
    gradient = jax.jit(jax.grad(lambda params, x: rnn.apply(params, x).sum()))
    return gradient.lower(params, x).compile().memory_analysis().temp_size_in_bytes


CHOICES = ("recompute", "sqrt", rnncells.Chunk(5), POLICIES.dots_saveable)
CHOICES += (POLICIES.everything_saveable,)
# Rows, steps, inputs and units: few and many of each.
SIZES = [(1, 1, 64, 16), (2, 5, 1, 16), (1, 17, 64, 128), (8, 200, 3, 4)]
SIZES += [(2, 700, 16, 32), (32, 700, 64, 1), (64, 128, 32, 64), (3, 16, 2, 2)]
CELLS = [rnncells.LSTMCell, rnncells.SimpleCell, rnncells.LayerNormGRUCell]
CELLS += [rnncells.MinGRUCell, rnncells.LRUCell, rnncells.GatedDeltaNetCell]
CELLS += [rnncells.SRUCell]  # without products, it takes the plain loop


@pytest.mark.parametrize(
    "cell, size",
    by_level(
        [(cell, size) for cell in CELLS for size in SIZES],
        [(rnncells.LSTMCell, SIZES[2])],
    ),
)
def test_no_choice_of_memory_keeps_more_than_full(cell, size, monkeypatch):
    monkeypatch.undo()  # of small_layers_have_memory_policies
    rows, steps, features_in, features = size
    at = cell(features), rows, steps, features_in
    full = temporaries(*at)
    for choice in CHOICES:
        assert temporaries(*at, memory=choice) <= full, choice
