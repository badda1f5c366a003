"""The public names are imported at their first use; `rnncells` alone needs no JAX."""

import pickle
import pydoc
import subprocess
import sys
from pathlib import Path

import pytest

import rnncells
from rnncells import public

ROOT = Path(__file__).resolve().parent.parent


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


def test_public_classes_can_be_pickled():
    assert pickle.loads(pickle.dumps(rnncells.GRUCell)) is rnncells.GRUCell


@pytest.mark.parametrize("name", ["LSTMcell", "_private", "__wrapped__", "no.module"])
def test_unknown_names_raise_attribute_error(name):
    message = f"module 'rnncells' has no attribute {name!r}"
    with pytest.raises(AttributeError, match=message):
        getattr(rnncells, name)


FIRST_USES = """
import sys
import rnncells
assert rnncells.__version__ and not hasattr(rnncells, "__wrapped__")
from rnncells import migrate
assert "jax" not in sys.modules and "rnncells.public" not in sys.modules
# A module imported by its own path, before the public names.
from rnncells.layers.rnn import RNN
assert rnncells.initializers is sys.modules["rnncells.initializers"]
assert "rnncells.public" not in sys.modules
rnncells.Stack = "set by the user"
assert rnncells.RNN is RNN and "LSTMCell" in vars(rnncells)
assert rnncells.Stack == "set by the user"
"""


def test_names_are_imported_at_their_first_use():
    subprocess.run([sys.executable, "-c", FIRST_USES], cwd=ROOT, check=True)
