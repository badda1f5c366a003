"""Which expressions are cells, classes of cells, or neither."""

import sys

import pytest
from programs import MARK, assert_marked, without_reasons

from rnncells.migrate.migration import migrate

HEAD = "import flax.linen as nn\n"
# Code that stays, and the rules of its marks.
MARKED = {
    "a class of a dict": (
        "CELLS = {'a': nn.LSTMCell, 'b': nn.GRUCell}\n"
        "c = CELLS[name].initialize_carry(k, (2,), 4)\ncell = CELLS[name]()",
        ["RC02", "RC01"],
    ),
    "a class from `dict.get`": (
        "Cell = {'a': nn.LSTMCell}.get(name, nn.GRUCell)\ncell = Cell()",
        ["RC01"],
    ),
    "a class by a condition": (
        "if flag:\n    C = nn.LSTMCell\nelse:\n    C = nn.GRUCell\n"
        "c = C.initialize_carry(k, (2,), 4)\ncell = C()",
        ["RC02", "RC01"],
    ),
    "a class by an expression": (
        "C = nn.LSTMCell if flag else nn.GRUCell\nc = C.initialize_carry(k, (2,), 4)",
        ["RC02"],
    ),
    "a class in a loop": (
        "for C in (nn.LSTMCell, nn.GRUCell):\n    c = C.initialize_carry(k, (), 4)",
        ["RC02"],
    ),
    "a class from a parameter": (
        "def f(C: type[nn.RNNCellBase]):\n    return C()",
        ["RC01"],
    ),
    "a class as the default of a parameter": (
        "def f(make=nn.LSTMCell):\n    return make()",
        ["RC01"],
    ),
    "a class by its name": (
        "def f(cell_cls):\n    c = nn.LSTMCell.initialize_carry(k, (2,), g())\n"
        "    return cell_cls()",
        ["RC02", "RC01"],
    ),
    "a first argument that may be a function": (
        "cell = nn.GRUCell(choose())\nc = cell.initialize_carry(k, (2,), 4)",
        ["RC01", "RC03"],
    ),
    "a subclass with carries of half precision": (
        "class H(nn.LSTMCell):\n    param_dtype: object = jnp.bfloat16\n\n\n"
        "c = H.initialize_carry(k, (2,), 4)",
        ["RC02"],
    ),
    "a size that another method changes": (
        "class A:\n    def __init__(self, size):\n        self.size = size\n"
        "        self.cell = nn.GRUCell()\n        self.size += 1\n\n"
        "    def zero(self):\n"
        "        return self.cell.initialize_carry(k, (2,), self.size)",
        ["RC01", "RC03"],
    ),
    "a size that a subclass changes": (
        "class A:\n    size: int = 4\n\n    def setup(self):\n"
        "        self.cell = nn.GRUCell()\n\n    def zero(self):\n"
        "        return self.cell.initialize_carry(k, (2,), self.size)\n\n\n"
        "class B(A):\n    def setup(self):\n        super().setup()\n"
        "        self.size = 8",
        ["RC01", "RC03"],
    ),
    "a subclass with features, and a carry of the class": (
        "class F(nn.LSTMCell):\n    features: int = 8\n\n\n"
        "c = F.initialize_carry(k, (2,), 8)\ncell = F()",
        ["RC03"],
    ),
    "an initializer with a dtype": (
        "c = nn.GRUCell.initialize_carry(k, (), 4, nn.initializers.normal(dtype=d))",
        ["RC02"],
    ),
    "an image of unknown shape": (
        "cell = nn.ConvLSTMCell(features=5, kernel_size=(3, 3))\n"
        "c = nn.ConvLSTMCell.initialize_carry(k, (2,), size)",
        ["RC02"],
    ),
    "a dtype by position": (
        "cell = nn.LSTMCell(nn.tanh, nn.tanh, i, i, i, None, jnp.bfloat16)\n"
        "rnn = nn.RNN(cell, 4)",
        ["RC01", "RC04"],
    ),
    "a dtype by position, and a carry": (
        "cell = nn.GRUCell(nn.tanh, nn.tanh, i, i, i, None, jnp.bfloat16)\n"
        "c = cell.initialize_carry(k, (2,), 4)\nrnn = nn.RNN(cell, 4)",
        ["RC01", "RC03", "RC04"],
    ),
    "a name that is set among arguments": (
        "c = nn.GRUCell.initialize_carry(k, (n := 4,), n)",
        ["RC02"],
    ),
    "a carry that is an iterator": (
        "carry = map(jnp.tanh, state)\ny = nn.LSTMCell()(carry, x)",
        ["RC01"],
    ),
    "a carry that may have grown since the cell was made": (
        "def f(h, x):\n    cell = nn.GRUCell()\n    h, x = up_rnn(h, x)\n"
        "    return cell(h, x)",
        ["RC01"],
    ),
    "a carry that is bound again since the cell was made": (
        "def f(h, x):\n    cell = nn.GRUCell()\n    h = wider(h)\n"
        "    return cell(h, x)",
        ["RC01"],
    ),
    "a carry that is computed in the call": (
        "def f(h, x):\n    return nn.GRUCell()(wider(h), x)",
        ["RC01"],
    ),
    "a loop over a parameter": (
        "def f(cells):\n    for cell in cells:\n"
        "        c = cell.initialize_carry(k, (2,), 4)",
        ["RC03"],
    ),
    "a loop over a list that grows": (
        "cells = [nn.GRUCell(4)]\ncells.append(make())\nfor cell in cells:\n"
        "    c = cell.initialize_carry(k, (2,), 4)",
        ["RC03"],
    ),
    "a class in a field without a default": (
        "class M(nn.Module):\n    cell_cls: object\n\n    def f(self, x):\n"
        "        c = self.cell_cls.initialize_carry(k, (2,), 4)\n"
        "        return self.cell_cls()(c, x)",
        ["RC03", "RC01"],
    ),
    "a dict of arguments that grows": (
        "def f(h, x):\n    options = dict(name='a')\n    options['features'] = 4\n"
        "    return nn.GRUCell(**options)(h, x)\n\n\nother = nn.GRUCell()",
        ["RC01", "RC01"],
    ),
    "a dict of arguments from a parameter": (
        "def f(h, x, options):\n    return nn.GRUCell(**options)(h, x)\n\n\n"
        "other = nn.GRUCell()",
        ["RC01", "RC01"],
    ),
    "a partial class with a number or function": (
        "from functools import partial\nP = partial(nn.GRUCell, n)\ncell = P()\n"
        "other = nn.GRUCell()",
        ["RC01", "RC01"],
    ),
    "a size for a class made of RNN": (
        "from functools import partial\nlayer = partial(nn.RNN, cell_size=4)",
        ["RC04"],
    ),
    "a name that is bound later": (
        "cells = [nn.GRUCell() for _ in range(2)]\nSIZE = 4\nfor cell in cells:\n"
        "    c = cell.initialize_carry(k, (2,), f(SIZE))",
        ["RC01", "RC03"],
    ),
    "a class in a field": (
        "class M(nn.Module):\n    core: object = nn.LSTMCell\n\n"
        "    def setup(self):\n        self.cell = self.core()",
        ["RC01"],
    ),
    "a partial class": (
        "from functools import partial\nP = partial(nn.LSTMCell, gate_fn=nn.relu)\n"
        "cell = P()",
        ["RC01"],
    ),
    "a subclass with its own step": (
        "class S(nn.LSTMCell):\n    def __call__(self, carry, x):\n"
        "        return super().__call__(carry, x)\n\n\ncell = S()",
        ["RC01"],
    ),
    "a lift that is not known": (
        "M = nn.map_variables(nn.LSTMCell, 'params')\ncell = M()",
        ["RC01"],
    ),
    "a class bound by `match`": (
        "C = nn.LSTMCell\nmatch x:\n    case {'a': C}:\n"
        "        c = C.initialize_carry(k, (), 4)",
        ["RC02"],
    ),
    "a method that is passed to a function": (
        "f = jax.vmap(nn.GRUCell.initialize_carry, (0, None, None))",
        ["RC02"],
    ),
    "a method of a cell that is passed to a function": (
        "cell = nn.GRUCell()\nf = jax.eval_shape(cell.initialize_carry, k, (2,), 4)",
        ["RC01", "RC03"],
    ),
    "a cell that another function makes": (
        "cell = make()\nc = cell.initialize_carry(k, (2,), 4)",
        ["RC03"],
    ),
    "a size that changes": (
        "cell = nn.GRUCell()\nc = cell.initialize_carry(k, (2,), config.size)\n"
        "config.size = 5",
        ["RC01", "RC03"],
    ),
    "an RNN with carries of half precision": (
        "rnn = nn.RNN(nn.LSTMCell(param_dtype=d), 8)",
        ["RC01", "RC04"],
    ),
    "arguments of RNN by position that moved": (
        "rnn = nn.RNN(nn.LSTMCell(), 8, False, False, 2)",
        ["RC01", "RC04"],
    ),
    "arguments of RNN that are unpacked": (
        "rnn = nn.RNN(nn.LSTMCell(), *sizes)",
        ["RC01", "RC04"],
    ),
    "a size for a new cell in a lifted layer": (
        "rnn = nn.remat(nn.RNN)(nn.GRUCell(4), 4)",
        ["RC12"],
    ),
    "a size that a comprehension sets again": (
        "size = 4\ncell = nn.GRUCell()\nother = [(size := n) for n in (5, 6)]\n"
        "c = cell.initialize_carry(k, (2,), size)",
        ["RC01", "RC03"],
    ),
    "a size that a comprehension sets at each turn": (
        "def f(ns):\n    for n in ns:\n        other = [(size := m) for m in (n,)]\n"
        "        cell = nn.GRUCell()\n        cells.append(cell)\n"
        "    return cell.initialize_carry(k, (2,), size)",
        ["RC01", "RC03"],
    ),
    "a size that a comprehension sets too late": (
        "def f():\n    cell = nn.GRUCell()\n    other = [(size := n) for n in (5, 6)]\n"
        "    return cell.initialize_carry(k, (2,), size)",
        ["RC01", "RC03"],
    ),
}
for what, axes in {
    "that may be the last": "in_axes=(1, 1), out_axes=1",
    "by position": "{}, {}, 1, 1",
    "in a tuple": "*axes",
    "in a dict": "**axes",
}.items():
    lifted = f"V = nn.vmap(nn.GRUCell, {axes})"
    MARKED[f"axes of vmap {what}"] = (
        f"{lifted}\n\n\ndef f(h, x):\n    return V()(h, x)",
        ["RC01"],
    )
# Current code, or code without cells.
NOT_MARKED = {
    "arguments in a tuple": "cell = nn.GRUCell(*(4,))",
    "arguments from an attribute": "cell = nn.LSTMCell(*cfg.cell_args)",
    "arguments in a dict made of another": (
        "o = dict(opts, gate_fn=f)\ncell = nn.GRUCell(**o)"
    ),
    "arguments in a literal dict made of another": (
        "cell = nn.GRUCell(**{**opts, 'gate_fn': f})"
    ),
    "arguments in a union of dicts": "cell = nn.GRUCell(**(opts | {'gate_fn': f}))",
    "arguments in a dict that gets an entry": (
        "o = {}\no['features'] = 4\ncell = nn.GRUCell(**o)"
    ),
    "arguments in a dict that is updated": (
        "o = {}\no.update(features=4)\ncell = nn.GRUCell(**o)"
    ),
    "a cell of unpacked arguments whose carry function is passed on": (
        "cell = nn.GRUCell(*args)\nf = jax.vmap(cell.initialize_carry)"
    ),
    "a partial class with a variable": (
        "from functools import partial\nP = partial(nn.GRUCell, n)\n"
        "cells = P(), partial(nn.GRUCell, n)(), partial(P, gate_fn=f)()"
    ),
    "a partial class with unpacked arguments": (
        "from functools import partial\n"
        "cells = partial(nn.GRUCell, *a)(), partial(nn.GRUCell, **options)()"
    ),
    "a default that is made with a variable width": (
        "from dataclasses import field\nfrom functools import partial\n\n\n"
        "class M(nn.Module):\n"
        "    cell: object = field(default_factory=partial(nn.GRUCell, n))"
    ),
    "unpacked arguments beside a new class with a width": (
        "class New(nn.LSTMCell):\n    features: int = 8\n\n\n"
        "cells = New(), nn.GRUCell(*args)"
    ),
    "a partial class with its width": (
        "from functools import partial\nP = partial(nn.GRUCell, features=4)\n"
        "cells = P(), partial(P, gate_fn=nn.relu)(), partial(nn.LSTMCell, 4)()"
    ),
    "a default that is made with its width": (
        "from dataclasses import field\nfrom functools import partial\n\n\n"
        "class M(nn.Module):\n"
        "    cell: object = field(default_factory=partial(nn.GRUCell, features=4))"
    ),
    "a new class with its own carry": (
        "class New(nn.LSTMCell):\n    features: int = 8\n\n"
        "    def initialize_carry(self, rng, input_shape):\n"
        "        return nn.LSTMCell.initialize_carry(self, rng, input_shape)\n\n\n"
        "cell = New()"
    ),
    "a new class with a width": (
        "class New(nn.LSTMCell):\n    features: int = 8\n\n\ncell = New()\n"
        "c = cell.initialize_carry(key, (2, 8))\nS = nn.scan(New)\nd = S()"
    ),
    "time-major by a name": "rnn = nn.RNN(nn.LSTMCell(8), time_major)",
    "time-major by a default": (
        "def f(t=False):\n    return nn.RNN(nn.LSTMCell(8), t)"
    ),
    "a carry without a batch": (
        "c = nn.LSTMCell(8).initialize_carry(key, (x.shape[-1],))"
    ),
    "a new method as an argument": "f = jax.vmap(nn.LSTMCell(8).initialize_carry)",
    "a new method of a parameter that is passed to a function": (
        "def f(cell: nn.GRUCell):\n    return jax.vmap(cell.initialize_carry)"
    ),
    "a carry of another shape": (
        "c = nn.LSTMCell(8).initialize_carry(key, (3,))\n"
        "d = nn.LSTMCell(8).initialize_carry(key, (embed,))"
    ),
    "time-major by an attribute": "rnn = nn.RNN(nn.LSTMCell(8), config.tm)",
    "a cell of nnx": (
        "from flax import nnx\n\n\nclass M:\n    cell: nnx.RNNCellBase\n\n"
        "    def f(self, x, rngs):\n"
        "        return self.cell.initialize_carry(x.shape, rngs, init)"
    ),
    "an own layer that is called as a cell": (
        "class Scanned(nn.Module):\n    @staticmethod\n"
        "    def initialize_carry(batch, hidden, key):\n        return hidden\n\n\n"
        "class M(nn.Module):\n    rnn: Scanned\n\n    def f(self, x):\n"
        "        return self.rnn.initialize_carry(x.shape[0], 4, self.key)"
    ),
    "an attention layer": (
        "class M(nn.Module):\n    encoder: object\n\n    def f(self, x, m):\n"
        "        return self.encoder(x, segmentation_mask=m), nn.RNN"
    ),
    "a dict of arguments with features": (
        "def f(c, x, n):\n    options = dict(features=n, name='a')\n"
        "    return nn.GRUCell(**options)(c, x)"
    ),
    "a literal dict of arguments with features": (
        "def f(c, x, n):\n    return nn.GRUCell(**{'features': n})(c, x)"
    ),
    "a class of the file that is no cell": (
        "class Env:\n    def initialize_carry(self, a, b, c):\n        return a\n\n\n"
        "env = Env()\nc = env.initialize_carry(1, 2, 3)"
    ),
    "a cell of another library": (
        "import haiku as hk\ncell = hk.LSTM(8)\nc = cell.initialize_carry(1, 2, 3)"
    ),
}
REWRITTEN = {
    "a class with None as fallback": (
        "try:\n    Cell = nn.LSTMCell\nexcept AttributeError:\n    Cell = None\n"
        "c = Cell.initialize_carry(k, (2,), 4)",
        "try:\n    Cell = nn.LSTMCell\nexcept AttributeError:\n    Cell = None\n"
        "c = Cell(4, parent=None).initialize_carry(k, (2, 4))",
    ),
    "a cell by its annotation": (
        "def f(net: nn.LSTMCell):\n    return net.initialize_carry(k, (2,), 4)",
        "def f(net: nn.LSTMCell):\n    return net.initialize_carry(k, (2, 4))",
    ),
    "cells of one list": (
        "cells = [nn.GRUCell(), nn.GRUCell()]\nfor cell in cells:\n"
        "    c = cell.initialize_carry(k, (2,), 4)",
        "cells = [nn.GRUCell(4), nn.GRUCell(4)]\nfor cell in cells:\n"
        "    c = cell.initialize_carry(k, (2, 4))",
    ),
    "a gate function of a conditional expression": (
        "c = nn.GRUCell.initialize_carry(k, (), 4)\n"
        "y = nn.GRUCell(nn.tanh if hard else nn.sigmoid)(c, x)",
        "c = nn.GRUCell(4, parent=None).initialize_carry(k, (4,))\n"
        "y = nn.GRUCell(4, nn.tanh if hard else nn.sigmoid)(c, x)",
    ),
    "a carry that a function made": (
        "def f(h, x):\n    h, x = Up()(h, x)\n    return nn.GRUCell()(h, x)",
        "def f(h, x):\n    h, x = Up()(h, x)\n    return nn.GRUCell(h.shape[-1])(h, x)",
    ),
    "an image of other features": (
        "cell = nn.ConvLSTMCell(features=5, kernel_size=(3, 3))\n"
        "c = nn.ConvLSTMCell.initialize_carry(k, (2,), (6, 4, 8))",
        "cell = nn.ConvLSTMCell(features=5, kernel_size=(3, 3))\n"
        "c = nn.ConvLSTMCell(8, kernel_size=(3, 3), parent=None)"
        ".initialize_carry(k, (2, 6, 4, 8))",
    ),
    "the example of FLIP 3099": (
        "carry = nn.ConvLSTMCell.initialize_carry(key1, (16,), (64, 64, 16))\n\n"
        "lstm = nn.ConvLSTMCell(features=6, kernel_size=(3, 3))",
        "carry = nn.ConvLSTMCell(16, kernel_size=(3, 3), parent=None)"
        ".initialize_carry(key1, (16, 64, 64, 16))\n\n"
        "lstm = nn.ConvLSTMCell(features=6, kernel_size=(3, 3))",
    ),
    "an image whose cell is in another file": (
        "c = nn.ConvLSTMCell.initialize_carry(k, (2,), (6, 8))",
        "c = nn.ConvLSTMCell(8, kernel_size=(1,), parent=None)"
        ".initialize_carry(k, (2, 6, 8))",
    ),
    "elements of a list that a call makes": (
        "cells = list([nn.GRUCell()] * 2)\nfor layer in reversed(cells):\n"
        "    c = layer.initialize_carry(k, (2,), 4)",
        "cells = list([nn.GRUCell(4)] * 2)\nfor layer in reversed(cells):\n"
        "    c = layer.initialize_carry(k, (2, 4))",
    ),
    "a width of a carry beside a marked carry": (
        "h, c = start(), nn.GRUCell.initialize_carry(k, (), 4)\ny = nn.GRUCell()(h, x)",
        "h, c = start(), nn.GRUCell(4, parent=None).initialize_carry(k, (4,))\n"
        "y = nn.GRUCell(h.shape[-1])(h, x)",
    ),
    "a size in two parentheses": (
        "cell = nn.ConvLSTM(5, (3, 3))\n"
        "c = cell.initialize_carry(k, (2,), ((6, 7, 5)))",
        "cell = nn.ConvLSTMCell(5, (3, 3))\nc = cell.initialize_carry(k, (2, 6, 7, 5))",
    ),
    "the size of an image by a name": (
        "cell = nn.ConvLSTM(5, (3, 3))\nc = cell.initialize_carry(k, (2,), size)",
        "cell = nn.ConvLSTMCell(5, (3, 3))\nc = cell.initialize_carry(k, (2, *size))",
    ),
    "a size that a comprehension sets": (
        "def f():\n    other = [(size := n) for n in (5, 6)]\n    cell = nn.GRUCell()\n"
        "    return cell.initialize_carry(k, (2,), size)",
        "def f():\n    other = [(size := n) for n in (5, 6)]\n"
        "    cell = nn.GRUCell(size)\n"
        "    return cell.initialize_carry(k, (2, size))",
    ),
    "the first axis of vmap": (
        "V = nn.vmap(nn.GRUCell, in_axes=(0, None), out_axes=0)\n\n\ndef f(h, x):\n"
        "    return V()(h, x)",
        "V = nn.vmap(nn.GRUCell, in_axes=(0, None), out_axes=0)\n\n\ndef f(h, x):\n"
        "    return V(h.shape[-1])(h, x)",
    ),
    "a layer that is lifted": (
        "Layer = nn.remat(nn.RNN)\nrnn = Layer(nn.GRUCell(), 4)",
        "Layer = nn.remat(nn.RNN)\nrnn = Layer(nn.GRUCell(4))",
    ),
}
REWRITTEN["two cells and the carry of one"] = (
    "enc, h = nn.LSTMCell(), nn.LSTMCell.initialize_carry(k, (2,), 4)\n"
    "dec = nn.LSTMCell()\ny = dec(get(enc, h), x)",
    f"{MARK}RC01\n"
    "enc, h = nn.LSTMCell(), nn.LSTMCell(4, parent=None).initialize_carry(k, (2, 4))\n"
    f"{MARK}RC01\n"
    "dec = nn.LSTMCell()\ny = dec(get(enc, h), x)",
)


@pytest.mark.parametrize("code, rules", MARKED.values(), ids=MARKED)
def test_ambiguous_code_is_marked_and_stays(code, rules):
    assert_marked(HEAD + code, rules)


@pytest.mark.parametrize("code", NOT_MARKED.values(), ids=NOT_MARKED)
def test_current_code_stays(code):
    data = (HEAD + code).encode()
    assert migrate(data).data is data


@pytest.mark.parametrize("old, new", REWRITTEN.values(), ids=REWRITTEN)
def test_unambiguous_code_is_rewritten(old, new):
    once = migrate((HEAD + old).encode())
    assert without_reasons(once.data.decode()) == HEAD + new
    assert migrate(once.data).data is once.data


@pytest.mark.parametrize(
    "before", ['z = """\n"""; ', "if z: \\\n    ", "z = (1,\n  2); "]
)
def test_marks_stand_above_logical_lines(before):
    what = "cell = nn.GRUCell()"
    old = f"{HEAD}x = 1\n{before}{what}\n"
    once = migrate(old.encode()).data.decode()
    assert once.count(MARK) == 1
    head, mark, rest = once.partition(MARK)
    assert head == HEAD + "x = 1\n"
    assert rest.partition("\n")[2] == before + what + "\n"


def test_the_work_is_linear_in_the_length_of_a_file():
    """Four times as many cells take about four times as many steps."""

    def steps(count):
        lines = [
            f"c{k} = nn.LSTMCell()\nh{k} = c{k}.initialize_carry(k, (2,), 4)"
            for k in range(count)
        ]
        taken = 0

        def trace(frame, event, arg):
            nonlocal taken
            taken += event == "line"
            return trace if "migrate" in frame.f_code.co_filename else None

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            migrate((HEAD + "\n".join(lines)).encode())
        finally:
            sys.settrace(before)
        return taken

    assert steps(160) < 5 * steps(40)
