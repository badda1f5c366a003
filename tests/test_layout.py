"""Who may import whom, and what public names owe their users."""

import ast
import dataclasses
import inspect
import pickle
import pkgutil
import pydoc
import re
import subprocess
import sys
from pathlib import Path

import flax.linen as nn
import pytest

import rnncells
from docs import generate
from rnncells import public

pytestmark = pytest.mark.default

ROOT = Path(__file__).resolve().parent.parent


def test_engine_has_no_hidden_state():
    for path in (ROOT / "rnncells" / "recurrence").rglob("*.py"):
        names = {
            node.id
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Name)
        }
        assert not names & {"contextvars", "ContextVar", "globals"}, path


def test_imports_keep_the_contracts(monkeypatch):
    # Imported here, so that quick tests do not need it.
    from importlinter.cli import lint_imports

    monkeypatch.chdir(ROOT)
    assert lint_imports(no_cache=True) == 0


def test_examples_use_public_names():
    for path in (ROOT / "examples").rglob("*.py"):
        private = re.findall(
            r"^(?:from|import) rnncells\.(\w+)", path.read_text(), re.M
        )
        assert set(private) <= {"interop", "nnx", "packing", "plots"}, path


PUBLIC = {
    name: getattr(rnncells, name)
    for name in rnncells.__all__
    if inspect.isclass(getattr(rnncells, name))
}


def own_bases(cls):
    """The class and its bases, without those of flax."""
    return [c for c in cls.__mro__ if c.__module__.startswith("rnncells.")]


def entry(cls, field):
    """The lines on a field in the nearest class whose documentation has them."""
    for base in own_bases(cls):
        lines = rf"^( +){field}: .*(?:\n\1 +.*)*"
        found = re.search(lines, base.__doc__ or "", re.MULTILINE)
        if found:
            return " ".join(found[0].split())
    raise AssertionError(f"{field} lacks its line")


@pytest.mark.parametrize("name", PUBLIC)
def test_public_classes_and_their_fields_are_documented(name):
    """The entry of a field ends with its default."""
    assert (PUBLIC[name].__doc__ or "").strip()
    for field in getattr(PUBLIC[name], "__dataclass_fields__", {}).values():
        if field.name in ("parent", "name"):
            continue
        text = entry(PUBLIC[name], field.name)
        stated = re.search(r" Default: (.+)\.$", text)
        is_required = field.default is dataclasses.MISSING
        assert is_required == (stated is None), text
        # Other defaults, such as functions and dtypes, are stated in words.
        if isinstance(field.default, bool | int | float | str | None):
            assert ast.literal_eval(stated[1].strip("`")) == field.default, text


@pytest.mark.parametrize("name", [n for n in PUBLIC if hasattr(nn, n)])
def test_fields_of_flax_come_first_and_with_its_defaults(name):
    def fields(cls):
        all_fields = cls.__dataclass_fields__.values()
        return [f for f in all_fields if f.name not in ("parent", "name")]

    ours, theirs = fields(PUBLIC[name]), fields(getattr(nn, name))
    assert [f.name for f in ours][: len(theirs)] == [f.name for f in theirs]
    for our, their in zip(ours, theirs, strict=False):
        # Functions are compared by what they do, in test_flax_parity.py.
        # On a GPU, `RNN` chooses `unroll`; elsewhere None is Flax's 1.
        if not callable(their.default) and our.name != "unroll":
            assert our.default == their.default, our.name


def test_page_on_the_engine_names_functions_that_exist():
    text = (ROOT / "docs" / "engine.md").read_text()
    places = re.findall(r"`([\w/]+\.py):([\w.]+)`", text)
    assert len(places) > 20
    for file, name in places:
        path = ROOT / ("" if "/" in file else "rnncells/recurrence/engine") / file
        body = ast.parse(path.read_text()).body
        for part in name.split("."):
            (found,) = (d for d in body if getattr(d, "name", None) == part)
            body = found.body


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
