"""Settings of all tests."""

import os

# Before jax is imported: several devices on one machine, for tests of sharding.
DEVICES = "--xla_force_host_platform_device_count"
if DEVICES not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {DEVICES}=4"

import jax
import numpy as np
import pytest

# Tests compile much and compute little.
jax.config.update("jax_disable_most_optimizations", True)


@pytest.fixture
def key():
    return jax.random.key(7)


@pytest.fixture
def rng():
    """NumPy's random numbers: they need no compilation, and are independent of JAX."""
    return np.random.default_rng(7)


@pytest.fixture
def float64():
    """Runs the test in float64: arrays, and the default of parameters made in it."""
    with jax.enable_x64(True):
        yield
