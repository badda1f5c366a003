"""Names of version 0.1 that have changed: they warn, and work as before."""

import re
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from cases import assert_close

import rnncells
from rnncells.cells.any_cell import declared_streams


def test_old_classes_name_the_same_parameters(key):
    """In a compact module, the name of a class names its parameters."""

    class Model(nn.Module):
        name_of_class: str

        @nn.compact
        def __call__(self, x):
            return getattr(rnncells, self.name_of_class)(use_bias=True)(x)

    x = jnp.ones((2, 3))
    with pytest.warns(DeprecationWarning, match="write `rnncells.ElementwiseAff"):
        old = Model("Diagonal").init(key, x)["params"]
    new = Model("ElementwiseAffine").init(key, x)["params"]
    assert list(old) == ["Diagonal_0"] and list(new) == ["ElementwiseAffine_0"]
    assert_close(old["Diagonal_0"], new["ElementwiseAffine_0"])
    assert issubclass(rnncells.DeepRNN, rnncells.MultiLayerRNN)


def test_warnings_name_the_line_of_the_user():
    class Deep(rnncells.DeepRNN):
        pass

    calls = {
        "Diagonal": lambda: rnncells.Diagonal(),
        "DeepRNN": lambda: rnncells.DeepRNN(4),
        "a subclass": lambda: Deep(4),
        "streams": lambda: rnncells.RNN(rnncells.SimpleCell(4)).streams,
    }
    for call in calls.values():
        with pytest.warns(DeprecationWarning) as warned:
            call()
        assert {warning.filename for warning in warned} == {__file__}


def test_old_names_in_modules_warn():
    with pytest.warns(DeprecationWarning, match="it is now `PerGateInit`"):
        old = rnncells.initializers.ByGate
    assert old is rnncells.initializers.PerGateInit
    with pytest.warns(DeprecationWarning, match="it is now `rnncells.testing`"):
        from rnncells.conformance import check_cell
    assert check_cell is rnncells.check_cell


def test_streams_are_read_under_their_old_name(key):
    class OldCell(rnncells.SimpleCell):
        streams = {"dropout": True}

    with pytest.warns(DeprecationWarning, match="`streams` of OldCell to `rng_streams"):
        assert declared_streams(OldCell(4)) == {"dropout": True}
    assert declared_streams(rnncells.SimpleCell(4)) == {}
    with pytest.warns(DeprecationWarning, match="it is now `rng_streams`"):
        assert rnncells.RNN(rnncells.SimpleCell(4)).streams == {"params": False}
    assert jax.tree.leaves(declared_streams(rnncells.VariationalLSTMCell(4))) == [False]


def test_page_lists_every_deprecated_name():
    """The first word in backticks of a warning is the deprecated name."""
    root = Path(rnncells.__file__).parent
    # These two packages have guides of their own.
    files = [f for f in root.rglob("*.py") if not {"legacy", "migrate"} & {*f.parts}]
    code = "\n".join(file.read_text() for file in files)
    names = {*rnncells._OLD_NAMES, *re.findall(r'"`([\w.]+)`.* is deprecated', code)}
    assert {"DeepRNN", "ByGate", "streams", "onto", "product"} <= names
    page = (root.parent / "docs" / "how-to" / "migrating.md").read_text()
    section = page.partition("## Names of version 0.1")[2].partition("\n## ")[0]
    column = "\n".join(re.findall(r"^\| (.*) \|.*\|$", section, re.MULTILINE))
    assert [n for n in sorted(names) if not re.search(rf"\b{n}\b", column)] == []
