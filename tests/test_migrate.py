"""Code that is rewritten, marked or kept; see test_old_programs.py too."""

import ast
import sysconfig
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import PROGRAMS, without_reasons

from rnncells.migrate.migration import migrate
from rnncells.migrate.rules.finding import RULES

HEAD = "import flax.linen as nn\n"


def rewritten(body, to="flax", **options):
    return migrate((HEAD + body).encode(), to, **options)


CASES = {
    "size that is computed": (
        "nn.GRUCell.initialize_carry(key, (2,), f())",
        "# TODO(rnncells): RC02\nnn.GRUCell.initialize_carry(key, (2,), f())",
    ),
    "initializer of two arguments": (
        "nn.GRUCell.initialize_carry(key, (2,), 4, lambda k, s: k)",
        "# TODO(rnncells): RC02\n"
        "nn.GRUCell.initialize_carry(key, (2,), 4, lambda k, s: k)",
    ),
    "an initializer that is a parameter": (
        "def f(init):\n    return nn.GRUCell.initialize_carry(key, (2,), 4, init)",
        "def f(init):\n    # TODO(rnncells): RC02\n"
        "    return nn.GRUCell.initialize_carry(key, (2,), 4, init)",
    ),
    "an initializer that is a parameter, of JAX by default": (
        "def f(k, b, n, init=nn.initializers.ones):\n"
        "    return nn.GRUCell.initialize_carry(k, b, n, init)",
        "def f(k, b, n, init=nn.initializers.ones):\n"
        "    return nn.GRUCell(n, carry_init=init, parent=None).initialize_carry("
        "k, (*b, n))",
    ),
    "an initializer with a dtype": (
        "def init(k, shape, dtype=None):\n    return k\n\n\n"
        "c = nn.GRUCell.initialize_carry(key, (2,), 4, init)",
        "def init(k, shape, dtype=None):\n    return k\n\n\n"
        "c = nn.GRUCell(4, carry_init=init, parent=None).initialize_carry(key, (2, 4))",
    ),
    "an initializer without a dtype": (
        "def init(k, shape):\n    return k\n\n\n"
        "c = nn.GRUCell.initialize_carry(key, (2,), 4, init)",
        "def init(k, shape):\n    return k\n\n\n# TODO(rnncells): RC02\n"
        "c = nn.GRUCell.initialize_carry(key, (2,), 4, init)",
    ),
    "arguments that are unpacked": (
        "cell = nn.LSTMCell(**options)\nother = nn.RNN(nn.GRUCell(), 4)",
        "# TODO(rnncells): RC01\ncell = nn.LSTMCell(**options)\n"
        "other = nn.RNN(nn.GRUCell(4))",
    ),
    "a size that cannot move to the cell": (
        "rnn = nn.RNN(nn.LSTMCell(), size())",
        "# TODO(rnncells): RC01\n# TODO(rnncells): RC04\n"
        "rnn = nn.RNN(nn.LSTMCell(), size())",
    ),
    "a gate function in parentheses": (
        "y = nn.LSTMCell((nn.relu))(carry, x) if carry else 0\ncarry = f()",
        "y = nn.LSTMCell(carry[1].shape[-1], (nn.relu))(carry, x) if carry else 0\n"
        "carry = f()",
    ),
    "a gate function of another library": (
        "carry = nn.GRUCell.initialize_carry(k, (), 4)\n"
        "y = nn.GRUCell(partial(nn.elu, alpha=2))(carry, x)",
        "carry = nn.GRUCell(4, parent=None).initialize_carry(k, (4,))\n"
        "y = nn.GRUCell(4, partial(nn.elu, alpha=2))(carry, x)",
    ),
    "an unrelated score": (
        "c = self.score.initialize_carry(team, board, 3)",
        "# TODO(rnncells): RC03\nc = self.score.initialize_carry(team, board, 3)",
    ),
    "one argument by position": (
        "class C(nn.RNNCellBase):\n    rate: float\n\n    @staticmethod\n"
        "    def initialize_carry(rng, dims: tuple, size):\n        return rng\n\n"
        "rnn = nn.RNN(C(0.25), 4)",
        "class C(nn.RNNCellBase):\n    rate: float\n    features: int = None\n\n"
        "    @nn.nowrap\n    def initialize_carry(self, rng, input_shape):\n"
        "        dims, size = input_shape[:-1], self.features\n        return rng\n\n"
        "    @property\n    def num_feature_axes(self):\n        return 1\n\n"
        "rnn = nn.RNN(C(0.25, features=4))",
    ),
    "a pragma": (
        "cell = nn.LSTMCell()(carry, x)  # rnncells: skip",
        "cell = nn.LSTMCell()(carry, x)  # rnncells: skip",
    ),
    "a cell of another library": (
        "from torch import nn\ncell = nn.LSTMCell()",
        "from torch import nn\ncell = nn.LSTMCell()",
    ),
    "a carry of another file": (
        "from mine import Core\ncarry = Core.initialize_carry(key, batch, size)",
        "from mine import Core\ncarry = Core.initialize_carry(key, batch, size)",
    ),
    "half migrated: no batch": (
        "carry = nn.LSTMCell(8).initialize_carry(key, (8,))",
        "carry = nn.LSTMCell(8).initialize_carry(key, (8,))",
    ),
    "half migrated: RNN with a size": (
        "rnn = nn.RNN(nn.LSTMCell(8), 8)",
        "# TODO(rnncells): RC12\nrnn = nn.RNN(nn.LSTMCell(8), 8)",
    ),
    "time major by position": (
        "rnn = nn.RNN(nn.LSTMCell(8), True)",
        "rnn = nn.RNN(nn.LSTMCell(8), True)",
    ),
    "positions after the size": (
        "rnn = nn.RNN(nn.LSTMCell(), 8, True, True)",
        "rnn = nn.RNN(nn.LSTMCell(8), True, True)",
    ),
    "carry of half precision": (
        "cell = nn.GRUCell(param_dtype=d)\nc = cell.initialize_carry(key, (2,), 4)",
        "cell = nn.GRUCell(4, param_dtype=d)\n# TODO(rnncells): RC03\n"
        "c = cell.initialize_carry(key, (2,), 4)",
    ),
    "carries of two sizes": (
        "cell = nn.GRUCell()\na = cell.initialize_carry(k, (), 4)\n"
        "b = cell.initialize_carry(k, (), 5)",
        "# TODO(rnncells): RC01\ncell = nn.GRUCell()\n# TODO(rnncells): RC03\n"
        "a = cell.initialize_carry(k, (), 4)\n# TODO(rnncells): RC03\n"
        "b = cell.initialize_carry(k, (), 5)",
    ),
    "an automatic name in checkpoints": (
        "def f(carry, x):\n    return nn.ConvLSTM(4, (3,))(carry, x)",
        "def f(carry, x):\n    # TODO(rnncells): RC05\n"
        "    return nn.ConvLSTM(4, (3,))(carry, x)",
    ),
    "a cell for its carry alone": (
        "class M(nn.Module):\n    @nn.compact\n    def __call__(self, x):\n"
        "        carry = nn.GRUCell(4).initialize_carry(key, x.shape)\n"
        "        return nn.GRUCell(4)(carry, x)",
        "class M(nn.Module):\n    @nn.compact\n    def __call__(self, x):\n"
        "        # TODO(rnncells): RC13\n"
        "        carry = nn.GRUCell(4).initialize_carry(key, x.shape)\n"
        "        return nn.GRUCell(4)(carry, x)",
    ),
}


@pytest.mark.parametrize("to", ["flax", "rnncells"])
@pytest.mark.parametrize(
    "line",
    [
        "from rnncells.legacy.recurrent import LSTMCell",
        "from rnncells.legacy.recurrent import LSTMCell, RNNBase",
        "import rnncells.legacy.recurrent as LSTMCell",
    ],
)
def test_imports_from_the_shims_recurrent_module_become_imports_of_flax(line, to):
    of_flax = line.replace("rnncells.legacy", "flax.linen").encode()
    expected = migrate(of_flax, to).data
    assert b"legacy" not in expected
    assert migrate(line.encode(), to).data == expected


@pytest.mark.parametrize("old, new", CASES.values(), ids=CASES)
def test_code_is_rewritten_or_marked(old, new):
    migration = rewritten(old)
    assert without_reasons(migration.data.decode()) == HEAD + new
    marked = [note.rule for note in migration.notes if note.why]
    assert new.count("TODO(rnncells)") == len(marked)
    assert migrate(migration.data).data is migration.data


def test_every_rule_has_a_case():
    seen = {note.rule for source in PROGRAMS.values() for note in notes_of(source)}
    seen |= {note.rule for old, _ in CASES.values() for note in notes_of(HEAD + old)}
    assert seen == set(RULES)


def notes_of(source):
    return [
        *migrate(source.encode()).notes,
        *migrate(source.encode(), "rnncells").notes,
    ]


def test_an_import_of_names_is_split_if_some_move():
    old = (
        "from flax.linen import Dense, LSTMCell as L, Module, RNN\nf = L(4), RNN, Dense"
    )
    new = (
        "from flax.linen import Dense, Module\n"
        "from rnncells import LSTMCell as L, RNN\nf = L(4), RNN, Dense"
    )
    assert migrate(old.encode(), "rnncells").data.decode() == new
    assert migrate(old.encode(), "flax").data.decode() == old


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("start", ["", "\ufeff", "# -*- coding: latin-1 -*-\n"])
def test_other_bytes_of_a_file_stay(newline, start):
    """Encodings, byte order marks, line endings, form feeds, no final newline."""
    encoding = "latin-1" if "latin" in start else "utf-8"
    lines = [*start.splitlines(), HEAD.strip(), "é = 'ä'; \x0c", "x = 1 \t"]
    bom = lines.pop(0) if start == "\ufeff" else ""
    text = bom + newline.join([*lines, "ö = {}(f(), 'ü')  # ß"])
    old = text.format("nn.GRUCell()").encode(encoding)
    new = text.format("nn.GRUCell()")
    assert migrate(old).data != old
    marked = migrate(old).data.decode(encoding)
    assert marked.startswith(text.partition("ö")[0])
    assert marked.endswith(new.partition("ö")[2])


NAMES = st.sampled_from(
    ["hidden", "self.size", "x.shape[-1]", "4", "2 * n", "sizes[0]"]
)
BATCHES = st.sampled_from(["()", "(b,)", "(2, b)", "dims", "x.shape[:-1]", "a or b"])


@settings(deadline=None)
@given(
    cell=st.sampled_from(["LSTMCell", "GRUCell", "OptimizedLSTMCell"]),
    size=NAMES,
    batch=BATCHES,
    keywords=st.permutations(["rng", "batch_dims", "size", "init_fn"]),
    positional=st.integers(0, 4),
    has_init=st.booleans(),
    spaces=st.lists(st.sampled_from(["", " ", "\n    ", "  # a\n    "]), min_size=9),
    to=st.sampled_from(["flax", "rnncells"]),
)
def test_all_forms_of_arguments_are_rewritten(
    cell, size, batch, keywords, positional, has_init, spaces, to
):
    values = {"rng": "key", "batch_dims": batch, "size": size}
    values |= {"init_fn": "nn.initializers.ones"} if has_init else {}
    first = list(values)[:positional]
    given_by_name = [name for name in keywords if name in values.keys() - set(first)]
    arguments = [values[name] for name in first]
    arguments += [f"{name}={values[name]}" for name in given_by_name]
    padded = [f"{pad}{text}" for pad, text in zip(spaces, arguments, strict=False)]
    old = f"{HEAD}c = nn.{cell}.initialize_carry({','.join(padded)}{spaces[8]})\n"
    once = migrate(old.encode(), to).data
    assert migrate(once, to).data is once
    call = ast.parse(once).body[-1].value
    shape = call.args[1] if len(call.args) > 1 else None
    shapes = [k.value for k in call.keywords if k.arg == "input_shape"]
    shape = shapes[0] if shapes else shape
    assert ast.unparse(shape.elts[-1]) == ast.unparse(ast.parse(size).body[0].value)
    maker = call.func.value
    assert ast.unparse(maker.args[0]) == ast.unparse(shape.elts[-1])
    made = ast.unparse(maker)
    assert ("carry_init=nn.initializers.ones" in made) == has_init
    # A comment inside a deleted argument is deleted.
    assert old.count("#") - once.decode().count("#") in ((0, 1) if has_init else (0,))


def test_unrelated_code_stays():
    """A third of Python's standard library: every byte, without errors."""
    root = Path(sysconfig.get_paths()["stdlib"])
    files = [
        path
        for folder in ("", "json", "asyncio", "concurrent/futures", "unittest", "email")
        for path in sorted((root / folder).glob("*.py"))
    ]
    assert len(files) > 200
    for path in files[::3]:
        data = path.read_bytes()
        # The comment makes the codemod read the file.
        assert migrate(data + b"\n# flax, LSTMCell\n").notes == ()
