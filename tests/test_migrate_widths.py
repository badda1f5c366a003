"""Which `features` a cell gets, and where they are not known."""

import ast
import re

import pytest
from programs import MARK, assert_same, run, with_imports_of

from rnncells.migrate.migration import migrate
from rnncells.migrate.rules.finding import RULES

HEAD = """\
import flax.linen as nn
import jax
import jax.numpy as jnp

key = jax.random.PRNGKey(0)


"""
SETUP = "class M(nn.Module):\n    def setup(self):\n"
CALL = "\n    def __call__(self, x):\n"


def marks(code, **options):
    once = migrate((HEAD + code).encode(), **options)
    lines = once.data.decode().splitlines()
    found = [line.strip()[len(MARK) :] for line in lines if MARK in line]
    assert migrate(once.data, **options).data is once.data
    return once.data.decode(), [mark[:4] for mark in found]


# Each has a cell whose width another carry of its class does not tell.
MARKED = {
    "a field": (
        "class M(nn.Module):\n    cell: nn.Module = nn.GRUCell()\n    hidden: int = 6\n"
        f"{CALL}        c = self.cell.initialize_carry(key, (2,), self.hidden)\n"
        "        return self.cell(c, x)\n\n\n"
        "other = nn.GRUCell.initialize_carry(key, (2,), 4)\n",
        "= nn.GRUCell()",
    ),
    "an element, and a carry of the class": (
        f"{SETUP}        self.cells = [nn.GRUCell() for _ in range(2)]\n{CALL}"
        "        h = self.cells[0].initialize_carry(key, (2,), 6)\n"
        "        return self.cells[0](h, x)\n\n"
        "    @staticmethod\n    def zero():\n"
        "        return nn.GRUCell.initialize_carry(key, (2,), 4)\n",
        "nn.GRUCell() for",
    ),
    "a cell that is passed to a function": (
        "def f(x):\n    cell = nn.GRUCell()\n    y = Encoder(cell)(x)\n"
        "    return y, nn.GRUCell.initialize_carry(key, (2,), 4)\n",
        "cell = nn.GRUCell()",
    ),
    "a cell that is put into a list": (
        "def f():\n    cell = nn.GRUCell()\n    cells = [cell]\n"
        "    return cells, nn.GRUCell.initialize_carry(key, (2,), 4)\n",
        "cell = nn.GRUCell()",
    ),
    "a cell that is returned": (
        "def f():\n    c = nn.GRUCell.initialize_carry(key, (2,), 4)\n"
        "    return c, nn.GRUCell()\n",
        "return c, nn.GRUCell()",
    ),
    "a default": (
        "def f(cell=nn.GRUCell()):\n    pass\n\n\n"
        "c = nn.GRUCell.initialize_carry(key, (2,), 4)\n",
        "cell=nn.GRUCell()",
    ),
    "a conditional expression": (
        "def f(x, is_long):\n    c = nn.LSTMCell.initialize_carry(key, (2,), 6)\n"
        "    return c, nn.RNN(nn.LSTMCell() if is_long else nn.GRUCell(), 4)(x)\n",
        "nn.LSTMCell() if is_long else nn.GRUCell(), 4",
    ),
    "the other of two lists": (
        f"{SETUP}        self.a = [nn.GRUCell()]\n"
        f"        self.b = [nn.GRUCell()]\n{CALL}"
        "        for a, b in zip(self.a, self.b):\n"
        "            x = a.initialize_carry(key, (2,), 4)\n"
        "        return b(self.start(x), x)\n",
        "self.b = [nn.GRUCell()]",
    ),
    "a size of a loop": (
        "def f():\n    cells = []\n    for size in (4, 5):\n"
        "        cell = nn.GRUCell()\n        cells.append(cell)\n"
        "    for cell in cells:\n"
        "        carry = cell.initialize_carry(key, (2,), size)\n",
        "cell = nn.GRUCell()",
    ),
    "a size that is set in a loop": (
        "def f():\n    for i in range(2):\n        size = 4 + i\n"
        "        cell = nn.GRUCell()\n        keep(cell)\n"
        "    carry = cell.initialize_carry(key, (2,), size)\n",
        "cell = nn.GRUCell()",
    ),
    "a size of a list that grows": (
        "sizes = [4]\ncell = nn.GRUCell()\nsizes.append(6)\n"
        "carry = cell.initialize_carry(key, (2,), sizes[-1])\n",
        "cell = nn.GRUCell()",
    ),
    "a size that is set by its name": (
        "cell = nn.GRUCell()\nsetattr(config, 'hidden', 6)\n"
        "carry = cell.initialize_carry(key, (2,), config.hidden)\n",
        "cell = nn.GRUCell()",
    ),
    "a size within unpacked arguments": (
        "args = (4, True)\nrnn = nn.RNN(nn.LSTMCell(), *args)\n",
        "nn.LSTMCell(), *args",
    ),
    "a factory of a field": (
        "import dataclasses\n\n\nclass M(nn.Module):\n"
        "    cell: nn.Module = dataclasses.field(default_factory=nn.GRUCell)\n",
        "default_factory=nn.GRUCell",
    ),
}


@pytest.mark.parametrize("to", ["flax", "rnncells"])
@pytest.mark.parametrize("code, kept", MARKED.values(), ids=MARKED)
def test_cells_of_unknown_width_are_marked_and_stay(code, kept, to):
    new, rules = marks(code, to=to)
    kept = kept.replace("nn.", "rnncells.") if to == "rnncells" else kept
    kept = kept.replace("rnncells.Module", "nn.Module")
    assert kept in new and "RC01" in rules


SCAN = "nn.scan(nn.OptimizedLSTMCell, in_axes=1, out_axes=1)"
ZEROS = "nn.GRUCell.initialize_carry(key, (2,), n)"
ONE = "nn.GRUCell.initialize_carry(key, (2,), 1)"
UNPACKED = "c, h = nn.LSTMCell.initialize_carry(key, (2,), {})"
# Statements, and the `features` of the cells in them, in order.
KNOWN = {
    "a carry from a parameter": ("nn.GRUCell()(h, x)", ["h.shape[-1]"]),
    "a carry from a parameter or a call": (
        f"if h is None:\n        h = {ZEROS}\n    nn.GRUCell()(h, x)",
        ["n", "h.shape[-1]"],
    ),
    "a carry of two branches": (
        f"if n:\n        h = {ZEROS}\n    else:\n        nn.GRUCell()(h, x)",
        ["n", "h.shape[-1]"],
    ),
    "a class by a name": (
        f"C = {SCAN}\n    if h is None:\n        h = wider(x)\n    C()(h, x)",
        ["h[1].shape[-1]"],
    ),
    "a class that is lifted there": (
        f"h = nn.LSTMCell.initialize_carry(key, (2,), 25)\n    {SCAN}()(h, x)",
        ["25", "25"],
    ),
    "a cell with a name, after its carry": (
        f"if h is None:\n        h = {ZEROS}\n    cell = nn.GRUCell()\n    cell(h, x)",
        ["n", "h.shape[-1]"],
    ),
    "both parts": ("nn.LSTMCell()((x, h), x)", ["h.shape[-1]"]),
    "both parts in a list": ("nn.LSTMCell()([x, h], x)", ["h.shape[-1]"]),
    "both parts, made before": (
        f"{UNPACKED.format(20)}\n    (c, h), y = nn.LSTMCell()((c, h), x)",
        ["20", "20"],
    ),
    "an element of a list": ("nn.GRUCell()(h[n], x)", ["h[n].shape[-1]"]),
    "an entry of a dict": ("nn.LSTMCell()(h['a'], x)", ["h['a'][1].shape[-1]"]),
    "a field": ("nn.GRUCell()(carry=h.state, inputs=x)", ["h.state.shape[-1]"]),
    "apply": ("nn.LSTMCell().apply(n, h, x)", ["h[1].shape[-1]"]),
    "init": ("nn.GRUCell().init(key, h, x)", ["h.shape[-1]"]),
    "a carry of unknown size": (
        "h = nn.GRUCell.initialize_carry(key, (2,), size())\n    nn.GRUCell()(h, x)",
        ["h.shape[-1]"],
    ),
    "a carry of size 1 that a wider array widens": (
        f"g = {ONE}\n    g = jnp.where(x, g, jnp.ones((2, 5)))\n    nn.GRUCell()(g, x)",
        ["1", "g.shape[-1]"],
    ),
    "a carry that a wider array may widen": (
        f"g = {ZEROS}\n    g = jnp.where(x, g, n)\n    g, y = nn.GRUCell()(g, x)",
        ["n", "g.shape[-1]"],
    ),
    "a carry that may be widened after a step": (
        f"g = {ZEROS}\n    g, y = nn.GRUCell()(g, x)\n    g = jnp.where(x, g, n)\n"
        "    g, y = nn.GRUCell()(g, x)",
        ["n", "n", "g.shape[-1]"],
    ),
    "a carry whose leaves may be widened": (
        "g = nn.LSTMCell.initialize_carry(key, (2,), n)\n"
        "    g = jax.tree_map(lambda a: jnp.where(x, a, n), g)\n"
        "    nn.LSTMCell()(g, x)",
        ["n", "g[1].shape[-1]"],
    ),
    "a carry that no array can widen": (
        "g = nn.GRUCell.initialize_carry(key, (2,), 25)\n"
        "    g = jnp.where(x, g, n)\n    nn.GRUCell()(g, x)",
        ["25", "25"],
    ),
    "options in a dict": (
        "options = dict(gate_fn=nn.relu)\n    nn.GRUCell(**options)(h, x)",
        ["h.shape[-1]"],
    ),
    "a dtype that may be float64": (
        f"nn.GRUCell(param_dtype=h.dtype)({ZEROS}, x)",
        ["n", "n"],
    ),
}


@pytest.mark.parametrize("code, widths", KNOWN.values(), ids=KNOWN)
def test_a_cell_called_at_once_is_as_wide_as_its_carry(code, widths):
    new, _ = marks(f"def f(x, n, h=None):\n    {code}\n")
    calls = [node for node in ast.walk(ast.parse(new)) if isinstance(node, ast.Call)]
    calls.sort(key=lambda call: (call.func.end_lineno, call.func.end_col_offset))
    cell = re.compile(r"(nn\.\w+Cell|nn\.scan\([^()]*\)|C)$")
    made = [call for call in calls if cell.match(ast.unparse(call.func))]
    assert [ast.unparse(call.args[0]) for call in made] == widths


def test_an_own_cell_called_at_once_needs_no_features():
    own = "class Own(nn.RNNCellBase):\n    @staticmethod\n"
    own += "    def initialize_carry(rng, batch_dims, size):\n"
    own += "        return jnp.ones((*batch_dims, size))\n\n\n"
    new, rules = marks(f"{own}def f(h, x):\n    return Own()(h, x)\n")
    assert "return Own()(h, x)" in new and not rules


DTYPE = "param_dtype=jnp.bfloat16"
HALF = {
    "of a list": (
        f"{SETUP}        self.cells = [nn.LSTMCell({DTYPE}) for _ in range(2)]\n{CALL}"
        "        for cell in self.cells:\n"
        "            c = cell.initialize_carry(key, (2,), 4)\n"
    ),
    "of a branch": (
        f"def f(half):\n    if half:\n        cell = nn.GRUCell({DTYPE})\n"
        "    else:\n        cell = nn.GRUCell()\n"
        "    return cell.initialize_carry(key, (2,), 4)\n"
    ),
    "of a dict": (
        f"cells = {{'a': nn.GRUCell({DTYPE}), 'b': nn.GRUCell()}}\n"
        "for cell in cells.values():\n    c = cell.initialize_carry(key, (2,), 4)\n"
    ),
}


@pytest.mark.parametrize("code", HALF.values(), ids=HALF)
def test_carries_of_half_precision_are_marked(code):
    new, rules = marks(code)
    assert "RC03" in rules and "cell.initialize_carry(key, (2,), 4)" in new


SKIP = "  # rnncells: skip"
TOGETHER = {
    "the layer is skipped": f"cell = nn.LSTMCell()\nrnn = nn.RNN(cell, 4){SKIP}\n",
    "the cell is skipped": f"cell = nn.LSTMCell(){SKIP}\nrnn = nn.RNN(cell, 4)\n",
    "an own class is skipped": (
        f"class Own(nn.RNNCellBase):{SKIP}\n    @staticmethod\n"
        "    def initialize_carry(rng, batch_dims, size):\n"
        "        return jnp.ones((*batch_dims, size))\n\n\n"
        f"rnn = nn.RNN(Own(), 4){SKIP}\n"
    ),
}


@pytest.mark.parametrize("code", TOGETHER.values(), ids=TOGETHER)
def test_a_size_stays_if_the_cell_or_the_layer_is_skipped(code):
    new, _ = marks(code)
    kept = [line for line in new.splitlines(keepends=True) if MARK not in line]
    assert "".join(kept) == HEAD + code


@pytest.mark.parametrize("left", ["RC01", "RC04"])
def test_a_size_stays_without_both_rules(left):
    code = "cell = nn.LSTMCell()\nrnn = nn.RNN(cell, 4)\n"
    new, rules = marks(code, rules=set(RULES) - {left})
    assert new == HEAD + code and not rules


LOOPS = {
    "elements of a list": ("cell", "self.cells"),
    "elements and their numbers": ("k, cell", "enumerate(self.cells)"),
    "elements beside others": ("y, cell", "zip(range(2), self.cells)"),
    "numbers of pairs": ("k, (y, cell)", "enumerate(zip(range(2), self.cells))"),
    "elements of a dict": ("k, cell", "dict(enumerate(self.cells)).items()"),
}
RUN = """
    def __call__(self, x):
        for {target} in {iterated}:
            carry = cell.initialize_carry(key, (2,), 4)
            carry, x = cell(carry, x)
        return x


def run():
    return M().init_with_output(key, jnp.ones((2, 3)))
"""


@pytest.mark.parametrize("name", LOOPS)
def test_cells_get_the_width_of_carries_in_a_loop_over_them(name):
    target, iterated = LOOPS[name]
    code = f"{SETUP}        self.cells = [nn.GRUCell() for _ in range(2)]\n"
    code = HEAD + code + RUN.format(target=target, iterated=iterated)
    expected = run(name, with_imports_of("old_linen", code))
    for to in ("flax", "rnncells"):
        migration = migrate(code.encode(), to)
        if name == "elements of a dict":
            left = [note.rule for note in migration.notes if note.why]
            assert left == ["RC01", "RC03"]
        else:
            assert not [note for note in migration.notes if note.why]
            assert_same(run(name, migration.data.decode()), expected)
