"""Code for flax.nnx, whose cells have an `initialize_carry` with other arguments."""

import pytest
from programs import assert_marked

from rnncells.migrate.migration import migrate

MODULE = """

class Layer({nnx}.Module):
    def __init__(self, cell, cells):
        self.cell, self.cells = cell, cells

    def __call__(self, x, rngs):
        carry = self.cell.initialize_carry(x.shape, rngs, {nnx}.initializers.ones)
        rest = [cell.initialize_carry(x.shape, rngs, ones) for cell in self.cells]
        return self.cell(carry, x), rest, self.layer(x, cell_size=4)
"""
# Imports, and the name that they give the module.
ALONE = {
    "from flax import nnx": "nnx",
    "from flax import nnx as nn": "nn",
    "from flax import nnx, serialization": "nnx",
    "import flax\nfrom flax import nnx": "nnx",
    "import flax\nimport flax.nnx": "flax.nnx",
    "import flax\nfrom flax.nnx import LSTMCell": "nnx",
    "import flax": "flax.nnx",
    "import flax.core\nfrom flax import nnx": "nnx",
    "import flax.nnx": "flax.nnx",
    "import flax.nnx as nn": "nn",
    "from flax.nnx import LSTMCell": "nnx",
    "from flax.nnx import nn": "nn",
    "from flax.nnx.nn import recurrent": "nnx",
    "from flax.experimental import nnx": "nnx",
    "import flax.experimental.nnx as nnx": "nnx",
    "def f():\n    from flax import nnx": "nnx",
}
BESIDE = [
    "import flax.linen as nn",
    "from flax.linen import Dense",
    "import flax.linen",
    "import flax\n\nDense = flax.linen.Dense",
    "import rnncells",
    "import rnncells.legacy as nn",
]


@pytest.mark.parametrize("to", ["flax", "rnncells"])
@pytest.mark.parametrize("imports", ALONE)
def test_code_of_nnx_alone_stays(imports, to):
    data = f"{imports}\n{MODULE.format(nnx=ALONE[imports])}".encode()
    assert migrate(data, to).data is data and not migrate(data, to).notes


@pytest.mark.parametrize("beside", BESIDE)
def test_carries_that_may_belong_to_nnx_are_marked(beside):
    """A cell from a parameter may belong to either library."""
    code = f"from flax import nnx\n{beside}\n{MODULE.format(nnx='nnx')}"
    rules = ["RC03", "RC03", "RC04"]
    shim = ["RC09"] if "legacy" in beside else []
    assert_marked(code, [*shim, *rules])


@pytest.mark.parametrize("linen", ["nn", "flax.linen"])
def test_old_code_beside_nnx_is_rewritten(linen):
    head = "import flax\nimport flax.linen as nn\nfrom flax import nnx\n"
    old = f"{head}c = {linen}.GRUCell.initialize_carry(k, (2,), 4)\n"
    new = f"{head}c = {linen}.GRUCell(4, parent=None).initialize_carry(k, (2, 4))\n"
    assert migrate(old.encode()).data.decode() == new
