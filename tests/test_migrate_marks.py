"""Marks, and the lines that are named: of the file before, and of what it becomes."""

import ast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import PROGRAMS
from test_migrate import CASES, HEAD

from rnncells.migrate.code.source import Edit, Source, apply, lines_after
from rnncells.migrate.migration import migrate

SOURCES = PROGRAMS | {what: HEAD + old for what, (old, _) in CASES.items()}


def statement_at(tree, number):
    """Returns the innermost statement on a line."""
    statements = [node for node in ast.walk(tree) if isinstance(node, ast.stmt)]
    around = [node for node in statements if node.lineno <= number <= node.end_lineno]
    return max(around, key=lambda node: node.lineno)


@pytest.mark.parametrize("to", ["flax", "rnncells"])
@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_marks_stand_above_the_lines_after(source, to):
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
def test_a_mark_goes_when_its_place_is_rewritten(to):
    marked = migrate(OWN.encode(), to).data
    assert b"# TODO(rnncells): RC06: it needs `nn.nowrap`" in marked
    assert migrate(marked, to).data is marked

    done = b"import flax.linen as nn\n"
    once, again = (migrate(done + data, to) for data in (OWN.encode(), marked))
    assert once.data == again.data and b"TODO" not in again.data
    assert "RC06" in {note.rule for note in again.notes if not note.why}


@st.composite
def edited(draw):
    """A file of comments, and edits that neither overlap nor part a line's end."""
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
def test_lines_after_are_where_their_first_bytes_are(case):
    """Those that go are where what stands for them is."""
    source, edits = case
    new, at = b"", 0
    # The places, in the new file, that each byte of the old one may have.
    places = []
    for edit in [*edits, Edit(len(source.data), len(source.data), "")]:
        kept = source.data[at : edit.start]
        places += [(len(new) + k, len(new) + k) for k in range(len(kept))]
        new += kept
        behind = len(new) + len(edit.text.encode())
        places += [(len(new), behind)] * (edit.end - edit.start)
        new += edit.text.encode()
        at = edit.end
    places.append((len(new), len(new)))
    assert new == apply(source, edits)
    numbers = lines_after(source, edits)
    assert len(numbers) == len(source.line_starts)
    for number, start in zip(numbers, source.line_starts, strict=True):
        first, last = places[start]
        assert new.count(b"\n", 0, first) < number <= 1 + new.count(b"\n", 0, last)
