"""Users' own cells: rewritten with equal results, or marked."""

import pytest
from programs import CALL, HEAD, assert_same, run, with_imports_of

from rnncells.migrate.migration import migrate
from rnncells.migrate.rules.finding import RULES

END = """

key = jax.random.PRNGKey(0)


def run():
    x = jnp.sin(jnp.arange(30.0)).reshape(2, 5, 3)
    carry = Own.initialize_carry(key, (2,), 4)
    one = Own().init_with_output(key, carry, x[:, 0])
    return nn.RNN(Own(), 4).init_with_output(key, x), one
"""
STATIC = "    @staticmethod\n    def initialize_carry(rng, batch_dims, size):\n"
OF_TUPLE = STATIC.replace("dims", "dims: tuple")
BODY = "        return jnp.ones(batch_dims + (size,))\n"
NEW = "    @nn.nowrap\n    def initialize_carry(self, rng, input_shape):\n"
SET = "        batch_dims, size = input_shape[:-1], self.features\n"
AXES = "\n    @property\n    def num_feature_axes(self):\n        return 1\n"
FIELD = "    features: int = None\n"
# A class without `__call__`, and its rewrite.
REWRITTEN = {
    "no fields, and comments": (
        f"class Own(nn.RNNCellBase):  # a\n    # of it\n{STATIC}{BODY}\n",
        f"class Own(nn.RNNCellBase):  # a\n{FIELD}\n    # of it\n{NEW}{SET}{BODY}"
        f"{AXES}\n",
    ),
    "a docstring": (
        f"class Own(nn.RNNCellBase):\n    '''Own.\n\n    # one\n    '''\n\n"
        f"    # of it\n{STATIC}        '''A carry.'''\n        # ones\n{BODY}\n",
        f"class Own(nn.RNNCellBase):\n    '''Own.\n\n    # one\n    '''\n\n{FIELD}\n"
        f"    # of it\n{NEW}        '''A carry.'''\n        # ones\n{SET}{BODY}{AXES}"
        "\n",
    ),
    "fields on one line": (
        f"class Own(nn.RNNCellBase):\n    a: int = 1; b = 2  # both\n{STATIC}{BODY}\n",
        f"class Own(nn.RNNCellBase):\n    a: int = 1; b = 2  # both\n{FIELD}{NEW}{SET}"
        f"{BODY}{AXES}\n",
    ),
    "a field over two lines": (
        f"class Own(nn.RNNCellBase):\n    a: int = 1; \\\n    b = 2\n{STATIC}{BODY}\n",
        f"class Own(nn.RNNCellBase):\n    a: int = 1; \\\n    b = 2\n{FIELD}{NEW}{SET}"
        f"{BODY}{AXES}\n",
    ),
    "one line": (
        f"class Own(nn.RNNCellBase):\n    a: int = 1\n{STATIC[:-1]} {BODY[8:]}\n",
        f"class Own(nn.RNNCellBase):\n    a: int = 1\n{FIELD}{NEW[:-1]} {SET[8:-1]}; "
        f"{BODY[8:]}{AXES}\n",
    ),
    "one line and a docstring": (
        f"class Own(nn.RNNCellBase):\n    a: int = 1\n{STATIC[:-1]} 'a'; {BODY[8:]}\n",
        f"class Own(nn.RNNCellBase):\n    a: int = 1\n{FIELD}{NEW[:-1]} 'a'; "
        f"{SET[8:-1]}; {BODY[8:]}{AXES}\n",
    ),
    "a comment after its last line": (
        f"class Own(nn.RNNCellBase):\n    a: int = 1\n{STATIC}{BODY[:-1]}  # ones\n\n",
        f"class Own(nn.RNNCellBase):\n    a: int = 1\n{FIELD}{NEW}{SET}{BODY[:-1]}"
        f"  # ones\n{AXES}\n",
    ),
    "annotations, and an initializer over lines": (
        "class Own(nn.RNNCellBase):\n    a: int = 1\n    @staticmethod\n"
        "    def initialize_carry(\n        rng: jax.Array,\n"
        "        batch_dims: tuple,\n"
        "        size: int,\n        init=nn.initializers.ones,\n    ) -> tuple:\n"
        "        return init(rng, batch_dims + (size,))\n\n",
        f"class Own(nn.RNNCellBase):\n    a: int = 1\n{FIELD}"
        "    carry_init: object = nn.initializers.ones\n    @nn.nowrap\n"
        "    def initialize_carry(\n        self, rng: jax.Array, input_shape,\n"
        "    ) -> tuple:\n        batch_dims, size = input_shape[:-1], self.features\n"
        "        init = self.carry_init\n"
        f"        return init(rng, batch_dims + (size,))\n{AXES}\n",
    ),
    "an initializer in parentheses": (
        "class Own(nn.RNNCellBase):\n    a: int = 1\n    @staticmethod\n"
        "    def initialize_carry(r, batch_dims, size, init=(nn\n"
        " .initializers.ones)):\n"
        "        return init(r, batch_dims + (size,))\n\n",
        f"class Own(nn.RNNCellBase):\n    a: int = 1\n{FIELD}"
        "    carry_init: object = ((nn\n .initializers.ones))\n    @nn.nowrap\n"
        "    def initialize_carry(self, r, input_shape):\n"
        "        batch_dims, size = input_shape[:-1], self.features\n"
        "        init = self.carry_init\n"
        f"        return init(r, batch_dims + (size,))\n{AXES}\n",
    ),
    "a first statement with a decorator": (
        f"class Own(nn.RNNCellBase):\n    a: int = 1\n{STATIC}        @jax.jit\n"
        "        def make():\n            return jnp.ones((*batch_dims, size))\n"
        "        return make()\n\n",
        f"class Own(nn.RNNCellBase):\n    a: int = 1\n{FIELD}{NEW}{SET}"
        "        @jax.jit\n        def make():\n"
        "            return jnp.ones((*batch_dims, size))\n        return make()\n"
        f"{AXES}\n",
    ),
    "the carry of a cell of Flax": (
        f"class Own(nn.RNNCellBase):\n    a: int = 1\n{STATIC}"
        "        return nn.GRUCell.initialize_carry(rng, batch_dims, size)\n\n",
        f"class Own(nn.RNNCellBase):\n    a: int = 1\n{FIELD}{NEW}{SET}"
        "        return nn.GRUCell(size, parent=None).initialize_carry("
        f"rng, (*batch_dims, size))\n{AXES}\n",
    ),
    "its own `num_feature_axes`": (
        "class Own(nn.RNNCellBase):\n    a: int = 1\n    num_feature_axes = 1\n"
        f"{STATIC}{BODY}\n",
        f"class Own(nn.RNNCellBase):\n    a: int = 1\n{FIELD}    num_feature_axes = 1\n"
        f"{NEW}{SET}{BODY}\n",
    ),
}
REWRITTEN["a base by its name"] = tuple(
    f"from flax.linen import RNNCellBase\n\n\n{text.replace('(nn.RNN', '(RNN')}"
    for text in REWRITTEN["a docstring"]
)
REWRITTEN["a base of an inner module"] = tuple(
    text.replace("nn.RNN", "nn.recurrent.RNN") for text in REWRITTEN["a docstring"]
)
REWRITTEN["tabs"] = tuple(
    text.replace("    ", "\t") for text in REWRITTEN["no fields, and comments"]
)
PLAIN = REWRITTEN["no fields, and comments"][0]


def program(text, end=END):
    call = CALL.replace("    ", "\t") if "\t" in text else CALL
    return f"{HEAD}{text}{call}{end}"


@pytest.mark.parametrize("to", ["flax", "rnncells"])
@pytest.mark.parametrize("old, new", REWRITTEN.values(), ids=REWRITTEN)
def test_own_cells_give_the_same_results(old, new, to):
    migration = migrate(program(old).encode(), to)
    text = migration.data.decode()
    assert not [note for note in migration.notes if note.why]
    assert to == "rnncells" or text.startswith(program(new, ""))
    assert migrate(migration.data, to).data is migration.data
    expected = run("old", with_imports_of("old_linen", program(old)))
    assert_same(run("new", text), expected)
    in_windows = program(old).replace("\n", "\r\n").encode()
    assert migrate(in_windows, to).data.decode() == text.replace("\n", "\r\n")


LIFTED = """

key = jax.random.PRNGKey(0)
share = dict(variable_broadcast="params", split_rngs={"params": False})
Lifted = nn.scan(Own, **share, in_axes=1, out_axes=1)


def run():
    x = jnp.sin(jnp.arange(30.0)).reshape(2, 5, 3)
    carry = Lifted.initialize_carry(key, (2,), 4)
    return Lifted().init_with_output(key, carry, x)
"""


@pytest.mark.parametrize("to", ["flax", "rnncells"])
@pytest.mark.parametrize(
    "end", [LIFTED, END.replace("Own", "Of")], ids=["lifted", "derived"]
)
def test_lifted_and_derived_own_cells_give_the_same_results(end, to):
    derived = "\n\nclass Of(Own):\n    def more(self):\n        return 1\n"
    old = program(PLAIN, derived + end)
    migration = migrate(old.encode(), to)
    assert not [note for note in migration.notes if note.why]
    assert migrate(migration.data, to).data is migration.data
    expected = run("old", with_imports_of("old_linen", old))
    assert_same(run("new", migration.data.decode()), expected)


@pytest.mark.parametrize(
    "old, new",
    [
        (
            f"{STATIC}{BODY}    a: int = 1",
            f"{NEW}{SET}{BODY}{AXES}    a: int = 1\n{FIELD}",
        ),
        (
            f"    a: int = 1\n{STATIC}{BODY}",
            f"    a: int = 1\n{FIELD}{NEW}{SET}{BODY}{AXES}",
        ),
        (
            f"    a: int = 1\n{OF_TUPLE}        '''None.'''",
            f"    a: int = 1\n{FIELD}{NEW}        '''None.'''\n{AXES}",
        ),
        (
            f"    a: int = 1\n{OF_TUPLE[:-1]} '''None.'''",
            f"    a: int = 1\n{FIELD}{NEW[:-1]} '''None.'''\n{AXES}",
        ),
    ],
    ids=["field", "return", "docstring", "docstring on one line"],
)
def test_a_file_may_end_inside_an_own_cell(old, new):
    """The file needs no final newline, and gets none."""
    head = f"{HEAD}class Own(nn.RNNCellBase):\n"
    once = migrate(f"{head}{old}".rstrip().encode()).data
    assert once.decode() == f"{head}{new}".rstrip()
    assert migrate(once).data is once


IMAGE = (
    "`size` may be the shape of an image: rewrite `initialize_carry` by hand, and "
    "define `num_feature_axes`"
)
ITSELF = "the class calls it, on an instance of any size: rewrite it by hand"
SIGNATURE = (
    "it is not a plain `@staticmethod` (rng, batch_dims, size, init_fn): rewrite it"
)
BASES = (
    "the other bases of the class may have fields of the same names: rewrite it by hand"
)
MORE = "`Of` is derived from it and has more fields or methods: rewrite both"
OWN = f"class Own(nn.RNNCellBase):\n{STATIC}{BODY}"


def with_body(*lines):
    body = "".join(f"        {line}\n" for line in lines)
    return f"class Own(nn.RNNCellBase):\n{STATIC}{body}"


def with_arguments(text):
    return OWN.replace("rng, batch_dims, size", text)


MARKED = {
    "an image, by stars": (with_body("return f((*batch_dims, *size))"), IMAGE),
    "an image, by a sum": (with_body("return f(batch_dims + size)"), IMAGE),
    "an image, by its parts": (with_body("h, w = size", "return h"), IMAGE),
    "an image, by an index": (with_body("return (*batch_dims, size[0])"), IMAGE),
    "an image or a number, unknown": (
        with_body("return f(rng, batch_dims, size)"),
        IMAGE,
    ),
    "an image, of a cell of Flax": (
        with_body("return nn.ConvLSTMCell.initialize_carry(rng, batch_dims, size)"),
        IMAGE,
    ),
    "an image, by its axes": (f"{OWN}    num_feature_axes: int = 3\n", IMAGE),
    "axes by a method": (
        f"{OWN}    @property\n    def num_feature_dims(self):\n        return 3\n",
        IMAGE,
    ),
    "a call of itself": (
        f"{OWN}    def f(self):\n        return self.initialize_carry(key, (2,), 4)\n",
        ITSELF,
    ),
    "a call of itself through the class": (
        f"{OWN}    @classmethod\n    def f(cls):\n"
        "        return cls.initialize_carry(key, (2,), 4)\n",
        ITSELF,
    ),
    "a call of itself through `type(self)`": (
        f"{OWN}    def f(self):\n        return type(self).initialize_carry\n",
        ITSELF,
    ),
    "a field `features`": (
        f"class Own(nn.RNNCellBase):\n    features: int\n{STATIC}{BODY}"
        "\n\nmade = nn.Dense(Own(8).features)\n",
        "the class has its own `features`: rewrite it by hand",
    ),
    "a property `features`": (
        f"{OWN}    @property\n    def features(self):\n        return 1\n",
        "the class has its own `features`: rewrite it by hand",
    ),
    "its own constructor": (
        f"{OWN}    def __init__(self):\n        pass\n",
        "the class has its own `__init__`: rewrite it by hand",
    ),
    "fields after its own": (
        f"{OWN}\n\nclass Of(Own):\n    rate: float\n\n\nmade = Of(0.5)\n",
        MORE,
    ),
    "another call after its own": (f"{OWN}\n\nclass Of(Own):\n{CALL}", MORE),
    "another carry after its own": (
        f"{OWN}\n\nclass Of(Own):\n{STATIC}        return 0\n",
        MORE,
    ),
    "methods in a class derived from a derived class": (
        f"{OWN}\n\nclass A(Own):\n    pass\n\n\nB = A\n\n\nclass Of(B):\n    a: int\n",
        MORE,
    ),
    "other bases": (OWN.replace("Base)", "Base, Mixin)"), BASES),
    "a base of the file": (
        "class Base(nn.RNNCellBase):\n    rate: float = 0.5\n\n\n"
        + OWN.replace("nn.RNNCellBase", "Base"),
        BASES,
    ),
    "a base with features": (OWN.replace("RNNCellBase", "GRUCell"), BASES),
    "other decorators": (
        OWN.replace("    @static", "    @nn.nowrap\n    @static"),
        SIGNATURE,
    ),
    "other decorators below": (
        OWN.replace("method\n", "method\n    @jax.jit\n"),
        SIGNATURE,
    ),
    "a class method": (
        OWN.replace("staticmethod", "classmethod").replace("(rng", "(cls, rng"),
        SIGNATURE,
    ),
    "keyword-only arguments": (with_arguments("rng, batch_dims, *, size"), SIGNATURE),
    "a default size": (with_arguments("rng, batch_dims, size=4"), SIGNATURE),
    "comments between arguments": (
        with_arguments("\n  rng,  # key\n  batch_dims, size"),
        "comments stand between its arguments: move them",
    ),
    "a comment after the last argument": (
        with_arguments("rng, batch_dims, size, init=(\n  nn.ones  # of it\n)"),
        "comments stand between its arguments: move them",
    ),
    "a default of the class": (
        with_arguments("rng, batch_dims, size, init=INIT").replace(
            "    @", "    INIT = nn.ones\n    @", 1
        ),
        "the default of `init_fn` is a name of the class: move that out",
    ),
    "another `input_shape`": (
        with_body("return input_shape, batch_dims + (size,)"),
        "`self` or `input_shape` is another name in it: rename that",
    ),
    "an argument `self`": (
        with_arguments("self, batch_dims, size"),
        "`self` or `input_shape` is another name in it: rename that",
    ),
    "an instance's method": (
        OWN.replace("    @staticmethod\n", "").replace("(rng", "(self, rng"),
        SIGNATURE,
    ),
    "a carry of its lifted class": (
        OWN.replace("    @", "    a: int\n    @", 1)
        + "\n\nLifted = nn.scan(Own)\ncarry = Lifted.initialize_carry(key, (2,), 4)\n",
        "its lifted class creates a carry, with required fields unknown: rewrite it",
    ),
}


@pytest.mark.parametrize("to", ["flax", "rnncells"])
@pytest.mark.parametrize("old, why", MARKED.values(), ids=MARKED)
def test_marked_own_cells_stay(old, why, to):
    migration = migrate(f"{HEAD}{old}".encode(), to)
    marked = [note.why for note in migration.notes if note.rule == "RC06"]
    # A derived class may have its own mark.
    assert marked[:1] == [why]
    lines = migration.data.decode().splitlines(keepends=True)
    kept = "".join(line for line in lines if "TODO(rnncells)" not in line)
    assert to == "rnncells" or kept == f"{HEAD}{old}"
    assert migrate(migration.data, to).data is migration.data


def test_a_skipped_own_cell_stays_with_its_calls():
    old = OWN.replace("size):", "size):  # rnncells: skip")
    old = f"{HEAD}{old}\n\nrnn = nn.RNN(Own(), 4)  # rnncells: skip\n"
    assert migrate(old.encode()).data == old.encode()


def test_own_cells_get_features_only_with_rc06():
    made = "\n\nrnn = nn.RNN(Own(), 4)\nc = Own.initialize_carry(k, (2,), 4)\n"
    old = f"{HEAD}{OWN}{made}".encode()
    new = migrate(old).data
    assert b"Own(features=4))" in new and b"Own(features=4, parent" in new
    rules = [rule for rule in RULES if rule != "RC06"]
    kept = migrate(old, rules=rules).data.decode().splitlines(keepends=True)
    assert "".join(line for line in kept if "TODO(" not in line).encode() == old
