"""Settings of all tests."""

import atexit
import collections
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

from rnncells.recurrence import memory

# Before test modules make arrays, which belong to the devices that JAX has then.
jax.config.update("jax_num_cpu_devices", 1)

# Programs for old versions of Flax, which tests run by themselves, and one for mypy.
collect_ignore = ["old_programs", "typed_program.py"]

# The memory maps of this process; only Linux has the file.
MAPS, MOST_MAPS = pathlib.Path("/proc/self/maps"), 50_000
# Reading the file takes milliseconds, and a test adds some hundreds of maps at most.
TESTS_BETWEEN_READS = 10
finished_tests = itertools.count(1)

# Tests of code that does not depend on the version of JAX: files, runs, reports,
# and examples of what other tests run.
ANY_JAX = [
    *("test_benchmarks", "test_chunks", "test_cli", "test_competitors", "test_config"),
    "test_datasets",
    *(
        "test_examples",
        "test_experiments",
        "test_interruption",
        "test_layout",
        "test_league",
    ),
    *("test_mutants", "test_old_programs", "test_paper1997", "test_progress"),
    *("test_packages", "test_project_files"),
    *("test_docs", "test_inspection", "test_plots", "test_readme", "test_results"),
    *("test_renamed_files", "test_run_folder", "test_scaling"),
    *("test_network", "test_supervised"),
    *("test_supervised_devices", "test_supervised_run"),
    *("test_sweep", "test_tasks"),
]


# On the oldest JAX, CI runs the first two rows of each test. It runs all rows of tests
# on several devices, and of these files: tests of the engine, which reads jaxprs, and
# comparisons with libraries that CI installs for Python 3.11 only.
ROWS_ON_OLDEST_JAX = 2
ALL_ROWS_ON_OLDEST_JAX = [
    *("test_any_cell", "test_engine", "test_generated_cells", "test_model_axis"),
    *("test_backward_graph", "test_files", "test_initializers", "test_interop"),
    *("test_published_code", "test_pytorch", "test_reference"),
]


# The number of CPU devices in tests that are marked `several_devices`.
SEVERAL_DEVICES = 8


def pytest_collection_modifyitems(items):
    """Marks tests that CI runs on one version of JAX, and examples that make a mesh.

    Sorts tests on several devices first: each switch clears all compiled programs.
    """
    rows = collections.Counter()
    for item in items:
        # Examples of docstrings show what other tests run.
        is_example = isinstance(item, pytest.DoctestItem)
        if is_example and "make_mesh" in item.dtest.docstring:
            item.add_marker("several_devices")
        name = item.path.stem
        if name in ANY_JAX or is_example:
            item.add_marker("any_jax")
        markers = {marker.name for marker in item.iter_markers()}
        if not markers & {"any_jax", "exhaustive", "several_devices"}:
            test = item.nodeid.partition("[")[0]
            rows[test] += 1
            all_rows = name in ALL_ROWS_ON_OLDEST_JAX
            if rows[test] > ROWS_ON_OLDEST_JAX and not all_rows:
                item.add_marker("any_jax")
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


@pytest.fixture(autouse=True)
def small_layers_have_memory_policies(monkeypatch):
    """Without this, the small layers of tests would keep all residuals."""
    monkeypatch.setattr(memory, "_pays", lambda *args: True)


@pytest.fixture
def float64():
    """Runs the test in float64: arrays, and the default of parameters made in it."""
    with jax.enable_x64(True):
        yield
