"""Imports of recurrent names: moved or marked."""

import flax.linen as nn
import pytest
from programs import without_reasons

import rnncells
from rnncells import legacy
from rnncells.migrate.migration import migrate
from rnncells.migrate.rules.imports import MOVED, OF_SHIM

TAKEN = "# TODO(rnncells): RC09\n"
# A file, its rewrite with `--to flax` ("" if it stays) and with `--to rnncells`.
SHIM = "import rnncells.legacy as nn\n"
CARRY = "c = nn.GRUCell.initialize_carry(k, (), 4)\n"
CARRY_NOW = "c = nn.GRUCell(4, parent=None).initialize_carry(k, (4,))\n"
CARRY_SKIPPED = CARRY.replace("\n", "  # rnncells: skip\n")
CASES = {
    "an import only in a function": (
        '"""Doc."""\nfrom __future__ import annotations\n\n\ndef make():\n'
        "    import flax.linen as nn\n    return nn.GRUCell(4)\n",
        "",
        '"""Doc."""\nfrom __future__ import annotations\n\n\ndef make():\n'
        "    import flax.linen as nn\n    import rnncells\n"
        "    return rnncells.GRUCell(4)\n",
    ),
    "an import below its uses": (
        "import sys\ndef f():\n    return nn.GRUCell(4)\n\n\nimport flax.linen as nn\n"
        "f()\nimport os\n",
        "",
        "import sys\ndef f():\n    return rnncells.GRUCell(4)\n\n\n"
        "import flax.linen as nn\nimport rnncells\nf()\nimport os\n",
    ),
    "an import only for annotations": (
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n"
        "    import flax.linen as nn\n\ndef f(cell: 'nn.RNN'):\n    c: nn.RNN = cell\n",
        "",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n"
        "    import flax.linen as nn\n    import rnncells\n\n"
        "def f(cell: 'nn.RNN'):\n    c: rnncells.RNN = cell\n",
    ),
    "an import that may fail": (
        "try:\n    import flax.linen as nn\nexcept ImportError:\n    nn = None\n"
        "cell = nn.GRUCell(4)\n",
        "",
        "try:\n    import flax.linen as nn\n    import rnncells\nexcept ImportError:\n"
        "    nn = None\ncell = rnncells.GRUCell(4)\n",
    ),
    "the new import after the other imports": (
        "import flax.linen as nn\nimport os\n\ncell = nn.GRUCell(4)\n",
        "",
        "import flax.linen as nn\nimport os\nimport rnncells\n\n"
        "cell = rnncells.GRUCell(4)\n",
    ),
    "rnncells imported already": (
        "import flax.linen as nn\nimport rnncells\ncell = nn.GRUCell(4)\n",
        "",
        "import flax.linen as nn\nimport rnncells\ncell = rnncells.GRUCell(4)\n",
    ),
    "rnncells imported too late": (
        "import flax.linen as nn\ncell = nn.GRUCell(4)\nimport rnncells\n",
        "",
        "import flax.linen as nn\nimport rnncells\ncell = rnncells.GRUCell(4)\n"
        "import rnncells\n",
    ),
    "rnncells imported in the other branch": (
        "if 1:\n    import flax.linen as nn\nelse:\n    import rnncells\n"
        "cell = nn.GRUCell(4)\n",
        "",
        "if 1:\n    import flax.linen as nn\n    import rnncells\nelse:\n"
        "    import rnncells\ncell = rnncells.GRUCell(4)\n",
    ),
    "rnncells imported in another function": (
        "def f():\n    import rnncells\n    return rnncells.GRU(4)\n"
        "import flax.linen as nn\ncell = nn.GRUCell(4)\n",
        "",
        "def f():\n    import rnncells\n    return rnncells.GRU(4)\n"
        "import flax.linen as nn\nimport rnncells\ncell = rnncells.GRUCell(4)\n",
    ),
    "another variable `rnncells`": (
        "import flax.linen as nn\nrnncells = nn.GRUCell(4)\n",
        "",
        f"import flax.linen as nn\n{TAKEN}rnncells = nn.GRUCell(4)\n",
    ),
    "a parameter `rnncells`": (
        "import flax.linen as nn\ndef f(rnncells):\n    return nn.GRUCell(4)\n\n\n"
        "cell = nn.GRUCell(4)\n",
        "",
        "import flax.linen as nn\nimport rnncells\ndef f(rnncells):\n"
        f"    {TAKEN}    return nn.GRUCell(4)\n\n\ncell = rnncells.GRUCell(4)\n",
    ),
    "a name from `import *` of another module": (
        "from mine import *\nimport flax.linen as nn\nmade = nn.GRUCell(rnncells)\n",
        "",
        f"from mine import *\nimport flax.linen as nn\n{TAKEN}"
        "made = nn.GRUCell(rnncells)\n",
    ),
    "a name of Flax that is replaced": (
        "import flax.linen as nn\nnn.GRUCell = nn.LSTMCell\nmade = nn.GRUCell(4)\n",
        "",
        "import flax.linen as nn\nimport rnncells\nnn.GRUCell = rnncells.LSTMCell\n"
        "# TODO(rnncells): RC09\n"
        "made = nn.GRUCell(4)\n",
    ),
    "line endings of Windows": (
        "from flax.linen import GRUCell, Dense\r\nimport flax.linen as nn\r\n"
        "cell = nn.GRUCell(4), GRUCell\r\n",
        "",
        "from flax.linen import Dense\r\nfrom rnncells import GRUCell\r\n"
        "import flax.linen as nn\r\nimport rnncells\r\n"
        "cell = rnncells.GRUCell(4), GRUCell\r\n",
    ),
    "tabs": (
        "def f():\n\tfrom flax.linen import GRUCell, Dense\n\treturn GRUCell, Dense\n",
        "",
        "def f():\n\tfrom flax.linen import Dense\n\tfrom rnncells import GRUCell\n"
        "\treturn GRUCell, Dense\n",
    ),
    "statements on one line": (
        "import os; import flax.linen as nn; cell = nn.GRUCell(4)\n"
        "if os: from flax.linen import RNN, Dense\n",
        "",
        "import os; import flax.linen as nn; import rnncells; "
        "cell = rnncells.GRUCell(4)\n"
        "if os: from flax.linen import Dense; from rnncells import RNN\n",
    ),
    "a line with a backslash": (
        "if 1: \\\n    import flax.linen as nn\ncell = nn.GRUCell(4)\n",
        "",
        "if 1: \\\n    import flax.linen as nn; import rnncells\n"
        "cell = rnncells.GRUCell(4)\n",
    ),
    "comments after": (
        "from flax.linen import RNN, Dense  # noqa\nimport flax.linen as nn  # noqa\n"
        "cell = nn.GRUCell(4)",
        "",
        "from flax.linen import Dense  # noqa\nfrom rnncells import RNN\n"
        "import flax.linen as nn  # noqa\nimport rnncells\ncell = rnncells.GRUCell(4)",
    ),
    "spaces, and lines with backslashes": (
        "from  flax.linen import GRUCell as G\nfrom \\\n  flax.linen \\\n  import RNN\n"
        "from flax.linen import LSTMCell, \\\n    Dense\ncell = G(4)\n",
        "",
        "from  rnncells import GRUCell as G\nfrom \\\n  rnncells \\\n  import RNN\n"
        "from flax.linen import Dense\nfrom rnncells import LSTMCell\ncell = G(4)\n",
    ),
    "names in parentheses": (
        "from flax.linen import (\n    GRUCell,\n    Dense,\n    RNN,\n)\n"
        "from flax.linen import (  # all\n    LSTMCell,  # of them\n)\n"
        "cell = GRUCell(4)\n",
        "",
        "from flax.linen import (\n    Dense,\n)\nfrom rnncells import GRUCell, RNN\n"
        "from rnncells import (  # all\n    LSTMCell,  # of them\n)\n"
        "cell = GRUCell(4)\n",
    ),
    "comments between the names": (
        "from flax.linen import (\n    GRUCell,  # a cell\n    Dense,\n)\n",
        "",
        "# TODO(rnncells): RC09\n"
        "from flax.linen import (\n    GRUCell,  # a cell\n    Dense,\n)\n",
    ),
    "modules of the user's own": (
        "from .flax.linen import GRUCell\nfrom .rnncells.legacy import RNN\n"
        "from . import legacy\nfrom .rnncells import legacy as nn\nnn.LSTMCell\n",
        "",
        "",
    ),
    "attributes over lines": (
        "import flax.linen as nn\na = (nn\n  .GRUCell)\ncell = (  # a\n nn  # b\n)"
        " . GRUCell(4)\n",
        "",
        "import flax.linen as nn\nimport rnncells\na = (rnncells\n  .GRUCell)\n"
        "cell = (  # a\n rnncells  # b\n) . GRUCell(4)\n",
    ),
    "recurrent names of `import *`": (
        "from flax.linen import *\ncell = GRUCell(4)\n",
        "",
        "# TODO(rnncells): RC09\nfrom flax.linen import *\ncell = GRUCell(4)\n",
    ),
    "no recurrent names of `import *`": (
        "from flax.linen import *\nfrom mine import GRUCell\nmade = GRUCell(4)\n",
        "",
        "",
    ),
    "the shim under another name": (
        "import os, rnncells.legacy as nn\ncell = nn.recurrent.GRUCell(4), nn.Dense\n",
        "import os, flax.linen as nn\ncell = nn.recurrent.GRUCell(4), nn.Dense\n",
        "import os, flax.linen as nn\nimport rnncells\n"
        "cell = rnncells.GRUCell(4), nn.Dense\n",
    ),
    "the shim under another name, from the library": (
        "from rnncells import legacy as nn\nfrom rnncells import (legacy)\n"
        "cell = nn.GRUCell(4), legacy.Dense\n",
        "from flax import linen as nn\nfrom flax import (linen as legacy)\n"
        "cell = nn.GRUCell(4), legacy.Dense\n",
        "from flax import linen as nn\nfrom flax import (linen as legacy)\n"
        "import rnncells\ncell = rnncells.GRUCell(4), legacy.Dense\n",
    ),
    "the shim as an attribute": (
        "import rnncells.legacy\ncell = (rnncells  # a\n.legacy.GRUCell)(4)\n"
        "f = rnncells.legacy.Dense\n",
        "import flax.linen\ncell = (flax  # a\n.linen.GRUCell)(4)\n"
        "f = flax.linen.Dense\n",
        "import flax.linen\n# TODO(rnncells): RC09\n"
        "cell = (flax  # a\n.linen.GRUCell)(4)\nf = flax.linen.Dense\n",
    ),
    "the shim as an attribute, and the library": (
        "import rnncells.legacy\nimport rnncells.legacy\n"
        "cell = rnncells.legacy.GRUCell(4), rnncells.GRU\n",
        "import flax.linen, rnncells\nimport flax.linen, rnncells\n"
        "cell = flax.linen.GRUCell(4), rnncells.GRU\n",
        "import flax.linen, rnncells\nimport flax.linen, rnncells\n"
        "cell = rnncells.GRUCell(4), rnncells.GRU\n",
    ),
    "a cell of one's own on the shim as an attribute": (
        "import rnncells.legacy\nclass C(rnncells.legacy.RNNCellBase):\n"
        "    rate: float = 1.0\n    @staticmethod\n"
        "    def initialize_carry(rng, dims, size, init=rnncells.legacy.zeros):\n"
        "        return init(rng, dims + (size,))\n",
        *2
        * (
            "import flax.linen\nclass C(flax.linen.RNNCellBase):\n"
            "    rate: float = 1.0\n    features: int = None\n"
            "    carry_init: object = flax.linen.zeros\n    @flax.linen.nowrap\n"
            "    def initialize_carry(self, rng, input_shape):\n"
            "        dims, size = input_shape[:-1], self.features\n"
            "        init = self.carry_init\n"
            "        return init(rng, dims + (size,))\n\n    @property\n"
            "    def num_feature_axes(self):\n        return 1\n",
        ),
    ),
    "the shim in one of two functions": (
        "import rnncells\ndef f():\n    import rnncells.legacy\n"
        "def g():\n    return rnncells.legacy.GRUCell(4)\n",
        *2
        * (
            "import rnncells\ndef f():\n"
            "    # TODO(rnncells): RC09\n"
            "    import rnncells.legacy\n"
            "def g():\n    return rnncells.legacy.GRUCell(4)\n",
        ),
    ),
    "another `flax`": (
        "import rnncells.legacy\nflax = 1\ncell = rnncells.legacy.GRUCell(4)\n",
        *2
        * (
            "# TODO(rnncells): RC09\n"
            "import rnncells.legacy\nflax = 1\ncell = rnncells.legacy.GRUCell(4)\n",
        ),
    ),
    "the recurrent part of the shim": (
        "import rnncells.legacy.recurrent as r\n"
        "from rnncells.legacy.recurrent import flip_sequences, RNN\n"
        "from rnncells.legacy import recurrent as s\n"
        "cell = r.GRUCell(4), s.GRUCell\n",
        "import flax.linen.recurrent as r\n"
        "from flax.linen.recurrent import flip_sequences, RNN\n"
        "from flax.linen import recurrent as s\n"
        "cell = r.GRUCell(4), s.GRUCell\n",
        "import flax.linen.recurrent as r\n"
        "from flax.linen.recurrent import flip_sequences\nfrom rnncells import RNN\n"
        "from flax.linen import recurrent as s\nimport rnncells\n"
        "cell = rnncells.GRUCell(4), rnncells.GRUCell\n",
    ),
    "modules of Flax by their names in the shim": (
        "import rnncells.legacy as nn\nimport rnncells.legacy.linear as linear\n"
        "from rnncells.legacy.initializers import constant, ones as one\n"
        "from rnncells.legacy.activation import *\n"
        "from rnncells.legacy.pooling import *\n"
        "from rnncells.legacy import partitioning, spmd\n"
        "cell = nn.GRUCell(4), linear.Dense(4), constant(1.0), one, relu\n",
        "import flax.linen as nn\nimport flax.linen.linear as linear\n"
        "from flax.linen.initializers import constant, ones as one\n"
        "from flax.linen.activation import *\n"
        "from flax.linen.pooling import *\n"
        "from flax.linen import partitioning, spmd\n"
        "cell = nn.GRUCell(4), linear.Dense(4), constant(1.0), one, relu\n",
        "import flax.linen as nn\nimport flax.linen.linear as linear\n"
        "from flax.linen.initializers import constant, ones as one\n"
        "from flax.linen.activation import *\n"
        "from flax.linen.pooling import *\n"
        "from flax.linen import partitioning, spmd\nimport rnncells\n"
        "cell = rnncells.GRUCell(4), linear.Dense(4), constant(1.0), one, relu\n",
    ),
    "modules of Flax as attributes of the shim": (
        "import rnncells.legacy.linear\nfrom rnncells.legacy_of_mine import relu\n"
        "made = rnncells.legacy.linear.Dense(4), rnncells.legacy.GRUCell(4)\n",
        "import flax.linen.linear\nfrom rnncells.legacy_of_mine import relu\n"
        "made = flax.linen.linear.Dense(4), flax.linen.GRUCell(4)\n",
        "import flax.linen.linear\nfrom rnncells.legacy_of_mine import relu\n"
        "import rnncells\n"
        "made = flax.linen.linear.Dense(4), rnncells.GRUCell(4)\n",
    ),
    "the shim, where old forms are left": (
        f"{SHIM}cells = [nn.GRUCell(**options)]\n{CARRY}",
        *2
        * (
            f"# TODO(rnncells): RC09\n{SHIM}"
            f"# TODO(rnncells): RC01\ncells = [nn.GRUCell(**options)]\n{CARRY_NOW}",
        ),
    ),
    "the shim, where old forms are skipped": (
        f"{SHIM}{CARRY_SKIPPED}",
        *2 * (f"# TODO(rnncells): RC09\n{SHIM}{CARRY_SKIPPED}",),
    ),
    "functions of the shim": (
        "import rnncells.legacy as nn\nfrom rnncells.legacy import GRUCell, strict\n"
        "nn.set_strict()\ncell = nn.GRUCell(4)\n",
        *2
        * (
            "# TODO(rnncells): RC09\n"
            "import rnncells.legacy as nn\n"
            "# TODO(rnncells): RC09\n"
            "from rnncells.legacy import GRUCell, strict\n"
            "nn.set_strict()\ncell = nn.GRUCell(4)\n",
        ),
    ),
    "the shim, with Flax as fallback": (
        "try:\n    import rnncells.legacy as nn\nexcept ImportError:\n"
        "    import flax.linen as nn\ncell = nn.GRUCell(4)\n",
        *2
        * (
            "try:\n    # TODO(rnncells): RC09\n"
            "    import rnncells.legacy as nn\nexcept ImportError:\n"
            "    import flax.linen as nn\ncell = nn.GRUCell(4)\n",
        ),
    ),
    "the shim among other names": (
        "from rnncells import GRU, legacy as nn\ncell = nn.GRUCell(4)\n",
        *2
        * (
            "# TODO(rnncells): RC09\n"
            "from rnncells import GRU, legacy as nn\ncell = nn.GRUCell(4)\n",
        ),
    ),
    "`import *` of the shim": (
        "from rnncells.legacy import *\ncell = GRUCell(4)\n",
        *2
        * (
            "# TODO(rnncells): RC09\n"
            "from rnncells.legacy import *\ncell = GRUCell(4)\n",
        ),
    ),
    "a mark within a line": (
        "import flax.linen as nn\nx = '''\n'''; cell = nn.GRUCell()\nif x: \\\n"
        "    cell = nn.GRUCell()\n",
        "import flax.linen as nn\n"
        "# TODO(rnncells): RC01\n"
        "x = '''\n'''; cell = nn.GRUCell()\n"
        "# TODO(rnncells): RC01\n"
        "if x: \\\n    cell = nn.GRUCell()\n",
        "import flax.linen as nn\nimport rnncells\n"
        "# TODO(rnncells): RC01\n"
        "x = '''\n'''; cell = rnncells.GRUCell()\n"
        "# TODO(rnncells): RC01\n"
        "if x: \\\n    cell = rnncells.GRUCell()\n",
    ),
    "an import that is skipped": (
        "import flax.linen as nn  # rnncells: skip\ncell = nn.GRUCell(4)\n",
        "",
        "import flax.linen as nn  # rnncells: skip\nimport rnncells\n"
        "cell = rnncells.GRUCell(4)\n",
    ),
}


def test_the_shim_stays_while_old_forms_are_left():
    """Old forms count even if their rule is not selected."""
    old = f"{SHIM}{CARRY}".encode()
    assert migrate(old).data.decode() == f"import flax.linen as nn\n{CARRY_NOW}"
    kept = migrate(old, rules=["RC09"]).data
    assert kept.decode().splitlines()[1:] == old.decode().splitlines()
    assert migrate(kept).data == migrate(old).data  # and the mark goes


@pytest.mark.parametrize("to", ["flax", "rnncells"])
@pytest.mark.parametrize("old, flax, here", CASES.values(), ids=CASES)
def test_imports_are_moved_or_marked(old, flax, here, to):
    migration = migrate(old.encode(), to)
    assert without_reasons(migration.data.decode()) == (
        (flax if to == "flax" else here) or old
    )
    marked = [note for note in migration.notes if note.why]
    assert migration.data.count(b"TODO(rnncells)") == len(marked)
    assert migrate(migration.data, to).data is migration.data


LIBRARIES = {"flax": nn, "rnncells": rnncells}
RUN = [
    (to, new or old)
    for old, *both in CASES.values()
    for to, new in zip(LIBRARIES, both, strict=True)
    if "\ncell = " in old and "TODO" not in (new or old)
]


@pytest.mark.parametrize("to, new", RUN, ids=range(len(RUN)))
def test_rewritten_cells_come_from_the_chosen_library(to, new):
    """The rewritten code runs, so all names are bound."""
    values = {}
    exec(new, values)
    cell = values["cell"][0] if isinstance(values["cell"], tuple) else values["cell"]
    assert type(cell) is LIBRARIES[to].GRUCell


def test_the_names_that_only_the_shim_has_are_listed():
    own = {name for name in vars(legacy) if not name.startswith("_")}
    own -= {name for name in own if hasattr(nn, name)}
    # What it imports for itself.
    assert {"strict", "ConvLSTM"} < own - {"Any", "flax", "sys"} <= OF_SHIM


def test_the_names_that_move_exist_in_both_libraries():
    assert all(hasattr(rnncells, name) and hasattr(nn, name) for name in MOVED)
