"""The public names are imported at their first use; `rnncells` alone needs no JAX."""

import pickle
import pkgutil
import pydoc
import re
import subprocess
import sys
from pathlib import Path

import pytest

import rnncells
from docs import generate
from rnncells import public

pytestmark = pytest.mark.default

ROOT = Path(__file__).resolve().parent.parent
# The engine, and modules that only `rnncells/__init__.py` and old programs import.
INTERNAL = {"flax_internals", "loops", "recurrence", "public"}


def submodules_in(package):
    found = {info.name for info in pkgutil.iter_modules(package.__path__)}
    return {name for name in found - INTERNAL if not name.startswith("_")}


def test_all_lists_the_names_of_the_public_file():
    assert rnncells.__all__ == sorted(n for n in vars(public) if not n.startswith("_"))
    assert "LSTMCell" in rnncells.__all__ and "initializers" in rnncells.__all__
    assert set(rnncells.__all__) < set(dir(rnncells))


def test_star_import_binds_all_public_names():
    names = {}
    exec("from rnncells import *", names)
    assert set(names) - {"__builtins__"} == set(rnncells.__all__)
    assert names["LSTM"] is rnncells.LSTM is public.LSTM


def test_help_shows_the_public_classes():
    text = pydoc.plain(pydoc.render_doc(rnncells))
    assert "class LSTMCell(" in text and f"VERSION\n    {rnncells.__version__}" in text


def test_generated_files_are_current():
    for path, text in generate.files().items():
        assert path.read_text() == text, f"{path}: run `python docs/generate.py`"


def test_docstring_lists_every_public_name_and_submodule():
    """A line has names, and for submodules what they are, in a second column."""
    lines = re.findall(r"^  (\w.*?),?(?:$|  +\S)", rnncells.__doc__, re.MULTILINE)
    listed = [name for line in lines for name in line.split(", ")]
    assert len(listed) == len(set(listed))
    assert set(listed) == set(rnncells.__all__) | submodules_in(rnncells)
    # pydoc indents the text by 4 columns.
    assert max(len(line) for line in rnncells.__doc__.splitlines()) <= 76


@pytest.mark.parametrize(
    "package", [rnncells, rnncells.cells, rnncells.layers, rnncells.interop]
)
def test_dir_lists_submodules(package):
    assert submodules_in(package) <= set(dir(package))
    assert not [name for name in dir(package) if re.match("_[^_]", name)]
    assert not INTERNAL & set(dir(package))


def test_public_classes_can_be_pickled():
    assert pickle.loads(pickle.dumps(rnncells.GRUCell)) is rnncells.GRUCell


@pytest.mark.parametrize("name", ["LSTMcell", "_private", "__main__", "no.module"])
def test_unknown_names_raise_attribute_error(name):
    message = f"module 'rnncells' has no attribute {name!r}"
    with pytest.raises(AttributeError, match=message):
        getattr(rnncells, name)
    with pytest.raises(AttributeError, match=message.replace("s'", "s.cells'", 1)):
        getattr(rnncells.cells, name)


FIRST_USES = """
import operator
import sys
import rnncells
assert rnncells.__version__ and not hasattr(rnncells, "__wrapped__")
import rnncells._command
assert "jax" not in sys.modules and "rnncells.public" not in sys.modules
# A module imported by its own path, before the public names.
from rnncells.layers.rnn import RNN
for name in {submodules}:
    module = operator.attrgetter(name)(rnncells)
    assert module is sys.modules["rnncells." + name]
assert rnncells.initializers is sys.modules["rnncells.initializers"]
assert "rnncells.public" not in sys.modules
rnncells.Stack = "set by the user"
assert rnncells.RNN is RNN and "LSTMCell" in vars(rnncells)
assert rnncells.Stack == "set by the user"
"""


def test_names_are_imported_at_their_first_use():
    # `rnncells.nnx` is made from the public names.
    submodules = sorted(submodules_in(rnncells) - {"nnx"})
    for package in ("cells", "interop", "layers"):
        names = sorted(submodules_in(getattr(rnncells, package)))
        submodules += [f"{package}.{name}" for name in names]
    script = FIRST_USES.format(submodules=submodules)
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True)
