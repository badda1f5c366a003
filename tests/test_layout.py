"""Who may import whom, and what every public name owes its users."""

import ast
import dataclasses
import inspect
import re
from pathlib import Path

import flax.linen as nn
import pytest

import rnncells

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


@pytest.mark.parametrize("name", PUBLIC)
def test_public_classes_are_documented(name):
    cls = PUBLIC[name]
    own = cls.__doc__ or ""
    assert own.strip()
    documented = "\n".join(base.__doc__ or "" for base in cls.__mro__)
    for field in getattr(cls, "__dataclass_fields__", {}):
        if field not in ("parent", "name"):
            line = rf"^\s+{field}: "
            assert re.search(line, documented, re.MULTILINE), f"{field} lacks its line"


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
def test_entries_of_fields_end_with_their_defaults(name):
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
        path = ROOT / ("" if "/" in file else "rnncells/recurrence") / file
        body = ast.parse(path.read_text()).body
        for part in name.split("."):
            (found,) = (d for d in body if getattr(d, "name", None) == part)
            body = found.body
