"""Old code is rewritten, or marked, and a second run changes nothing."""

import ast
import re

import pytest
from rnncells_migrate.rewrite import marks, rewrite

HEAD = "import flax.linen as nn\n"
KEY_4 = "nn.GRUCell(4, parent=None).initialize_carry"


def rewritten(old: str) -> str:
    """Returns the new code, after it was checked against a second run."""
    new = rewrite(old)[0]
    ast.parse(new)
    assert rewrite(new)[0] == new
    return new


def method(*lines: str, arguments: str = "self, carry, x") -> str:
    body = "".join(f"        {line}\n" for line in lines)
    head = "class M(nn.Module):\n    n: int\n\n    @nn.compact\n"
    return f"{head}    def __call__({arguments}):\n{body}"


REWRITTEN = {
    "a carry of a class": (
        "c = nn.GRUCell.initialize_carry(key, (2,), 4)\n",
        f"c = {KEY_4}(key, (2, 4))\n",
    ),
    "no batch": (
        "c = nn.GRUCell.initialize_carry(key, (), n)\n",
        "c = nn.GRUCell(n, parent=None).initialize_carry(key, (n,))\n",
    ),
    "a batch by its name": (
        "c = nn.GRUCell.initialize_carry(key, dims, 4)\n",
        f"c = {KEY_4}(key, (*dims, 4))\n",
    ),
    "a batch by a choice": (
        "c = nn.GRUCell.initialize_carry(key, a or b, 4)\n",
        f"c = {KEY_4}(key, (*(a or b), 4))\n",
    ),
    "keywords in another order": (
        "c = nn.GRUCell.initialize_carry(size=4, rng=key, batch_dims=(2,))\n",
        f"c = {KEY_4}(rng=key, input_shape=(2, 4))\n",
    ),
    "an initializer": (
        "c = nn.GRUCell.initialize_carry(\n"
        "    key,\n    (2,),\n    4,\n    nn.initializers.ones,\n)\n",
        "c = nn.GRUCell(4, carry_init=nn.initializers.ones, parent=None)"
        ".initialize_carry(\n    key,\n    (2, 4),\n)\n",
    ),
    "comments": (
        "c = nn.GRUCell.initialize_carry(\n"
        "    key,  # not used\n    (2,),  # batch\n    4,  # features\n)  # a carry\n",
        f"c = {KEY_4}(\n"
        "    key,  # not used\n    (2,  # batch\n    4),  # features\n)  # a carry\n",
    ),
    "odd spaces": (
        "c = nn . GRUCell . initialize_carry( key ,(2,) ,4 )\n",
        "c = nn . GRUCell(4, parent=None) . initialize_carry( key ,(2, 4) )\n",
    ),
    "an image": (
        "c = nn.ConvLSTMCell.initialize_carry(key, (2,), (6, 5, n))\n"
        "cell = nn.ConvLSTMCell(n, kernel_size=(3, 5))\n",
        "c = nn.ConvLSTMCell(n, kernel_size=(3, 5), parent=None)"
        ".initialize_carry(key, (2, 6, 5, n))\n"
        "cell = nn.ConvLSTMCell(n, kernel_size=(3, 5))\n",
    ),
    "float64": (
        "x = jnp.float64(1)\nc = nn.GRUCell.initialize_carry(key, (2,), 4)\n",
        "x = jnp.float64(1)\nc = nn.GRUCell(4, param_dtype=float, parent=None)"
        ".initialize_carry(key, (2, 4))\n",
    ),
    "a cell that is called on the spot": (
        method("h, y = nn.GRUCell(name='a')(h, x)", "return nn.LSTMCell()(carry, y)"),
        method(
            "h, y = nn.GRUCell(h.shape[-1], name='a')(h, x)",
            "return nn.LSTMCell(carry[1].shape[-1])(carry, y)",
        ),
    ),
    "the parts of a carry": (
        method("return nn.LSTMCell()((c, s.h[0]), x)"),
        method("return nn.LSTMCell(s.h[0].shape[-1])((c, s.h[0]), x)"),
    ),
    "a carry that is created for the call": (
        "y = nn.GRUCell()(nn.GRUCell.initialize_carry(key, (2,), 4), x)\n",
        f"y = nn.GRUCell(4)({KEY_4}(key, (2, 4)), x)\n",
    ),
    "apply": (
        "y = nn.GRUCell().apply(params, h, x)\n",
        "y = nn.GRUCell(h.shape[-1]).apply(params, h, x)\n",
    ),
    "gate functions": (
        "y = nn.GRUCell(nn.hard_sigmoid)(h, x), nn.GRUCell(lambda x: x)(h, x)\n",
        "y = nn.GRUCell(h.shape[-1], nn.hard_sigmoid)(h, x), "
        "nn.GRUCell(h.shape[-1], lambda x: x)(h, x)\n",
    ),
    "keywords in a dictionary": (
        "kw = dict(name='a')\ny = nn.GRUCell(**kw)(h, x)\n",
        "kw = dict(name='a')\ny = nn.GRUCell(h.shape[-1], **kw)(h, x)\n",
    ),
    "a cell with a carry of its own": (
        "n = 4\ncell = nn.LSTMCell()\nc = cell.initialize_carry(key, (2,), n)\n",
        "n = 4\ncell = nn.LSTMCell(n)\nc = cell.initialize_carry(key, (2, n))\n",
    ),
    "a cell with a carry from the caller": (
        method("cell = nn.LSTMCell()", "return cell(carry, x)"),
        method("cell = nn.LSTMCell(carry[1].shape[-1])", "return cell(carry, x)"),
    ),
    "cells in setup": (
        "class M(nn.Module):\n    n: int\n\n    def setup(self):\n"
        "        self.cells = [nn.GRUCell() for _ in range(2)]\n\n"
        "    def __call__(self, x):\n        for cell in self.cells:\n"
        "            c = cell.initialize_carry(key, (2,), self.n)\n",
        "class M(nn.Module):\n    n: int\n\n    def setup(self):\n"
        "        self.cells = [nn.GRUCell(self.n) for _ in range(2)]\n\n"
        "    def __call__(self, x):\n        for cell in self.cells:\n"
        "            c = cell.initialize_carry(key, (2, self.n))\n",
    ),
    "a cell of another file": (
        "c = agent.rnn_cell.initialize_carry(key, x.shape[:-1], agent.n)\n",
        "c = agent.rnn_cell.initialize_carry(key, (*x.shape[:-1], agent.n))\n",
    ),
    "lifted classes": (
        "GRU = nn.scan(nn.remat(nn.GRUCell), variable_broadcast='params')\n"
        "c = GRU.initialize_carry(key, (2,), 4)\ny = GRU()(c, x)\n",
        "GRU = nn.scan(nn.remat(nn.GRUCell), variable_broadcast='params')\n"
        "c = GRU(4, parent=None).initialize_carry(key, (2, 4))\n"
        "y = GRU(c.shape[-1])(c, x)\n",
    ),
    "a derived class": (
        "class A(nn.GRUCell):\n    pass\n\n\nc = A.initialize_carry(key, (2,), 4)\n",
        "class A(nn.GRUCell):\n    pass\n\n\n"
        "c = A(4, parent=None).initialize_carry(key, (2, 4))\n",
    ),
    "RNN with a size": (
        "r = nn.Bidirectional(nn.RNN(nn.LSTMCell(), 4, True),\n"
        "                     nn.RNN(nn.GRUCell(), cell_size=n))  # both\n",
        "r = nn.Bidirectional(nn.RNN(nn.LSTMCell(4), True),\n"
        "                     nn.RNN(nn.GRUCell(n)))  # both\n",
    ),
    "RNN with the size of an image": (
        "r = nn.RNN(nn.ConvLSTMCell(5, (3, 3)), (6, 4, 5), return_carry=True)\n",
        "r = nn.RNN(nn.ConvLSTMCell(5, (3, 3)), return_carry=True)\n",
    ),
    "ConvLSTM": (
        "class M(nn.Module):\n    def setup(self):\n"
        "        self.cell = nn.ConvLSTM(5, (3,))\n\n    def f(self):\n"
        "        c = nn.ConvLSTM.initialize_carry(k, (), (6, 5))\n"
        "        return nn.ConvLSTM(5, (3,), name='a')\n",
        "class M(nn.Module):\n    def setup(self):\n"
        "        self.cell = nn.ConvLSTMCell(5, (3,))\n\n    def f(self):\n"
        "        c = nn.ConvLSTMCell(5, kernel_size=(3,), parent=None)"
        ".initialize_carry(k, (6, 5))\n"
        "        return nn.ConvLSTMCell(5, (3,), name='a')\n",
    ),
    "an own cell": (
        "class Own(nn.RNNCellBase):\n    rate: float = 0.5\n\n    @staticmethod\n"
        "    def initialize_carry(rng, batch_dims, size, init_fn=zeros):\n"
        '        """Zeros."""\n'
        "        return init_fn(rng, batch_dims + (size,))\n\n\n"
        "r = nn.RNN(Own(rate=0.25), 4)\nc = Own.initialize_carry(key, (2,), 4)\n"
        "y = Own()(c, x)\n",
        "class Own(nn.RNNCellBase):\n    rate: float = 0.5\n\n"
        "    features: int = None\n    carry_init: object = zeros\n\n"
        "    @property\n    def num_feature_axes(self):\n        return 1\n\n"
        "    @nn.nowrap\n    def initialize_carry(self, rng, input_shape):\n"
        '        """Zeros."""\n'
        "        batch_dims, size = input_shape[:-1], self.features\n"
        "        init_fn = self.carry_init\n"
        "        return init_fn(rng, batch_dims + (size,))\n\n\n"
        "r = nn.RNN(Own(rate=0.25, features=4))\n"
        "c = Own(features=4, parent=None).initialize_carry(key, (2, 4))\n"
        "y = Own()(c, x)\n",
    ),
}


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("old, new", REWRITTEN.values(), ids=REWRITTEN)
def test_old_code_is_rewritten(old, new, newline):
    old, new = ((HEAD + code).replace("\n", newline) for code in (old, new))
    assert rewritten(old) == new


IMPORTS = {
    "import flax": "flax.linen.",
    "import flax.linen": "flax.linen.",
    "from flax import linen": "linen.",
    "from flax import linen as fnn": "fnn.",
    "from flax.linen import GRUCell, RNN": "",
    "from flax.linen.recurrent import GRUCell, RNN": "",
    "from flax.linen import *": "",
    "import flax.linen as nn\nrec = nn.recurrent": "rec.",
    "try:\n    import flax.linen as nn\nexcept ImportError:\n    nn = None": "nn.",
}


@pytest.mark.parametrize("line, prefix", IMPORTS.items(), ids=IMPORTS)
def test_names_are_found_by_all_imports(line, prefix):
    code = "{0}\nr = {1}RNN({1}GRUCell({2}){3})\n"
    old, new = code.format(line, prefix, "", ", 4"), code.format(line, prefix, "4", "")
    assert rewritten(old) == new
    alias = f"{line}\nCell = {prefix}GRUCell\nc = Cell.initialize_carry(k, (), 4)\n"
    assert "Cell(4, parent=None).initialize_carry(k, (4,))" in rewritten(alias)


CARRY = "nn.GRUCell.initialize_carry"
MARKED = {
    "no width": ("cell = nn.GRUCell()\n", "RC01"),
    "two sizes": (
        "cell = nn.GRUCell()\na = cell.initialize_carry(k, (), 4)\n"
        "b = cell.initialize_carry(k, (), 5)\n",
        "RC01 RC03 RC03",
    ),
    "a size that changes": (
        "n = 4\nn += 1\ncell = nn.GRUCell()\nc = cell.initialize_carry(k, (), n)\n",
        "RC01 RC03",
    ),
    "a size that is bound later": (
        "cell = nn.GRUCell()\nn = 4\nc = cell.initialize_carry(k, (), n)\n",
        "RC01 RC03",
    ),
    "a carry by a call": ("y = nn.GRUCell()(start(), x)\n", "RC01"),
    "a carry whose axes vmap may move": (
        "y = nn.vmap(nn.GRUCell, in_axes=-1)()(h, x)\n",
        "RC01",
    ),
    "a size that is computed": (f"c = {CARRY}(k, (2,), size())\n", "RC02"),
    "a name bound in the arguments": (f"c = {CARRY}(k := key, (2,), 4)\n", "RC02"),
    "unpacked arguments": (f"c = {CARRY}(*arguments, size=4)\n", "RC02"),
    "an initializer of unknown arguments": (f"c = {CARRY}(k, (2,), 4, f)\n", "RC02"),
    "an initializer with a dtype": (
        f"c = {CARRY}(k, (2,), 4, nn.initializers.normal(1.0, d))\n",
        "RC02",
    ),
    "an image by its name": (
        "c = nn.ConvLSTMCell.initialize_carry(k, (2,), shape)\n",
        "RC02",
    ),
    "a tuple of features": (f"c = {CARRY}(k, (2,), (4,))\n", "RC02"),
    "a function": ("cs = jax.vmap(nn.GRUCell.initialize_carry)(ks)\n", "RC02"),
    "a comment that would go": (
        f"c = {CARRY}(\n    size=4,  # wide\n    rng=k, batch_dims=(2,),\n)\n",
        "RC02",
    ),
    "other features": (
        "cell = nn.GRUCell(8)\nc = cell.initialize_carry(k, (2,), 4)\n",
        "RC03",
    ),
    "another dtype": (
        "cell = nn.GRUCell(4, param_dtype=d)\nc = cell.initialize_carry(k, (2,), 4)\n",
        "RC03",
    ),
    "another cell in float64": (
        "x = jnp.float64(1)\nc = cell.initialize_carry(k, (2,), 4)\n",
        "RC03",
    ),
    "an initializer of an instance": (
        "cell = nn.GRUCell(4)\nc = cell.initialize_carry(k, (2,), 4, zeros)\n",
        "RC03",
    ),
    "something": ("c = thing.initialize_carry(k, (2,), 4)\n", "RC03"),
    "a class from a field": (
        method("c = self.cell_cls.initialize_carry(k, (2,), 4)", "self.cell_cls()"),
        "RC03 RC01",
    ),
    "arguments that are all unpacked": (f"c = {CARRY}(*arguments)\n", "RC02"),
    "one of two classes": (
        "Cell = nn.LSTMCell if a else nn.GRUCell\n"
        "c = Cell.initialize_carry(k, (2,), 4)\ny = Cell()(c, x)\n",
        "RC03 RC01",
    ),
    "a class that is bound twice": (
        "Cell = nn.LSTMCell\nCell = nn.GRUCell\nc = Cell(), nn.GRUCell()\n",
        "RC01 RC01",
    ),
    "a comment at the size of a layer": (
        "r = nn.RNN(\n    nn.GRUCell(),\n    4,  # wide\n    return_carry=True,\n)\n",
        "RC01 RC04",
    ),
    "a size from another method": (
        "class A:\n    def __init__(self):\n        self.cell = nn.GRUCell()\n\n"
        "    def f(self, n):\n"
        "        return self.cell.initialize_carry(k, (2,), n)\n",
        "RC01 RC03",
    ),
    "a field that changes": (
        "class A:\n    def __init__(self, n):\n        self.n = n\n"
        "        self.cell = nn.GRUCell()\n        self.n += 1\n\n"
        "    def f(self):\n"
        "        return self.cell.initialize_carry(k, (2,), self.n)\n",
        "RC01 RC03",
    ),
    "two layers of two sizes": (
        "cell = nn.GRUCell()\na = nn.RNN(cell, 4), nn.RNN(cell, 5)\n",
        "RC01 RC04",
    ),
    "a layer of many positions": (
        "r = nn.RNN(nn.GRUCell(), 4, True, False, True)\n",
        "RC01 RC04",
    ),
    "unknown keywords beside old code": (
        "a = nn.GRUCell(**kw)\nb = nn.GRUCell()\n",
        "RC01 RC01",
    ),
    "a cell of a layer that is known elsewhere": ("r = nn.RNN(cell, 4)\n", "RC04"),
    "a layer with another dtype": (
        "r = nn.RNN(nn.GRUCell(param_dtype=d), 4)\n",
        "RC01 RC04",
    ),
    "a size with a comment": (
        "r = nn.RNN(nn.ConvLSTMCell(4, (3,)), (8,  # wide\n 4))\n",
        "RC04",
    ),
    "the name of parameters": (method("return nn.ConvLSTM(6, (5,))(c, x)"), "RC05"),
    "an own cell with another batch": (
        "class Own(nn.RNNCellBase):\n    @staticmethod\n"
        "    def initialize_carry(rng, batch, size):\n        return z(batch, size)\n",
        "RC06",
    ),
    "an f-string": (f"text = f'{{{CARRY}(k, (2,), 4)}}'\n", "RC02"),
}


@pytest.mark.parametrize("old, rules", MARKED.values(), ids=MARKED)
def test_code_that_is_not_certain_is_marked(old, rules):
    new = rewritten(HEAD + old)
    found = marks(new)
    assert [mark.rule for mark in found] == rules.split()
    for mark in found:
        # The mark says what to do, and quotes no size.
        assert re.search(
            r"write|pass|make|move|do|assign|add|call|one number", mark.text
        )
    kept = "".join(s for s in new.splitlines(True) if "# TODO(rnncells)" not in s)
    assert kept == HEAD + old


def test_a_mark_stands_above_its_statement():
    old = "if a:\n    @f(\n        nn.GRUCell()\n    )\n    def g(): pass\n"
    lines = rewritten(HEAD + old).splitlines()
    assert lines[2].startswith("    # TODO(rnncells): RC01: ") and lines[3] == "    @f("


OTHER = "class Own:\n    def initialize_carry(self, k, dims, n): pass\n\n\n"
CURRENT = [
    "cell = nn.GRUCell(features=4)\nc = cell.initialize_carry(k, (2, 4))\n",
    "cell = nn.GRUCell(n, nn.tanh)\nr = nn.RNN(nn.GRUCell(4), time_major=True)\n",
    "r = nn.RNN(nn.GRUCell(4), True), nn.RNN(self.cell, n == 4), nn.RNN(cell, major)\n",
    "kw = dict(features=4)\ncell = nn.GRUCell(**kw), nn.GRUCell(**options)\n",
    "kw = {}\nkw['features'] = 4\ncell = nn.GRUCell(**kw)\n",
    "cell = self.cell_cls(), cells[kind]()\n",
    "cell = nn.GRUCell(4)\nc = cell.initialize_carry(*args)\n",
    f"{OTHER}c = Own().initialize_carry(k, (2,), 4)\n",
    "from mine import ScannedRNN\nc = ScannedRNN.initialize_carry(k, (2,), 4)\n",
    "from flax import nnx\nc = cell.initialize_carry(x.shape, rngs, nnx.zeros)\n",
    "text = 'nn.LSTMCell.initialize_carry(key, (2,), 4)'  # nn.GRUCell()\n",
    "cell = nn.GRUCell()  # rnncells: skip\n",
    "c = torch.nn.GRUCell(3, 4), torch.nn.LSTMCell()\n",
    "class Own(nn.RNNCellBase):\n    def initialize_carry(self, rng, input_shape): 1\n",
]


@pytest.mark.parametrize("code", CURRENT)
def test_current_code_stays(code):
    assert rewrite(HEAD + code)[0] == HEAD + code


NOTED = {
    "r = nn.RNN(nn.GRUCell(4), 4)\n": ["RC12"],
    "GRU = nn.scan(nn.GRUCell, variable_broadcast='params')\n": ["RC14"],
    "x = flip_sequences(x, lengths)  # before a GRUCell\n": ["RC14"],
    "class ScannedRNN(nn.Module):\n    @partial(nn.scan, in_axes=0)\n    @nn.compact\n"
    "    def __call__(self, h, x):\n        return nn.GRUCell(4)(h, x)\n": ["RC14"],
}


@pytest.mark.parametrize("code, rules", NOTED.items())
def test_code_with_a_better_form_is_noted_and_stays(code, rules):
    new, notes, _ = rewrite(HEAD + code)
    assert new == HEAD + code and [note.rule for note in notes] == rules
    assert rules == ["RC12"] or all("lengths.md" in note.text for note in notes)


SHIM = {
    "import rnncells.legacy as nn": "import flax.linen as nn",
    "from rnncells import legacy as nn": "from flax import linen as nn",
    "from rnncells.legacy.initializers import ones": "from flax.linen.initializers "
    "import ones",
    "import rnncells.legacy\nd = rnncells.legacy.Dense(4)": "import flax.linen\n"
    "d = flax.linen.Dense(4)",
}


@pytest.mark.parametrize("old, new", SHIM.items())
def test_imports_of_the_shim_become_imports_of_flax(old, new):
    assert rewritten(f"'''Text.'''\n\n{old}\n") == f"'''Text.'''\n\n{new}\n"


STAY = {
    "import rnncells.legacy as nn\ncell = nn.GRUCell()\n": "RC09 RC01",
    "import rnncells.legacy as nn\nnn.set_strict(True)\n": "RC09",
    "import rnncells.legacy as nn\ny = rnn(x, segmentation_mask=m)\n": "RC09",
    "from rnncells import legacy, RNN\n": "RC09",
    "import rnncells.legacy\nr = rnncells.RNN\n": "RC09",
}


@pytest.mark.parametrize("code, rules", STAY.items())
def test_the_shim_stays_while_it_is_needed(code, rules):
    assert [mark.rule for mark in marks(rewritten(code))] == rules.split()


def test_the_shim_goes_when_the_other_marks_are_resolved():
    code = "# A comment.\nimport rnncells.legacy as nn\ncell = nn.GRUCell()\n"
    once = rewritten(code)
    solved = re.sub("# TODO.*RC01.*\n", "", once).replace("()", "(4)")
    new = "# A comment.\nimport flax.linen as nn\ncell = nn.GRUCell(4)\n"
    assert "RC09" in solved and rewritten(solved) == new


def test_a_marked_statement_is_not_evaluated_again():
    mark = "# TODO(rnncells): RC01: look at this\n"
    code = f"{HEAD}{mark}c = {CARRY}(k, (2,), 4)\n"
    assert rewrite(code)[0] == code
