"""Other libraries to compare with: what needs them is skipped where they are not."""

import importlib
import os
from types import ModuleType

import pytest

# What CI installs must be there: nothing is skipped by mistake.
REQUIRED = os.environ.get("RNNCELLS_REQUIRED_PEERS", "").split()


def peer(name: str) -> ModuleType:
    """Returns another library, or a module of one.

    Without the library, the test is skipped, or fails in CI.
    """
    if name.partition(".")[0] in REQUIRED:
        return importlib.import_module(name)
    return pytest.importorskip(name, reason=f"{name} is not installed")
