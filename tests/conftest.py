"""Settings of all tests."""

import atexit
import itertools
import os
import pathlib
import shutil
import tempfile

# JAX reads environment variables when it is imported, here and in processes that tests
# start. One thread for each compilation is enough, because pytest's workers keep all
# cores busy.
ONE_THREAD = "--xla_cpu_parallel_codegen_split_count=1"
os.environ["XLA_FLAGS"] = f"{ONE_THREAD} {os.environ.get('XLA_FLAGS', '')}"

# Tests compile many programs and compute little.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "true")
# The workers share what they compile, and so do tests with equal programs.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    cache = os.environ["JAX_COMPILATION_CACHE_DIR"] = tempfile.mkdtemp()
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    atexit.register(shutil.rmtree, cache, ignore_errors=True)

import jax
import jax.extend
import numpy as np
import pytest

from rnncells.recurrence.engine import memory

# Before test modules make arrays, which belong to the devices that JAX has then.
jax.config.update("jax_num_cpu_devices", 1)

# A program for mypy.
collect_ignore = ["typed_program.py"]

# The memory maps of this process; only Linux has the file.
MAPS, MOST_MAPS = pathlib.Path("/proc/self/maps"), 50_000
# Reading the file takes milliseconds, and a test adds some hundreds of maps at most.
TESTS_BETWEEN_READS = 10
finished_tests = itertools.count(1)

# The number of CPU devices in tests that are marked `several_devices`.
SEVERAL_DEVICES = 8


def pytest_collection_modifyitems(items):
    """Marks quick tests, and examples that make a mesh. `levels.py` explains levels.

    Sorts tests on several devices first: each switch clears all compiled programs.
    """
    for item in items:
        # Examples of docstrings show what other tests run.
        if isinstance(item, pytest.DoctestItem):
            item.add_marker("default")
            if "make_mesh" in item.dtest.docstring:
                item.add_marker("several_devices")
        if not any(map(item.get_closest_marker, ("default", "exhaustive"))):
            item.add_marker("quick")
    items.sort(key=lambda item: item.get_closest_marker("several_devices") is None)


class Devices:
    """Gives JAX one CPU device, as most users have, or several.

    XLA compiles faster for one. Arrays that were made before a switch belong to the old
    devices, so a test that compares devices must make its arrays itself.
    """

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item):
        is_marked = item.get_closest_marker("several_devices") is not None
        devices = SEVERAL_DEVICES if is_marked else 1
        if jax.config.jax_num_cpu_devices != devices:
            jax.extend.backend.clear_backends()
            jax.config.update("jax_num_cpu_devices", devices)


def pytest_configure(config):
    # A hook of this file would not run for the examples of docstrings.
    config.pluginmanager.register(Devices())


@pytest.fixture(autouse=True)
def few_memory_maps():
    """Frees compiled programs when they have mapped many parts of memory.

    Linux ends a process with more than 65,530 maps, which a worker would reach.
    """
    yield
    if next(finished_tests) % TESTS_BETWEEN_READS == 0 and MAPS.is_file():
        if MAPS.read_bytes().count(b"\n") > MOST_MAPS:
            jax.clear_caches()


@pytest.fixture
def key():
    return jax.random.key(7)


@pytest.fixture
def rng():
    """NumPy's random numbers: they need no compilation, and are independent of JAX."""
    return np.random.default_rng(7)


@pytest.fixture
def torch():
    """PyTorch; without it, the test is skipped, or fails in CI."""
    # Imported here, after JAX has its settings.
    from libraries import peer

    return peer("torch")


@pytest.fixture(autouse=True)
def small_layers_have_memory_policies(monkeypatch):
    """Without this, the small layers of tests would keep all residuals."""
    monkeypatch.setattr(memory, "_pays", lambda *args: True)


@pytest.fixture
def float64():
    """Runs the test in float64: arrays, and the default of parameters made in it."""
    with jax.enable_x64(True):
        yield
