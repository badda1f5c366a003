"""Names bound by unpacking, `global`, `nonlocal` and `import *`."""

import pytest
from programs import MARK, assert_same, run, with_imports_of, without_reasons

from rnncells.migrate.migration import migrate

HEAD = "import flax.linen as nn\n"
LOAD = "def load():\n    global nn\n    import flax.linen as nn\n\n\nload()\n"
OF_OTHER = "# TODO(rnncells): RC09\n"
NO_WIDTH = "# TODO(rnncells): RC01\n"
STAR = "# TODO(rnncells): RC09\n"
SHIM = LOAD.replace("global nn", "global rnncells").replace(
    "flax.linen as nn", "rnncells.legacy"
)
CONV = LOAD.replace("import flax.linen as nn", "from flax.linen import ConvLSTM")
CONV = CONV.replace("global nn", "global ConvLSTM")
NEW_CONV = CONV.replace("import ConvLSTM", "import ConvLSTMCell as ConvLSTM")
MADE_CONV = "cell = ConvLSTM(4, (3,))\n"
OLDEST = (
    "try:\n    import flax.linen as nn\nexcept ImportError:\n    from flax import nn\n"
)
DEPRECATED = OLDEST.replace("flax import", "flax.deprecated import")
# Code after `import flax.linen as nn`, and its rewrite; "" if it stays.
UNPACKED = {
    "a tuple": (
        "A, B = nn.LSTMCell, nn.GRUCell\nh = B.initialize_carry(k, (2,), 4)\na = A()\n",
        "A, B = nn.LSTMCell, nn.GRUCell\n"
        f"h = B(4, parent=None).initialize_carry(k, (2, 4))\n{NO_WIDTH}a = A()\n",
    ),
    "a tuple in a list": (
        "[A, (B, *C)] = (nn.LSTMCell, (nn.GRUCell, 1))\na = A()\nb = B()\n",
        f"[A, (B, *C)] = (nn.LSTMCell, (nn.GRUCell, 1))\n{NO_WIDTH}a = A()\nb = B()\n",
    ),
    "tuples of other lengths": (
        "A, B = nn.LSTMCell, *C\na = A()\nD, E = (nn.GRUCell,)\nd = D()\n",
        "",
    ),
}
# Names of a class that are assigned an expression of themselves; only marks are added.
CIRCLES = {
    "a transform": "lift = partial(lift)\n    L = lift(nn.GRUCell)\n    cell = L()",
    "a builtin": "print = partial(print)\n    L = print(nn.GRUCell)\n    cell = L()",
    "a class": "C = nn.scan(C)\n    cell = C()",
    "two classes": "A = B\n    B = A\n    cell = A()\n    layer = nn.RNN(A, B)",
    "a gate function": "act = act if act else nn.relu\n    cell = nn.LSTMCell(act)",
    "gate functions": "acts = [acts[0], nn.relu]\n    cell = nn.LSTMCell(acts[0])",
    "a size": "n = n if n else 4\n    layer = nn.RNN(cell, n)",
}
# A file, its rewrites with `--to flax` and `--to rnncells`; "" if it stays.
CASES = {
    "a module that a function imports as a global": (
        f"{LOAD}cell = nn.GRUCell()\n\n\ndef f():\n    return nn.LSTMCell(4)\n",
        f"{LOAD}{NO_WIDTH}cell = nn.GRUCell()\n\n\ndef f():\n"
        "    return nn.LSTMCell(4)\n",
        f"{LOAD}{NO_WIDTH}{OF_OTHER}cell = nn.GRUCell()\n\n\ndef f():\n"
        "    return nn.LSTMCell(4)\n",
    ),
    "a module that is None at first": (
        f"nn = None\n{LOAD}h = nn.GRUCell.initialize_carry(k, (2,), 4)\n",
        f"nn = None\n{LOAD}h = nn.GRUCell(4, parent=None)"
        ".initialize_carry(k, (2, 4))\n",
        f"nn = None\n{LOAD}{OF_OTHER}h = nn.GRUCell(4, parent=None)"
        ".initialize_carry(k, (2, 4))\n",
    ),
    "a module for the function around": (
        "def f():\n    nn = None\n    def load():\n        nonlocal nn\n"
        "        import flax.linen as nn\n    load()\n    return nn.GRUCell()\n",
        "def f():\n    nn = None\n    def load():\n        nonlocal nn\n"
        f"        import flax.linen as nn\n    load()\n    {NO_WIDTH}"
        "    return nn.GRUCell()\n",
        "def f():\n    nn = None\n    def load():\n        nonlocal nn\n"
        f"        import flax.linen as nn\n    load()\n    {NO_WIDTH}    {OF_OTHER}"
        "    return nn.GRUCell()\n",
    ),
    "a name of the file within a function with another": (
        f"{HEAD}def f(nn):\n    def g():\n        global nn\n"
        "        return nn.GRUCell()\n    return nn.GRUCell()\n",
        f"{HEAD}def f(nn):\n    def g():\n        global nn\n        {NO_WIDTH}"
        "        return nn.GRUCell()\n    return nn.GRUCell()\n",
        f"{HEAD}import rnncells\ndef f(nn):\n    def g():\n        global nn\n"
        f"        {NO_WIDTH}        return rnncells.GRUCell()\n"
        "    return nn.GRUCell()\n",
    ),
    "the shim that a function imports as a global": (
        f"{SHIM}cell = rnncells.legacy.GRUCell(4)\n",
        *2
        * (
            f"{SHIM}cell = rnncells.legacy.GRUCell(4)\n".replace(
                "    import", f"    {OF_OTHER}    import"
            ),
        ),
    ),
    "an old name that a function imports as a global": (
        f"{CONV}{MADE_CONV}",
        f"{NEW_CONV}{MADE_CONV}",
        f"{NEW_CONV}{MADE_CONV}".replace("flax.linen", "rnncells"),
    ),
    "a class that a function sets as a global": (
        f"{HEAD}def f():\n    global C\n    C = nn.GRUCell\n\n\nf()\ncell = C()\n",
        f"{HEAD}def f():\n    global C\n    C = nn.GRUCell\n\n\nf()\n{NO_WIDTH}"
        "cell = C()\n",
        f"{HEAD}import rnncells\ndef f():\n    global C\n    C = rnncells.GRUCell\n\n\n"
        f"f()\n{NO_WIDTH}cell = C()\n",
    ),
    "a module that replaces an older one": (
        f"{OLDEST}y = nn.GRUCell()(h, x)\n"
        "c = nn.GRUCell.initialize_carry(k, (2,), 4)\n",
        f"{OLDEST}y = nn.GRUCell(h.shape[-1])(h, x)\n"
        "c = nn.GRUCell(4, parent=None).initialize_carry(k, (2, 4))\n",
        OLDEST.replace(" nn\n", " nn\n    import rnncells\n")
        + "y = rnncells.GRUCell(h.shape[-1])(h, x)\n"
        "c = rnncells.GRUCell(4, parent=None).initialize_carry(k, (2, 4))\n",
    ),
    "a module that replaces a deprecated one": (
        f"{DEPRECATED}y = nn.GRUCell()(h, x)\n",
        f"{DEPRECATED}y = nn.GRUCell(h.shape[-1])(h, x)\n",
        DEPRECATED.replace(" nn\n", " nn\n    import rnncells\n")
        + "y = rnncells.GRUCell(h.shape[-1])(h, x)\n",
    ),
    "a class that replaces an older one": (
        "try:\n    from flax.linen import GRUCell\nexcept ImportError:\n"
        "    from flax.nn import GRUCell\ncell = GRUCell()\n",
        "try:\n    from flax.linen import GRUCell\nexcept ImportError:\n"
        f"    from flax.nn import GRUCell\n{NO_WIDTH}cell = GRUCell()\n",
        "try:\n    from rnncells import GRUCell\nexcept ImportError:\n"
        f"    from flax.nn import GRUCell\n{NO_WIDTH}cell = GRUCell()\n",
    ),
    "a module of another library": (
        f"{OLDEST.replace('flax import', 'torch import')}cell = nn.GRUCell()\n",
        *2 * ("",),
    ),
    "old code by `import *`": (
        "from flax.linen import *\ncell = GRUCell()\n",
        *2 * (f"{STAR}from flax.linen import *\ncell = GRUCell()\n",),
    ),
    "an old carry by `import *`": (
        "from flax.linen import *\nh = GRUCell.initialize_carry(k, (2,), 4)\n",
        *2
        * (
            f"{STAR}from flax.linen import *\n"
            "# TODO(rnncells): RC03\nh = GRUCell.initialize_carry(k, (2,), 4)\n",
        ),
    ),
    "new code by `import *`": (
        "from flax.linen import*\nrnn = RNN(GRUCell(features=4))\n",
        "",
        f"{STAR}from flax.linen import*\nrnn = RNN(GRUCell(features=4))\n",
    ),
    "new code by `import *`, beside old code": (
        f"from flax.linen import *\n{HEAD}a = nn.GRUCell()\nb = GRUCell(4)\n",
        f"from flax.linen import *\n{HEAD}{NO_WIDTH}a = nn.GRUCell()\nb = GRUCell(4)\n",
        f"{STAR}from flax.linen import *\n{HEAD}import rnncells\n"
        f"{NO_WIDTH}a = rnncells.GRUCell()\nb = GRUCell(4)\n",
    ),
    "`import *` of two modules": (
        "from flax.linen import *\nfrom rnncells.legacy import *\ncell = GRUCell(4)\n",
        *2
        * (
            f"{STAR}from flax.linen import *\nfrom rnncells.legacy import *\n"
            "cell = GRUCell(4)\n",
        ),
    ),
}


@pytest.mark.parametrize("old, new", UNPACKED.values(), ids=UNPACKED)
def test_names_bound_by_unpacking_have_the_matching_value(old, new):
    once = migrate((HEAD + old).encode())
    assert without_reasons(once.data.decode()) == HEAD + (new or old)
    assert migrate(once.data).data is once.data


@pytest.mark.parametrize("to", ["flax", "rnncells"])
@pytest.mark.parametrize("old, flax, here", CASES.values(), ids=CASES)
def test_names_of_other_scopes_are_resolved_or_marked(old, flax, here, to):
    migration = migrate(old.encode(), to)
    assert without_reasons(migration.data.decode()) == (
        (flax if to == "flax" else here) or old
    )
    assert migrate(migration.data, to).data is migration.data


@pytest.mark.parametrize("body", CIRCLES.values(), ids=CIRCLES)
def test_self_assigned_names_do_not_recurse_forever(body):
    """In a class body, `x = f(x)` reads the module's `x`; the codemod does not."""
    head = f"{HEAD}from functools import partial\n"
    old = f"{head}from flax.linen import scan as lift\n\n\nclass Model:\n    {body}\n"
    new = migrate(old.encode()).data.decode()
    code = "".join(line for line in new.splitlines(True) if MARK not in line)
    assert code == old
    assert migrate(new.encode()).data == new.encode()


@pytest.mark.parametrize("kind", ["global", "nonlocal"])
def test_sizes_that_another_function_changes_are_not_moved(kind):
    """The cell is constructed before the size changes."""
    lines = ["n = 4", "def grow():", f"    {kind} n", "    n += 1"]
    made = "cell = nn.GRUCell()\n    grow()\n    h = nn.GRUCell.initialize_carry"
    body = f"{made}(k, (2,), n)\n    return cell(h, x)\n"
    indent = "    " if kind == "nonlocal" else ""
    head = "".join(f"{indent}{line}\n" for line in lines)
    parts = ["def f():\n", head] if kind == "nonlocal" else [head, "def f():\n"]
    new = migrate(f"{HEAD}{''.join(parts)}    {body}".encode()).data.decode()
    assert f"    {NO_WIDTH}    cell = nn.GRUCell()\n" in without_reasons(new)
    assert "GRUCell(n, parent=None).initialize_carry(k, (2, n))" in new


@pytest.mark.parametrize("to", ["flax", "rnncells"])
def test_programs_with_unpacked_classes_give_the_same_results(to):
    old = (
        f"{HEAD}import jax\n\nkey = jax.random.PRNGKey(0)\n"
        "A, B = nn.LSTMCell, nn.GRUCell\n\n\ndef run():\n"
        "    h = B.initialize_carry(key, (2,), 4)\n"
        "    return B().init_with_output(key, h, h)\n"
    )
    new = migrate(old.encode(), to).data.decode()
    assert_same(run("new", new), run("old", with_imports_of("old_linen", old)))
