"""Programs for Flax <= 0.6.11, in `old_programs`; each has a function `run`."""

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
from rnncells.migrate.migration import migrate

PROGRAMS = {
    path.stem: path.read_text()
    for path in sorted((Path(__file__).parent / "old_programs").glob("*.py"))
}
# What comments start with that the command puts above lines.
MARK = "# TODO(rnncells): "
# Of programs with a cell of their own: imports, and one step.
HEAD = "import flax.linen as nn\nimport jax\nimport jax.numpy as jnp\n\n\n"
CALL = """\
    @nn.compact
    def __call__(self, carry, x):
        carry = nn.tanh(nn.Dense(carry.shape[-1])(x) + carry)
        return carry, carry
"""


def run(name: str, source: str) -> Any:
    """Returns what `run()` of a program gives."""
    module = types.ModuleType(name)
    module.__file__ = f"{name}.py"
    # Where dataclasses look for what annotations name.
    sys.modules[name] = module
    try:
        exec(compile(source, module.__file__, "exec"), vars(module))
        return module.run()
    finally:
        del sys.modules[name]


def assert_same(actual: Any, expected: Any) -> None:
    """Fails unless parameters have the same names and bits, and the rest is close."""
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    leaves = jax.tree_util.tree_leaves_with_path(expected)
    assert leaves
    for (path, old), new in zip(leaves, jax.tree.leaves(actual), strict=True):
        assert (new.dtype, new.shape) == (old.dtype, old.shape), path
        keys = [str(getattr(key, "key", "")) for key in path]
        # What XLA computes of a jitted initialiser depends on what stands beside it.
        is_exact = "params" in keys and not any(key.startswith("Jit") for key in keys)
        tolerance = 0 if is_exact else 1e-6
        np.testing.assert_allclose(new, old, rtol=0, atol=tolerance, err_msg=str(path))


def assert_marked(code: str, rules: list[str]) -> None:
    """Fails unless marks of these rules are all that comes to a file, and only once."""
    once = migrate(code.encode()).data
    lines = once.decode().splitlines(keepends=True)
    marks = [line.strip() for line in lines if line.strip().startswith(MARK)]
    assert [mark.removeprefix(MARK)[:4] for mark in marks] == rules
    assert "".join(line for line in lines if line.strip() not in marks) == code
    assert migrate(once).data is once


def without_reasons(code: str) -> str:
    """Returns code with marks that name their rule alone, as `# TODO(rnncells): RC01`.

    The texts of marks have a test of their own.
    """
    return re.sub(rf"({re.escape(MARK)}RC\d\d): [^\r\n]*", r"\1", code)


def with_imports_of(module: str, source: str) -> str:
    """Returns a program that uses another module in place of `flax.linen`."""
    source = re.sub(r"\bfrom flax import linen\b", "import flax.linen", source)
    lines = {r"\bimport flax\.linen$": "import flax.linen as linen"}
    lines[r"^import flax$"] = f"import {module}"
    for old, new in lines.items():
        source = re.sub(old, new, source, flags=re.MULTILINE)
    return re.sub(r"\bflax\.linen\b", module, source)


def run_python(*args: str, fails: bool = False, **environment: str) -> str:
    """Returns what Python says on standard error, run with this rnncells."""
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
