"""Rewritten arguments: shapes, comments, nested calls and f-strings."""

import ast
import io
import tokenize

import pytest
from programs import without_reasons

from rnncells.migrate.code.program import Program
from rnncells.migrate.code.source import Source
from rnncells.migrate.migration import migrate
from rnncells.migrate.rules.finding import IN_STRING

HEAD = "import flax.linen as nn\n"
# Arguments of `LSTMCell.initialize_carry` before and after.
SHAPES = {
    "a tuple in parentheses": ("key, ((2, 3)), 4", "key, ((2, 3, 4))"),
    "an empty tuple in parentheses": ("key, (()), 4", "key, ((4,))"),
    "a name in parentheses": ("key, (dims), 4", "key, (*(dims), 4)"),
    "a condition in parentheses": ("key, (a or b), 4", "key, (*(a or b), 4)"),
    "a name far from the size": (
        "size=4, rng=key, batch_dims=b",
        "rng=key, input_shape=(*b, 4)",
    ),
    "a call far from the size": (
        "size=4, rng=key, batch_dims=tuple(b)",
        "rng=key, input_shape=(*tuple(b), 4)",
    ),
    "a slice far from the size": (
        "size=4, rng=key, batch_dims=x.shape[:1]",
        "rng=key, input_shape=(*x.shape[:1], 4)",
    ),
    "a name in full-width letters": (
        "size=4, rng=key, ｂatch_dims=b",
        "rng=key, input_shape=(*b, 4)",
    ),
    "a list": ("key, [2], 4", "key, (*[2], 4)"),
    "one number": ("key, 64, 4", "key, (*64, 4)"),
    "a condition far from the size": (
        "size=4, rng=key, batch_dims=a or b",
        "rng=key, input_shape=(*(a or b), 4)",
    ),
    "the size first": (
        "\n    size=4,  # wide\n    rng=key,\n    batch_dims=(2,),\n",
        "\n    # wide\n    rng=key,\n    input_shape=(2, 4),\n",
    ),
    "a comment on the size": (
        "key, batch_dims=(2,), size=(\n# how wide\n4\n)",
        "key, input_shape=(2, 4)\n# how wide\n",
    ),
    "a comment on each argument": (
        "\n    key,  # one\n    (2,),  # rows\n    4,  # wide\n",
        "\n    key,  # one\n    (2, 4),  # rows\n    # wide\n",
    ),
    "a comment after the batch": (
        "size=4, rng=key, batch_dims=(\n2,  # rows\n)",
        "rng=key, input_shape=(\n2, 4,  # rows\n)",
    ),
    "a comment between numbers of the batch": (
        "key, (\n2,  # rows\n3\n), 4",
        "key, (\n2,  # rows\n3, 4)",
    ),
    "a comment in an empty batch": ("key, (\n# b\n), 4", "key, (4,\n# b\n)"),
    "a comment before a name": ("key, (  # b\nb), 4", "key, (*(  # b\nb), 4)"),
    "a comment in an initializer's parentheses": (
        "key, (2,), 4, (  # normal\nnn.initializers.normal(0.1))",
        "key, (2, 4)  # normal\n",
    ),
    "two arguments before the others": (
        "size=4, init_fn=nn.initializers.normal(0.1), rng=key, batch_dims=()",
        "rng=key, input_shape=(4,)",
    ),
    "a line with a backslash": ("key, (2,), \\\n 4", "key, (2, 4)"),
}
IMAGES = {
    "a condition": (
        "key, (2,), (8, 8, 5) if big else (6, 4, 5)",
        "key, (2, *((8, 8, 5) if big else (6, 4, 5)))",
    ),
    "one or another": (
        "key, (2,), size or (6, 4, 5)",
        "key, (2, *(size or (6, 4, 5)))",
    ),
    "a name": ("key, (), size", "key, (*size,)"),
    "a field": ("key, (), self.h", "key, (*self.h,)"),
    "a name in parentheses": ("key, (2,), (size)", "key, (2, *size)"),
    "a tuple": ("key, (2,), (6, 4, 5,)", "key, (2, 6, 4, 5)"),
    "a tuple in parentheses": ("key, b, ((6, 4, 5))", "key, (*b, 6, 4, 5)"),
    "a tuple alone": ("key, (), (6, 4, 5)", "key, (6, 4, 5)"),
    "one axis": ("key, (\n2,  # rows\n), (6,)", "key, (\n2, 6,  # rows\n)"),
    "comments in a tuple": (
        "key, (2,), (\n    # high\n    6,  # rows\n    4, 5,  # wide\n)",
        "key, (2, 6,  # rows\n    4, 5)\n    # high\n      # wide\n",
    ),
}
IMAGE = "cell = nn.ConvLSTMCell(5, (3, 3))\n"


def comments(text):
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return sorted(token.string for token in tokens if token.type == tokenize.COMMENT)


def both_ways(old):
    """Returns the rewrites for Flax and rnncells; a second run changes nothing."""
    found = [migrate((HEAD + old).encode(), to).data for to in ("flax", "rnncells")]
    for data, to in zip(found, ("flax", "rnncells"), strict=True):
        ast.parse(data)
        assert migrate(data, to).data is data
    return [data.decode() for data in found]


@pytest.mark.parametrize("old, new", SHAPES.values(), ids=SHAPES)
def test_all_forms_of_shapes_keep_bytes_and_comments(old, new):
    old = f"carry = nn.LSTMCell.initialize_carry({old})\n"
    made, _ = both_ways(old)
    init = ", carry_init=nn.initializers.normal(0.1)" if "initializers" in old else ""
    cell = f"nn.LSTMCell(4{init}, parent=None)"
    assert made == f"{HEAD}carry = {cell}.initialize_carry({new})\n"
    assert comments(made) == comments(old)


@pytest.mark.parametrize("old, new", IMAGES.values(), ids=IMAGES)
def test_the_size_of_an_image_is_unpacked(old, new):
    made, _ = both_ways(f"{IMAGE}carry = cell.initialize_carry({old})\n")
    assert made == f"{HEAD}{IMAGE}carry = cell.initialize_carry({new})\n"
    assert comments(made) == comments(old)


NESTED = {
    "a carry in the batch of another": (
        "c = nn.GRUCell.initialize_carry(\n"
        "    key, size=4, batch_dims=nn.LSTMCell.initialize_carry(k, (), 4)[0].shape"
        "\n)",
        "c = nn.GRUCell(4, parent=None).initialize_carry(\n"
        "    key, input_shape=(*nn.LSTMCell(4, parent=None).initialize_carry(k, (4,))"
        "[0].shape, 4)\n)",
    ),
    "a class in the batch": (
        "c = nn.LSTMCell.initialize_carry(rng=k, size=4, batch_dims=of(nn.LSTMCell))",
        "c = nn.LSTMCell(4, parent=None).initialize_carry(rng=k, "
        "input_shape=(*of(nn.LSTMCell), 4))",
    ),
    "a class in a size that is taken out": (
        "SIZES = {nn.GRUCell: 5}\nrnn = nn.RNN(nn.GRUCell(), SIZES[nn.GRUCell])",
        "SIZES = {nn.GRUCell: 5}\nrnn = nn.RNN(nn.GRUCell(SIZES[nn.GRUCell]))",
    ),
    "a class in a size that is copied": (
        "SIZES = {nn.GRUCell: 5}\n"
        "h = nn.GRUCell.initialize_carry(k, (2,), SIZES[nn.GRUCell])\n"
        "y = nn.GRUCell()(h, x)",
        "SIZES = {nn.GRUCell: 5}\n"
        "h = nn.GRUCell(SIZES[nn.GRUCell], parent=None)"
        ".initialize_carry(k, (2, SIZES[nn.GRUCell]))\n"
        "y = nn.GRUCell(SIZES[nn.GRUCell])(h, x)",
    ),
}


@pytest.mark.parametrize("old, new", NESTED.values(), ids=NESTED)
def test_nested_calls_are_rewritten_in_all_copies(old, new):
    flax, ours = both_ways(f"{old}\n")
    assert flax == f"{HEAD}{new}\n"
    # This code has only cells and layers.
    assert ours == f"{HEAD}import rnncells\n{new.replace('nn.', 'rnncells.')}\n"


def test_notes_of_moved_imports_have_lines_of_the_old_file():
    old = (
        "c = make().initialize_carry(k, (2,), 4)\n"
        "class C(nn.RNNCellBase):\n    @staticmethod\n"
        "    def initialize_carry(rng, batch_dims, size):\n        return rng\n"
        "a = nn.GRUCell(4)\n"
    )
    notes = migrate((HEAD + old).encode(), "rnncells").notes
    assert [n.line for n in notes if n.rule == "RC09"] == [7]


INNER = "nn.LSTMCell.initialize_carry(k, (), 4)"
KEPT = {
    "an initializer with a call": (
        "c = nn.GRUCell.initialize_carry(k, (), 4, nn.initializers.normal(f()))",
        "RC02",
    ),
    "an initializer with an old form": (
        f"c = nn.GRUCell.initialize_carry(k, (), 4, nn.initializers.normal({INNER}))",
        "RC02",
    ),
    "a tuple for one number": ("c = nn.GRUCell.initialize_carry(k, (), (4,))", "RC02"),
    "the size of an image, with a call": (
        "rnn = nn.RNN(nn.ConvLSTMCell(4, (3,)), size())",
        "RC04",
    ),
    "the size of an image, with a comment": (
        "rnn = nn.RNN(nn.ConvLSTMCell(4, (3,)), (8,  # wide\n  4))",
        "RC04",
    ),
}


@pytest.mark.parametrize("old, rule", KEPT.values(), ids=KEPT)
def test_arguments_that_cannot_move_are_marked(old, rule):
    made, _ = both_ways(old)
    new = old.replace(
        INNER,
        INNER.replace("(k, (", "(k, (4,").replace(
            "nn.LSTMCell.", "nn.LSTMCell(4, parent=None)."
        ),
    )
    new = new.replace("4,), 4)", "4,))")
    assert without_reasons(made) == f"{HEAD}# TODO(rnncells): {rule}\n{new}"


def test_initializers_may_contain_pure_calls():
    import_ = "import jax.numpy as jnp\n"
    init = "nn.initializers.uniform(1 / jnp.sqrt(max(n, 1)))"
    made, _ = both_ways(f"{import_}c = nn.GRUCell.initialize_carry(k, (), 4, {init})")
    assert made == (
        f"{HEAD}{import_}"
        f"c = nn.GRUCell(4, carry_init={init}, parent=None).initialize_carry(k, (4,))"
    )


F_STRINGS = {
    "a carry": ('f"{nn.GRUCell.initialize_carry(k, (2,), n)}"', "RC02"),
    "a carry of an instance": (
        'f"{nn.GRUCell(4).initialize_carry(k, (2,), 4)}"',
        "RC03",
    ),
    "a cell": ('f"{nn.GRUCell()(h, x)}"', "RC01"),
    "a cell with arguments": ('f"{nn.GRUCell(name=str(1))(h, x)}"', "RC01"),
    "a cell with its carry": (
        'f"{nn.GRUCell()(nn.GRUCell.initialize_carry(k, (2,), n), x)}"',
        "RC01 RC02",
    ),
    "a size with quotes": (
        "f\"{nn.GRUCell.initialize_carry(k, (2,), cfg['h'])}\"",
        "RC02",
    ),
    "a layer": ('f"{nn.RNN(nn.LSTMCell(), 4)(x)}"', "RC01 RC04"),
    "a format": (
        'f"é {nn.GRUCell.initialize_carry(k, (2,), n)!r:>{w}}"',
        "RC02",
    ),
    "several lines": (
        '(f"a"\n  f"{nn.GRUCell.initialize_carry(k, (2,), n)}")',
        "RC02",
    ),
    "three quotes": (
        'f"""\n{nn.GRUCell.initialize_carry(k, (2,), n)}\n"""',
        "RC02",
    ),
    "a format of a format": ("f\"{x:{f'{nn.GRUCell()(h, x)}'}}\"", "RC01"),
    "a convolution": ('lambda: f"{nn.ConvLSTM(4, (3,), name=1)}"', "RC05"),
}


@pytest.mark.parametrize("end", ["", "\n", "\ny = foo((1, 2), [3], bar(4))\n"])
@pytest.mark.parametrize("old, rules", F_STRINGS.values(), ids=F_STRINGS)
def test_old_forms_in_f_strings_are_marked_and_stay(old, rules, end):
    """This holds on all Pythons; before 3.12, positions in f-strings are wrong."""
    line = f"text = {old}{end}"
    marks = [f"# TODO(rnncells): {rule}: {IN_STRING}\n" for rule in rules.split()]
    made, ours = both_ways(line)
    assert made == f"{HEAD}{''.join(marks)}{line}"
    assert ours.endswith(line)


def test_text_of_an_f_string_is_not_copied():
    """The quotes may differ, and before Python 3.12 the position is wrong."""
    cell = "cfg = {'h': 4}\ncell = nn.GRUCell()\n"
    use = "text = f\"{cell.initialize_carry(k, (2,), cfg['h'])}\"\n"
    made, _ = both_ways(cell + use)
    assert made.endswith(use) and "\ncell = nn.GRUCell()\n" in made
    assert made.count("TODO(rnncells)") == 2


@pytest.mark.parametrize(
    "line, name",
    [
        ("from flax.linen import ConvLSTM", "ConvLSTM"),
        ("from flax.linen import ConvLSTM", "isinstance(cell, ConvLSTM)"),
        ("import rnncells.legacy", "rnncells.legacy.LSTMCell"),
        ("from rnncells.legacy import LSTMCell", "LSTMCell"),
        ("import rnncells.legacy as nn", "nn.LSTMCell"),
    ],
)
@pytest.mark.parametrize("to", ["flax", "rnncells"])
def test_names_in_f_strings_stay_bound(line, name, to):
    """An import changes together with all of its uses, or keeps its name."""
    use = f"made = lambda: f'{{{name}}}'\n"
    made = migrate(f"{line}\n{use}".encode(), to).data
    assert migrate(made, to).data is made
    assert made.decode().endswith(use)
    program = Program(Source(made))
    name = name.removeprefix("isinstance(cell, ").removesuffix(")")
    (found,) = (
        node
        for node in program.source.nodes
        if isinstance(node, ast.Name | ast.Attribute) and ast.unparse(node) == name
    )
    assert program.names.qualified(found).endswith(name.rpartition(".")[2])


def test_an_import_is_added_for_a_use_outside_f_strings():
    made = migrate(
        (HEAD + 'a = f"{nn.GRUCell(4)}"\nb = nn.GRUCell(4)').encode(), "rnncells"
    )
    text = made.data.decode()
    assert 'f"{nn.GRUCell(4)}"' in text and "import rnncells\n" in text
    assert text.endswith("b = rnncells.GRUCell(4)")
