"""The wheel and the source distribution, installed by themselves, work."""

import os
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
