"""Packages work by themselves; a cell and a task are added as documented."""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder
from levels import by_level

import rnncells

pytestmark = pytest.mark.default

ROOT = Path(__file__).resolve().parent.parent
NAME = f"rnncells-{rnncells.__version__}"
BUILDERS = {"wheel": WheelBuilder, "sdist": SdistBuilder}
# The gradient of a layer, NNX, and the command, which needs no JAX.
PROGRAM = """
import sys, pathlib
import rnncells
folder = pathlib.Path(rnncells.__file__).parent
assert folder.parent == pathlib.Path(sys.argv[1]), folder
assert (folder / "py.typed").is_file()
from rnncells._command import main
assert "jax" not in sys.modules
import jax, jax.numpy as jnp
from flax import nnx
import rnncells.nnx
x = jnp.ones((2, 5, 3))
rnn = rnncells.RNN(rnncells.GRUCell(4))
params = rnn.init(jax.random.key(0), x)
gradient = jax.grad(lambda params: rnn.apply(params, x).sum())(params)
assert jax.tree.structure(gradient) == jax.tree.structure(params)
assert rnncells.nnx.GRUCell(3, 4, rngs=nnx.Rngs(0)).in_features == 3
"""


@pytest.fixture(scope="module", params=BUILDERS)
def package(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    (path,) = BUILDERS[request.param](str(ROOT)).build(directory=str(folder))
    return Path(path)


def names_in(package):
    if package.suffix == ".whl":
        return zipfile.ZipFile(package).namelist()
    with tarfile.open(package) as archive:
        return [name.removeprefix(f"{NAME}/") for name in archive.getnames()]


def test_package_contains_only_the_library(package):
    names = names_in(package)
    assert "rnncells/py.typed" in names and "rnncells/nnx/__init__.pyi" in names
    tops = {name.split("/")[0] for name in names}
    others = {".gitignore", "CHANGELOG.md", "CITATION.cff", "LICENSE", "PKG-INFO"}
    others |= {"README.md", "pyproject.toml", f"{NAME}.dist-info"}
    assert tops - others == {"rnncells"}
    assert package.stat().st_size < 1_000_000


@pytest.mark.parametrize(
    "package", by_level(["wheel", "sdist"], ["sdist"]), indirect=True
)
def test_installed_package_works(package, tmp_path):
    install = ["pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    install += ["--no-index", "--target", str(tmp_path), str(package)]
    subprocess.run([sys.executable, "-m", *install], check=True)
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True)
    script = tmp_path / "bin" / "rnncells"
    subprocess.run(
        [sys.executable, str(script), "migrate-params", "--help"],
        cwd=tmp_path,
        env=environment,
        check=True,
        stdout=subprocess.DEVNULL,
    )


# By file, what a contributor adds at its end; generated files follow.
CELL = {
    "rnncells/cells/leaky.py": '''\
"""A leaky cell."""

import jax.numpy as jnp

from rnncells.cells.contract.fields import DenseCell


class LeakyCell(DenseCell):
    """A leaky cell: half of the state stays."""

    def setup(self):
        self.gates("i", "h")

    def project(self, inputs):
        return self.affine(inputs, "i")

    def recur(self, carry, projected):
        h = 0.5 * carry + jnp.tanh(self.affine(carry, "h") + projected)
        return h, h
''',
    "rnncells/public.py": "from rnncells.cells.leaky import LeakyCell as LeakyCell\n",
    "tests/equations/leaky.py": '''\
"""A leaky cell."""

from equations.parts import affine, np
from equations.table import equations


@equations("LeakyCell")
def leaky(p, h, x):
    h = 0.5 * h + np.tanh(affine(x, p["i"]) + affine(h, p["h"]))
    return h, h
''',
}
TASK = {
    "experiments/supervised/tasks/echo.py": '''\
"""Repeating the first number."""

from experiments.supervised.task import Task


class EchoTask(Task):
    """Repeating the first number."""
''',
    "experiments/settings/data_tasks.py": '''\
@task_settings
class Echo(DataTask):
    """Repeating the first number."""

    delay: Count = 7
    """Number of steps, at least 1."""
''',
    "configs/data/echo.toml": """\
# Run: python -m experiments run echo

title = "Echo"
task.name = "echo"
model.features = 4
optimizer.rate = 0.1
training = { updates = 1, batch = 1, evaluate_every = 1 }
""",
}
# Lines before which a part is added; others are added at the end of a file.
BEFORE = {
    "rnncells/public.py": "\n# Cells that are linear",
    "experiments/settings/data_tasks.py": "\nDATA_TASKS =",
}
ROWS = (
    "test_step_follows_the_equations[LeakyCell]",
    "test_sequence_and_gradients_follow_the_equations[LeakyCell]",
    "test_sequence_equals_the_steps_of_each_row[LeakyCell]",
    "test_every_reading_loads[echo]",
)


def test_added_cell_and_task_are_in_all_lists(tmp_path):
    for folder in ("rnncells", "tests", "docs", "experiments", "configs"):
        large = shutil.ignore_patterns("__pycache__", "results", "*.gz", "*.svg")
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=large)
    for name in ("pyproject.toml", "CHANGELOG.md", "README.md"):
        shutil.copy(ROOT / name, tmp_path)
    for name, text in (CELL | TASK).items():
        path = tmp_path / name
        before = path.read_text() if path.exists() else ""
        start, mark, rest = before.partition(BEFORE.get(name, "\0"))
        path.write_text(f"{start}{text}{mark}{rest}")

    def python(*arguments):
        environment = {"PYTHONPATH": str(tmp_path), "JAX_PLATFORMS": "cpu"}
        command = [sys.executable, *arguments]
        options = {"cwd": tmp_path, "capture_output": True, "text": True}
        done = subprocess.run(command, env=os.environ | environment, **options)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    python("docs/generate.py")
    assert "--task.delay" in python("-m", "experiments", "run", "echo", "--help")
    files = [f"tests/test_{name}.py" for name in ("equations", "cells", "config")]
    names = "LeakyCell or echo or Echo"
    all_levels = ("-m", "exhaustive or not exhaustive", "-k", names)
    collected = python("-m", "pytest", "-n0", "-q", "--co", *files, *all_levels)
    assert all(row in collected for row in ROWS), collected
    run = "test_step_follows and Leaky or every_cell or are_current or every_task"
    files += ["tests/test_layout.py", "tests/test_supervised.py"]
    assert "4 passed" in python("-m", "pytest", "-n0", "-q", *files, "-k", run)
