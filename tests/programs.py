"""Old programs for Flax <= 0.6.11, each with a function `run`, and how to run them."""

import os
import re
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import jax
import numpy as np

import rnncells

FOLDER = Path(__file__).parent.parent / "migrate" / "tests" / "old_programs"
PROGRAMS = {path.stem: path.read_text() for path in sorted(FOLDER.glob("*.py"))}
# A step of an own cell in programs.
CALL = """\
    @nn.compact
    def __call__(self, carry, x):
        carry = nn.tanh(nn.Dense(carry.shape[-1])(x) + carry)
        return carry, carry
"""


def run(name: str, source: str) -> Any:
    """Returns the result of `run()` in a program."""
    module = types.ModuleType(name)
    module.__file__ = f"{name}.py"
    # Dataclasses look up the names in annotations there.
    sys.modules[name] = module
    try:
        exec(compile(source, module.__file__, "exec"), vars(module))
        return module.run()
    finally:
        del sys.modules[name]


def assert_same(actual: Any, expected: Any) -> None:
    """Fails unless parameters have equal names and bits, and other values are close."""
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    leaves = jax.tree_util.tree_leaves_with_path(expected)
    assert leaves
    for (path, old), new in zip(leaves, jax.tree.leaves(actual), strict=True):
        assert (new.dtype, new.shape) == (old.dtype, old.shape), path
        keys = [str(getattr(key, "key", "")) for key in path]
        # XLA may compile a jitted initializer differently beside other code.
        is_exact = "params" in keys and not any(key.startswith("Jit") for key in keys)
        tolerance = 0 if is_exact else 1e-6
        np.testing.assert_allclose(new, old, rtol=0, atol=tolerance, err_msg=str(path))


def with_imports_of(module: str, source: str) -> str:
    """Returns a program that imports another module instead of `flax.linen`."""
    source = re.sub(r"\bfrom flax import linen\b", "import flax.linen", source)
    lines = {r"\bimport flax\.linen$": "import flax.linen as linen"}
    lines[r"^import flax$"] = f"import {module}"
    for old, new in lines.items():
        source = re.sub(old, new, source, flags=re.MULTILINE)
    return re.sub(r"\bflax\.linen\b", module, source)


def run_python(*args: str, fails: bool = False, **environment: str) -> str:
    """Returns the standard error of Python, run with this rnncells."""
    path = Path(rnncells.__file__).parent.parent
    own = {"PYTHONPATH": str(path), "JAX_PLATFORMS": "cpu", **environment}
    done = subprocess.run(
        [sys.executable, *args],
        capture_output=True,
        text=True,
        env={**os.environ, **own},
    )
    assert (done.returncode != 0) == fails, done.stderr
    return done.stderr
