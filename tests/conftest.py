"""Settings of all tests."""

import os
import pathlib

# Before jax is imported: several devices on one machine, for tests of sharding.
DEVICES = "--xla_force_host_platform_device_count"
if DEVICES not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {DEVICES}=4"

import jax
import numpy as np
import pytest
from cases import VARIANTS

# Programs for old versions of Flax, which tests run by themselves.
collect_ignore = ["old_programs"]

# What Linux says of this process; no other system has the file.
MAPS, MOST_MAPS = pathlib.Path("/proc/self/maps"), 10_000

# Tests compile much and compute little.
jax.config.update("jax_disable_most_optimizations", True)


def pytest_collection_modifyitems(items):
    """Marks tests of a cell with an option, which `-m "not option"` leaves out."""
    for item in items:
        parameters = f"-{item.callspec.id}-" if hasattr(item, "callspec") else ""
        if any(f"-{name}-" in parameters for name in VARIANTS):
            item.add_marker("option")


@pytest.fixture(autouse=True)
def few_memory_maps():
    """Frees compiled programs when they have many parts of memory mapped.

    Linux ends a process that has more than 65,530, which a worker would reach.
    """
    yield
    if MAPS.is_file() and MAPS.read_bytes().count(b"\n") > MOST_MAPS:
        jax.clear_caches()


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
