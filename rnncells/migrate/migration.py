"""The rewrite of one file by all rules."""

import ast
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from functools import partial

from rnncells.migrate.code.program import Program
from rnncells.migrate.code.source import Edit, Source, apply, lines_after
from rnncells.migrate.code.widths import Widths
from rnncells.migrate.mark_comments import mark_of, marks_done, new_marks
from rnncells.migrate.rules import (
    carry_only,
    imports,
    layers,
    old_names,
    own_cells,
    rewrites,
)
from rnncells.migrate.rules.finding import IN_STRING, ONLY_MARKED, Finding

# A file without any of these words does not use cells.
WORDS = re.compile(
    rb"initialize_carry|LSTMCell|GRUCell|ConvLSTM|RNNCellBase|\bRNN\b|rnncells"
)
LIBRARY = re.compile(rb"flax|rnncells")
# The rules for forms that only the shim runs.
OLD_FORMS = {f"RC0{number}" for number in range(1, 7)}
STILL_OLD = (
    "old forms are left in the file, which only the shim runs: resolve the other "
    "marks, then run the codemod again"
)
WITH_MASKS = (
    "only the shim has `segmentation_mask`: write `seq_lengths=mask.sum(-1)`, then run "
    "the codemod again"
)


@dataclass(frozen=True)
class Note:
    """A finding in the summary.

    Attributes:
      line: the line number in the old file.
      rule: a key of `RULES`.
      why: the text of the mark; "" if the place was rewritten.
      line_after: the line number in the new file.
    """

    line: int
    rule: str
    why: str
    line_after: int = 0


@dataclass(frozen=True)
class Migration:
    """The rewrite of a file.

    Attributes:
      data: the new bytes; the same object if nothing changes.
      notes: the findings.
      cells: names of the user's cell classes that RC06 rewrites.
    """

    data: bytes
    notes: tuple[Note, ...] = ()
    cells: tuple[str, ...] = ()


def migrate(
    data: bytes, to: str = "flax", rules: Collection[str] | None = None
) -> Migration:
    """Rewrites a file.

    Args:
      data: the bytes of the file.
      to: `"flax"`, or `"rnncells"` to import recurrent names from this library.
      rules: the rules to apply; None for all.

    Raises:
      SyntaxError: the file is not Python.
    """
    if not is_about_cells(data):
        return Migration(data)
    program, found, gone = Program(Source(data)), [], set()
    # These rules run first and one by one: the others depend on the names that they
    # change, and they add no lines.
    for rule in (old_names.conv_lstm, partial(of_shim, rules=rules)):
        renamed = [f for f in chosen(program, rule(program), rules) if f.edits]
        if renamed:
            gone |= marks_done(program, renamed)
            edits = [edit for finding in renamed for edit in finding.edits]
            program = Program(Source(apply(program.source, edits)))
            found += renamed
    rest = chosen(program, findings(program, to, rules), rules)
    found += rest
    gone |= marks_done(program, rest)
    if to == "rnncells":
        found += chosen(program, imports.to_rnncells(program), rules)
    if not found:
        return Migration(data)
    new, lines = rewritten(program, rest, gone)
    if to == "rnncells":
        # Imports move last, because rewrites copy names; notes have the old lines.
        program = Program(Source(new))
        moved = chosen(program, imports.to_rnncells(program), rules)
        new, then = rewritten(program, moved, marks_done(program, moved))
        lines = [then[line - 1] for line in lines]
    notes = dict.fromkeys(
        Note(f.node.lineno, f.rule, f.why, lines[f.node.lineno - 1]) for f in found
    )
    return Migration(
        data if new == data else new,
        tuple(sorted(notes, key=lambda note: note.line)),
        tuple(f.of_class for f in found if f.edits and f.of_class),
    )


def is_about_cells(data: bytes) -> bool:
    """Returns whether code may use recurrent cells of Flax or of rnncells."""
    return bool(WORDS.search(data) and LIBRARY.search(data))


def chosen(
    program: Program, found: Iterable[Finding], rules: Collection[str] | None
) -> list[Finding]:
    """Returns the findings of selected rules, without skipped lines and f-strings."""
    source = program.source
    kept = [
        replace(finding, edits=[], why=IN_STRING)
        if source.is_in_string(finding.node) and finding.rule not in ONLY_MARKED
        else finding
        for finding in found
        if (rules is None or finding.rule in rules)
        and not source.is_skipped(finding.node)
        and not is_left(program, finding)
    ]
    size = None
    while size != len(kept):
        size, done = len(kept), {(f.rule, f.node) for f in kept if f.edits}
        kept = [f for f in kept if not f.edits or done.issuperset(f.needs)]
    return imports.each_reason_once(kept)


def is_left(program: Program, finding: Finding) -> bool:
    """Returns whether an earlier run marked a place that a rewrite would change now."""
    is_edited = finding.rule == "RC01" and not finding.why
    return is_edited and mark_of(program, finding) > 0


def rewritten(
    program: Program, found: list[Finding], gone: Collection[int]
) -> tuple[bytes, list[int]]:
    """Returns the new file, and the new number of each line.

    Args:
      program: the file.
      found: the findings.
      gone: the numbers of lines to delete.

    Raises:
      ValueError: the new file is not Python.
    """
    starts = [*program.source.line_starts, len(program.source.data)]
    edits = [Edit(starts[number - 1], starts[number], "") for number in gone]
    edits += [edit for finding in found for edit in finding.edits]
    edits += new_marks(program, [finding for finding in found if finding.why])
    new = apply(program.source, edits)
    try:
        ast.parse(new)
    except SyntaxError as error:
        raise ValueError(
            f"the rewritten file is not Python ({error}): please report this"
        ) from error
    return new, lines_after(program.source, edits)


def findings(program: Program, to: str, rules: Collection[str] | None) -> list[Finding]:
    """Returns the findings of all rules except moves of imports to this library."""

    def by_name(named: Program) -> list[Finding]:
        moved = imports.to_rnncells(named) if to == "rnncells" else ()
        return [*of_cells(named), *of_shim(named, rules), *moved]

    stars = imports.of_stars(program, by_name)
    return [*stars, *of_cells(program), *of_shim(program, rules)]


def of_shim(program: Program, rules: Collection[str] | None) -> list[Finding]:
    """Returns the findings for imports of the shim, which stays with old forms."""
    found = list(imports.from_shim(program))
    if not found:
        return []
    old = [finding for finding in of_cells(program) if finding.rule in OLD_FORMS]
    new = [
        f for f in chosen(program, old, rules) if f.edits and not is_left(program, f)
    ]
    marks = program.source.marks
    marked = {number for number, rule in marks.items() if rule in OLD_FORMS}
    if len(new) < len(old) or marked - marks_done(program, new):
        why = STILL_OLD
    elif b"segmentation_mask" in program.source.data:
        why = WITH_MASKS
    else:
        return found
    return [replace(f, edits=[], why=f.why or why) for f in found]


def of_cells(program: Program) -> list[Finding]:
    """Returns findings about cells; edits at one position in their final order."""
    widths = Widths(program)
    return [
        *old_names.conv_lstm(program),
        *own_cells.classes(program),
        *rewrites.features(program, widths),
        *rewrites.carries(program, widths),
        *rewrites.references(program),
        *layers.layers(program, widths),
        *carry_only.cells(program),
    ]
