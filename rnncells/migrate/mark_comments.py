"""The comments that mark lines: where they stand, and which to add and to delete."""

import ast

from rnncells.migrate.code.program import Program
from rnncells.migrate.code.source import MARK, Edit
from rnncells.migrate.rules.finding import Finding


def mark_of(program: Program, finding: Finding) -> int:
    """Returns the line of a finding's mark above its statement, or 0."""
    source, number = program.source, line_of_mark(program, finding.node) - 1
    while source.line(number).lstrip().startswith("#"):
        if source.marks.get(number) == finding.rule:
            return number
        number -= 1
    return 0


def marks_done(program: Program, found: list[Finding]) -> set[int]:
    """Returns the lines of marks above places that are rewritten now."""
    done = {mark_of(program, finding) for finding in found if finding.edits}
    return done - {mark_of(program, finding) for finding in found if finding.why} - {0}


def line_of_mark(program: Program, node: ast.AST) -> int:
    """Returns the line above which marks of a node stand."""
    statement = program.source.statement(node)
    return program.source.first_line(min(statement.lineno, node.lineno))


def new_marks(program: Program, found: list[Finding]) -> list[Edit]:
    """Returns the edits that add marks, except marks that exist already."""
    source = program.source
    made: dict[tuple[int, str], str] = {}
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
