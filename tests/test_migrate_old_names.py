"""The old name `ConvLSTM`: renamed unless parameter names depend on it."""

import ast

import pytest
from programs import assert_same, run, with_imports_of, without_reasons

from rnncells.migrate.migration import migrate
from rnncells.migrate.rules.old_names import WHY as AUTOMATIC
from rnncells.migrate.rules.old_names import WHY_CLASS as OF_CLASS

HEAD = """\
import flax.linen as nn
import jax
import jax.numpy as jnp
from functools import partial
from flax.linen import ConvLSTM

LIFT = dict(variable_broadcast="params", split_rngs={"params": False}, in_axes=1)
"""
END = """

def run():
    x = jnp.sin(jnp.arange(96.0)).reshape(2, 4, 4, 3)
    carry = tuple(jnp.ones((2, 2, 4, 4, 5)))
    return Model().init_with_output(jax.random.PRNGKey(0), carry, x)
"""


def compact(line, before="", above="", extra=""):
    method = "    @nn.compact\n    def __call__(self, carry, x):\n"
    body = f"        {line}\n"
    return f"{above}class Model(nn.Module):\n{before}{method}{body}{extra}"


def setup(line, call="self.cell(carry, x)"):
    return (
        f"class Model(nn.Module):\n    def setup(self):\n        {line}\n\n"
        f"    def __call__(self, carry, x):\n        return {call}\n"
    )


# What it is that says why it stays; empty: it is renamed.
MADE = "nn.ConvLSTM(5, (3, 3))"
OLD_NAMES = {
    "unnamed": (compact(f"return {MADE}(carry, x)"), AUTOMATIC),
    "named": (compact("return nn.ConvLSTM(5, (3, 3), name='c')(carry, x)"), ""),
    "named None": (
        compact("return nn.ConvLSTM(5, (3, 3), name=None)(carry, x)"),
        AUTOMATIC,
    ),
    "perhaps named": (
        compact(
            "return self.make()(carry, x)",
            extra="\n    def make(self, name=None):\n"
            "        return nn.ConvLSTM(5, (3, 3), name=name)\n",
        ),
        AUTOMATIC,
    ),
    "in setup": (setup(f"self.cell = {MADE}"), ""),
    "in setup, in a list": (setup(f"self.c = [{MADE}]", "self.c[0](carry, x)"), ""),
    "in setup, by an alias": (setup("C = nn.ConvLSTM; self.cell = C(5, (3, 3))"), ""),
    "in setup, in a function that runs later": (
        setup(f"self.make = lambda: {MADE}", "self.run(carry, x)")
        + "\n    @nn.compact\n    def run(self, carry, x):\n"
        "        return self.make()(carry, x)\n",
        AUTOMATIC,
    ),
    "alias": (compact("return C(5, (3, 3))(carry, x)", above="C = nn.ConvLSTM\n"),)
    + (AUTOMATIC,),
    "alias, named": (
        compact("return C(5, (3, 3), name='c')(carry, x)", above="C = nn.ConvLSTM\n"),
        "",
    ),
    "alias of an alias": (
        compact(
            "return D(5, (3, 3))(carry, x)",
            above="C = nn.ConvLSTM\nD: type = C\n",
        ),
        AUTOMATIC,
    ),
    "lifted": (
        compact("return nn.remat(nn.ConvLSTM)(5, (3, 3))(carry, x)"),
        AUTOMATIC,
    ),
    "lifted, named": (
        compact("return nn.remat(nn.ConvLSTM)(5, (3, 3), name='c')(carry, x)"),
        "",
    ),
    "lifted by a partial": (
        compact("return partial(nn.scan, **LIFT)(nn.ConvLSTM)(5, (3,))(carry, x)"),
        AUTOMATIC,
    ),
    "lifted, by an alias": (
        compact("C = nn.remat(nn.ConvLSTM); return C(5, (3, 3))(carry, x)"),
        AUTOMATIC,
    ),
    "a partial": (
        compact(
            "return make((3, 3))(carry, x)", above="make = partial(nn.ConvLSTM, 5)\n"
        ),
        AUTOMATIC,
    ),
    "a partial, named": (
        compact(
            "return make((3, 3))(carry, x)",
            above="make = partial(nn.ConvLSTM, 5, name='c')\n",
        ),
        "",
    ),
    "within a function of a method": (
        compact(f"def f():\n            return {MADE}(carry, x)\n        return f()"),
        AUTOMATIC,
    ),
    "by another method": (
        compact(
            "return self.make()(carry, x)",
            extra=f"\n    def make(self):\n        return {MADE}\n",
        ),
        AUTOMATIC,
    ),
    "by a function": (
        compact("return f()(carry, x)", above=f"def f():\n    return {MADE}\n\n\n"),
        AUTOMATIC,
    ),
    "by a generator": (
        compact(
            "return next(cells)(carry, x)", above=f"cells = ({MADE} for _ in [1])\n"
        ),
        AUTOMATIC,
    ),
    "in a field": (
        compact("return self.cell(carry, x)", f"    cell: nn.Module = {MADE}\n"),
        "",
    ),
    "class in a field": (
        compact(
            "return self.kind(5, (3, 3))(carry, x)", "    kind: type = nn.ConvLSTM\n"
        ),
        OF_CLASS,
    ),
    "class in a dictionary": (
        compact(
            "return CELLS['a'](5, (3, 3))(carry, x)",
            above="CELLS = {'a': nn.ConvLSTM}\n",
        ),
        OF_CLASS,
    ),
    "class by its name": (
        compact(
            "return nn.Dense(5, name=nn.ConvLSTM.__name__)(x)",
        ),
        OF_CLASS,
    ),
    "at module level": (
        compact(
            "return nn.RNN(cell, (4, 4, 5))(x[:, None])", above=f"cell = {MADE}\n"
        ).replace("(cell, (4, 4, 5))", "(cell=cell, cell_size=(4, 4, 5))"),
        "",
    ),
    "base, annotation, comparison": (
        compact(
            "assert isinstance(self, (nn.Module, nn.ConvLSTM)); "
            "return Mine(5, (3, 3))(carry, x)",
            "    a: type[nn.ConvLSTM] | None = None\n",
            "class Mine(nn.ConvLSTM):\n    pass\n\n\n",
        ),
        "",
    ),
}


def of_imports(source):
    """Returns the same program with an import of the name."""
    return source.replace("nn.ConvLSTM", "ConvLSTM")


def of_alias(source):
    return of_imports(source).replace("ConvLSTM", "Conv")


FORMS = {
    "attribute": (HEAD.replace("from flax.linen import ConvLSTM\n", ""), str),
    "name": (HEAD, of_imports),
    "other name": (HEAD.replace("ConvLSTM", "ConvLSTM as Conv"), of_alias),
}


@pytest.mark.parametrize("to", ["flax", "rnncells"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", OLD_NAMES)
def test_names_of_parameters_stay(name, form, to):
    """A renamed class gives the same parameters; otherwise only a mark is added."""
    head, of_form = FORMS[form]
    body, why = OLD_NAMES[name]
    old = head + of_form(body) + END
    migration = migrate(old.encode(), to)
    new = migration.data.decode()
    left = [note for note in migration.notes if note.why and note.rule == "RC05"]
    assert {note.why for note in left} == ({why} if why else set())
    assert migrate(migration.data, to).data is migration.data
    if why:
        new = without_reasons(new)
        assert "ConvLSTMCell" not in new and "rnncells import" not in new
        return
    assert "ConvLSTM(" not in new and "ConvLSTM as" not in new
    expected = run("old", with_imports_of("old_linen", old))
    assert_same(run("new", new), expected)


KEPT_NAMES = {
    "all uses, or none": (
        "from flax.linen import ConvLSTM, Dense\na = ConvLSTM(4, (3,))\n"
        "def f():\n    return ConvLSTM(4, (3,))\n",
        "from flax.linen import ConvLSTM, Dense\na = ConvLSTM(4, (3,))\n"
        "def f():\n    # TODO(rnncells): RC05\n"
        "    return ConvLSTM(4, (3,))\n",
    ),
    "one use is skipped": (
        "from flax.linen import ConvLSTM\na = ConvLSTM(4, (3,))  # rnncells: skip\n"
        "b = ConvLSTM(4, (3,))\n",
        "",
    ),
    "an import only for other files": (
        "from flax.linen import ConvLSTM\n",
        "# TODO(rnncells): RC05\nfrom flax.linen import ConvLSTM\n",
    ),
    "an import also for other files": (
        "from flax.linen import ConvLSTM\n__all__ = ['ConvLSTM']\n"
        "a = ConvLSTM(4, (3,))\n",
        "from flax.linen import ConvLSTMCell as ConvLSTM\n__all__ = ['ConvLSTM']\n"
        "a = ConvLSTM(4, (3,))\n",
    ),
    "another cell of the new name": (
        "from flax.linen import ConvLSTM\ndef f(ConvLSTMCell):\n"
        "    return isinstance(ConvLSTMCell, ConvLSTM)\n",
        "from flax.linen import ConvLSTMCell as ConvLSTM\ndef f(ConvLSTMCell):\n"
        "    return isinstance(ConvLSTMCell, ConvLSTM)\n",
    ),
    "an import that may fail": (
        "try:\n    from flax.linen import ConvLSTM\nexcept ImportError:\n"
        "    ConvLSTM = None\na = ConvLSTM(4, (3,))\n",
        "try:\n    from flax.linen import ConvLSTMCell as ConvLSTM\n"
        "except ImportError:\n    ConvLSTM = None\na = ConvLSTM(4, (3,))\n",
    ),
    "an import that an old Flax needs": (
        "try:\n    from flax.linen import ConvLSTMCell\nexcept ImportError:\n"
        "    from flax.linen import ConvLSTM as ConvLSTMCell\n"
        "a = ConvLSTMCell(4, (3,))\n",
        "",
    ),
    "another object of the same name": (
        "from flax.linen import ConvLSTM\nConvLSTM = f(ConvLSTM)\n",
        "# TODO(rnncells): RC05\n"
        "from flax.linen import ConvLSTM\nConvLSTM = f(ConvLSTM)\n",
    ),
    "of the shim": (
        "import rnncells.legacy as nn\nnn.Dense\n"
        "def f():\n    return nn.ConvLSTM(4, (3,))\n",
        "# TODO(rnncells): RC09\n"
        "import rnncells.legacy as nn\nnn.Dense\n"
        "def f():\n    # TODO(rnncells): RC05\n"
        "    return nn.ConvLSTM(4, (3,))\n",
    ),
    "of the shim, renamed": (
        "from rnncells.legacy import ConvLSTM, Dense\na = ConvLSTM(4, (3,))\n",
        "from flax.linen import ConvLSTMCell, Dense\na = ConvLSTMCell(4, (3,))\n",
    ),
}


@pytest.mark.parametrize("old, new", KEPT_NAMES.values(), ids=KEPT_NAMES)
def test_imports_are_renamed_with_all_uses_or_not_at_all(old, new):
    migration = migrate(old.encode())
    assert without_reasons(migration.data.decode()) == (new or old)
    assert migrate(migration.data).data is migration.data
    once = migrate(old.encode(), "rnncells").data
    assert migrate(once, "rnncells").data is once
    ast.parse(once)


def test_renamed_imports_are_split():
    old = "from flax.linen import ConvLSTM, Dense\na = ConvLSTM(4, (3,)), Dense(4)\n"
    new = (
        "from flax.linen import Dense\nfrom rnncells import ConvLSTMCell\n"
        "a = ConvLSTMCell(4, (3,)), Dense(4)\n"
    )
    assert migrate(old.encode(), "rnncells").data.decode() == new


@pytest.mark.parametrize("rules", [{"RC05"}, {"RC09"}, {"RC05", "RC09"}], ids=sorted)
def test_each_rule_alone_keeps_imports_valid(rules):
    """rnncells has no `ConvLSTM`: if the name stays, its module stays."""
    old = "from flax.linen import ConvLSTM, RNN\na = ConvLSTM(4, (3,)), RNN\n"
    new = migrate(old.encode(), "rnncells", rules).data.decode()
    assert ("ConvLSTMCell" in new) == ("RC05" in rules)
    assert ("from rnncells import" in new) == ("RC09" in rules)
    imported = {
        alias.name: node.module
        for node in ast.parse(new).body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    expected = "rnncells" if len(rules) == 2 else "flax.linen"
    cell = "ConvLSTMCell" if "RC05" in rules else "ConvLSTM"
    assert imported[cell] == expected and f"{cell}(4, (3,))" in new
