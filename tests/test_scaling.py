"""The page on several devices: its example runs, and its figures are those of code."""

from math import isclose
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import rnncells
from benchmarks import scaling

pytestmark = pytest.mark.default

PAGE = (Path(__file__).resolve().parent.parent / scaling.PAGE).read_text()


@pytest.mark.parametrize("name", scaling.TABLES)
def test_tables_are_those_of_the_formulas(name):
    begin, end = scaling.markers(name)
    assert begin + scaling.TABLES[name]() + end in PAGE


def test_model_has_the_parameters_of_the_layer():
    model = scaling.LSTM
    layer = rnncells.LSTM(model.features, num_layers=model.layers)
    sample = jax.ShapeDtypeStruct((1, 2, model.features), jnp.float32)
    params = jax.eval_shape(layer.init, jax.random.key(0), sample)
    size = sum(leaf.size for leaf in jax.tree.leaves(params))
    assert model.parameters == size
    assert "134 million" in PAGE and round(size / 1e6) == 134
    assert "537 MB" in PAGE and round(4 * size / 1e6) == 537


def test_ring_sends_what_its_steps_send():
    """Each device sends one of its `n` parts in each of `2 (n - 1)` steps."""
    for devices in (1, 2, 8):
        parts = [1200.0 / devices] * 2 * (devices - 1)
        assert isclose(scaling.sent(1200.0, devices), sum(parts))


def test_times_of_a_small_model():
    """By hand: 2 layers of 4 * 10 * 10 weights, 3 rows, 5 steps."""
    model = scaling.Model(layers=2, features=10, rows=3, time=5)
    slow_memory = scaling.Hardware("", 2e3, 1e2, (10.0, 5.0), 4)
    # Reading 400 weights of 2 bytes at 100 a second; 2 * 3 * 400 operations at 1000.
    assert scaling.step_time(model, slow_memory) == 8.0
    assert scaling.step_time(model, slow_memory, shards=2) == 4.0
    fast_memory = scaling.Hardware("", 2e3, 1e9, (10.0, 5.0), 4)
    assert scaling.step_time(model, fast_memory) == 2.4
    # Two loops of 5 steps, and 4 products of 5 steps at once, of 2 layers.
    assert isclose(scaling.update_time(model, slow_memory), 2 * (10 * 8.0 + 4 * 12.0))
    # Of 40 bytes, 4 devices send 60 in a host; 8 devices send 70 between hosts.
    for devices, seconds in ((4, 6.0), (8, 14.0)):
        moving, hops = scaling.all_reduce_time(40.0, devices, slow_memory)
        assert isclose(moving, seconds)
        assert isclose(hops, 2 * (devices - 1) * scaling.HOP)
    # States of 3 rows and 10 features, of which each device has a quarter.
    gather = scaling.all_gather_time(model, 4, slow_memory)
    assert isclose(gather, 45 / 10 + 3 * scaling.HOP)
