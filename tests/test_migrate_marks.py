"""Marks: their texts, where they stand, and the line numbers in the summary."""

import ast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import MARK, PROGRAMS
from test_migrate import CASES, HEAD

from rnncells.migrate.code.source import Edit, Source, apply, lines_after
from rnncells.migrate.migration import migrate

# Code, and the text of its one mark: what was seen, and what to write.
TEXTS = {
    "cell = nn.LSTMCell()": (
        "RC01: no carry of this cell is created or used here: write "
        "`LSTMCell(features=...)` with the width of its carry"
    ),
    "nn.LSTMCell.initialize_carry(key, (2,), size=256)\n"
    "cell = nn.LSTMCell()\ny = cell(encode(x), x)": (
        "RC01: the size `256` is given, but the carry comes from `encode(x)`: write "
        "`LSTMCell(features=...)` with the width of its carry"
    ),
    "cell = nn.GRUCell()\ny = cell(encode(x), x)": (
        "RC01: the carry comes from `encode(x)`: write `GRUCell(features=...)` with "
        "the width of its carry"
    ),
    "nn.GRUCell.initialize_carry(key, (2,), n)\nf(nn.GRUCell())": (
        "RC01: the size `n` is given, but perhaps for another cell: write "
        "`GRUCell(features=...)` with the width of its carry"
    ),
    "nn.GRUCell.initialize_carry(key, (2,), n)\n"
    "nn.GRUCell.initialize_carry(key, (2,), 8)\nf(nn.GRUCell())": (
        "RC01: the sizes `n` and `8` are given, but perhaps for another cell: write "
        "`GRUCell(features=...)` with the width of its carry"
    ),
    "nn.GRUCell.initialize_carry(key, (2,), n)\n"
    "f(nn.GRUCell(nn.sigmoid if a else nn.tanh))": (
        "RC01: the size `n` is given, but perhaps for another cell: write "
        "`GRUCell(features=...)` with the width of its carry; pass the function by "
        "keyword (`gate_fn=...`)"
    ),
    "y = nn.LSTMCell(nn.hard_sigmoid)(encode(x), x)": (
        "RC01: the carry is `encode(x)`: assign it to a variable first, and write "
        "`LSTMCell(carry[1].shape[-1])`; pass the function by keyword "
        "(`gate_fn=...`)"
    ),
    "y = nn.LSTMCell()(encode(\n    'a long name', of=x, and_of=y), x)": (
        "RC01: the carry is `encode( 'a long name', of=x, and_of=y)`: assign it to "
        "a variable first, and write `LSTMCell(carry[1].shape[-1])`"
    ),
    "y = nn.GRUCell()(encode('a very long name', of=x, and_of=y), x)": (
        "RC01: the carry is `encode('a very long name', of=x, and_...`: assign it "
        "to a variable first, and write `GRUCell(carry.shape[-1])`"
    ),
    "nn.GRUCell.initialize_carry(key, (2,), n, f(\n    a,  # or b\n  dtype=d\n))": (
        "RC02: `carry_init` is called with a key, a shape and a dtype: if `f( a, # or "
        "b dtype=d )` takes all three, pass `carry_init=f( a, # or b dtype=d )` to the "
        "cell"
    ),
    "y = nn.GRUCell()(*args)": (
        "RC01: the carry is `*args`: assign it to a variable first, and write "
        "`GRUCell(carry.shape[-1])`"
    ),
    "y = nn.GRUCell()()": (
        "RC01: the cell is called without a carry: write `GRUCell(features=...)`"
    ),
    "y = nn.vmap(nn.GRUCell, in_axes=1)()(h, x)": (
        "RC01: the last axis of its carry may be an axis of `nn.vmap`: write "
        "`GRUCell(features=...)` with the width of one cell"
    ),
    "nn.GRUCell.initialize_carry(k, (), 4)\ncell = nn.LSTMCell(**options)": (
        "RC01: `options` may hold `features`: if it does not, add it there or here"
    ),
    "nn.GRUCell.initialize_carry(k, (), 4)\ncell = nn.GRUCell(choose())": (
        "RC01: `choose()` may be `features` or a gate function: write `features=...`, "
        "and pass the function by keyword (`gate_fn=...`)"
    ),
    "C = {'a': nn.LSTMCell, 'b': nn.GRUCell}[name]\ncell = C()": (
        "RC01: `C` may be one of several classes of cells: pass `features=...`"
    ),
    "import dataclasses\nc = dataclasses.field(default_factory=nn.GRUCell)": (
        "RC01: `default_factory` constructs the cell without `features`: use a `lambda`"
    ),
    "C = {'a': nn.LSTMCell, 'b': nn.GRUCell}[name]\nC.initialize_carry(k, (), 4)": (
        "RC02: `C` may be one of several classes of cells: write `C(size, "
        "parent=None).initialize_carry(key, (*batch_dims, size))`"
    ),
    "nn.ConvLSTMCell.initialize_carry(k, (), size)": (
        "RC02: `nn.ConvLSTMCell` must be constructed first: write "
        "`nn.ConvLSTMCell(...)` with `features` and `kernel_size` and `parent=None`, "
        "then `.initialize_carry(key, (*batch_dims, *size))`"
    ),
    "nn.GRUCell.initialize_carry(*args)": (
        "RC02: not all arguments are known: write `nn.GRUCell(size, parent=None)"
        ".initialize_carry(key, (*batch_dims, size))`"
    ),
    "nn.GRUCell.initialize_carry(k, (), f())": (
        "RC02: `size` is `f()`, which would run twice: assign it to a variable first"
    ),
    "nn.GRUCell.initialize_carry(k, (), 4, nn.initializers.normal(f()))": (
        "RC02: `init_fn` is `nn.initializers.normal(f())`, which would run earlier: "
        "assign it to a variable first"
    ),
    "nn.GRUCell.initialize_carry(k, (), 4, init)": (
        "RC02: `carry_init` is called with a key, a shape and a dtype: if `init` takes "
        "all three, pass `carry_init=init` to the cell"
    ),
    "nn.GRUCell.initialize_carry(k, (), (4, 5))": (
        "RC02: `size` is the tuple (4, 5), but `GRUCell` takes one number: pass that "
        "as `features`"
    ),
    "nn.GRUCell.initialize_carry(k, (n := 4,), n)": (
        "RC02: `:=` binds a name in the arguments, whose order changes: do it before"
    ),
    "f = jax.vmap(nn.GRUCell.initialize_carry)": (
        "RC02: `initialize_carry` is passed on as a function: its arguments are now a "
        "key and one shape, (*batch_dims, size)"
    ),
    "score.initialize_carry(team, board, 3)": (
        "RC03: `score` may be a cell, a class of cells or something else: if it is a "
        "cell, write `score.initialize_carry(key, (*batch_dims, size))`"
    ),
    "Cell.initialize_carry(key, dims, 3)": (
        "RC03: `Cell` may be a class of cells or something else: if it is a class of "
        "cells, write `Cell(size, parent=None).initialize_carry(key, (*batch_dims, "
        "size))`"
    ),
    "cell = nn.GRUCell(4)\nc = cell.initialize_carry(k, (), 5)": (
        "RC03: the size `5` is given, but the cell `GRUCell(...)` is constructed with "
        "`features=4`: make both equal"
    ),
    "cell = nn.GRUCell(4)\nc = cell.initialize_carry(k, (), 4, init_fn=init)": (
        "RC03: `init_fn` is now `carry_init`, an argument of the cell: move it there"
    ),
    "cell = nn.GRUCell(4, param_dtype=d)\nc = cell.initialize_carry(k, (), 4)": (
        "RC03: the carry was in JAX's default float and now has the cell's "
        "`param_dtype`: if they differ, construct its cell with `param_dtype=float, "
        "parent=None`"
    ),
    "rnn = nn.RNN(make(), 4)": (
        "RC04: the size `4` is given, but the cell is constructed elsewhere or its "
        "`features` are not known: pass the size to the cell"
    ),
    "rnn = partial(nn.RNN, cell_size=4)": (
        "RC04: `cell_size=4` is given: pass it to the cell as `features`"
    ),
    "rnn = nn.RNN(nn.LSTMCell(8), 8)": (
        "RC12: the cell has `features`, so `8` sets `time_major`: delete it, or write "
        "`time_major=True`"
    ),
}


@pytest.mark.parametrize("code", TEXTS)
def test_a_mark_says_what_was_seen_and_what_to_write(code):
    made = migrate((HEAD + code).encode()).data.decode()
    marks = [line for line in made.splitlines() if line.startswith(MARK)]
    assert marks == [f"{MARK}{TEXTS[code]}"]


SOURCES = PROGRAMS | {what: HEAD + old for what, (old, _) in CASES.items()}


def statement_at(tree, number):
    """Returns the innermost statement on a line."""
    statements = [node for node in ast.walk(tree) if isinstance(node, ast.stmt)]
    around = [node for node in statements if node.lineno <= number <= node.end_lineno]
    return max(around, key=lambda node: node.lineno)


@pytest.mark.parametrize("to", ["flax", "rnncells"])
@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_marks_stand_above_the_lines_in_notes(source, to):
    migration = migrate(source.encode(), to)
    lines = migration.data.decode().split("\n")
    tree = ast.parse(migration.data)
    for note in migration.notes:
        if note.why:
            first = number = statement_at(tree, note.line_after).lineno
            while lines[number - 2].lstrip().startswith("#"):
                number -= 1
            marks = [line.strip() for line in lines[number - 1 : first - 1]]
            assert f"# TODO(rnncells): {note.rule}: {note.why}" in marks


OWN = """\
from flax.linen import RNNCellBase


class Own(RNNCellBase):
    @staticmethod
    def initialize_carry(rng, batch_dims, size):
        return jnp.ones(batch_dims + (size,))
"""


@pytest.mark.parametrize("to", ["flax", "rnncells"])
def test_a_mark_is_deleted_when_its_place_is_rewritten(to):
    marked = migrate(OWN.encode(), to).data
    assert b"# TODO(rnncells): RC06: it needs `nn.nowrap`" in marked
    assert migrate(marked, to).data is marked

    done = b"import flax.linen as nn\n"
    once, again = (migrate(done + data, to) for data in (OWN.encode(), marked))
    assert once.data == again.data and b"TODO" not in again.data
    assert "RC06" in {note.rule for note in again.notes if not note.why}


@st.composite
def edited(draw):
    """A file of comments, and edits that do not overlap or split a line ending."""
    newline = draw(st.sampled_from(["\n", "\r\n"]))
    lines = st.lists(st.sampled_from(["", "#", "# a", "# line"]), min_size=1)
    data = newline.join(draw(lines)).encode()
    within = [at for at in range(len(data) + 1) if data[at - 1 : at + 1] != b"\r\n"]
    ends = sorted(draw(st.lists(st.sampled_from(within), max_size=8)))
    texts = st.sampled_from(["", "# new", newline, f"# {newline}", newline + newline])
    edits = [
        Edit(start, end, draw(texts))
        for start, end in zip(ends[::2], ends[1::2], strict=False)
    ]
    return Source(data), edits


@settings(deadline=None)
@given(edited())
def test_lines_after_edits_are_where_their_first_byte_is(case):
    """A deleted line is where its replacement is."""
    source, edits = case
    new, at = b"", 0
    # The positions that each byte of the old file may have in the new one.
    places = []
    for edit in [*edits, Edit(len(source.data), len(source.data), "")]:
        kept = source.data[at : edit.start]
        places += [(len(new) + k, len(new) + k) for k in range(len(kept))]
        new += kept
        after = len(new) + len(edit.text.encode())
        places += [(len(new), after)] * (edit.end - edit.start)
        new += edit.text.encode()
        at = edit.end
    places.append((len(new), len(new)))
    assert new == apply(source, edits)
    numbers = lines_after(source, edits)
    assert len(numbers) == len(source.line_starts)
    for number, start in zip(numbers, source.line_starts, strict=True):
        first, last = places[start]
        assert new.count(b"\n", 0, first) < number <= 1 + new.count(b"\n", 0, last)
