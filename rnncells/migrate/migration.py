"""A file by all rules: what it becomes, and what a person has to look at."""

import ast
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from rnncells.migrate.code.program import Program
from rnncells.migrate.code.source import Edit, Source, apply
from rnncells.migrate.code.widths import Widths
from rnncells.migrate.rules import (
    half_migrated,
    imports,
    old_names,
    own_cells,
    rewrites,
)
from rnncells.migrate.rules.finding import IN_STRING, ONLY_MARKED, Finding

# A file without any of these has nothing to do with cells.
WORDS = re.compile(
    rb"initialize_carry|LSTMCell|GRUCell|ConvLSTM|RNNCellBase|\bRNN\b|segmentation_mask"
    rb"|rnncells|_select_last"
)
LIBRARY = re.compile(rb"flax|rnncells")
MARK = "TODO(rnncells)"
# They go first, each by itself: other rules look at the names that they change, and no
# line becomes two.
RENAMINGS = (old_names.conv_lstm, imports.from_shim)


@dataclass(frozen=True)
class Note:
    """A finding, as it is told.

    Attributes:
      line: of the file before.
      rule: a name in `RULES`.
      why: why a person has to look; empty where the file was changed.
    """

    line: int
    rule: str
    why: str


@dataclass(frozen=True)
class Migration:
    """What a file becomes.

    Attributes:
      data: its bytes; the same object where nothing changes.
      notes: what was found.
    """

    data: bytes
    notes: tuple[Note, ...] = ()


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
    if not (WORDS.search(data) and LIBRARY.search(data)):
        return Migration(data)
    program, found = Program(Source(data)), []
    for rule in RENAMINGS:
        renamed = [f for f in chosen(program, rule(program), rules) if f.edits]
        if renamed:
            edits = [edit for finding in renamed for edit in finding.edits]
            program = Program(Source(apply(program.source, edits)))
            found += renamed
    rest = chosen(program, findings(program, to), rules)
    # What was left once stays, until a person has looked at it.
    rest = [f for f in rest if f.why or f.rule != "RC01" or not is_marked(program, f)]
    found += rest
    if to == "rnncells":
        found += chosen(program, imports.to_rnncells(program), rules)
    if not found:
        return Migration(data)
    new = rewritten(program, rest)
    if to == "rnncells":
        # Last: names move in copies too, and notes have the lines of the file before.
        program = Program(Source(new))
        moved = chosen(program, imports.to_rnncells(program), rules)
        new = rewritten(program, moved)
    notes = dict.fromkeys(Note(f.node.lineno, f.rule, f.why) for f in found)
    return Migration(
        data if new == data else new, tuple(sorted(notes, key=lambda n: n.line))
    )


def chosen(
    program: Program, found: Iterable[Finding], rules: Collection[str] | None
) -> list[Finding]:
    """Returns the findings that a user wants, without edits in f-strings."""
    source = program.source
    return [
        replace(finding, edits=[], why=IN_STRING)
        if source.is_in_string(finding.node) and finding.rule not in ONLY_MARKED
        else finding
        for finding in found
        if (rules is None or finding.rule in rules)
        and (rules is None or set(finding.needs) <= set(rules))
        and not source.is_skipped(finding.node)
    ]


def rewritten(program: Program, found: list[Finding]) -> bytes:
    """Returns a file by what was found in it.

    Raises:
      ValueError: it is no Python.
    """
    edits = [edit for finding in found for edit in finding.edits]
    edits += marks(program, [finding for finding in found if finding.why])
    new = apply(program.source, edits)
    try:
        ast.parse(new)
    except SyntaxError as error:
        raise ValueError(
            f"its rewriting is no Python, {error}: please report"
        ) from error
    return new


def findings(program: Program, to: str) -> list[Finding]:
    """Returns what all rules find, but for names that move to this library."""

    def by_name(named: Program) -> list[Finding]:
        moved = imports.to_rnncells(named) if to == "rnncells" else ()
        return [*of_rules(named), *moved]

    return [*imports.of_stars(program, by_name), *of_rules(program)]


def of_rules(program: Program) -> list[Finding]:
    """Returns what rules find; edits at one place in the order in which they go."""
    widths = Widths(program)
    return [
        *(finding for rule in RENAMINGS for finding in rule(program)),
        *own_cells.classes(program),
        *rewrites.features(program, widths),
        *rewrites.carries(program, widths),
        *rewrites.references(program),
        *rewrites.layers(program, widths),
        *rewrites.masks(program),
        *half_migrated.batch_alone(program),
        *half_migrated.carry_only_cells(program),
        *half_migrated.private_names(program),
    ]


def is_marked(program: Program, finding: Finding) -> bool:
    """Says whether a mark of a finding's rule stands above its statement."""
    source, number = program.source, line_of_mark(program, finding.node) - 1
    while source.line(number).lstrip().startswith("#"):
        if f"{MARK}: {finding.rule}" in source.line(number):
            return True
        number -= 1
    return False


def line_of_mark(program: Program, node: ast.AST) -> int:
    """Returns the first line of a statement, above which marks stand."""
    statement = program.source.statement(node)
    return program.source.first_line(min(statement.lineno, node.lineno))


def marks(program: Program, found: list[Finding]) -> list[Edit]:
    """Returns the edits that put comments above statements, but for those there."""
    source, made = program.source, {}
    for finding in found:
        if not is_marked(program, finding):
            number = line_of_mark(program, finding.node)
            made.setdefault((number, finding.rule), finding.why)
    edits = []
    for (number, rule), why in made.items():
        at = source.line_starts[number - 1]
        text = f"{source.indent(number)}# {MARK}: {rule}: {why}{source.newline}"
        edits.append(Edit(at, at, text))
    return edits
