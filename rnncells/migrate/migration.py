"""A file by all rules: what it becomes, and what a person has to look at."""

import ast
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from functools import partial

from rnncells.migrate.code.program import Program
from rnncells.migrate.code.source import Edit, Source, apply, lines_after
from rnncells.migrate.code.widths import Widths
from rnncells.migrate.rules import (
    carry_only,
    imports,
    layers,
    old_names,
    own_cells,
    rewrites,
)
from rnncells.migrate.rules.finding import IN_STRING, MARK, ONLY_MARKED, Finding

# A file without any of these has nothing to do with cells.
WORDS = re.compile(
    rb"initialize_carry|LSTMCell|GRUCell|ConvLSTM|RNNCellBase|\bRNN\b|rnncells"
)
LIBRARY = re.compile(rb"flax|rnncells")
# The rules of forms that the shim runs and Flax does not, and marks of them.
OLD_FORMS = {f"RC0{number}" for number in range(1, 7)}
OLD_MARK = re.compile(rf"#\s*{re.escape(MARK)}: ({'|'.join(sorted(OLD_FORMS))})")
STILL_OLD = (
    "old forms are left in the file, which only the shim runs: resolve the other "
    "marks, then run the codemod again"
)


@dataclass(frozen=True)
class Note:
    """A finding, as it is told.

    Attributes:
      line: of the file before.
      rule: a name in `RULES`.
      why: why a person has to look; empty where the file was changed.
      line_after: of the file that it becomes.
    """

    line: int
    rule: str
    why: str
    line_after: int = 0


@dataclass(frozen=True)
class Migration:
    """What a file becomes.

    Attributes:
      data: its bytes; the same object where nothing changes.
      notes: what was found.
      cells: names of classes of cells that get `features`, and a carry by an instance.
    """

    data: bytes
    notes: tuple[Note, ...] = ()
    cells: tuple[str, ...] = ()


def migrate(
    data: bytes, to: str = "flax", rules: Collection[str] | None = None
) -> Migration:
    """Returns what a file becomes.

    Args:
      data: the file.
      to: `"flax"`, or `"rnncells"` to import recurrent names from this library.
      rules: those that are applied; None: all.

    Raises:
      SyntaxError: it is not Python.
    """
    if not is_about_cells(data):
        return Migration(data)
    program, found, gone = Program(Source(data)), [], set()
    # They go first, each by itself: other rules look at the names that they change, and
    # no line becomes two.
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
        # Last: names move in copies too, and notes have the lines of the file before.
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
    """Returns the findings that a user wants, without edits in f-strings."""
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
    # One reason against moving imports is told once a file, at its first line.
    first: dict[str, Finding] = {}
    for finding in sorted(kept, key=lambda finding: finding.node.lineno):
        if finding.rule == "RC09" and finding.why:
            first.setdefault(finding.why, finding)
    return [f for f in kept if f.rule != "RC09" or first.get(f.why, f) is f]


def is_left(program: Program, finding: Finding) -> bool:
    """Says whether a place was left once, and stays until a person has looked at it."""
    is_edited = finding.rule == "RC01" and not finding.why
    return is_edited and mark_of(program, finding) > 0


def rewritten(
    program: Program, found: list[Finding], gone: Collection[int]
) -> tuple[bytes, list[int]]:
    """Returns a file by what was found in it, and the new number of each line.

    Args:
      program: the file.
      found: what was found.
      gone: lines that go.

    Raises:
      ValueError: it is no Python.
    """
    starts = [*program.source.line_starts, len(program.source.data)]
    edits = [Edit(starts[number - 1], starts[number], "") for number in gone]
    edits += [edit for finding in found for edit in finding.edits]
    edits += marks(program, [finding for finding in found if finding.why])
    new = apply(program.source, edits)
    try:
        ast.parse(new)
    except SyntaxError as error:
        raise ValueError(
            f"its rewriting is no Python, {error}: please report"
        ) from error
    return new, lines_after(program.source, edits)


def findings(program: Program, to: str, rules: Collection[str] | None) -> list[Finding]:
    """Returns what all rules find, but for names that move to this library."""

    def by_name(named: Program) -> list[Finding]:
        moved = imports.to_rnncells(named) if to == "rnncells" else ()
        return [*of_cells(named), *of_shim(named, rules), *moved]

    stars = imports.of_stars(program, by_name)
    return [*stars, *of_cells(program), *of_shim(program, rules)]


def of_shim(program: Program, rules: Collection[str] | None) -> list[Finding]:
    """Returns what becomes of the shim's names: they stay while old forms do."""
    found = list(imports.from_shim(program))
    if not found:
        return []
    old = [finding for finding in of_cells(program) if finding.rule in OLD_FORMS]
    new = [
        f for f in chosen(program, old, rules) if f.edits and not is_left(program, f)
    ]
    marked = {
        number
        for number in range(1, len(program.source.line_starts) + 1)
        if OLD_MARK.search(program.source.line(number))
    }
    is_done = len(new) == len(old) and not marked - marks_done(program, new)
    if is_done and b"segmentation_mask" not in program.source.data:
        return found
    return [replace(f, edits=[], why=f.why or STILL_OLD) for f in found]


def of_cells(program: Program) -> list[Finding]:
    """Returns what rules find; edits at one place in the order in which they go."""
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


def mark_of(program: Program, finding: Finding) -> int:
    """Returns the line of the mark of a finding's rule above its statement; or 0."""
    source, number = program.source, line_of_mark(program, finding.node) - 1
    while source.line(number).lstrip().startswith("#"):
        if f"{MARK}: {finding.rule}" in source.line(number):
            return number
        number -= 1
    return 0


def marks_done(program: Program, found: list[Finding]) -> set[int]:
    """Returns the lines of marks above what is rewritten now."""
    done = {mark_of(program, finding) for finding in found if finding.edits}
    return done - {mark_of(program, finding) for finding in found if finding.why} - {0}


def line_of_mark(program: Program, node: ast.AST) -> int:
    """Returns the first line of a statement, above which marks stand."""
    statement = program.source.statement(node)
    return program.source.first_line(min(statement.lineno, node.lineno))


def marks(program: Program, found: list[Finding]) -> list[Edit]:
    """Returns the edits that put comments above statements, but for those there."""
    source, made = program.source, {}
    for finding in found:
        if not mark_of(program, finding):
            number = line_of_mark(program, finding.node)
            made.setdefault((number, finding.rule), finding.why)
    edits = []
    for (number, rule), why in made.items():
        at = source.line_starts[number - 1]
        text = f"{source.indent(number)}# {MARK}: {rule}: {why}{source.newline}"
        edits.append(Edit(at, at, text))
    return edits
