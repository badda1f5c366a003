"""Tests with one device, as most users have; conftest.py gives all others several."""

import os
import re
import subprocess
import sys
from pathlib import Path

import jax

HERE = Path(__file__).parent
# All code that reads the number of devices.
TESTS = (
    "test_engine.py::test_every_cell_equals_the_plain_loop[LSTMCell]",
    "test_engine.py::test_every_cell_equals_the_plain_loop[LayerNormLSTMCell]",
    "test_engine.py::test_every_cell_equals_the_plain_loop[ConvLSTMCell-peepholes]",
    "test_one_device.py::test_process_has_the_requested_number_of_devices",
)


def test_process_has_the_requested_number_of_devices():
    (asked,) = re.findall(r"device_count=(\d+)", os.environ["XLA_FLAGS"])
    assert jax.device_count() == int(asked)


def test_fast_loop_equals_the_plain_loop_on_one_device():
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "0", "-m", "", *TESTS],
        cwd=HERE,
        env=os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=1"},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert f"{len(TESTS)} passed" in run.stdout
